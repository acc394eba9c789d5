"""What an operator sees and does from a terminal: nodes, workers, jobs, actions, all of a pool."""

from __future__ import annotations

import json
import math
import os
import shlex
import socket
from datetime import datetime
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
import redis

from pool.core.pauses import Pause
from pool.errors import JobCancelled, JobParked
from pool.jobs.client.listing import PAGE_MAX, JobFilter, Shelves
from pool.jobs.handlers import Handlers
from pool.jobs.job import Job
from pool.jobs.node import Node
from pool.names import QUEUED, pair
from pool.ops import admin, browse, inspect
from pool.ops.cli import FINDING, OK, UNREACHABLE, USAGE, main
from pool.ops.cli.parser import make
from pool.ops.cli.shapes import SHAPES, faults
from pool.ops.cli.stores import _of_maps
from pool.ops.findings import why_command
from pool.ops.stores import MapRows
from pool.ops.why import pause_command, resume_command
from pool.redis.url import Url
from pool.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

pytestmark = pytest.mark.anyio
WAIT_S = 60.0
SETTINGS = Settings(lease_ttl_s=5.0, grace_s=0.0)


class Stage:
    """A pool with a worker, and its command line."""

    def __init__(self, pool: str, url: str, node: Node, said: pytest.CaptureFixture[str]) -> None:
        self.pool, self.url, self.node = pool, url, node
        self.where = ["--pool", pool, "--url", url]
        self._said = said

    async def told(self, *words: str, code: int = OK) -> str:
        """Run a verb; return what it printed."""
        self._said.readouterr()
        ended = await anyio.to_thread.run_sync(main, [*words, *self.where])
        said = self._said.readouterr()
        assert ended == code, f"{words}: {ended}\n{said.out}{said.err}"
        if code in (USAGE, UNREACHABLE):
            assert said.err.count("\n") == 1, said.err
            return said.err
        return said.out

    async def refused(self, *words: str) -> str:
        """Run a verb that the pool refuses; return why."""
        self._said.readouterr()
        assert await anyio.to_thread.run_sync(main, [*words, *self.where]) == FINDING
        return self._said.readouterr().err

    async def json(self, *words: str, code: int = OK) -> dict[str, Any]:
        """Likewise, of the one object that it printed, which is as the reference tells."""
        text = await self.told(*words, "--json", code=code)
        told: dict[str, Any] = json.loads(text, parse_constant=no_json)
        assert list(faults(told, SHAPES[words[0]])) == []
        assert told["v"] == 1
        assert told["ok"] is (code == OK)
        return told


def no_json(word: str) -> None:
    pytest.fail(f"{word} is no JSON")


@pytest.fixture
def handlers() -> Handlers:
    found = Handlers()

    @found.job("stay")
    async def stay(job: Job, *args: Any, **kwargs: Any) -> None:
        await anyio.sleep_forever()

    @found.job("later", attempts_max=3, backoff_s=3600.0, backoff_max_s=3600.0)
    async def later(job: Job) -> int:
        if job.attempt == 1:
            raise ValueError("not yet")
        return job.attempt

    @found.job("poison", attempts_max=1)
    async def poison(job: Job, to: str) -> None:
        raise ValueError(to)

    @found.job("add")
    async def add(job: Job, left: int, right: int = 0) -> int:
        return left + right

    @found.job("same", attempts_max=1)
    async def same(job: Job, value: Any) -> Any:
        if job.key == "parked":
            raise ValueError("as it was told")
        return value

    @found.job("odd", codec="msgspec", attempts_max=1)
    async def odd(job: Job, value: Any, *, fails: bool = False) -> Any:
        if fails:
            raise ValueError("as it was told")
        return value

    @found.service("listen")
    async def listen(job: Job) -> None:
        async for message in job.notifications():
            heard.append(message)  # noqa: PERF401 - each when it comes

    return found


heard: list[Any] = []


