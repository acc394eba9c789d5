"""`pool schedules`: listed, shown, paused, resumed, triggered, removed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import anyio.to_thread
import pytest

from pool import Handlers, Job, Node
from pool.ops.cli import FINDING, OK, USAGE, main
from pool.ops.cli.shapes import SHAPES, faults
from pool.schedules import At, Cron, Every

pytestmark = pytest.mark.anyio


async def test_schedules_are_seen_and_changed_from_the_command_line(
    pool_url: str, pool_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = Handlers()

    @handlers.job("report")
    async def report(job: Job, number: int) -> int:
        return number

    class Reversed:
        name = "reversed"

        def encode(self, value: Any) -> bytes:
            return json.dumps(value).encode()[::-1]

        def decode(self, data: bytes) -> Any:
            return json.loads(data[::-1])

    @handlers.job("sealed", codec=Reversed())
    async def sealed(job: Job, number: int) -> None: ...

    @handlers.job("hold")
    async def hold(job: Job) -> None:
        await anyio.sleep_forever()

    where = ["--pool", pool_name, "--url", pool_url]

    async def said(*words: str, code: int = OK) -> str:
        capsys.readouterr()
        assert await anyio.to_thread.run_sync(main, ["schedules", *words, *where]) == code
        return capsys.readouterr().out

    async def told(*words: str) -> Any:
        found = json.loads(await said(*words, "--json"))
        assert list(faults(found, SHAPES[f"schedules {words[0]}"])) == []
        return found

    async with Node(pool_name, pool_url, handlers=handlers, observers=()) as node:
        await node.schedule("nightly", Cron("0 3 * * *", tz="Europe/Paris"), report, "k", 7)
        await node.schedule("often", Every(3600), report, "k2", 8)
        once = At(datetime.now(UTC) + timedelta(days=1))
        await node.schedule("once", once, report, "k3", 9)
        listed = await told("list")
        assert sorted(each["name"] for each in listed["schedules"]) == ["nightly", "often", "once"]
        text = await said("list", "--prefix", "n")
        assert "nightly  cron '0 3 * * *' Europe/Paris  report 'k'  next " in text
        assert "0 fired, 0 missed" in text
        assert "every 3600 s" in await said("list", "--prefix", "of")
        shown = await told("show", "nightly", "--next", "3")
        assert shown["schedule"]["args"] == [7]
        assert shown["schedule"]["when"]["cron"] == "0 3 * * *"
        assert len(shown["schedule"]["next_times"]) == 3
        assert "arguments  (7,) {}" in await said("show", "nightly")
        await node.schedule("sealed", Every(3600), sealed, "k4", 7)
        assert "made by the codec 'reversed', which cannot be read here" in await said(
            "show", "sealed"
        )
        await said("remove", "sealed")
        assert "nightly is paused" in await said("pause", "nightly")
        text = await said("show", "nightly")
        assert "  paused  " in text
        assert "next" not in text, "those that were are over before it is resumed"
        made = await told("trigger", "nightly")
        ref = await node.job("k", made["job_id"])
        assert await ref.result(timeout_s=30) == 7
        assert (await told("show", "nightly"))["schedule"]["next_at"] is None
        assert (await told("pause", "nightly"))["schedule"] == "nightly"
        assert "nightly is resumed" in await said("resume", "nightly")
        assert (await told("resume", "nightly"))["schedule"] == "nightly"
        assert (await node.schedules.show("nightly")).fired == 0
        holding = await node.dispatch(hold, "k")
        await said("trigger", "nightly", code=FINDING)
        await holding.stop()
        assert "nightly is removed" in await said("remove", "nightly")
        assert (await told("remove", "often"))["schedule"] == "often"
        await said("remove", "nightly", code=FINDING)
        await said("show", "a b", code=USAGE)


class Mark:
    """A codec that the command line does not have."""

    name = "mark"

    def encode(self, value: Any) -> bytes:
        return json.dumps(value, sort_keys=True).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


async def test_arguments_of_a_codec_that_is_elsewhere_are_told_as_such(
    pool_url: str, pool_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """None would read as if the schedule had no arguments."""
    handlers = Handlers()

    @handlers.job("marked", codec=Mark())
    async def marked(job: Job, number: int) -> None: ...

    async with Node(pool_name, pool_url, handlers=handlers, observers=()) as node:
        await node.schedule("s", Every(3600), marked, "k", 7)
        mine = await node.schedules.show("s")
        async with Node(pool_name, pool_url, observers=()) as other:
            theirs = await other.schedules.show("s")
    assert (mine.args, mine.codec) == ((7,), "mark")
    assert (theirs.args, theirs.codec) == (None, "mark")
    assert theirs.payload_bytes == mine.payload_bytes > 0
    words = ["schedules", "show", "s", "--pool", pool_name, "--url", pool_url]
    assert await anyio.to_thread.run_sync(main, words) == OK
    said = f"arguments  {theirs.payload_bytes} bytes made by the codec 'mark', which cannot be read"
    assert said in capsys.readouterr().out
