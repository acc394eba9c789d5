"""What a codec covers on the server is what docs/how-to/codecs.md says: each row is looked for."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pool import Follower, Handlers, Job
from pool.errors import JobParked
from pool.schedules import Every
from tests.nodes import PATIENCE_S, Fleet

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]
PAGE = Path(__file__).parents[2] / "docs/how-to/codecs.md"
# Of each row of the page, by how it begins: what is given there, and so stands on the server.
ROWS = {
    "arguments, also of dead letters": ("an-argument", "a-letter", "a-schedule", "a-follower"),
    "results of steps": ("a-step",),
    "results": ("a-result",),
    "arguments that were dispatched by name": ("by-name",),
    "a follower's call with `takes_result=True`": ("passed-on",),
    "messages of `notify()`": ("a-message",),
    "`job.state`, `job.save()`": ("a-state",),
    "progress and its note": ("a-note",),
    "errors and tracebacks": ("an-error",),
    "reasons": ("a-reason",),
    "keys, job ids": ("a-key", "an-id"),
    "maps and streams": ("an-entry", "an-event"),
    "what is compared": (),
}


class Scrambled:
    """A codec of the user's own, by which no value is to be seen."""

    name = "scrambled-1"
    is_canonical = True

    def encode(self, value: Any) -> bytes:
        return b64encode(bytes(255 - byte for byte in json.dumps(value, sort_keys=True).encode()))

    def decode(self, data: bytes) -> Any:
        return json.loads(bytes(255 - byte for byte in b64decode(data)))


def stored(fleet: Fleet) -> bytes:
    """Return all that the server holds of the pool: names of keys, and what is in them."""
    client: Any = fleet.client
    return b"\n".join(_all(client, fleet.pool))


def _all(client: Any, pool: str) -> Iterator[bytes]:
    for key in client.scan_iter(match=f"pool:{{{pool}*", count=1000):
        yield key
        match client.type(key):
            case b"hash":
                yield repr(client.hgetall(key)).encode()
            case b"zset":
                yield repr(client.zrange(key, 0, -1)).encode()
            case b"stream":
                yield repr(client.xrange(key)).encode()
            case b"list":
                yield repr(client.lrange(key, 0, -1)).encode()
            case b"set":
                yield repr(client.smembers(key)).encode()
            case b"string":
                yield client.get(key)


def of_page() -> dict[str, bool]:
    """Return row -> whether the page says that it is covered."""
    table = PAGE.read_text().partition("| | covered by the handler's codec |")[2].split("\n\n")[0]
    return {
        row: not said.startswith("**no**")
        for row, said in re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE)
        if row != "---"
    }


def test_the_rows_of_the_page_are_those_of_this_test() -> None:
    for row in of_page():
        assert [begin for begin in ROWS if row.startswith(begin)], row
    assert len(of_page()) == len(ROWS)


async def test_what_a_codec_does_not_cover_is_what_the_page_says(fleet: Fleet) -> None:
    """V6: each value is given, and looked for in all that the server holds."""
    seen, go_on, handlers = bytearray(), fleet.gate(), Handlers()

    @handlers.job("follow", codec=Scrambled())
    async def follow(job: Job, word: str) -> None: ...

    @handlers.job("after")
    async def after(job: Job, result: str) -> None: ...

    @handlers.job("plain")
    async def plain(job: Job) -> str:
        return "passed-on"

    @handlers.job("work", codec=Scrambled())
    async def work(job: Job, word: str) -> str:
        async def made() -> str:
            return "a-step"

        await job.save({"word": "a-state"})
        await job.once("step", made)
        await job.progress(1, 2, "a-note")
        await go_on.wait()
        async for _ in job.notifications():
            break
        return "a-result"

    @handlers.job("fail", codec=Scrambled(), attempts_max=1)
    async def fail(job: Job, word: str) -> None:
        raise ValueError("an-error")

    def holds(*words: str) -> bool:
        seen.extend(stored(fleet))
        return all(word.encode() in seen for word in words)

    node = await fleet.node(handlers)
    then = Follower(follow, "follower", "a-follower")
    ref = await node.options(job_id="an-id", then=then).dispatch(work, "a-key", "an-argument")
    later = node.options(delay_s=3600.0)
    waits = await later.dispatch(follow, "waits", "an-argument")
    taking = Follower(after, "taker").options(takes_result=True, delay_s=3600.0)
    await (await node.options(then=taking).dispatch(plain, "plain")).result(PATIENCE_S)
    await node.options(allow_unknown=True).dispatch("elsewhere", "unknown", "by-name")
    await node.schedule("s", Every(3600.0), work, "scheduled", "a-schedule")
    with pytest.raises(JobParked):
        await (await node.dispatch(fail, "letter", "a-letter")).result(PATIENCE_S)
    await waits.stop("a-reason")
    async with node.map("m") as entries:
        await entries.set("k", "an-entry")
    await node.stream("st").add("made", "an-event")
    await fleet.until(lambda: holds("a-state", "a-step", "a-note"))
    await node.notify("a-key", "a-message")
    assert holds("a-message")
    go_on.set()
    await ref.result(PATIENCE_S)
    holds()
    for row, is_covered in of_page().items():
        words = next(words for begin, words in ROWS.items() if row.startswith(begin))
        for word in words:
            assert (word.encode() in seen) != is_covered, (row, word)