@pytest.fixture
async def stage(
    pool_url: str, pool_name: str, handlers: Handlers, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[Stage]:
    heard.clear()
    async with Node(
        pool_name, pool_url, handlers=handlers, capacity=8, settings=SETTINGS, observers=()
    ) as node:
        yield Stage(pool_name, pool_url, node, capsys)


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(WAIT_S):
        while not await is_so():  # noqa: ASYNC110 - nobody is told
            await anyio.sleep(0.02)


async def state_of(node: Node, key: str, state: str) -> None:
    async def is_so() -> bool:
        return (await node.status(key)).state == state

    await until(is_so)


# --- looking --------------------------------------------------------------------------------


async def test_what_is_queued_is_counted_apart_from_what_waits(stage: Stage) -> None:
    """As `pool jobs` has it: lanes have one number for both."""
    for n in range(3):
        await stage.node.options(delay_s=3600.0).dispatch("stay", f"late{n}")
    for _ in range(3):
        await stage.node.options(if_exists="queue").dispatch("stay", "k")
    await state_of(stage.node, "k", "running")
    states = [each["state"] for each in (await stage.json("jobs"))["jobs"]]
    jobs = (await stage.json("status"))["jobs"]
    assert jobs == {each: states.count(each) for each in jobs}
    assert (jobs["waiting"], jobs["queued"]) == (3, 2)
    assert "3 waiting, 0 unassigned, 2 queued" in await stage.told("status")


async def test_nodes_and_workers_say_where_they_are_and_what_they_have(stage: Stage) -> None:
    for n in range(3):
        await (await stage.node.dispatch("stay", f"k{n}")).started(WAIT_S)
    async with Node(stage.pool, stage.url, observers=()) as client:
        nodes = await stage.json("nodes")
        [worker] = (await stage.json("workers"))["workers"]
    by_id = {each["id"]: each for each in nodes["nodes"]}
    assert by_id.keys() == {stage.node.id, client.id}
    assert (by_id[stage.node.id]["workers"], by_id[client.id]["workers"]) == (1, 0)
    assert by_id[stage.node.id]["pid"] == worker["pid"] == os.getpid()
    assert worker["host"] == socket.gethostname()
    assert (worker["running"], worker["pending"], worker["capacity"]) == (3, 0, 8)
    assert worker["standing"] == "live"
    assert (await stage.json("workers", "--handler", "nobody"))["workers"] == []
    text = await stage.told("workers")
    assert worker["id"] in text
    assert "1 workers" in text


async def test_jobs_are_found_by_filters_page_by_page(stage: Stage) -> None:
    await stage.node.dispatch("stay", "a-1")
    await (await stage.node.dispatch("stay", "a-2")).started(WAIT_S)
    await stage.node.options(delay_s=600.0).dispatch("stay", "b-1")
    await stage.node.options(allow_unknown=True).dispatch("nobody", "c-1")
    await state_of(stage.node, "a-1", "running")

    async def keys(*words: str) -> set[str]:
        return {each["key"] for each in (await stage.json("jobs", *words))["jobs"]}

    assert await keys() == {"a-1", "a-2", "b-1", "c-1"}
    assert await keys("--prefix", "a-") == {"a-1", "a-2"}
    assert await keys("--state", "waiting") == {"b-1"}
    assert await keys("--state", "unassigned") == {"c-1"}
    assert await keys("--handler", "nobody") == {"c-1"}
    assert await keys("--older-than", "3600") == set()
    [worker] = stage.node.workers
    assert await keys("--owner", worker.id) == {"a-1", "a-2"}
    [row] = (await stage.json("jobs", "--state", "waiting"))["jobs"]
    assert 500 < row["wait_s"] <= 600
    assert row["since_s"] is None
    seen = set[str]()
    page = await stage.json("jobs", "--page", "1")
    pages = 1
    while page["cursor"]:
        seen |= {each["key"] for each in page["jobs"]}
        page = await stage.json("jobs", "--page", "1", "--cursor", page["cursor"])
        pages += 1
    assert seen | {each["key"] for each in page["jobs"]} == {"a-1", "a-2", "b-1", "c-1"}
    assert "4 jobs; looked at 4 of 4 records" in await stage.told("jobs")
    filtered = await stage.told("jobs", "--page", "1", "--prefix", "nobody has")
    assert "the page ended after looking through " in filtered
    assert "there may be more: go on with --cursor " in filtered
    assert "4 jobs; looked at 4 of 4 records" in await stage.told("jobs", "--all", "--page", "1")
    watched = await stage.told("jobs", "--watch", "--frames", "2", "--every", "0.2", "--json")
    assert watched.count("\n") == 2
    assert "none that a page told" in await stage.told("jobs", "--cursor", "x", code=USAGE)
    assert await stage.told("jobs", "--page", str(PAGE_MAX + 1), code=USAGE)


async def test_a_page_looks_at_no_more_than_it_may_and_says_so(stage: Stage) -> None:
    """No command looks at more than SLICE records, and a walk tells how far it came."""
    calls = stage.node.options(delay_s=600.0)
    await calls.dispatch_many("stay", [f"k{n}" for n in range(700)])
    async with inspect.opened(stage.pool, Url.parse(stage.url)) as (pipeline, found):
        page = await browse.jobs(pipeline, found, JobFilter(prefix="none"), page=200)
        assert page.jobs == ()
        assert page.cursor
        assert 200 <= page.looked < 400
        assert page.of == 700
        slices = list[int]()
        read = Shelves.read

        async def counted(self: Any, names: Any, source: Any, at: str, count: int) -> Any:
            slices.append(count)
            return await read(self, names, source, at, count)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Shelves, "read", counted)
            page = await browse.jobs(pipeline, found, JobFilter(), page=2_000)
        assert len(page.jobs) == 700
        assert max(slices) <= browse.SLICE


