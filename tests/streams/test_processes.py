"""Consumers as real processes, killed and frozen; what they did is counted outside Redis."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import attrs
import pytest

if TYPE_CHECKING:
    from tests.streams.conftest import Bench

TTL_S = 1.0
LONG_TTL_S = 5.0  # of which a busy machine takes no three quarters: none lapses that lives
PATIENCE_S = 120.0  # for some starts of processes, too: only that nothing hangs
EVENTS = 400
KILLS = 12


@attrs.define(eq=False)
class Crowd:
    """Consumers, and the file in which they say what they did."""

    bench: Bench
    ledger: Path
    deliveries_max: int = 10_000
    ttl_s: float = TTL_S
    members: list[subprocess.Popen[bytes]] = attrs.field(factory=list)

    def start(self) -> subprocess.Popen[bytes]:
        program = Path(__file__).with_name("consumer.py")
        root = Path(__file__).parents[2]
        with self.ledger.open("ab") as out:
            member = subprocess.Popen(
                [
                    *(sys.executable, str(program), self.bench.url, self.bench.pool),
                    *(str(self.ttl_s), str(self.deliveries_max)),
                ],
                stdout=out,
                env={**os.environ, "PYTHONPATH": str(root)},
            )
        self.members.append(member)
        self.until(lambda: ["open", str(member.pid)] in self.lines())
        return member

    def kill(self, member: subprocess.Popen[bytes]) -> None:
        member.kill()
        member.wait()
        self.members.remove(member)

    def lines(self) -> list[list[str]]:
        text = self.ledger.read_text() if self.ledger.exists() else ""
        return [line.split() for line in text.splitlines()]

    def said(self, what: str) -> list[int]:
        return [int(words[2]) for words in self.lines() if words[0] == what]

    def look_after(self) -> None:
        assert all(member.poll() is None for member in self.members)

    def until(self, is_so: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < deadline_s, self.ledger.read_text()[-2000:]
            self.look_after()
            time.sleep(0.02)  # noqa: TID251 - other processes have no event to wait for


C = TypeVar("C", bound=Crowd)


@pytest.fixture
def crowd(bench: Bench, tmp_path: Path) -> Iterator[Crowd]:
    with _crowd(Crowd(bench, tmp_path / "ledger")) as crowd:
        yield crowd


@contextmanager
def _crowd(crowd: C) -> Iterator[C]:
    try:
        yield crowd
    finally:
        for member in list(crowd.members):
            member.send_signal(signal.SIGCONT)
            crowd.kill(member)


def test_consumers_killed_in_a_loop_lose_nothing(crowd: Crowd) -> None:
    """Every event is acknowledged by somebody who had handled it before."""
    bench, dice = crowd.bench, random.Random(7)
    for _ in range(3):
        crowd.start()
    sent = 0
    for _ in range(KILLS):
        handled = len(crowd.said("handled"))
        for _ in range(EVENTS // KILLS):
            bench.put(sent)
            sent += 1
        crowd.until(lambda: len(crowd.said("handled")) > handled + dice.randrange(20))  # noqa: B023
        crowd.kill(dice.choice(crowd.members))
        crowd.start()
    crowd.until(lambda: set(crowd.said("handled")) == {*range(sent)})
    crowd.until(lambda: not bench.pending())
    assert {*crowd.said("acknowledged")} <= {*range(sent)}
    [info] = bench.client.xinfo_groups(bench.key)
    assert info["lag"] in (0, None)
    crowd.until(lambda: len(bench.consumers()) == 3)
    # A killed consumer had at most one event in hand and a buffer of 8: the rest came once.
    again = len(crowd.said("handled")) - sent
    assert again <= KILLS * 9


def test_a_frozen_consumer_that_thaws_loses_nothing_and_harms_nobody(crowd: Crowd) -> None:
    """Past its lease others have what it held; what it still does changes nothing for them."""
    bench = crowd.bench
    frozen = crowd.start()
    for n in range(20):
        bench.put(n)
    crowd.until(lambda: len(crowd.said("handled")) >= 5)
    frozen.send_signal(signal.SIGSTOP)
    for n in range(20, 60):
        bench.put(n)
    other = crowd.start()
    crowd.until(lambda: set(crowd.said("handled")) == {*range(60)})
    crowd.until(lambda: not bench.pending())
    frozen.send_signal(signal.SIGCONT)
    for n in range(60, 100):
        bench.put(n)
    crowd.until(lambda: set(crowd.said("handled")) == {*range(100)})
    crowd.until(lambda: not bench.pending())
    crowd.kill(other)
    bench.put(100)
    crowd.until(lambda: 100 in crowd.said("acknowledged"))


@attrs.define(eq=False)
class Mortals(Crowd):
    """Consumers that are started again when they have died of an event.

    The time of the dead is ended by hand: the living have long leases.
    """

    deaths: int = 0
    ttl_s: float = LONG_TTL_S

    def look_after(self) -> None:
        dead = [member for member in self.members if member.poll() is not None]
        self.members = [member for member in self.members if member not in dead]
        self.deaths += len(dead)
        names = {words[1]: words[2] for words in self.lines() if words[0] == "is"}
        for member in dead:
            if name := names.get(str(member.pid)):
                self.bench.end_time(name)
            self.start()


@pytest.mark.parametrize("at", [0, 5, 30])
def test_an_event_that_kills_is_parked_alone(bench: Bench, tmp_path: Path, at: int) -> None:
    """G1: the others that were held beside it were in nobody's hands; none is given again."""
    with _crowd(Mortals(bench, tmp_path / "ledger", deliveries_max=3)) as crowd:
        numbers = [*range(60)]
        for n in [*numbers[:at], -1, *numbers[at:]]:
            bench.put(n)
        crowd.start()
        crowd.until(lambda: not bench.pending() and set(crowd.said("acknowledged")) == {*numbers})
        parked = bench.client.xrange(bench.control.sink_parked("orders", "billing"))
        assert [entry[b"p"] for _, entry in parked] == [b"-1"]
        assert sorted(crowd.said("acknowledged")) == numbers
        assert sorted(n for n in crowd.said("handled") if n >= 0) == numbers
        # The first one dies before it could say that it has it in hand.
        assert crowd.deaths in (3, 4)


def test_several_events_that_kill_are_parked_and_nothing_else(bench: Bench, tmp_path: Path) -> None:
    with _crowd(Mortals(bench, tmp_path / "ledger", deliveries_max=2)) as crowd:
        for n in range(60):
            bench.put(-1 if n % 20 == 7 else n)
        innocent = {n for n in range(60) if n % 20 != 7}
        for _ in range(2):
            crowd.start()
        crowd.until(lambda: not bench.pending() and set(crowd.said("acknowledged")) == innocent)
        parked = bench.client.xrange(bench.control.sink_parked("orders", "billing"))
        assert [entry[b"p"] for _, entry in parked] == [b"-1"] * 3
        assert crowd.deaths <= 3 * 3
