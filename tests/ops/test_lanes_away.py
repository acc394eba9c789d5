"""What a terminal, and HTTP, show of a pool while the server of one lane is away (C7).

A real cluster with a primary for each lane, of which the last one is killed.  The control keys are
with the first.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import attrs
import pytest
import redis

from pool import Handlers, Job, Node
from pool.errors import StoreUnavailable
from pool.listing import Gaps
from pool.names import Control, Names, lane_of
from pool.ops.cli import FINDING, OK, PARTLY, UNREACHABLE, main
from pool.ops.cli.shapes import SHAPES, faults
from pool.schedules import Every
from tests.nodes import SETTINGS, Fleet
from tests.servers import Cluster, admin, connect, freeze, thaw

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from pool.redis.embedded.server import ServerProgram

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]  # it brings its own
LANES, LAST = 3, 2
APART = attrs.evolve(SETTINGS, lanes=LANES, op_timeout_s=2.0)
WAIT_S = 60.0


def _is_spread(pool: str) -> bool:
    prefixes = (Control(pool).prefix, *(Names(pool, lane).prefix for lane in range(LANES)))
    slots = [redis.crc.key_slot(name.encode()) for name in prefixes]
    return [slot * LANES // 16_384 for slot in slots] == [0, 0, 1, 2]


POOL = next(name for n in range(10_000) if _is_spread(name := f"away-{n}"))


def key_in(lane: int, name: str = "key") -> str:
    return next(k for n in range(1000) if lane_of(k := f"{name}-{n}", LANES) == lane)


@pytest.fixture(scope="module")
def cluster(program: ServerProgram) -> Iterator[Cluster]:
    with Cluster.start(program, primaries=LANES, cluster_require_full_coverage="no") as place:
        yield place


@pytest.fixture
async def fleet(anyio_backend: str, cluster: Cluster) -> AsyncIterator[Fleet]:
    for each in cluster.processes:
        with admin(each) as client:
            client.flushall()
    with connect(cluster.url) as client:
        fleet = Fleet(cluster.url, POOL, client, APART, is_audited=False)
        async with fleet.running():
            yield fleet


async def filled(fleet: Fleet) -> Node:
    """Have a job that waits, a dead letter, a schedule and a batch in every lane."""
    handlers = Handlers()

    @handlers.job("fail", attempts_max=1)
    async def fail(job: Job) -> None:
        raise ValueError("as asked")

    @handlers.job("done")
    async def done(job: Job) -> None:
        pass

    node = await fleet.node(handlers)
    waiting = node.options(allow_unknown=True)
    for lane in range(LANES):
        await waiting.dispatch("nobody-has-this", key_in(lane, "waits"))
        ref = await node.dispatch("fail", key_in(lane, "fails"))
        with pytest.raises(Exception, match="as asked"):
            await ref.result(timeout_s=WAIT_S)
        await node.schedule(key_in(lane, "daily"), Every(86_400.0), "done", key_in(lane, "daily"))
        async with node.batch(key_in(lane, "batch")) as batch:
            await batch.add("done", [key_in(lane, "member")])
    return node


class Terminal:
    """The command line of the pool."""

    def __init__(self, url: str, said: pytest.CaptureFixture[str]) -> None:
        self.where = ["--pool", POOL, "--url", url]
        self._said = said

    async def run(self, *words: str) -> tuple[int, str]:
        self._said.readouterr()
        ended = await anyio.to_thread.run_sync(main, [*words, *self.where])
        return ended, self._said.readouterr().out

    async def json(self, *words: str) -> tuple[int, dict[str, Any]]:
        ended, said = await self.run(*words, "--json")
        told: dict[str, Any] = json.loads(said)
        assert list(faults(told, SHAPES.get(words[0]) or SHAPES[" ".join(words[:2])])) == []
        return ended, told


def lanes_shown(told: dict[str, Any], field: str, name: str) -> set[int]:
    return {lane_of(each[name], LANES) for each in told[field]}


# A listing, the field that has its rows, and what in a row says which lane it is of.
LISTINGS = [
    (("jobs",), "jobs", "key"),
    (("jobs", "--state", "unassigned"), "jobs", "key"),
    (("jobs", "--handler", "nobody-has-this", "--all"), "jobs", "key"),
    (("parked", "list"), "jobs", "key"),
    (("schedules", "list"), "schedules", "key"),
    (("batches", "list"), "batches", "id"),
    (("plans", "list"), "plans", "plan"),
]


async def test_each_verb_shows_the_lanes_that_answer_and_names_the_others(
    fleet: Fleet, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Red at first: all listings ended with 3 and showed nothing."""
    node = await filled(fleet)
    terminal = Terminal(cluster.url, capsys)
    for words, field, name in LISTINGS:
        ended, told = await terminal.json(*words)
        cursor = told.get("cursor")
        while cursor:  # a page of schedules is one lane's
            ended, more = await terminal.json(*words, "--cursor", cursor)
            told[field] += more[field]
            cursor = more["cursor"]
        assert (ended, told["unread"]) == (OK, []), words
        if field != "plans":
            assert lanes_shown(told, field, name) == {0, 1, 2}, words
    await fleet.leave(node)

    freeze(cluster.processes[LAST])
    try:
        for words, field, name in LISTINGS:
            ended, told = await terminal.json(*words)
            cursor = told.get("cursor")
            while cursor:
                ended, more = await terminal.json(*words, "--cursor", cursor)
                told[field] += more[field]
                cursor = more["cursor"]
            assert ended == PARTLY, words
            [unread] = told["unread"]
            assert unread.startswith(f"lane {LAST}: "), words
            if field != "plans":
                assert lanes_shown(told, field, name) == {0, 1}, words
        ended, said = await terminal.run("parked", "list")
        assert ended == PARTLY
        assert f"! cannot be read: lane {LAST}: " in said
        for verb in ("nodes", "workers"):
            ended, told = await terminal.json(verb)
            assert ended == PARTLY
            assert [each.partition(":")[0] for each in told["unread"]] == [f"lane {LAST}"]
        for verb in ("status", "doctor"):
            ended, told = await terminal.json(verb)
            assert (ended, told["lanes"]) == (FINDING, LANES)
            [away] = [each for each in told["findings"] if each["rule"] == "lane-away"]
            assert away["where"] == [f"lane {LAST}"]
            assert "foreign" not in away["advice"]
            assert "Hint" not in away["says"]
            for finding in told["findings"]:  # neither dangerous nor what was just done
                assert "DEL" not in finding["command"]
                assert not finding["command"].startswith(f"pool {verb}")
            assert "cannot-be-read" not in {each["rule"] for each in told["findings"]}
            assert verb == "status" or told["away"] == [LAST]
    finally:
        thaw(cluster.processes[LAST])