@pytest.mark.parametrize("state", ["running", "waiting", "unassigned", "queued", "done", "parked"])
async def test_everything_of_one_job_is_told(stage: Stage, state: str) -> None:
    """Its arguments wherever they lie, and what became of it."""
    node, handler, args = stage.node, "stay", [1, "two"]
    match state:
        case "waiting":
            node = node.options(delay_s=600.0)  # type: ignore[assignment]
        case "unassigned":
            handler, node = "nobody", node.options(allow_unknown=True)  # type: ignore[assignment]
        case "queued":
            await (await node.dispatch("stay", "k")).started(WAIT_S)
            node = node.options(if_exists="queue")  # type: ignore[assignment]
        case "done":
            handler, args = "add", [1, 2]
        case "parked":
            handler, args = "poison", ["me"]
    ref = await node.dispatch(handler, "k", *args)

    async def is_so() -> bool:
        return (await ref.status()).state == state

    await until(is_so)
    told = await stage.json("job", "k", ref.job_id)
    assert told["why"]["state"] == state
    assert told["job_id"] == ref.job_id
    if state == "done":
        assert (told["has_result"], told["result"]) == (True, 3)
    else:
        assert (told["args"], told["kwargs"]) == (args, {})
    text = await stage.told("job", "k", ref.job_id)
    assert ("result      3" if state == "done" else f"arguments   {args!r} {{}}") in text


async def test_values_that_json_has_no_word_for_are_told_all_the_same(stage: Stage) -> None:
    """MessagePack has them: a reader of `--json` that is strict reads all of it."""
    value = {"nan": math.nan, "many": [math.inf, 1.5], "bytes": b"\xff"}
    told = {"nan": None, "many": [None, 1.5], "bytes": "/w=="}
    done = await stage.node.dispatch("odd", "done", value)
    parked = await stage.node.dispatch("odd", "parked", value, fails=True)
    assert (await done.result(timeout_s=WAIT_S))["many"] == value["many"]
    with pytest.raises(JobParked):
        await parked.result(timeout_s=WAIT_S)
    assert (await stage.json("job", "done", done.job_id))["result"] == told
    assert (await stage.json("job", "parked", parked.job_id))["kwargs"]["value"] == told
    text = await stage.told("parked", "show", "parked", parked.job_id, "--json")
    assert json.loads(text, parse_constant=no_json)["job"]["kwargs"]["value"] == told


