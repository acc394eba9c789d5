"""ReplicatedMap as people use it: what it reads, writes and tells, and whom it never blocks."""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, get_args

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs
import pytest

from pool import Node, ReplicatedMap, Settings
from pool.errors import ConfigError, InvalidOption, MapFull, NotRunning, PayloadTooLarge, WrongValue
from pool.maps import Change, Counted, Resized, Resync, Written
from pool.maps import deltas as model
from pool.maps import watch as watches
from pool.maps.commands import StoredMap
from pool.maps.deltas import Position, Probed, Reason
from pool.maps.replica import Replica
from pool.maps.watch import WATCH_BYTES_MAX
from pool.names import Control
from tests.servers import connect

pytestmark = pytest.mark.anyio

SETTINGS = Settings(lease_ttl_s=1.0)  # a renewal period of 0.2 s
PATIENCE_S = 30.0
AWKWARD = ["", "=", ",", ":", "-", "\0\r\n", "3:ab", "\N{SNOWMAN}\N{PARTY POPPER}", "*", " "]

OpenMap = Callable[..., ReplicatedMap[Any]]


@pytest.fixture
def open_map(redis_url: str, pool_name: str) -> OpenMap:
    """Return what describes a map of this test's pool."""

    def describe(name: str = "flags", **options: Any) -> ReplicatedMap[Any]:
        settings = {"pool": pool_name, "settings": SETTINGS, **options}
        return ReplicatedMap.open(redis_url, name, **settings)

    return describe


@pytest.fixture
async def flags(anyio_backend: str, open_map: OpenMap) -> AsyncIterator[ReplicatedMap[str]]:
    async with open_map() as flags:
        yield flags


