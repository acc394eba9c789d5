"""The roster reads each entry of the map once, and only when somebody asks."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from pool.jobs.roster import SHUTDOWN_KEY, Roster, WorkerEntry
from pool.maps.deltas import Value


def worker(name: str, **changes: Any) -> WorkerEntry:
    info = WorkerEntry(
        id=name,
        node="n1",
        handlers=("h",),
        capacity=1,
        weight=1.0,
        label="",
        version="",
        is_draining=False,
        numbers=(1,),
    )
    return attrs.evolve(info, **changes)


def entries(*infos: WorkerEntry) -> dict[bytes, Value]:
    return {info.id.encode(): info.pack() for info in infos}


def test_what_cannot_be_read_is_left_out() -> None:
    roster = Roster()
    roster.update(
        entries(worker("w1"))
        | {b"w2": b"nonsense", b"w3": worker("w4").pack(), SHUTDOWN_KEY: b"stop-1", b"w5": (b"a",)}
    )
    assert roster.workers == (worker("w1"),)
    assert list(roster.candidates.workers) == ["w1"]


def test_a_change_is_seen_by_whoever_asks_next() -> None:
    roster = Roster()
    assert not roster.workers
    roster.update(entries(worker("w1"), worker("w2")))
    assert roster.candidates.ranked(1, "h", 9) != ()
    roster.update(entries(worker("w1"), worker("w2", is_draining=True)))
    assert roster.candidates.ranked(1, "h", 9) == ("w1",)
    assert roster.workers == (worker("w1"), worker("w2", is_draining=True))
    roster.update(entries(worker("w2")))
    assert roster.candidates.ranked(1, "h", 9) == ("w2",)


def test_many_changes_cost_one_reading_of_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = [worker(f"w{n}") for n in range(100)]
    roster, read = Roster(), list[bytes]()
    parse = WorkerEntry.parse

    def counted(text: Value) -> WorkerEntry | None:
        assert isinstance(text, bytes)
        read.append(text)
        return parse(text)

    monkeypatch.setattr(WorkerEntry, "parse", counted)
    roster.update(entries(*fleet))
    assert read == []
    before = roster.candidates
    assert len(read) == 100
    for n in range(10):
        fleet[n] = worker(f"w{n}", weight=2.0)
        roster.update(entries(*fleet))
    assert roster.candidates is roster.candidates is not before
    assert len(read) == 110
    assert roster.candidates.workers["w99"] is before.workers["w99"]