@pytest.mark.parametrize("value", [b"\x00\xff", "AP8=", {"base64": "AP8="}])
async def test_bytes_are_told_apart_from_what_looks_like_them(stage: Stage, value: Any) -> None:
    is_bytes = type(value) is bytes
    expected = ("AP8=", "base64") if is_bytes else (value, "json")
    done = await stage.node.dispatch("same", "done", value)
    assert await done.result(timeout_s=WAIT_S) == value
    parked = await stage.node.dispatch("same", "parked", value)
    with pytest.raises(JobParked):
        await parked.result(timeout_s=WAIT_S)
    told = await stage.json("job", "done", done.job_id)
    assert (told["result"], told["encoding"]) == expected
    told = await stage.json("job", "parked", parked.job_id)
    assert (told["args"], told["encoding"]) == ([expected[0]], expected[1])
    text = await stage.told("parked", "show", "parked", parked.job_id, "--json")
    told = json.loads(text)["job"]
    assert (told["args"], told["encoding"]) == ([expected[0]], expected[1])
    for words in (["job", "done", done.job_id], ["parked", "show", "parked", parked.job_id]):
        assert ("(bytes, in base64)" in await stage.told(*words)) is is_bytes


async def test_a_job_of_which_nothing_is_known_is_exit_code_1(stage: Stage) -> None:
    assert (await stage.json("job", "nothing", code=FINDING))["why"]["state"] == "unknown"


async def test_status_names_what_is_wrong_and_where(stage: Stage) -> None:
    """At three in the morning it said rc 0 while a job failed in a loop."""
    await stage.node.options(allow_unknown=True).dispatch("nobody", "order-17")
    status = await stage.json("status", code=FINDING)
    [finding] = status["findings"]
    assert (finding["rule"], finding["keys"]) == ("no-such-handler", ["order-17"])
    text = await stage.told("status", code=FINDING)
    assert "error   no-such-handler: 1 jobs wait" in text
    assert "keys    order-17" in text


# --- acting ---------------------------------------------------------------------------------


async def test_a_job_is_dispatched_and_its_result_waited_for(stage: Stage) -> None:
    told = await stage.json("dispatch", "add", "k", "[1, 2]", "--wait", "60")
    assert (told["state"], told["result"]) == ("done", 3)
    told = await stage.json("dispatch", "add", "k", '{"left": 5}', "--wait", "60", "--id", "mine")
    assert (told["job_id"], told["result"]) == ("mine", 5)
    assert (await stage.json("dispatch", "stay", "s"))["state"] == "accepted"
    for wrong in ("{1", '{"left": 1, "left": 2}', "[NaN]", "[1] 2"):
        assert "not JSON" in await stage.told("dispatch", "add", "k", wrong, code=USAGE)
        assert "not JSON" in await stage.told("notify", "s", wrong, code=USAGE)
    told = await stage.json("dispatch", "stay", "t", "--wait", "0.1", code=FINDING)
    assert told["state"] == "going on"


async def test_what_is_no_number_is_no_json_either(stage: Stage) -> None:
    """As msgspec carries it."""
    more = Handlers()

    @more.job("nan", codec="msgspec", retention_s=600)
    async def nan(job: Job) -> list[float]:
        return [float("nan"), 1.0]

    await stage.node.add_worker(more)
    for words in (("dispatch", "nan", "k", "--wait", "60", "--id", "j"), ("job", "k", "j")):
        assert "NaN" not in await stage.told(*words, "--json")
        assert (await stage.json(*words))["result"] == [None, 1.0]


