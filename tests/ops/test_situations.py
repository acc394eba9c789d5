"""Situations that operators meet, made on a real server: what `pool doctor` reports of each.

    python -m tests.ops.test_situations      prints the table: told, missed, false alarms

A situation names all findings that must be told, notes included.  Any other finding is a false
alarm, except for those that this machine or the test server may cause (`MACHINE`).  It also names
the figures that an autoscaler reads.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from xml.etree import ElementTree

import anyio
import anyio.to_thread
import attrs
import pytest
import redis

from pool import Call, Follower, Handlers, Job, Node, Park, Retry
from pool.core.schedules import ON_TIME_S
from pool.events import ScheduleMissed
from pool.names import PAUSED, Names
from pool.ops import poolwide
from pool.ops.cli.doctor import diagnose
from pool.ops.cli.why import fetch
from pool.ops.metrics import Metrics
from pool.ops.rates import RUNS_MIN, Rating
from pool.redis.acl import rules
from pool.redis.embedded.server import EmbeddedServer
from pool.redis.url import Url
from pool.schedules import Every
from pool.settings import Settings
from tests.ops.facts import BUSY

if TYPE_CHECKING:
    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio

WAIT_S: Final = 60.0
TABLE: Final = "POOL_TEST_SITUATIONS"  # a variable: outcomes are recorded for the table
TTL_S: Final = 1.0  # of what is reported when it is late by a TTL
# What a busy machine, or a server that many tests use, may be told of; no situation plants it.
MACHINE: Final = BUSY | {
    "collector-pauses",
    "rights-refused",  # other tests on this server are refused calls on purpose
    "server-no-limit",
    "server-no-log",
    "server-slow",
    "server-turned-away",
}

HERE = Handlers()
ELSEWHERE = Handlers()
MIXED = Handlers()


@HERE.job("here")
async def here(_: Job) -> None:
    await anyio.sleep_forever()


async def service(_: Job) -> None:
    await anyio.sleep_forever()


HERE.service("service")(service)


@HERE.job("quick")
async def quick(_: Job) -> None:
    """End at once."""


@HERE.job("parks")
async def parks(_: Job) -> None:
    raise Park("no such customer")


@HERE.job("retries", attempts_max=9)
async def retries(job: Job) -> None:
    raise Retry(after_s=0.01 if job.attempt < job.key.count("x") else 600.0)


@HERE.job("stubborn", timeout_s=0.2)
async def stubborn(job: Job) -> None:
    with anyio.CancelScope(shield=True):
        await anyio.sleep(WAIT_S if job.key == "for long" else 12.0)


@HERE.job("silent", progress_timeout_s=0.2)
async def silent(_: Job) -> None:
    with anyio.CancelScope(shield=True):
        await anyio.sleep(12.0)


@HERE.job("swallows")
async def swallows(_: Job) -> None:
    with anyio.CancelScope(shield=True):
        await anyio.sleep(12.0)


@MIXED.job("mixed")
async def mixed(_: Job, how: str) -> None:
    if how == "hangs":
        await anyio.sleep_forever()


@ELSEWHERE.job("elsewhere")
async def elsewhere(_: Job) -> None:
    """Stay unstarted: the only worker that has it leaves."""


# --- well -----------------------------------------------------------------------------------------


async def _idle_worker(fleet: Fleet) -> None:
    await fleet.node(HERE)


async def _only_clients(fleet: Fleet) -> None:
    await fleet.node()


async def _finished_jobs(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    for number in range(20):
        await (await node.dispatch("quick", f"k{number}")).result(WAIT_S)


async def _service_that_runs(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    await (await node.dispatch("service", "k")).started(WAIT_S)


async def _full_worker(fleet: Fleet) -> None:
    node = await fleet.node(HERE, capacity=1)
    first = await node.dispatch("here", "k0")
    await first.started(WAIT_S)
    for number in range(1, 4):
        await node.dispatch("here", f"k{number}")


async def _delayed_job(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    await node.options(delay_s=600.0).dispatch("here", "k")


async def _queue_behind_a_job(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    await (await node.dispatch("here", "k")).started(WAIT_S)
    await node.options(if_exists="queue").dispatch("here", "k")


async def _follower_that_waits(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    asking = node.options(then=Follower("quick", "after"))
    await (await asking.dispatch("here", "k")).started(WAIT_S)


async def _stopped_jobs(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    await (await node.dispatch("here", "k")).started(WAIT_S)
    await node.stop("k", timeout_s=WAIT_S)


async def _worker_that_left(fleet: Fleet) -> None:
    node, gone = await fleet.node(HERE), await fleet.node(HERE)
    await (await node.dispatch("here", "k")).started(WAIT_S)
    await fleet.leave(gone)


async def _empty_pool_that_all_left(fleet: Fleet) -> None:
    await fleet.leave(await fleet.node(HERE))


async def _resumed_pool(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    await node.pause(reason="a release")
    await node.resume()


async def _cordon_that_was_lifted(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    await node.cordon(node.id, timeout_s=WAIT_S)
    await node.uncordon(node.id, timeout_s=WAIT_S)


async def _schedule_that_waits(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    await node.schedule("often", Every(3600), "quick", "k")


async def _batch_that_runs(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    async with node.batch("b") as batch:
        await batch.add("here", [Call(f"k{number}") for number in range(3)])
    for number in range(3):
        await (await node.job(f"k{number}")).started(WAIT_S)


async def _few_messages(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    await (await node.dispatch("here", "k")).started(WAIT_S)
    for number in range(9):
        await node.notify("k", number)


# --- asked for ------------------------------------------------------------------------------------


async def _paused_handler(fleet: Fleet) -> None:
    node = await fleet.node(HERE, capacity=1)
    await node.pause(handler="here", reason="a release")
    for number in range(4):
        await node.dispatch("here", f"k{number}")


async def _paused_key(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    await node.pause(key="k", reason="a customer asked")
    await node.dispatch("here", "k")


async def _paused_pool_without_jobs(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    await node.pause(reason="a release")


async def _pause_that_one_lane_lacks(fleet: Fleet) -> None:
    """As if the operator's process had ended between both lanes; nodes would mend it."""
    node = await fleet.node(HERE, lanes=2)
    await node.pause(reason="a release")
    await fleet.leave(node)
    fleet.client.hdel(Names(fleet.pool, 1).lane, PAUSED)


