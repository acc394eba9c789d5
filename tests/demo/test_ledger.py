"""The demo's witness: what is written is read, whole lines only, whoever writes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import anyio
import attrs
import pytest

from pool.demo.conductor import Show
from pool.demo.ledger import CLOCK, ZONE, Entry, Ledger, LedgerTail
from pool.demo.verdict import History
from pool.jobs.job import Job


@attrs.frozen
class Work:
    """The part of a `Job` that the ledger reads."""

    key: str = "Zone/1"
    id: str = "j1"
    handler: str = ZONE
    epoch: int = 7


WORK = cast(Job, Work())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    ledger = Ledger(path, "north")
    yield ledger
    ledger.close()


def test_what_is_written_is_read_once(path: Path, ledger: Ledger) -> None:
    tail = LedgerTail(path)
    at_s = ledger.write("accepted", key="Zone/1", job="j1", handler=ZONE)
    expected = Entry(at_s=at_s, what="accepted", node="north", key="Zone/1", job="j1", handler=ZONE)
    assert tail.read() == [expected]
    assert tail.read() == []


def test_a_line_that_is_being_written_is_left_for_later(path: Path, ledger: Ledger) -> None:
    tail = LedgerTail(path)
    ledger.write("curtain")
    with path.open("ab") as other:
        other.write(b'{"at_s":1.0,"wh')
        other.flush()
        assert [entry.what for entry in tail.read()] == ["curtain"]
        other.write(b'at":"tick"}\n')
    assert [entry.what for entry in tail.read()] == ["tick"]


@pytest.mark.anyio
async def test_every_way_to_end_is_written(path: Path, ledger: Ledger) -> None:
    with ledger.running(WORK, ticks=3) as running:
        running.count += 1
    with pytest.raises(ValueError, match="no"), ledger.running(WORK):
        raise ValueError("no")
    with anyio.CancelScope() as scope, ledger.running(WORK):
        scope.cancel()
        await anyio.sleep_forever()
    entries = LedgerTail(path).read()
    ends = [(entry.run, entry.how, entry.count) for entry in entries if entry.what == "end"]
    assert ends == [(1, "returned", 4), (2, "failed", 0), (3, "cancelled", 0)]
    assert {(entry.key, entry.job, entry.epoch) for entry in entries} == {("Zone/1", "j1", 7)}


def test_a_history_is_the_same_however_it_is_read(path: Path, ledger: Ledger) -> None:
    tail, growing = LedgerTail(path), History()
    other = Ledger(path, "east")
    for i in range(20):
        with (ledger if i % 2 else other).running(cast(Job, Work(epoch=i))):
            for entry in tail.read():
                growing.add(entry)
    for entry in tail.read():
        growing.add(entry)
    other.close()
    whole = History.of(LedgerTail(path).read())
    shown = [attrs.asdict(run) for run in growing.runs.values()]
    assert shown == [attrs.asdict(run) for run in whole.runs.values()]
    assert len(shown) == 20


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def history() -> History:
    facts: dict[str, Any] = {"key": f"{CLOCK}:Asia/Tokyo", "job": "c1", "handler": CLOCK}
    zone: dict[str, Any] = {"key": "Zone/1", "job": "j1", "handler": ZONE}
    return History.of(
        [
            Entry(at_s=1.0, what="node", node="north", how="joined"),
            Entry(at_s=1.0, what="node", node="east", how="joined"),
            Entry(at_s=2.0, what="accepted", **zone),
            Entry(at_s=2.0, what="accepted", **facts),
            Entry(at_s=2.1, what="start", node="north", run=1, epoch=1, **zone),
            Entry(at_s=2.1, what="start", node="east", run=1, epoch=1, **facts),
            Entry(at_s=2.6, what="tick", node="east", run=1, count=1, how="09:00:00", **facts),
            Entry(at_s=3.0, what="node", node="north", how="killed"),
        ]
    )


def test_a_terminal_gets_a_block_that_is_repainted() -> None:
    terminal = Terminal()
    show = Show(terminal)
    show.paint(history())
    show.say("SIGKILL north")
    text = terminal.getvalue()
    assert "0 of 1 zones" in text
    assert "north  killed" in text
    assert "east   running      0 zones   1 clocks" in text
    assert "Tokyo 09:00:00" in text
    before, repainted = text.split("\x1b[5F\x1b[J")
    assert "SIGKILL north" not in before
    assert repainted.startswith("   0.0  SIGKILL north\n\n")
    assert repainted.endswith(before)


def test_elsewhere_there_are_plain_lines_only() -> None:
    plain = io.StringIO()
    show = Show(plain)
    show.say("three nodes")
    show.paint(history())
    show.paint(history())
    assert [line[8:] for line in plain.getvalue().splitlines()] == [
        "three nodes",
        "0 of 1 zones",
    ]
    assert "\x1b" not in plain.getvalue()


def test_nobody_watching_means_nothing_written() -> None:
    show = Show(None)
    show.say("three nodes")
    show.paint(history())
    assert not show.is_live