async def test_the_command_that_is_named_works_for_a_key_like_an_option(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POOL_NAME", stage.pool)
    monkeypatch.setenv("POOL_URL", stage.url)
    ref = await stage.node.dispatch("poison", "-k", "x")
    with pytest.raises(JobParked):
        await ref.result(WAIT_S)
    words = ["why", "--json", "--id", ref.job_id, "--", "-k"]
    assert await anyio.to_thread.run_sync(main, words) == OK
    words = shlex.split(json.loads(capsys.readouterr().out)["next"])
    assert words == ["pool", "parked", "show", "--", "-k", ref.job_id]
    assert await anyio.to_thread.run_sync(main, words[1:]) == OK
    assert "'-k'" in capsys.readouterr().out


class Reversed:
    """A codec that the command line does not have."""

    name = "reversed"

    def encode(self, value: Any) -> bytes:
        return json.dumps(value).encode()[::-1]

    def decode(self, data: bytes) -> Any:
        return json.loads(data[::-1])


async def test_a_result_that_cannot_be_shown_is_that_of_a_job_that_is_done(stage: Stage) -> None:
    more = Handlers()

    @more.job("sealed", codec=Reversed())
    async def sealed(job: Job) -> int:
        return 1

    @more.job("packed", codec="msgspec")
    async def packed(job: Job) -> dict[str, datetime]:
        return {"at": datetime(2026, 1, 1)}  # noqa: DTZ001 - as it is shown

    await stage.node.add_worker(more)
    told = await stage.json("dispatch", "sealed", "k", "--wait", "60")
    assert (told["state"], told["result"]) == ("done", None)
    assert (
        told["result_problem"] == "1 bytes made by the codec 'reversed', which no handler here has"
    )
    said = await stage.told("dispatch", "sealed", "k", "--wait", "60")
    assert ": done\n! its result is not shown: 1 bytes" in said
    told = await stage.json("dispatch", "packed", "k", "--wait", "60")
    assert told["result"] == {"at": "2026-01-01T00:00:00"}


async def test_a_message_reaches_the_live_job(stage: Stage) -> None:
    await (await stage.node.dispatch("listen", "room")).started(WAIT_S)
    await stage.json("notify", "room", '{"text": "hi"}')

    async def is_so() -> bool:
        return bool(heard)

    await until(is_so)
    assert heard == [{"text": "hi"}]
    assert await stage.told("notify", "nobody", "1", code=FINDING) == ""


async def test_one_job_is_stopped(stage: Stage) -> None:
    ref = await stage.node.dispatch("stay", "k")
    await ref.started(WAIT_S)
    assert (await stage.json("stop", "k", "--cause", "enough"))["done"] == 1
    with pytest.raises(JobCancelled, match="enough"):
        await ref.result(WAIT_S)


async def test_many_are_counted_first_and_stopped_when_that_is_confirmed(stage: Stage) -> None:
    keys = [f"a-{n}" for n in range(5)]
    for key in (*keys, "b-1"):
        await (await stage.node.dispatch("stay", key)).started(WAIT_S)
    some = ["stop", "--all", "--prefix", "a-"]
    said = await stage.told(*some, code=USAGE)
    assert "5 jobs match, such as" in said
    assert "say --yes to stop them" in said
    dry = await stage.json(*some, "--dry-run")
    assert (dry["found"], dry["done"], dry["is_dry"]) == (5, 0, True)
    assert sorted(dry["keys"]) == keys
    assert "more than 4: nothing was done" in await stage.told(
        *some, "--yes", "--at-most", "4", code=USAGE
    )
    assert await stage.node.count() == 6
    done = await stage.json(*some, "--yes", "--at-most", "5")
    assert (done["found"], done["done"], done["problems"]) == (5, 5, [])
    assert [each.key for each in (await stage.node.jobs()).jobs] == ["b-1"]


async def test_no_more_are_stopped_than_were_counted(stage: Stage) -> None:
    for n in range(4):
        await (await stage.node.dispatch("stay", f"k{n}")).started(WAIT_S)
    wanted = JobFilter(handler="stay")
    counted = await admin.count(stage.node, "stop", wanted)
    for n in range(4, 8):
        await (await stage.node.dispatch("stay", f"k{n}")).started(WAIT_S)
    seen = list[int]()
    done = await admin.stop_all(
        stage.node, wanted, counted, cause="c", timeout_s=WAIT_S, on_progress=seen.append
    )
    assert (counted.found, done.found, done.done) == (4, 4, 4)
    assert seen[-1] == 4
    assert await stage.node.count() == 4


async def test_a_handler_that_nobody_has_had_is_refused_and_can_be_allowed(stage: Stage) -> None:
    """The hint names the option of the command line, and no Python call."""
    for words in (["dispatch", "nobody", "k"], ["dispatch", "nobody", "k", "--json"]):
        problem = await stage.told(*words, code=USAGE)
        assert "POOLUNKNOWN" in problem
        assert "--allow-unknown" in problem
        assert "node.options" not in problem
    assert (await stage.json("dispatch", "nobody", "k", "--allow-unknown"))["state"] == "accepted"


@pytest.mark.parametrize(
    "words",
    [
        ["dispatch", "h", "--", "--"],
        ["why", "--", "--"],
        ["job", "--", "--", "id"],
        ["stop", "--", "--"],
        ["notify", "--", "--", "1"],
        ["parked", "show", "--", "--", "id"],
    ],
)
def test_a_key_may_be_called_as_what_ends_the_options(words: list[str]) -> None:
    assert make(is_whole=False).parse_args(words).key == "--"


@pytest.mark.parametrize("name", ["-x", "--", "--help", "-1", "it's", "k"])
def test_a_command_that_is_told_takes_values_that_begin_like_options(name: str) -> None:
    parser = make(is_whole=False)
    for told in (resume_command(Pause(key=name)), pause_command(Pause(key=name))):
        words = shlex.split(told)
        assert parser.parse_args(words[1:]).key == name
    words = shlex.split(why_command([QUEUED + pair("k", name)]))
    found = parser.parse_args(words[1:])
    assert (found.key, found.id) == ("k", name)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["stop"], "give KEY, or --all"),
        (["stop", "k", "--all"], "give KEY, or --all"),
        (["dispatch", "add", "k", '{"left": 1, "left": 2}'], "duplicate key 'left'"),
        (["dispatch", "add", "k", '[{"a": 1, "a": 2}]'], "duplicate key 'a'"),
        (["dispatch", "add", "k", "[NaN]"], "NaN is not JSON"),
        (["dispatch", "add", "k", "[1] [2]"], "more than one value"),
        (["notify", "k", '{"a": {"b": 1, "b": 2}}'], "duplicate key 'b'"),
        (["parked", "edit", "k", "i", "--args", '[{"a": 1, "a": 2}]'], "duplicate key 'a'"),
        (["parked", "edit", "k", "i", "--kwargs", '{"a": 1, "a": 2}'], "duplicate key 'a'"),
        (["stop", "k", "--prefix", "a"], "--prefix can only stand beside --all"),
        (["requeue", "k", "--yes"], "--yes can only stand beside --all"),
        (["requeue", "--all", "--state", "running"], "only what waits for its time"),
        (["purge", "other"], "give that name once more"),
        (["config", "--set", "lanes=2"], "it stands since the pool was made"),
        (["config", "--set", "lease_ttl_s=x"], "is no number"),
        (["config", "--set", "lease_ttl_s=0.1"], "lease_ttl_s"),
        (["maps", "--cursor", "x"], "none that a page told"),
        (["streams", "--cursor", str(2**64)], "none that a page told"),
        (["jobs", "--cursor", "99.0.0"], "it names lane 99, and the last one is"),
    ],
)
async def test_what_cannot_be_meant_is_said_in_a_line(
    stage: Stage, words: list[str], problem: str
) -> None:
    assert problem in await stage.told(*words, code=USAGE)