async def _cordoned_worker(fleet: Fleet) -> None:
    node, other = await fleet.node(HERE), await fleet.node(HERE)
    await node.cordon(other.id, timeout_s=WAIT_S)


async def _all_workers_cordoned(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    await node.cordon(node.id, timeout_s=WAIT_S)
    await node.dispatch("here", "k")


# --- jobs in trouble ------------------------------------------------------------------------------


async def _handler_that_left(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    gone = await fleet.node(ELSEWHERE)
    await fleet.leave(gone)
    for number in range(4):
        await node.dispatch("elsewhere", f"k{number}")


async def _handler_that_never_was(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    for number in range(4):
        await node.options(allow_unknown=True).dispatch("nowhere", f"k{number}")


async def _jobs_that_nobody_is_here_for(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    await node.options(delay_s=600.0).dispatch("here", "k")
    await fleet.leave(node)


async def _dead_letter(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    await node.dispatch("parks", "k")
    await fleet.until(lambda: fleet.client.exists(fleet.names.parked))


async def _second_attempt(fleet: Fleet) -> None:
    await _attempts(fleet, "x", 2)


async def _attempts_in_a_row(fleet: Fleet) -> None:
    await _attempts(fleet, "xxxx", 5)


async def _attempts(fleet: Fleet, key: str, attempt: int) -> None:
    node = await fleet.node(HERE)
    await node.dispatch("retries", key)

    def waits() -> bool:
        record = fleet.record(key)
        return record is not None and (record.state, record.attempt) == ("waiting", attempt)

    await fleet.until(waits)


async def _timeout_without_an_end(fleet: Fleet) -> None:
    node = await fleet.node(HERE, lease_ttl_s=TTL_S)
    await (await node.dispatch("stubborn", "k")).started(WAIT_S)
    await anyio.sleep(TTL_S + 3.0)


async def _no_progress_and_no_end(fleet: Fleet) -> None:
    node = await fleet.node(HERE, lease_ttl_s=TTL_S)
    await (await node.dispatch("silent", "k")).started(WAIT_S)
    await anyio.sleep(TTL_S + 3.0)


async def _stop_that_is_swallowed(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    await (await node.dispatch("swallows", "k")).started(WAIT_S)
    with anyio.move_on_after(1.0):
        await node.stop("k", timeout_s=WAIT_S)


async def _inbox_that_nobody_reads(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    await (await node.dispatch("here", "k")).started(WAIT_S)
    for number in range(120):
        await node.notify("k", number)


# --- schedules and plans --------------------------------------------------------------------------


async def _schedule_that_missed_times(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    asking = node.options(if_exists="queue")
    await asking.schedule("often", Every(1, misfire="skip"), "quick", "k")
    await fleet.leave(node)
    await anyio.sleep(ON_TIME_S + 2.5)
    node = await fleet.node(HERE)
    await fleet.seen(ScheduleMissed)
    await node.schedules.pause("often")
    await fleet.until(lambda: not fleet.client.hlen(fleet.names.jobs))


async def _plan_that_would_stop_too_much(fleet: Fleet) -> None:
    await _plan(fleet, [])


async def _plan_with_a_problem(fleet: Fleet) -> None:
    await _plan(fleet, ["a", "b", "c\n"])


async def _plan_that_is_met(fleet: Fleet) -> None:
    await _plan(fleet, ["a", "b", "c"])


async def _plan(fleet: Fleet, later: list[str]) -> None:
    mine, wanted = Handlers(), ["a", "b"]
    mine.plan("feeds", mine.service("service")(service), every_s=3600.0)(lambda _: list(wanted))
    node = await fleet.node(mine)
    with anyio.fail_after(WAIT_S):
        while "feeds" not in await node.plans():  # noqa: ASYNC110 - it comes by itself
            await anyio.sleep(0.01)
    await node.plan("feeds").apply(WAIT_S)
    wanted[:] = later
    await node.plan("feeds").apply(WAIT_S)


# --- data -----------------------------------------------------------------------------------------


async def _record_that_cannot_be_read(fleet: Fleet) -> None:
    fleet.is_audited = False
    await fleet.leave(await fleet.node(HERE))
    fleet.client.hset(fleet.names.jobs, "spoilt", "no record")


async def _job_that_no_index_has(fleet: Fleet) -> None:
    fleet.is_audited = False
    node = await fleet.node(HERE)
    await node.options(delay_s=600.0).dispatch("here", "k")
    await fleet.leave(node)
    fleet.client.zrem(fleet.names.due, "k:k")


async def _foreign_key(fleet: Fleet) -> None:
    fleet.is_audited = False
    await fleet.leave(await fleet.node(HERE))
    fleet.client.delete(fleet.names.due)
    fleet.client.set(fleet.names.due, "foreign")


async def _ttl_of_one_lane(fleet: Fleet) -> None:
    await fleet.node(HERE, lanes=3)
    fleet.client.hset(fleet.names.lane, "ttl", 7000)


async def _foreign_schedule(fleet: Fleet) -> None:
    fleet.is_audited = False
    await fleet.leave(await fleet.node(HERE))
    fleet.client.hset(fleet.names.schedules, "odd", "this is no schedule")


async def _waits_long(fleet: Fleet) -> None:
    """Wait until what waits does so for longer than a backlog takes to be one: six TTLs."""

    async def is_long() -> bool:
        values = {each.name: each for each in await poolwide.look(fleet.pool, Url.parse(fleet.url))}
        [oldest] = values["pool_queue_oldest_seconds"].samples
        return oldest.value > 6.5

    await fleet.until(is_long)


async def _full_worker_beside_a_cordoned_one(fleet: Fleet) -> None:
    node = await fleet.node(HERE, capacity=1, lease_ttl_s=1.0)
    other = await fleet.node(HERE, capacity=1, lease_ttl_s=1.0)
    await fleet.knows(node, 2)
    await node.cordon(other.id, timeout_s=60.0)
    for number in range(3):
        await node.dispatch("here", f"k{number}")
    await _waits_long(fleet)


async def _cordoned_workers_alone(fleet: Fleet) -> None:
    node = await fleet.node(HERE, capacity=1, lease_ttl_s=1.0)
    await node.cordon(node.id, timeout_s=60.0)
    await node.dispatch("here", "k")
    await _waits_long(fleet)


async def _schedule_behind_a_hung_job(fleet: Fleet) -> None:
    node = await fleet.node(HERE)
    await node.schedule("tick", Every(1.0), "here", "k")

    async def has_left_out_three() -> bool:
        return (await node.schedules.show("tick")).overlapped >= 3

    await fleet.until(has_left_out_three)


async def _schedule_whose_jobs_end(fleet: Fleet) -> None:
    node = await fleet.node(MIXED)
    await node.schedule("tick", Every(1.0), "mixed", "k", "ends")

    async def has_fired_twice() -> bool:
        return (await node.schedules.show("tick")).fired >= 2

    await fleet.until(has_fired_twice)


async def _counted_runs(fleet: Fleet, runs: int) -> Rating:
    """Have some runs end, as the pool's figures say, and one hang."""
    metrics = Metrics()
    node = await fleet.node(MIXED, observers=(metrics,))
    for number in range(runs):
        await (await node.dispatch("mixed", f"k{number}", "ends")).result(60.0)
    ref = await node.dispatch("mixed", "hung", "hangs")
    await ref.started(60.0)
    rating = Rating(metrics)
    await rating.send()
    return rating


async def _job_that_hangs(fleet: Fleet) -> None:
    rating = await _counted_runs(fleet, RUNS_MIN)

    async def is_reported() -> bool:
        await rating.send()  # a result may come before its run is counted
        findings = (await diagnose(fleet.pool, Url.parse(fleet.url))).findings
        return "runs-long" in {each.rule for each in findings}

    await fleet.until(is_reported)  # when ten times the usual time is over


async def _job_of_which_nothing_is_known(fleet: Fleet) -> None:
    await _counted_runs(fleet, 2)


# --- the table ------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Situation:
    make: Callable[[Fleet], Awaitable[None]]
    tells: frozenset[str]
    wanted: int = 0  # slots
    has_age: bool = False  # of a queue that could run now
    is_hasty: bool = False  # what is long elsewhere is so at once: jobs of tests are short


def _of(make: Callable[[Fleet], Awaitable[None]], *tells: str, **figures: Any) -> Situation:
    return Situation(make=make, tells=frozenset(tells), **figures)


SITUATIONS = {
    "idle worker": _of(_idle_worker),
    "only clients": _of(_only_clients),
    "finished jobs": _of(_finished_jobs),
    "service that runs": _of(_service_that_runs, wanted=1),
    "full worker": _of(_full_worker, wanted=4, has_age=True),
    "delayed job": _of(_delayed_job),
    "queue behind a job": _of(_queue_behind_a_job, wanted=1),
    "follower that waits": _of(_follower_that_waits, wanted=1),
    "stopped jobs": _of(_stopped_jobs),
    "worker that left": _of(_worker_that_left, wanted=1),
    "empty pool that all left": _of(_empty_pool_that_all_left),
    "resumed pool": _of(_resumed_pool),
    "cordon that was lifted": _of(_cordon_that_was_lifted),
    "schedule that waits": _of(_schedule_that_waits),
    "batch that runs": _of(_batch_that_runs, wanted=3),
    "few messages": _of(_few_messages, wanted=1),
    # One slot of each plan is that of the job which keeps it.
    "plan that is met": _of(_plan_that_is_met, wanted=4),
    "paused handler": _of(_paused_handler, "paused"),
    "paused key": _of(_paused_key, "paused"),
    "paused pool without jobs": _of(_paused_pool_without_jobs, "paused"),
    "pause that one lane lacks": _of(_pause_that_one_lane_lacks, "paused", "half-paused"),
    "cordoned worker": _of(_cordoned_worker, "cordoned"),
    "all workers cordoned": _of(
        _all_workers_cordoned, "cordoned", "cordoned-off", wanted=1, has_age=True
    ),
    "handler that left": _of(_handler_that_left, "no-worker"),
    "handler that never was": _of(_handler_that_never_was, "no-such-handler"),
    "jobs that nobody is here for": _of(_jobs_that_nobody_is_here_for, "nobody-here"),
    "dead letter": _of(_dead_letter, "parked"),
    "second attempt": _of(_second_attempt, "retrying"),
    "attempts in a row": _of(_attempts_in_a_row, "failing"),
    "timeout without an end": _of(_timeout_without_an_end, "too-long", "stopping", wanted=1),
    "no progress and no end": _of(_no_progress_and_no_end, "no-progress", "stopping", wanted=1),
    "stop that is swallowed": _of(_stop_that_is_swallowed, "stopping", wanted=1),
    "inbox that nobody reads": _of(_inbox_that_nobody_reads, "inbox", wanted=1),
    "schedule that missed times": _of(_schedule_that_missed_times, "schedule-missed"),
    "plan that would stop too much": _of(_plan_that_would_stop_too_much, "plan-held", wanted=3),
    "plan with a problem": _of(_plan_with_a_problem, "plan-failing", wanted=3),
    "record that cannot be read": _of(  # it counts as a job until a node parks it
        _record_that_cannot_be_read, "unreadable-records", "nobody-here", wanted=1
    ),
    "job that no index has": _of(_job_that_no_index_has, "astray", "nobody-here"),
    "foreign key": _of(_foreign_key, "cannot-be-read"),
    "lane of another TTL": _of(_ttl_of_one_lane, "ttl-apart"),
    "foreign schedule": _of(_foreign_schedule, "schedule-unreadable"),
    "full worker beside a cordoned one": _of(
        _full_worker_beside_a_cordoned_one,
        *("backlog", "cordoned"),
        wanted=3,
        has_age=True,
        is_hasty=True,
    ),
    "cordoned workers alone": _of(
        _cordoned_workers_alone,
        *("cordoned", "cordoned-off"),
        wanted=1,
        has_age=True,
        is_hasty=True,
    ),
    "schedule behind a hung job": _of(
        _schedule_behind_a_hung_job, "schedule-overlaps", wanted=1, is_hasty=True
    ),
    "schedule whose jobs end": _of(_schedule_whose_jobs_end, is_hasty=True),
    "job that hangs": _of(_job_that_hangs, "runs-long", wanted=1, is_hasty=True),
    "job of which nothing is known": _of(_job_of_which_nothing_is_known, wanted=1, is_hasty=True),
}


def test_the_table_is_not_about_a_few() -> None:
    assert len(SITUATIONS) >= 28
    assert not MACHINE & frozenset().union(*(each.tells for each in SITUATIONS.values()))


@pytest.mark.parametrize("name", SITUATIONS)
async def test_a_situation_is_told_by_exactly_its_findings(
    fleet: Fleet,
    name: str,
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    situation = SITUATIONS[name]
    if situation.is_hasty:
        monkeypatch.setattr("pool.ops.rates.FLOOR_S", 0.0)
        monkeypatch.setattr("pool.ops.doctor.PATIENCE_S", 0.0)
    await situation.make(fleet)
    url = Url.parse(fleet.url)
    told = {each.rule for each in (await diagnose(fleet.pool, url)).findings} - MACHINE
    parts = (
        ("told", told & situation.tells),
        ("missed", situation.tells - told),
        ("false alarms", told - situation.tells),
    )
    for what, names in parts if TABLE in os.environ else ():
        record_property(what, ", ".join(sorted(names)) or "-")
    assert told == situation.tells
    values = {
        family.name: [sample.value for sample in family.samples]
        for family in await poolwide.look(fleet.pool, url)
    }
    assert values["pool_slots_wanted"] == [situation.wanted]
    assert (max(values["pool_queue_age_seconds"], default=0) > 0) == situation.has_age


@pytest.fixture
def own_client(own_server: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(own_server.url, decode_responses=True) as client:
        yield client


SHORT = Settings(lease_ttl_s=1.0)


async def test_who_cannot_write_is_not_said_to_be_dead(
    anyio_backend: str, own_server: EmbeddedServer, own_client: redis.Redis
) -> None:
    url = Url.parse(own_server.url)

    async def errors() -> set[str]:
        findings = (await diagnose("shop", url)).findings
        return {each.rule for each in findings if each.severity == "error"}

    async with Node("shop", own_server.url, handlers=HERE, settings=SHORT, observers=()) as node:
        job = await node.dispatch(here, "k")
        with anyio.fail_after(60):
            while (await job.status()).state != "running":  # noqa: ASYNC110
                await anyio.sleep(0.01)
            own_client.config_set("min-replicas-to-write", "1")
            # So long they would be dead: a TTL that ends twice, by the clock of who looks.
            while (told := await fetch("shop", url, "k")).case != "owner-silent":  # noqa: ASYNC110
                await anyio.sleep(0.05)
            assert "the next node that can write" in told.says
            await anyio.sleep(2.5)
            assert await errors() == {"server-writes-refused"}
            own_client.config_set("min-replicas-to-write", "0")
            while await errors():  # noqa: ASYNC110
                await anyio.sleep(0.05)
        await job.stop()


def _user(client: Any, name: str, *words: str) -> str:
    """Make a user of the server; return the start of an address that has it."""
    client.execute_command("ACL", "SETUSER", name, "on", ">right", *words)
    return f"unix://{name}:right@"


def _refused(client: redis.Redis, url: str, *command: str) -> None:
    with redis.Redis.from_url(url) as other, pytest.raises(redis.exceptions.NoPermissionError):
        other.execute_command(*command)


async def _refusals(own_server: EmbeddedServer) -> list[str]:
    findings = (await diagnose("shop", Url.parse(own_server.url))).findings
    return [each.says for each in findings if each.rule == "rights-refused"]


async def test_refused_calls_of_the_pools_users_alone_are_reported_and_age_out(
    anyio_backend: str,
    own_server: EmbeddedServer,
    own_client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, admin = own_server.url.removeprefix("unix://"), cast("Any", own_client)
    without = [word for word in rules("shop") if word != "+info|memory"]
    ann = _user(own_client, "ann", *without) + place
    bob = _user(own_client, "bob", *rules("other")) + place
    carl = _user(own_client, "carl", "~*", "&*", "+@all", "-info", "-flushall") + place
    async with Node("shop", own_server.url, handlers=HERE, observers=()):
        with pytest.raises(redis.AuthenticationError):
            admin.execute_command("AUTH", "ann", "wrong")
        _refused(own_client, bob, "FLUSHALL")
        _refused(own_client, bob, "GET", "pool:{shop}:config")
        _refused(own_client, carl, "FLUSHALL")
        assert await _refusals(own_server) == []
        async with Node("shop", ann, observers=()):
            [said] = await _refusals(own_server)
        assert said.startswith("user 'ann' has no right to 'info")
        async with Node("shop", carl, observers=()):
            assert len(await _refusals(own_server)) == 2
        # The pool's user may not read the log, and is not refused for having tried.
        count = len(own_client.acl_log())
        await diagnose("shop", Url.parse(ann))
        assert len(own_client.acl_log()) == count
        monkeypatch.setattr("pool.ops.refusals.AGE_S", 0.0)
        assert await _refusals(own_server) == []


def main() -> int:
    """Play all situations, each on one event loop; print the table."""
    here = Path(__file__)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = ["pytest", "-q", str(here), "-k", "exactly", f"--junitxml={report}"]
        words += ["-o", "junit_family=xunit1"]  # the newer one has no properties
        environ = {**os.environ, "POOL_TEST_LOOPS": "one", TABLE: "1"}
        ran = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=here.parents[2],
            env=environ,
            stdout=sys.stderr,
            check=False,
        )
        cases = list(ElementTree.parse(report).iter("testcase"))  # noqa: S314 - our own file
    sys.stdout.write("| situation | told | missed | false alarms |\n|---|---|---|---|\n")
    for case in cases:
        name = case.attrib["name"].partition("[")[2].rstrip("]").partition("-")[2]
        found = {each.attrib["name"]: each.attrib["value"] for each in case.iter("property")}
        cells = [name, *(found.get(what, "?") for what in ("told", "missed", "false alarms"))]
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())
