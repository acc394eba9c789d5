"""Jobs that must begin in time, given to a process that stands still, or whose loop hangs."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.process.conftest import Fleet, Member

KEYS = [f"k{n}" for n in range(5)]


def late(fleet: Fleet, client: Member, handler: str, *args: object, **options: float) -> list[str]:
    """Dispatch jobs that must begin in time; return what becomes of each."""
    calls = [[key, *args] for key in KEYS]
    jobs = fleet.ask(client, "dispatch", handler=handler, calls=calls, delay_s=0.0, **options)
    told = fleet.results(client, dict(zip(KEYS, jobs, strict=True)))
    return sorted(told.values())


def test_what_was_given_to_a_process_that_stands_still_ends_in_time(fleet: Fleet) -> None:
    """G-02, G-05: it is not taken for dead, so what it may have begun is left to it: nothing."""
    fleet.ttl_s = 20.0
    client = fleet.start("client", is_client=True)[0]
    frozen = fleet.start("a")[0]
    frozen.signal(signal.SIGSTOP)
    try:
        assert late(fleet, client, "nap", 0.0, expires_s=1.0) == ["!POOLTOOLATE"] * len(KEYS)
        ends = late(fleet, client, "stubborn", "gate", start_timeout_s=1.0)  # it has one attempt
        assert ends == ["!POOLPARKED"] * len(KEYS)
    finally:
        frozen.signal(signal.SIGCONT)
    again = fleet.dispatch(client, "nap", KEYS, 0.0)
    fleet.results(client, again)
    assert {run.job for run in fleet.runs(KEYS)} == {*again.values()}, "those of before never began"
    fleet.is_sound(frozen=[frozen])


def test_what_was_given_to_a_loop_that_hangs_ends_in_time(fleet: Fleet) -> None:
    fleet.ttl_s = 20.0
    client = fleet.start("client", is_client=True)[0]
    fleet.start("a", on_overrun="report")
    stuck = fleet.dispatch(client, "stuck", ["stuck"], 4.0)
    fleet.are_running(["stuck"])
    assert late(fleet, client, "nap", 0.0, expires_s=1.0) == ["!POOLTOOLATE"] * len(KEYS)
    assert fleet.results(client, stuck)
    again = fleet.dispatch(client, "nap", KEYS, 0.0)
    fleet.results(client, again)
    assert {run.job for run in fleet.runs(KEYS)} == {*again.values()}, "those of before never began"
    fleet.is_sound()
