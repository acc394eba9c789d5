"""`pool events` and `pool journal`: what happened, live or not, and all edges of some jobs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from pool import Handlers, Job, Node
from pool.errors import JobParked
from pool.names import Names, lane_of
from pool.ops.cli import FINDING, OK, USAGE, main
from tests.nodes import PATIENCE_S
from tests.ops.commands import ROOT, running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio


@pytest.fixture
def handlers() -> Handlers:
    made = Handlers(backoff_s=0.01, attempts_max=1)

    @made.job("fail")
    async def fail(job: Job) -> None:
        raise ValueError("no luck\x1b[31m")

    @made.job("fine")
    async def fine(job: Job) -> str:
        return job.key

    return made


async def park(node: Node, key: str) -> None:
    with pytest.raises(JobParked):
        await (await node.dispatch("fail", key)).result(timeout_s=PATIENCE_S)


async def test_what_happened_is_shown_and_all_edges_on_request(
    fleet: Fleet, handlers: Handlers, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--pool", fleet.pool, "--url", fleet.url]

    async def said(*words: str, code: int = OK) -> str:
        capsys.readouterr()
        assert await anyio.to_thread.run_sync(main, [*words, *where]) == code
        found = capsys.readouterr()
        return found.out + found.err

    async def events(*words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (await said("events", "--json", *words)).splitlines()]

    node = await fleet.node(handlers, lanes=4)
    for key in ("a", "b"):
        await park(node, key)
    await (await node.dispatch("fine", "c")).result(timeout_s=PATIENCE_S)
    found = await events()
    assert [(each["edge"], each["key"]) for each in found] == [("parked", "a"), ("parked", "b")]
    assert await events("--since", found[0]["position"]) == found[1:]
    assert [each["key"] for each in await events("--key", "b")] == ["b"]
    assert await events("--handler", "fine", "--since", "all") == []
    assert await events("--since", "2999-01-01") == []
    text = await said("events")
    assert "parked  a job " in text
    assert "\x1b" not in text

    assert "of no job" in await said("journal", "show")
    told = await said("journal", "follow", "--handler", "fine", "--key", "z", "--for", "30m")
    assert told.strip().endswith("all edges of handler fine, key 'z' are noted")
    shown = json.loads(await said("journal", "show", "--json"))
    assert 0 < shown["left_s"] <= 1800
    assert (shown["keys"], shown["handlers"]) == (["z"], ["fine"])
    await fleet.until(lambda: all(s.is_followed for s in node._open_wiring.context.lanes))
    await (await node.dispatch("fine", "d")).result(timeout_s=PATIENCE_S)
    life = await events("--key", "d")
    assert [each["edge"] for each in life if each["edge"] != "started"] == ["accepted", "done"]
    assert "of no job" in await said("journal", "stop")
    await (await node.dispatch("fine", "d")).result(timeout_s=PATIENCE_S)
    assert len(await events("--key", "d")) == len(life)
    why = json.loads(await said("why", "a", "--json", code=OK))
    assert [each["edge"] for each in why["life"]] == ["parked"]
    assert "life        " in await said("why", "d")


async def test_what_stands_in_the_journals_place_is_found_and_the_rest_is_shown(
    fleet: Fleet, handlers: Handlers, capsys: pytest.CaptureFixture[str]
) -> None:
    node = await fleet.node(handlers, lanes=4)
    where = ["--pool", fleet.pool, "--url", fleet.url]
    name = Names(fleet.pool, (lane_of("a", 4) + 1) % 4).journal
    fleet.client.set(name, "somebody else's")
    await park(node, "a")
    assert await anyio.to_thread.run_sync(main, ["doctor", "--json", *where]) == FINDING
    assert name in capsys.readouterr().out
    assert await anyio.to_thread.run_sync(main, ["events", *where]) == FINDING
    told = capsys.readouterr()
    assert "  unread  " in told.out
    assert "  parked  a job " in told.out
    assert f"{name}: " in told.out
    assert told.err == ""
    fleet.client.delete(name)


@pytest.mark.parametrize(
    "words",
    [
        ("events", "--since", "yesterday"),
        ("events", "--since", "1-1.1-1"),
        ("events", "--key", "\x00"),
        ("events", "--handler", "no handler"),
        ("journal", "follow"),
        ("journal", "follow", "--key", "k", "--for", "25h"),
        ("journal", "follow", "--key", "k", "--for", "0s"),
        ("journal", "follow", "--key", "k", "--for", "soon"),
        ("journal", "follow", *(word for n in range(17) for word in ("--key", f"k{n}"))),
    ],
)
async def test_what_cannot_be_asked_is_a_line_that_says_so(
    fleet: Fleet, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    await fleet.node(lanes=1)
    where = ["--pool", fleet.pool, "--url", fleet.url]
    assert await anyio.to_thread.run_sync(main, [*words, *where]) == USAGE
    assert len(capsys.readouterr().err.splitlines()) == 1


async def test_who_follows_sees_each_entry_as_it_comes_and_ends_quietly(
    fleet: Fleet, handlers: Handlers, tmp_path: Path
) -> None:
    node = await fleet.node(handlers, lanes=4)
    where = ["--pool", fleet.pool, "--url", fleet.url]
    async with running("events", "-f", "--json", *where, cwd=tmp_path) as cli:
        for key in ("a", "b"):
            await park(node, key)
            assert (await cli.event())["key"] == key
        cli.process.send_signal(signal.SIGINT)
        assert await cli.end() == (128 + signal.SIGINT, "")


async def test_a_reader_that_has_seen_enough_ends_it_quietly(
    fleet: Fleet, handlers: Handlers
) -> None:
    node = await fleet.node(handlers, lanes=1)
    for key in ("a", "b"):
        await park(node, key)

    ready = threading.Event()

    def read_one() -> tuple[bytes, int, bytes]:
        command = [sys.executable, "-m", "pool.ops.cli", "events", "-f"]
        where = ["--pool", fleet.pool, "--url", fleet.url]
        with subprocess.Popen(
            [*command, *where], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            process.stdout.close()
            ready.set()
            said = process.stderr.read()
            return line, process.wait(), said

    async with anyio.create_task_group() as tasks:

        async def more() -> None:
            await anyio.to_thread.run_sync(ready.wait)
            await park(node, "c")

        tasks.start_soon(more)
        with anyio.fail_after(2 * PATIENCE_S):
            line, code, said = await anyio.to_thread.run_sync(read_one)
    assert b"parked  a" in line
    assert (code, said) == (OK, b"")