async def test_a_program_is_told_that_a_lane_is_away_unless_it_asks_for_the_rest(
    fleet: Fleet, cluster: Cluster
) -> None:
    """A part that looks like the whole would have a program act on it."""
    node = await filled(fleet)
    freeze(cluster.processes[LAST])
    try:
        with pytest.raises(StoreUnavailable):
            await node.batches.list()
        gaps = Gaps()
        found = await node.batches.list(gaps=gaps)
        assert {lane_of(each.id, LANES) for each in found} == {0, 1}
        assert [*gaps.errors] == [LAST]
        letters = await node.parked.list(gaps=gaps)
        assert {lane_of(each.key, LANES) for each in letters.jobs} == {0, 1}
        assert letters.unread == gaps.unread
    finally:
        thaw(cluster.processes[LAST])


async def test_where_no_lane_answers_nothing_is_shown(
    fleet: Fleet, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await filled(fleet)
    for each in cluster.processes:
        freeze(each)
    try:
        ended, said = await Terminal(cluster.url, capsys).run("jobs")
        assert (ended, said) == (UNREACHABLE, "")
    finally:
        for each in cluster.processes:
            thaw(each)


async def test_a_slot_that_was_left_migrating_is_named_and_no_key_is_called_foreign(
    fleet: Fleet, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await filled(fleet)
    slot = redis.crc.key_slot(Names(POOL, LAST).prefix.encode())
    source, target = cluster.processes[LAST], cluster.processes[0]
    with admin(source) as client, admin(target) as other:
        other.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", Cluster.name(source))
        client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", Cluster.name(target))
        try:
            client.config_set("cluster-require-full-coverage", "yes")
            _, told = await Terminal(cluster.url, capsys).json("doctor")
        finally:
            client.config_set("cluster-require-full-coverage", "no")
            client.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
            other.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
    rules = {each["rule"]: each for each in told["findings"]}
    assert f"slot {slot}, of lane {LAST}, is" in rules["cluster-slot-open"]["says"]
    assert "cannot-be-read" not in rules
    assert "cluster-coverage" in rules