async def test_what_waits_for_its_retry_begins_now(stage: Stage) -> None:
    ref = await stage.node.dispatch("later", "k")
    await state_of(stage.node, "k", "waiting")
    assert (await stage.json("requeue", "k"))["done"] == 1
    assert await ref.result(WAIT_S) == 2
    assert "it has ended: it is done" in await stage.refused("requeue", "k", ref.job_id)


async def test_what_does_not_wait_is_not_requeued(stage: Stage) -> None:
    await (await stage.node.dispatch("stay", "k")).started(WAIT_S)
    assert "it is running, and waits for no time" in await stage.refused("requeue", "k")
    before = await stage.node.status("k")
    await stage.json("requeue", "--all", "--yes")
    assert (await stage.node.status("k")).epoch == before.epoch


async def test_all_that_wait_are_requeued(stage: Stage) -> None:
    delayed = stage.node.options(delay_s=3600.0)
    refs = [await delayed.dispatch("add", f"k{n}", n) for n in range(5)]
    assert (await stage.json("requeue", "--all", "--dry-run"))["found"] == 5
    done = await stage.json("requeue", "--all", "--yes")
    assert (done["found"], done["done"]) == (5, 5)
    assert [await ref.result(WAIT_S) for ref in refs] == [0, 1, 2, 3, 4]