@pytest.fixture
def snapshots(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the maps fetched, one for each snapshot."""
    fetched: list[str] = []
    pages = StoredMap.pages

    def noted(self: StoredMap, generation: str) -> Any:
        fetched.append(self.name)
        return pages(self, generation)

    monkeypatch.setattr(StoredMap, "pages", noted)
    return fetched


@asynccontextmanager
async def together() -> AsyncIterator[Callable[..., object]]:
    """Run coroutines beside each other; give up when they take too long."""
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            yield tasks.start_soon


async def read(watch: Any, count: int) -> list[Any]:
    with anyio.fail_after(PATIENCE_S):
        return [await anext(watch) for _ in range(count)]


# --- reads and writes -------------------------------------------------------------------------


async def test_what_is_written_is_read_locally(flags: ReplicatedMap[str]) -> None:
    written = await flags.set_and_wait("a", "1")
    assert (flags["a"], flags.get("a"), "a" in flags, len(flags)) == ("1", "1", True, 1)
    assert written == Written(flags.at, True, None)
    again = await flags.set_and_wait("a", "2")
    assert again == Written(flags.at, True, "1")
    assert flags.revision == written.revision + 1
    assert flags.snapshot() == {"a": "2"} == dict(flags.items())
    assert list(flags) == ["a"] == list(flags.keys())
    assert list(flags.values()) == ["2"]
    assert repr(flags) == f"<ReplicatedMap 'flags', open, 1 keys at revision {flags.revision}>"


async def test_what_is_absent(flags: ReplicatedMap[str]) -> None:
    assert flags.get("a") is None
    assert flags.get("a", "x") == "x"
    assert (flags.get_list("a"), flags.get_int("a"), flags.get_int("a", 7)) == ((), 0, 7)
    assert ("a" in flags, 17 in flags, len(flags)) == (False, False, 0)
    with pytest.raises(KeyError, match="a"):
        flags["a"]
    assert await flags.delete("a") == Written(flags.at, True, None)
    assert await flags.compare_and_delete("a", "1") == Written(flags.at, False, None)


async def test_conditional_writes_say_whether_and_what_they_found(
    flags: ReplicatedMap[str],
) -> None:
    first = await flags.set_if_not_exists("a", "1")
    assert first == Written(first.at, True, None)
    assert await flags.set_if_not_exists("a", "2") == Written(first.at, False, "1")
    assert await flags.compare_and_set("a", "2", "3") == Written(first.at, False, "1")
    second = await flags.compare_and_set("a", "1", "3")
    assert second == Written(second.at, True, "1")
    assert await flags.compare_and_delete("a", "1") == Written(second.at, False, "3")
    third = await flags.compare_and_delete("a", "3")
    assert third == Written(third.at, True, "3")
    assert [at.revision - first.revision for at in (second, third)] == [1, 2]
    await flags.wait_for(third.at)
    assert flags.snapshot() == {}


async def test_numbers_are_counted_where_they_are(flags: ReplicatedMap[str]) -> None:
    first = await flags.increment("n")
    assert first == Counted(first.at, None, 1)
    second = await flags.increment("n", -3)
    assert second == Counted(second.at, 1, -2)
    assert second.revision == first.revision + 1
    await flags.wait_for(second.at)
    assert (flags.get_int("n"), flags["n"]) == (-2, "-2")


async def test_lists_grow_shrink_and_vanish(flags: ReplicatedMap[str]) -> None:
    first = await flags.append("l", "a", "b", "a")
    assert first == Resized(first.at, True, 0, 3)
    second = await flags.append_unique("l", "b", "c")
    assert second == Resized(second.at, True, 3, 4)
    assert await flags.append_unique("l", "c") == Resized(second.at, False, 4, 4)
    await flags.wait_for(second.at)
    assert flags.get_list("l") == ("a", "b", "a", "c")
    assert flags.snapshot() == {"l": ("a", "b", "a", "c")}
    third = await flags.remove("l", "a", "none")
    assert third == Resized(third.at, True, 4, 2)
    last = await flags.remove("l", "b", "c")
    assert last == Resized(last.at, True, 2, 0)
    assert [each.revision - first.revision for each in (second, third, last)] == [1, 2, 3]
    await flags.wait_for(last.at)
    assert "l" not in flags


async def test_several_keys_are_set_as_one_revision(flags: ReplicatedMap[str]) -> None:
    with flags.watch() as watch:
        revision = (await flags.update({"a": "1", "b": "2"})).revision
        assert await read(watch, 2) == [
            Change(revision, "a", None, "1"),
            Change(revision, "b", None, "2"),
        ]


async def test_reset_compare_and_reset_and_destroy(flags: ReplicatedMap[str]) -> None:
    await flags.wait_for(await flags.update({"a": "1", "b": "2"}))
    with flags.watch() as watch:
        refused = await flags.compare_and_reset({"a": "1", "b": "1"})
        assert (refused.is_met, refused.size_before, refused.size) == (False, 2, 2)
        emptied = await flags.compare_and_reset({"a": "1", "b": "2"})
        assert (emptied.is_met, emptied.size_before, emptied.size) == (True, 2, 0)
        assert {(c.key, c.new) for c in await read(watch, 2)} == {("a", None), ("b", None)}
    assert (await flags.reset()).revision == emptied.revision  # it is empty already
    await flags.set("a", "3")
    destroyed = await flags.destroy()
    lives = await flags.set_and_wait("a", "4")
    assert lives.revision > destroyed.revision
    assert flags.snapshot() == {"a": "4"}


async def test_a_key_holds_a_string_or_a_list_and_each_has_its_own_reads(
    flags: ReplicatedMap[str],
) -> None:
    await flags.set("s", "x")
    await flags.append("l", "1")
    await flags.wait_for((await flags.set("z", "")).at)
    for call in (flags.get, flags.get_int):
        with pytest.raises(WrongValue, match="'l'"):
            call("l")
    for wrong in (flags.get_list, flags.get_int):
        with pytest.raises(WrongValue, match="'s'"):
            wrong("s")
    for refused in (flags.append("s", "1"), flags.remove("s", "1"), flags.increment("l")):
        with pytest.raises(WrongValue):
            await refused
    for number in ("9" * 5_000, str(2**53), f"-{2**53}"):  # more than `increment` counts to
        await flags.set_and_wait("s", number)
        with pytest.raises(WrongValue, match="up to 2"):
            flags.get_int("s")
        with pytest.raises(WrongValue, match="up to 2"):
            await flags.increment("s")
    await flags.set_and_wait("s", f"-{2**53 - 1}")
    assert flags.get_int("s") == 1 - 2**53
    replaced = await flags.set("l", "now a string")
    assert replaced == Written(replaced.at, True, None, 1)


async def test_any_text_and_any_bytes_come_back_as_they_were(open_map: OpenMap) -> None:
    """Nothing of the encoding is reserved, and what is no UTF-8 is not lost either."""
    async with open_map() as texts, open_map(values=bytes) as raw:
        for key, value in zip(AWKWARD, reversed(AWKWARD), strict=True):
            await texts.set(key, value)
            await texts.append(f"list {key}", value, key)
        await texts.append("\udcff", "\udc80")  # the bytes FF and 80, as text
        last = await raw.set(b"\xfe", b"\x81")
        await texts.wait_for(last.at)
        await raw.wait_for(last.at)
        expected: dict[str, Any] = dict(zip(AWKWARD, reversed(AWKWARD), strict=True))
        for key, value in zip(AWKWARD, reversed(AWKWARD), strict=True):
            expected[f"list {key}"] = (value, key)
        expected["\udcff"] = ("\udc80",)
        expected["\udcfe"] = "\udc81"
        assert texts.snapshot() == expected
        assert raw.get_list(b"\xff") == (b"\x80",)
        assert {key: raw.get(key) for key in AWKWARD} == {
            key: value.encode() for key, value in zip(AWKWARD, reversed(AWKWARD), strict=True)
        }
        assert texts["\udcfe".encode("utf-8", "surrogateescape")] == "\udc81"


@pytest.mark.parametrize("given", [None, 1, 1.5, ["a"], object()])
async def test_what_is_neither_text_nor_bytes_is_refused(
    flags: ReplicatedMap[str], given: Any
) -> None:
    for attempt in (flags.set("a", given), flags.set(given, "a"), flags.append("a", given)):
        with pytest.raises(InvalidOption, match="not str or bytes"):
            await attempt
    with pytest.raises(InvalidOption, match="option='key'"):
        flags.get(given)


@pytest.mark.parametrize("by", [1.0, True, "1", 2**53, None])
async def test_only_whole_numbers_are_added(flags: ReplicatedMap[str], by: Any) -> None:
    with pytest.raises(InvalidOption, match="by"):
        await flags.increment("n", by)


async def test_limits_are_refused_with_their_numbers(
    flags: ReplicatedMap[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidOption, match="surrogate"):
        await flags.set("\ud800", "a")
    with pytest.raises(PayloadTooLarge, match="512"):
        await flags.set("k" * 513, "a")
    with pytest.raises(PayloadTooLarge, match="65536"):
        await flags.append("k", "v" * 65_537)
    with pytest.raises(InvalidOption, match="256"):
        await flags.append("k", *["v"] * 257)
    with pytest.raises(InvalidOption, match="256"):
        await flags.update({str(n): "v" for n in range(257)})
    twice: Any = {"a": "1", b"a": "2"}
    for call in (flags.update, flags.compare_and_reset):
        with pytest.raises(InvalidOption, match="once"):
            await call(twice)
    bad: Any = 5
    with pytest.raises(InvalidOption, match=r"option='values\[2\]'"):
        await flags.append("k", "v", "v", bad)
    with pytest.raises(InvalidOption, match=r"option='values: value\[1\]'"):
        await flags.update({"a": "1", "b": bad})
    with pytest.raises(InvalidOption, match=r"option='expected: key\[0\]'"):
        await flags.compare_and_reset({bad: "1"})
    assert await flags.update({}) == flags.at
    for buffer_max in (0, -1, True, 1.0):
        with pytest.raises(InvalidOption, match="buffer_max"):
            flags.watch(buffer_max)  # type: ignore[arg-type]
    write = StoredMap.write

    async def write_less(*args: Any, **options: Any) -> Any:
        return await write(*args, **options, items_max=1)

    monkeypatch.setattr(StoredMap, "write", write_less)
    await flags.set("a", "1")
    with pytest.raises(MapFull, match="items_max=1"):
        await flags.set("b", "1")


def test_a_map_is_described_before_it_is_opened() -> None:
    url = "redis://localhost"
    for name in ("", "x" * 129, "a\nb", "workers"):
        with pytest.raises(ConfigError, match="map"):
            ReplicatedMap.open(url, name)
    with pytest.raises(ConfigError, match="pool"):
        ReplicatedMap.open(url, "flags", pool="No Pool")
    with pytest.raises(ConfigError, match="url"):
        ReplicatedMap.open("http://localhost", "flags")
    for ttl_s in (0.5, 0, -1, float("nan"), float("inf"), True, "60"):
        with pytest.raises(InvalidOption, match="ttl_s"):
            ReplicatedMap.open(url, "flags", ttl_s=ttl_s)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="is_sliding"):
        ReplicatedMap.open(url, "flags", is_sliding=True)
    with pytest.raises(InvalidOption, match="values"):
        ReplicatedMap.open(url, "flags", values=int)  # type: ignore[type-var]


async def test_a_map_that_is_not_open_says_so(open_map: OpenMap) -> None:
    described = open_map()
    with pytest.raises(NotRunning, match="new"):
        described.get("a")
    async with described:
        with pytest.raises(NotRunning, match="open"):
            await described.__aenter__()
    for read_it in (lambda: described.get("a"), lambda: len(described), described.watch):
        with pytest.raises(NotRunning, match="closed"):
            read_it()
    with pytest.raises(NotRunning, match="closed"):
        await described.set("a", "1")


async def test_what_the_body_raises_comes_out_as_it_is(open_map: OpenMap) -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_map():
            1 / 0  # noqa: B018


# --- in a node --------------------------------------------------------------------------------


async def test_a_nodes_map_is_the_same_as_one_without_a_node(
    open_map: OpenMap, redis_url: str, pool_name: str
) -> None:
    async with (
        Node(pool_name, redis_url, settings=SETTINGS) as node,
        node.map("flags") as ours,
        open_map() as standalone,
    ):
        await standalone.wait_for((await ours.set("a", "1")).at)
        last = (await standalone.append("l", "1")).at
        await ours.wait_for(last)
        await standalone.wait_for(last)
        assert ours.snapshot() == standalone.snapshot() == {"a": "1", "l": ("1",)}


async def test_a_map_held_twice_is_one_copy(
    redis_url: str, pool_name: str, snapshots: list[str]
) -> None:
    async with Node(pool_name, redis_url, settings=SETTINGS) as node:
        async with node.map("flags") as first, node.map("flags", values=bytes) as second:
            assert snapshots.count("flags") == 1
            await first.set_and_wait("a", "1")
            assert second["a"] == b"1"
        async with node.map("flags") as third:  # the last holder let go: it is fetched anew
            assert third["a"] == "1"
        assert snapshots.count("flags") == 2


async def test_a_map_of_a_node_that_is_not_open_is_refused(redis_url: str, pool_name: str) -> None:
    node = Node(pool_name, redis_url, settings=SETTINGS)
    with pytest.raises(NotRunning, match="new"):
        async with node.map("flags"):
            pass
    with pytest.raises(ConfigError, match="own"):
        node.map("workers")


async def test_opening_a_map_where_foreign_data_are_says_so(
    redis_url: str, pool_name: str, open_map: OpenMap
) -> None:
    with connect(redis_url) as client:
        client.set(Control(pool_name).map_data("flags"), "no hash")
    with anyio.fail_after(PATIENCE_S):
        with pytest.raises(Exception, match="POOLFAULT"):
            async with open_map():
                pass


# --- watching ---------------------------------------------------------------------------------


async def test_a_watcher_sees_every_revision_and_the_map_is_never_polled(
    open_map: OpenMap, snapshots: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-10: one snapshot to join, then only deltas; no Resync without a fault."""
    probes: list[Probed] = []
    probed = anyio.Event()
    handle = Replica.handle

    def note(self: Replica, message: Any) -> None:
        handle(self, message)
        if isinstance(message, Probed):
            probes.append(message)
            probed.set()

    monkeypatch.setattr(Replica, "handle", note)
    async with open_map() as writer, open_map() as reader:
        with reader.watch() as watch:
            first = (await writer.set("n", "0")).revision
            for n in range(1, 300):
                await writer.set("n", str(n))
            changes = await read(watch, 300)
        assert changes == [
            Change(first + n, "n", str(n - 1) if n else None, str(n)) for n in range(300)
        ]
        # Two probes of each copy later nothing more has been fetched: what is whole is not polled.
        enough = len(probes) + 4
        with anyio.fail_after(PATIENCE_S):
            while len(probes) < enough:
                probed = anyio.Event()
                await probed.wait()
        assert snapshots == ["flags", "flags"]


async def test_a_watcher_that_never_reads_blocks_nobody(flags: ReplicatedMap[str]) -> None:
    """The historical deadlock: a notification channel that everybody shares, and one who does not
    read it.  Here it forgets what it cannot keep, and is told so."""
    idle, busy = flags.watch(buffer_max=10), flags.watch()
    written = [await flags.set_and_wait("n", str(n)) for n in range(100)]
    assert [c.new for c in await read(busy, 100)] == [str(n) for n in range(100)]
    before = written[0].revision - 1 if written[0].revision else 0
    [missed] = await read(idle, 1)
    assert isinstance(missed, Resync)
    assert (missed.reason, missed.revision, missed.is_fork) == ("overflow", flags.revision, False)
    assert missed.revision_before <= before
    assert flags["n"] == "99"  # the map itself says what was missed
    later = await flags.set_and_wait("n", "later")
    assert await read(idle, 1) == [Change(later.revision, "n", "99", "later")]


async def test_a_watch_that_is_not_read_is_bounded_in_bytes(flags: ReplicatedMap[str]) -> None:
    """G5: 4,096 changes of a list of 20,000 were 730 MiB."""
    for _ in range(80):
        await flags.append("l", *["x"] * 256)
    await flags.set_and_wait("k", "")
    idle, busy = flags.watch(), flags.watch()
    most, heard = 0, 0
    for n in range(150):
        last = await flags.append("l", str(n))
        await flags.wait_for(last.at)
        held = [change for change in idle._buffer if isinstance(change, model.KeyChange)]
        kept = {id(value): value for change in held for value in (change.old, change.new)}
        most = max(most, sum(map(sys.getsizeof, kept.values())))
        heard += isinstance(await anext(busy), Change)
    assert heard == 150, "who reads hears all"
    assert most < 1.1 * WATCH_BYTES_MAX
    [missed] = await read(idle, 1)
    assert isinstance(missed, Resync)
    assert (missed.reason, missed.is_fork) == ("overflow", False)
    assert len(flags.get_list("l")) == 80 * 256 + 150


async def test_what_a_change_keeps_alive_counts(
    flags: ReplicatedMap[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of any size is kept; what it replaced, or removed, is nobody else's any more."""
    monkeypatch.setattr(watches, "WATCH_BYTES_MAX", 10_000)
    text = "x" * 20_000
    changes: tuple[Callable[[], Awaitable[Any]], ...] = (
        lambda: flags.set("k", text),
        lambda: flags.delete("k"),
        lambda: flags.append("k", text),
        lambda: flags.remove("k", text),
        lambda: flags.append("k", *[text] * 2),
        lambda: flags.set("k", "short"),
    )
    for change in changes:
        with flags.watch() as watch, flags.watch() as heavier:
            done = await change()
            await flags.wait_for(done.at)
            heard = await anext(watch)
            assert isinstance(heard, Change)
            assert any(text in (value or ()) for value in (heard.old, heard.new))
            after = await flags.set("other", "")
            await flags.wait_for(after.at)
            assert isinstance(await anext(watch), Change)
            assert isinstance(await anext(heavier), Resync)


async def test_what_a_watch_could_not_keep_may_be_that_the_server_went_back(
    flags: ReplicatedMap[str], redis_url: str, pool_name: str
) -> None:
    stored = StoredMap(Control(pool_name), "flags")
    await flags.set_and_wait("a", "1")
    watch, seen = flags.watch(buffer_max=1), flags.watch()
    with connect(redis_url) as client:
        client.delete(stored.data, stored.log)
    with anyio.fail_after(PATIENCE_S):
        while not isinstance(await anext(seen), Resync):
            pass
    for n in range(3):
        await flags.set_and_wait("n", str(n))
    [missed] = await read(watch, 1)
    assert missed == Resync("overflow", flags.revision, missed.revision_before, is_fork=True)


async def test_two_readers_of_one_watch_share_it(flags: ReplicatedMap[str]) -> None:
    watch = flags.watch()
    heard: list[str | None] = []

    async def read_one() -> None:
        change = await anext(watch)
        assert isinstance(change, Change)
        heard.append(change.new)  # type: ignore[arg-type]

    async with together() as start:
        for _ in range(2):
            start(read_one)
        await anyio.lowlevel.checkpoint()
        await flags.set_and_wait("a", "1")
        await flags.set_and_wait("a", "2")
    assert sorted(map(str, heard)) == ["1", "2"]


async def test_one_revision_of_a_list_is_one_change(flags: ReplicatedMap[str]) -> None:
    with flags.watch() as watch:
        first = await flags.append("l", "a", "b")
        second = await flags.remove("l", "a", "b")
        assert await read(watch, 2) == [
            Change(first.revision, "l", None, ("a", "b")),
            Change(second.revision, "l", ("a", "b"), None),
        ]


async def test_closing_a_watch_ends_its_reader_after_what_it_has_heard(
    flags: ReplicatedMap[str],
) -> None:
    watch = flags.watch()
    written = await flags.set_and_wait("a", "1")
    watch.close()
    watch.close()
    await flags.set_and_wait("a", "2")
    with anyio.fail_after(PATIENCE_S):
        assert [change async for change in watch] == [Change(written.revision, "a", None, "1")]


async def test_closing_the_map_ends_those_who_watch_it(open_map: OpenMap) -> None:
    ended: list[str] = []
    async with together() as start, open_map() as flags:

        async def follow(watch: Any) -> None:
            async for _ in watch:
                pass
            ended.append("ended")

        for _ in range(3):
            start(follow, flags.watch())
        await flags.set_and_wait("a", "1")
    assert ended == ["ended"] * 3


async def test_a_map_that_outlives_its_node_is_closed_with_it(
    redis_url: str, pool_name: str
) -> None:
    """Its watches waited for ever, and it said that it was open."""
    ended: list[Any] = []
    async with together() as start:

        async def follow(watch: Any) -> None:
            ended.extend([change.new async for change in watch])
            ended.append("ended")

        async def wait(flags: ReplicatedMap[str], at: Position) -> None:
            with pytest.raises(NotRunning, match="closed"):
                await flags.wait_for(at)
            ended.append("told")

        # No probe within the test: it would know that what is waited for is not in the history.
        settings = attrs.evolve(SETTINGS, lease_ttl_s=600.0)
        async with Node(pool_name, redis_url, settings=settings) as node:
            flags = node.map("flags")
            await flags.__aenter__()
            at = flags.at
            start(follow, flags.watch())
            start(wait, flags, attrs.evolve(at, revision=2**52, stamp="f"))
            await anyio.lowlevel.checkpoint()
            await flags.set_and_wait("a", "1")
    assert sorted(ended) == ["1", "ended", "told"]
    assert repr(flags) == "<ReplicatedMap 'flags', closed>"
    for use in (lambda: flags["a"], lambda: flags.at, flags.watch, flags.snapshot):
        with pytest.raises(NotRunning, match="closed"):
            use()
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: flags.set("a", "2"),
        lambda: flags.wait_for(at),
        lambda: flags.update({}),
    ]
    for call in calls:
        with pytest.raises(NotRunning, match="closed"):
            await call()
    await flags.__aexit__(None, None, None)


# --- set_and_wait -----------------------------------------------------------------------------


async def test_twenty_who_set_the_same_value_all_return(flags: ReplicatedMap[str]) -> None:
    """Each waits for its own revision: nobody takes another's answer for its own."""
    revisions: list[int] = []

    async def one() -> None:
        revisions.append((await flags.set_and_wait("a", "same")).revision)

    async with together() as start:
        for _ in range(20):
            start(one)
    assert len(set(revisions)) == 20
    assert flags.revision == max(revisions)


async def test_a_cancelled_caller_disturbs_nobody(flags: ReplicatedMap[str]) -> None:
    done: list[str] = []

    async def one(value: str, scope: anyio.CancelScope) -> None:
        with scope:
            await flags.set_and_wait("a", value)
            done.append(value)

    scopes = [anyio.CancelScope() for _ in range(20)]
    async with together() as start:
        for n, scope in enumerate(scopes):
            start(one, str(n), scope)
        await anyio.lowlevel.checkpoint()
        for scope in scopes[::2]:
            scope.cancel()
    assert {str(n) for n in range(1, 20, 2)} <= set(done)
    await flags.set_and_wait("a", "after")


async def test_callers_on_a_closing_map_are_told(open_map: OpenMap) -> None:
    told: list[BaseException] = []

    async def wait(flags: ReplicatedMap[str], n: int) -> None:
        try:
            await flags.wait_for(attrs.evolve(flags.at, revision=2**52 + n))
        except NotRunning as error:
            told.append(error)

    async with together() as start, open_map() as flags:
        await flags.set_and_wait("a", "1")
        for n in range(5):
            start(wait, flags, n)
        await anyio.lowlevel.checkpoint()
    assert len(told) == 5


# --- time to live -----------------------------------------------------------------------------


@pytest.mark.parametrize("is_sliding", [False, True])
async def test_the_end_of_a_map_reaches_its_replicas(
    open_map: OpenMap, *, is_sliding: bool
) -> None:
    """Within a renewal period of the end, with a change for each key."""
    async with open_map(ttl_s=2.0, is_sliding=is_sliding) as writer, open_map() as reader:
        with reader.watch() as watch:
            await writer.set("a", "1")
            await writer.append("l", "x", "y")
            await read(watch, 2)
            gone = await read(watch, 2)
        assert {(c.key, c.old, c.new) for c in gone} == {("a", "1", None), ("l", ("x", "y"), None)}
        assert reader.snapshot() == {}
        await reader.wait_for((await writer.set("a", "2")).at)
        assert reader.snapshot() == {"a": "2"}


async def test_any_node_of_the_pool_ends_a_map_that_nobody_holds(
    open_map: OpenMap, redis_url: str, pool_name: str
) -> None:
    stored = StoredMap(Control(pool_name), "flags")
    async with open_map(ttl_s=1.0) as writer:
        written = await writer.set("a", "1")
    async with open_map("another"), anyio.create_task_group() as tasks:
        with connect(redis_url) as client, anyio.fail_after(PATIENCE_S):
            ended = partial(client.xread, {stored.log: f"{written.revision}-0"}, block=5000)
            [[_, [(_, fields)]]] = await anyio.to_thread.run_sync(ended)
            assert fields[b"edits"] == b"*"
            assert not client.exists(stored.data)
        tasks.cancel_scope.cancel()


# --- many -------------------------------------------------------------------------------------


async def test_fifty_replicas_end_equal_after_a_thousand_writes_of_eight(
    open_map: OpenMap, redis_url: str, pool_name: str
) -> None:
    """G-10.  Each of the eight writers does 125 operations of all kinds, at random (seeded)."""

    async def write(flags: ReplicatedMap[str], seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(125):
            key, value = dice.choice("abcdef"), str(dice.randrange(4))
            calls: list[tuple[Callable[..., Awaitable[Any]], *tuple[Any, ...]]] = [
                (flags.set, key, value),
                (flags.set_if_not_exists, key, value),
                (flags.compare_and_set, key, value, "x"),
                (flags.delete, key),
                (flags.append, f"l{key}", value),
                (flags.append_unique, f"l{key}", value),
                (flags.remove, f"l{key}", value),
                (flags.increment, f"n{key}", dice.randrange(9)),
            ]
            call, *args = dice.choice(calls)
            await call(*args)
            if dice.random() < 0.01:
                await flags.reset()

    stored = StoredMap(Control(pool_name), "flags")
    settings = attrs.evolve(SETTINGS, op_timeout_s=20.0)  # they share one loop
    async with anyio.create_task_group() as tasks:
        replicas: list[ReplicatedMap[Any]] = []
        finished = anyio.Event()

        async def follow(ready: anyio.Event) -> None:
            async with open_map(settings=settings) as replica:
                replicas.append(replica)
                ready.set()
                await finished.wait()

        for _ in range(50):
            ready = anyio.Event()
            tasks.start_soon(follow, ready)
            await ready.wait()
        with anyio.fail_after(240):
            async with anyio.create_task_group() as writers:
                for seed in range(8):
                    writers.start_soon(write, replicas[seed], seed)
            last = (await replicas[0].set("last", "1")).at
            for replica in replicas:
                await replica.wait_for(last)
        snapshots = [replica.snapshot() for replica in replicas]
        with connect(redis_url, decode_responses=True) as client:
            held = client.hgetall(stored.data)
            items = client.zcard(stored.lists)
        finished.set()
    assert all(snapshot == snapshots[0] for snapshot in snapshots)
    found = snapshots[0]
    strings = {f"={key}": value for key, value in found.items() if isinstance(value, str)}
    assert strings | {"at": held["at"]} == held
    assert 2 * sum(len(value) for value in found.values() if isinstance(value, tuple)) == items


def test_each_reason_of_a_resync_is_told() -> None:
    for text in (Resync.__doc__, Path("docs/how-to/maps.md").read_text("utf-8")):
        assert text
        assert [reason for reason in get_args(Reason) if reason not in text] == []
