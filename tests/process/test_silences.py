"""A server that falls silent again and again: who died is taken over all the same."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.process.conftest import Figures, Fleet, MakeFleet, Member

TAKEN_S = 3.0  # beyond the TTL: 1 s by G-06, and the rest for a machine that does more than this
KEYS = [f"clock-{number}" for number in range(18)]


def be_silent(fleet: Fleet, since_s: float, seconds: float) -> tuple[float, float]:
    """Have the server stand still from then on; return from when to when it did."""
    fleet.passes(since_s, seconds)
    began_s = fleet.now_s()
    os.kill(fleet.server.pid, signal.SIGSTOP)
    try:
        fleet.passes(began_s, seconds)
    finally:
        os.kill(fleet.server.pid, signal.SIGCONT)
    return began_s, fleet.now_s()


def started_s(fleet: Fleet, keys: set[str], but: Member, since_s: float) -> dict[str, float]:
    """Return when each of these began elsewhere, of those that did."""
    starts: dict[str, float] = {}
    for run in fleet.runs(keys):
        if run.node != but.name and run.began_s > since_s:
            starts.setdefault(run.key, run.began_s)
    return starts


def test_silences_put_a_takeover_off_by_no_more_than_themselves(
    make_fleet: MakeFleet, figures: Figures
) -> None:
    """G-06 (K2): half of each TTL the server stands still.  Each silence had given everybody, the
    dead one too, a whole new TTL: it was never taken over.
    """
    fleet = make_fleet(ttl_s=3.0)
    victim, *_ = fleet.start("a", "b", "c")
    fleet.dispatch(victim, "clock", KEYS)
    fleet.are_running(KEYS)
    its = {run.key for run in fleet.alive(KEYS).values() if run.node == victim.name}
    assert its
    fleet.passes(fleet.now_s(), 1.5 * fleet.ttl_s)  # the server is known by now
    died_s = now_s = fleet.kill(victim)
    silences = list[tuple[float, float]]()
    while len(started_s(fleet, its, victim, died_s)) < len(its) and len(silences) < 8:
        silences.append(be_silent(fleet, now_s, 0.5 * fleet.ttl_s))
        now_s = silences[-1][1]
    starts = started_s(fleet, its, victim, died_s)
    assert len(starts) == len(its), "never taken over"
    last_s = max(starts.values())
    silent_s = sum(min(end, last_s) - began for began, end in silences if began < last_s)
    took_s = fleet._watch.took_s(died_s, last_s)  # the machine's part alone is taken off
    figures("takeover", [last_s - died_s])
    assert took_s <= fleet.ttl_s + TAKEN_S + silent_s
    fleet.are_running(KEYS)
    fleet.is_sound()