async def test_a_dead_letter_is_replayed(stage: Stage) -> None:
    ref = await stage.node.dispatch("poison", "k", "me")

    async def is_parked() -> bool:
        return (await ref.status()).state == "parked"

    await until(is_parked)
    await stage.json("requeue", "k", ref.job_id)
    assert (await ref.status()).replayed_as


# --- what --json prints ---------------------------------------------------------------------

# Each verb in one state, and in one more where it has another to tell: words, and the exit code.
ASKED: dict[str, list[tuple[str, int]]] = {
    "status": [("", FINDING)],
    "top": [("--frames 1", FINDING)],
    "nodes": [("", OK)],
    "workers": [("", OK)],
    "jobs": [("", OK), ("--state unassigned --page 1", OK)],
    "job": [("bad", OK), ("nothing", FINDING), ("stays", OK)],
    "why": [("bad", OK), ("nothing", FINDING), ("stays", OK)],
    "doctor": [("", FINDING)],
    "rates": [("", OK), ("--since 1d", OK)],
    "events": [("--since all", OK), ("--key bad", OK)],
    "journal": [("follow --key k --for 1m", OK), ("show", OK), ("stop", OK)],
    "dispatch": [("add new [1] --wait 60", OK)],
    "notify": [("hears 1", OK)],
    "pause": [("--handler add", OK)],
    "resume": [("--handler add", OK)],
    "cordon": [("NODE", OK)],
    "uncordon": [("NODE", OK)],
    "maps": [("m", FINDING)],
    "streams": [("s", FINDING)],
    "config": [("", OK), ("--set lease_ttl_s=6", OK)],
    "ttl": [("5", OK)],
    "requeue": [("later", OK)],
    "stop": [("stays", OK), ("--all --dry-run", OK)],
    "drain": [("NODE", OK)],
}
# Programs that tell events, a list of words, and what no class can name (`from`): said apart.
_OTHERS = {"demo", "dev", "run", "web", "check", "acl", "completion", "explain"}


async def test_each_verb_prints_what_the_reference_tells_of_it(stage: Stage) -> None:
    """All fields at all depths, in one spelling, and `ok` is what the exit code says."""
    groups = make(is_whole=False)._subparsers
    assert groups is not None
    verbs: Any = groups._group_actions[0].choices
    alone = {name for name, parser in verbs.items() if parser._subparsers is None}
    assert ASKED.keys() - {"journal"} == alone - _OTHERS - {"purge"}  # of a pool that is left
    for handler, key in (("stay", "stays"), ("later", "later"), ("listen", "hears")):
        await stage.node.dispatch(handler, key)
    with pytest.raises(JobParked):
        await (await stage.node.dispatch("poison", "bad", "x\x1b[2J")).result(WAIT_S)
    await state_of(stage.node, "later", "waiting")
    await state_of(stage.node, "hears", "running")
    seen = set[str]()
    for verb, all_words in ASKED.items():
        for words, code in all_words:
            asked = [verb, *words.replace("NODE", stage.node.id).split()]
            for line in (await stage.told(*asked, "--json", code=code)).splitlines():
                told = json.loads(line)
                assert list(faults(told, SHAPES[verb])) == [], asked
                assert (told["v"], told["ok"]) == (1, code == OK), asked
                seen.add(verb)
    assert seen == ASKED.keys()


def test_a_time_is_spelled_in_one_way() -> None:
    assert list(faults("2026-11-26T06:22:20.335000+00:00", datetime)) == []
    for other in ("2026-11-26 06:22:20+00:00", "2026-11-26T06:22:20", 1.0, "now"):
        assert list(faults(other, datetime))


# --- all of a pool --------------------------------------------------------------------------


async def test_what_holds_for_all_is_shown_and_changed(stage: Stage) -> None:
    config = await stage.json("config")
    assert (config["lease_ttl_s"], config["lanes"]) == (5.0, 1)
    changed = await stage.json("config", "--set", "lease_ttl_s=6")
    assert (changed["lease_ttl_s"], changed["lanes_apart"]) == (6.0, [])
    assert "a TTL of 6 s in 1 of 1 lanes" in await stage.told("config", "--set", "lease_ttl_s=6")
    assert (await stage.json("config"))["lease_ttl_s"] == 6.0
    assert "lease_ttl_s  6" in await stage.told("config")


async def test_maps_and_streams_are_shown(stage: Stage, redis_url: str) -> None:
    async with stage.node.map("prices") as prices:
        await prices.set("tea", "3")
        await prices.set("cake", "4")
    stream = stage.node.stream("orders")
    await stream.add("made", "1")
    async with stream.sink("billing"):
        found = await stage.json("streams", "orders")
    [told] = found["streams"]
    assert (told["length"], told["added"]) == (1, 1)
    assert [(sink["name"], sink["consumers"]) for sink in told["sinks"]] == [("billing", 1)]
    [told] = (await stage.json("maps", "prices"))["maps"]
    assert (told["strings"], told["deltas"], told["ends_ms"]) == (2, 2, 0)
    assert "there is no nothing" in await stage.told("maps", "nothing", code=FINDING)
    stage.where[-1] = redis_url  # SCAN is not for nodes
    assert {each["name"] for each in (await stage.json("maps"))["maps"]} == {"prices", "workers"}
    assert [each["name"] for each in (await stage.json("streams"))["streams"]] == ["orders"]
    assert (await stage.told("maps")).endswith("\n2 maps\n")
    page = MapRows(pool="p", maps=(), cursor="17", looked=20_000)
    assert list(_of_maps(page, set()))[1:] == [
        "0 maps",
        "the page ended after looking through some 20,000 keys of the server",
        "there may be more: go on with --cursor 17",
    ]


async def test_a_pool_is_purged_whole_and_nothing_else(
    redis_url: str,
    pool_url: str,
    pool_name: str,
    handlers: Handlers,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with redis.Redis.from_url(redis_url) as client:
        other = f"pool:{{{pool_name}x}}:config"
        client.set(other, "of another")

        def keys() -> set[bytes]:
            return set(client.scan_iter(match=f"pool:{{{pool_name}*", count=1000))

        async with Node(
            pool_name, pool_url, handlers=handlers, settings=SETTINGS, observers=()
        ) as node:
            stage = Stage(pool_name, redis_url, node, capsys)
            for n in range(3):
                await node.options(delay_s=600.0).dispatch("stay", f"k{n}")
            assert "1 nodes are here" in await stage.told("purge", pool_name, "--yes", code=USAGE)
        before = keys()
        told = await stage.json("purge", pool_name)
        assert (told["jobs"], told["is_dry"]) == (3, True)
        assert told["keys"] == len(before) - 1
        assert keys() == before
        told = await stage.json("purge", pool_name, "--yes")
        assert (told["jobs"], told["keys"]) == (3, len(before) - 1)
        assert keys() == {other.encode()}
        assert "has no pool" in await stage.told("purge", pool_name, "--yes", code=USAGE)


def test_every_verb_of_a_group_has_a_shape() -> None:
    """So that none comes without its object being told of."""
    groups = make(is_whole=True)._subparsers
    assert groups is not None
    found = set()
    for name, parser in groups._group_actions[0].choices.items():  # type: ignore[union-attr]
        for inner in parser._subparsers._group_actions if parser._subparsers is not None else ():
            found |= {f"{name} {verb}" for verb in inner.choices or ()}
    found -= {each for each in found if each.startswith("journal ")}
    assert found == {each for each in SHAPES if " " in each}
