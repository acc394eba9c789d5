"""The client for callers that block: what a node promises, in threads, forks, and beside loops."""

from __future__ import annotations

import copy
import gc
import os
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from pool import Call, Follower, Handlers, Job, Node, Settings
from pool.batches import Batch, Batches, BatchRef, BatchStatus
from pool.errors import (
    BatchFailed,
    BatchSealed,
    ConfigError,
    DeadlockRisk,
    InvalidOption,
    JobParked,
    NoSuchBatch,
    NoSuchJob,
    NoSuchSchedule,
    NotRunning,
    NotStarted,
    PayloadTooLarge,
    StoreUnavailable,
    UnknownHandler,
    WrongLoop,
    WrongValue,
)
from pool.events import NodeJoined, NodeLeft
from pool.jobs.client.parked import DeadLetters
from pool.jobs.client.ref import JobRef
from pool.jobs.sync.client import Letters, MapReader
from pool.maps.map import ReplicatedMap
from pool.redis.embedded.server import EmbeddedServer
from pool.schedules import Every, Schedules
from pool.sync import (
    BlockingBatch,
    BlockingBatches,
    BlockingBatchRef,
    BlockingSchedules,
    Client,
    Ref,
)
from pool.testing import fault_proxy

if TYPE_CHECKING:
    from pool.redis.embedded.server import ServerProgram
    from tests.nodes import Fleet

T = TypeVar("T")
pytestmark = pytest.mark.anyio
WAIT_S = 30.0
PATIENT = Settings(op_timeout_s=WAIT_S)  # of a busy machine


def made() -> Handlers:
    mine = Handlers()

    @mine.job("double", attempts_max=1)
    async def double(job: Job, n: int) -> int:
        if n < 0:
            raise ValueError("below nothing")
        return 2 * n

    @mine.service("listen")
    async def listen(job: Job) -> list[Any]:
        heard: list[Any] = []
        async for note in job.notifications():
            heard.append(note)
            if note == "end":
                break
        return heard

    @mine.job("size")
    async def size(job: Job, text: str) -> int:
        return len(text)

    return mine


async def aside(fn: Callable[..., T], *args: Any) -> T:
    """Call it in a thread, as a blocking program would, while this loop's workers work."""
    return await anyio.to_thread.run_sync(partial(fn, *args))


def doubled(client: Client, key: str, n: int) -> int:
    """Dispatch a job and wait for its result."""
    return int(client.dispatch("double", key, n).result(timeout_s=WAIT_S))


@contextmanager
def client_of(fleet: Fleet, **options: Any) -> Iterator[Client]:
    options.setdefault("observers", ())
    options.setdefault("settings", PATIENT)
    with Client(fleet.pool, fleet.url, **options) as client:
        yield client


# --- the calls ----------------------------------------------------------------------------------


async def test_all_calls_do_what_a_nodes_do(fleet: Fleet) -> None:
    node = await fleet.node(made())
    async with node.map("flags") as flags:
        await flags.set_and_wait("new", "on")
        await flags.append("list", "a", "b")
        await flags.set_and_wait("n", "17")

        def use(client: Client) -> None:
            ref = client.dispatch("double", "k", 4)
            assert (ref.result(timeout_s=WAIT_S), ref.key, ref.handler) == (8, "k", "double")
            assert ref.status().state == "done"
            assert client.job("k", ref.job_id).result(timeout_s=WAIT_S) == 8
            ref.started(timeout_s=WAIT_S)

            many = client.dispatch_many("double", [Call("m1", 1), Call("m2", 2), 17])  # type: ignore[list-item]
            assert [m.result(WAIT_S) for m in many if isinstance(m, Ref)] == [2, 4]
            assert isinstance(many[2], InvalidOption)

            service = client.dispatch("listen", "s")
            client.notify("s", 1)
            assert client.status("s").handler == "listen"
            client.notify("s", "end")
            assert service.result(WAIT_S) == [1, "end"]
            client.dispatch("listen", "s")
            client.stop("s", timeout_s=WAIT_S)
            client.dispatch("listen", "s").stop(timeout_s=WAIT_S)
            with pytest.raises(NoSuchJob):
                client.status("s")

            late = client.options(delay_s=60, job_id="mine").dispatch("double", "late", 1)
            assert late.job_id == "mine"
            assert client.call(lambda node: node.count(prefix="late")) == 1
            late.stop(timeout_s=WAIT_S)

            reader = client.map("flags")
            assert (reader.get("new"), reader["new"], reader.get("old", "off")) == (
                "on",
                "on",
                "off",
            )
            assert (reader.get_list("list"), reader.get_int("n")) == (("a", "b"), 17)
            assert ("new" in reader, "old" in reader, len(reader)) == (True, False, 3)
            assert sorted(reader) == ["list", "n", "new"]
            assert reader.snapshot()["new"] == "on"
            assert reader.revision == client.map("flags").revision > 0
            assert client.map("flags", values=bytes).get("new") == b"on"
            with pytest.raises(WrongValue):
                reader.get("list")

        with client_of(fleet) as client:
            await aside(use, client)


async def test_dead_letters_are_listed_shown_replayed_and_discarded(fleet: Fleet) -> None:
    await fleet.node(made())

    def use(client: Client) -> None:
        ref = client.dispatch("double", "k", -1)
        with pytest.raises(JobParked, match="below nothing"):
            ref.result(timeout_s=WAIT_S)
        [letter] = client.parked.list(handler="double").jobs
        assert client.parked.show("k", letter.job_id).args == (-1,)
        again = client.parked.replay("k", letter.job_id)
        with pytest.raises(JobParked):
            again.result(timeout_s=WAIT_S)
        client.parked.discard("k", again.job_id)
        assert client.parked.list().jobs == ()

    with client_of(fleet) as client:
        await aside(use, client)


async def test_a_batch_is_made_waited_for_and_read(fleet: Fleet) -> None:
    await fleet.node(made())

    def use(client: Client) -> None:
        calls = [Call(f"m{n}", n) for n in range(3)]
        with client.batch("b", then=Follower("double", "after", 21)) as batch:
            assert (batch.add("double", (each for each in calls)), batch.added) == ([], 3)
            assert batch.ref.status().state == "open"
            with pytest.raises(TimeoutError, match=r"within 0(\.0\d{1,2})? s: "):
                batch.ref.wait(0.05)
        told = list[BatchStatus]()
        ref = client.batches.get("b")
        status = ref.wait(WAIT_S, on_progress=told.append)
        assert (status.state, status.succeeded, told[-1]) == ("done", 3, status)
        assert client.job(*status.released[0]).result(WAIT_S) == 42
        assert ref.result(timeout_s=0) == status
        assert sorted(member.result() for member in ref.members()) == [0, 2, 4]
        assert [member.key for member in ref.members(passed=2)] == [
            [member.key for member in ref.members()][2]
        ]
        assert [each.id for each in client.batches.list()] == ["b"]
        with pytest.raises(BatchSealed):
            batch.add("double", ["m3"])

    with client_of(fleet) as client:
        await aside(use, client)


async def test_a_batch_that_is_left_by_an_error_is_gone_on_with(fleet: Fleet) -> None:
    """As after a crash of its maker: the same members again, and each is there once."""
    await fleet.node(made())

    def use(client: Client) -> None:
        calls = [Call(f"m{n}", n) for n in range(4)]
        with pytest.raises(InvalidOption), client.batch("b") as batch:
            batch.add("double", [*calls[:2], 17])  # type: ignore[list-item]
        assert client.batches.get("b").status().state == "open"
        with client.batch("b") as outer:
            outer.add("double", calls)
            with client.batch("inner", within=outer) as inner:
                inner.add("double", ["m9"])  # without its argument: it is refused
            outer.seal()
        with pytest.raises(BatchFailed):
            outer.ref.result(WAIT_S)
        status = outer.ref.status()
        assert (status.expected, status.succeeded, status.failed) == (5, 4, 1)

    with client_of(fleet) as client:
        await aside(use, client)


async def test_a_batch_is_cancelled_and_each_member_is_told_once_it_has_ended(
    fleet: Fleet,
) -> None:
    """Who reads members waits for those that have not ended."""
    await fleet.node(made())
    first, ends = threading.Event(), list[tuple[str, str]]()

    def read(client: Client) -> None:
        for member in client.batches.get("b").members():
            ends.append((member.key, member.end))
            first.set()

    with client_of(fleet) as client:

        def make() -> None:
            with client.batch("b") as batch:
                batch.add("double", [Call("at once", 1)])
                batch.add("listen", ["service"])

        await aside(make)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(aside, read, client)
            assert await aside(first.wait, WAIT_S)
            assert ends == [("at once", "succeeded")]
            await aside(client.batches.get("b").cancel)
        assert ends[1:] == [("service", "cancelled")]


async def test_a_batch_that_is_not_entered_takes_nothing(fleet: Fleet) -> None:
    with client_of(fleet) as client:
        batch = client.batch("b")
        for call in (partial(batch.add, "double", []), batch.seal):
            with pytest.raises(NotRunning) as refused:
                call()
            assert refused.value.state == "new"
        with pytest.raises(NotRunning), client.batch("inner", within=batch):
            pass
        with pytest.raises(InvalidOption, match="within"):
            client.batch("inner", within=object())  # type: ignore[arg-type]
        assert (batch.added, repr(batch.ref)) == (0, "BlockingBatchRef(id='b')")
        with pytest.raises(NoSuchBatch):
            await aside(batch.ref.status)


async def test_schedules_are_made_changed_triggered_and_removed(fleet: Fleet) -> None:
    await fleet.node(made())

    def use(client: Client) -> None:
        client.schedule("nightly", Every(3600), "double", "k", 4)
        found = client.schedules.show("nightly")
        assert (found.handler, found.key, found.args, found.is_paused) == (
            *("double", "k", (4,)),
            False,
        )
        times = client.schedules.next_times("nightly", 2)
        assert (times[1] - times[0]).total_seconds() == 3600
        client.schedules.pause("nightly")
        assert client.schedules.show("nightly").is_paused
        assert client.schedules.trigger("nightly").result(WAIT_S) == 8
        client.schedules.resume("nightly")
        assert [each.name for each in client.schedules.list(prefix="night").schedules] == [
            "nightly"
        ]
        client.schedules.remove("nightly")
        with pytest.raises(NoSuchSchedule):
            client.schedules.show("nightly")
        with pytest.raises(UnknownHandler):
            client.schedule("later", Every(3600), "unknown", "k")
        client.options(allow_unknown=True).schedule("later", Every(3600), "unknown", "k")

    with client_of(fleet) as client:
        await aside(use, client)


async def test_threads_share_it_also_while_others_wait(fleet: Fleet) -> None:
    """Eight threads at once, beside one that waits for what never ends."""
    await fleet.node(made())

    def use(client: Client, name: str) -> list[int]:
        refs = [client.dispatch("double", f"{name}-{n}", n) for n in range(20)]
        return [ref.result(timeout_s=WAIT_S) for ref in refs]

    with client_of(fleet) as client:
        ended = list[list[int]]()
        async with anyio.create_task_group() as tasks:

            async def waits() -> None:
                with pytest.raises(NotRunning):
                    await aside(client.dispatch("listen", "s").result)

            async def works(name: str) -> None:
                ended.append(await aside(use, client, name))
                if len(ended) == 8:
                    client.close()  # whoever still waits is answered

            tasks.start_soon(waits)
            for n in range(8):
                tasks.start_soon(works, f"t{n}")
    assert ended == [[2 * n for n in range(20)]] * 8


async def test_what_is_too_large_is_refused_and_what_is_large_passes(fleet: Fleet) -> None:
    await fleet.node(made())
    settings = Settings(payload_bytes_max=8 * 1024 * 1024, op_timeout_s=WAIT_S)

    def use(client: Client) -> None:
        assert client.dispatch("size", "k", "x" * 4_000_000).result(WAIT_S) == 4_000_000
        with pytest.raises(PayloadTooLarge):
            client.dispatch("size", "k", "x" * 9_000_000)

    with client_of(fleet, settings=settings) as client:
        await aside(use, client)


async def test_a_waiting_handler_in_a_thread_is_known_to_wait(fleet: Fleet) -> None:
    """Its context goes along: a handler that waits for its own job is told so, and not for ever."""
    mine = Handlers()
    with client_of(fleet) as client:

        @mine.job("own", attempts_max=1)
        def own(job: Job) -> str:
            with pytest.raises(DeadlockRisk):
                client.job(job.key, job.id).result()
            return "told"

        await fleet.node(mine)
        assert await aside(client.dispatch("own", "k").result, WAIT_S) == "told"


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        *((Client, Node), (Ref, JobRef), (Letters, DeadLetters), (MapReader, ReplicatedMap)),
        *((BlockingBatch, Batch), (BlockingBatchRef, BatchRef), (BlockingBatches, Batches)),
        (BlockingSchedules, Schedules),
    ],
)
def test_its_calls_take_what_those_of_a_node_take(mine: type, theirs: type) -> None:
    for name in vars(mine):
        if name.startswith("_") or not callable(getattr(theirs, name, None)):
            continue
        own, nodes = (dict(signature(getattr(of, name)).parameters) for of in (mine, theirs))
        if name == "options":
            del own["timeout_s"]
        if name == "map":  # it is only read
            nodes = {each: nodes[each] for each in own}
        about = [[(p.name, p.kind, p.default) for p in of.values()] for of in (own, nodes)]
        assert about[0] == about[1], name


# --- limits -------------------------------------------------------------------------------------


async def test_a_result_that_does_not_come_in_time_goes_on(fleet: Fleet) -> None:
    await fleet.node(made())

    def use(client: Client) -> None:
        ref = client.options(delay_s=60).dispatch("double", "k", 1)
        with pytest.raises(TimeoutError, match=r"within 0(\.0\d{1,2})? s: .*its delay is not over"):
            ref.result(timeout_s=0.05)
        with pytest.raises(NotStarted, match=r"waited_s=0\.0\d{0,2}, "):
            ref.started(timeout_s=0.05)
        with pytest.raises(TimeoutError):
            ref.result(timeout_s=0)
        assert ref.status().state == "waiting"
        ref.stop(timeout_s=WAIT_S)

    with client_of(fleet) as client:
        await aside(use, client)


def test_a_server_that_never_answers_is_given_up_in_time(pool_name: str) -> None:
    """The limit is the call's, opening included; nothing was done."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        with Client(pool_name, url, timeout_s=0.1, observers=()) as client:
            with pytest.raises(StoreUnavailable, match=r"within 0\.1 s") as refused:
                client.dispatch("double", "k", 1)
            assert not refused.value.maybe_done
            with pytest.raises(StoreUnavailable, match=r"within 0\.2 s"):
                client.options(timeout_s=0.2).job("k", "id").status()
            with pytest.raises(StoreUnavailable, match=r"within 0\.05 s"):
                client.stop("k", timeout_s=0.05)


async def test_a_call_that_is_given_up_may_be_done(fleet: Fleet) -> None:
    """A line that stands still; and the client goes on when it moves again."""
    await fleet.node(made())
    async with fault_proxy(fleet.url) as proxy:
        with Client(fleet.pool, proxy.url, settings=PATIENT, observers=()) as client:
            assert await aside(doubled, client, "k", 1) == 2
            proxy.go_silent()
            with pytest.raises(StoreUnavailable, match=r"no answer within 0\.[01]") as given_up:
                await aside(client.options(timeout_s=0.1).dispatch, "double", "k2", 1)
            assert given_up.value.maybe_done
            await proxy.heal()

            def use() -> int:
                ref = client.options(if_exists="attach", attach_any=True).dispatch(
                    "double", "k3", 3
                )
                return int(ref.result(timeout_s=WAIT_S))

            while True:
                try:
                    assert await aside(use) == 6
                    break
                except StoreUnavailable:
                    continue
            await aside(client.close)  # the proxy is on this loop


async def test_the_limit_of_a_stop_bounds_it_also_while_the_server_hangs(fleet: Fleet) -> None:
    """Whether it was asked for is not known then, nor said; nor whether a job has begun."""
    await fleet.node(made())
    async with fault_proxy(fleet.url) as proxy:
        with Client(fleet.pool, proxy.url, settings=PATIENT, observers=()) as client:
            ref = await aside(client.dispatch, "listen", "k")
            proxy.go_silent()
            for stop in (ref.stop, partial(client.stop, "k")):
                with pytest.raises(StoreUnavailable, match=r"no answer within 0\.[01]") as unknown:
                    await aside(partial(stop, timeout_s=0.1))
                assert unknown.value.maybe_done
            with pytest.raises(NotStarted, match="was not seen to begin") as unseen:
                await aside(client.job("k", ref.job_id).started, 0.1)
            assert unseen.value.why == "its store has not answered"
            await proxy.heal()
            await aside(client.close)


def test_a_reference_is_compared_and_neither_it_nor_a_client_is_copied(pool_name: str) -> None:
    """Whoever passes one on is told how."""
    client = Client(pool_name, "redis://nowhere.invalid", observers=())
    other = Client(pool_name, "redis://nowhere.invalid", observers=())

    def ref(of: Client, job_id: str = "1") -> Ref[Any]:
        return Ref(of._portals, JobRef(key="k", job_id=job_id, handler="", client=None), None)  # type: ignore[arg-type]

    assert len({ref(client), ref(client), ref(client, "2"), ref(other)}) == 3
    assert ref(client) == ref(client.options(delay_s=1))
    assert ref(client) != "1"
    for copied in (copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"see Client\.job"):
            copied(ref(client))
        with pytest.raises(TypeError, match="make one in each process"):
            copied(client)


def test_a_closed_client_tells_what_can_be_done(pool_name: str) -> None:
    client = Client(pool_name, "redis://nowhere.invalid", observers=())
    client.close()
    with pytest.raises(NotRunning, match=r"a pool\.sync\.Client before close\(\)"):
        client.status("k")


def test_a_server_that_comes_late_is_joined_by_a_later_call(
    pool_name: str, program: ServerProgram, free_port: int
) -> None:
    """No attempt is the last one."""
    with Client(pool_name, f"redis://127.0.0.1:{free_port}", observers=()) as client:
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                client.status("k")
        with EmbeddedServer.start(program, tcp_port=free_port), pytest.raises(NoSuchJob):
            client.status("k")
        client.close()


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


# --- its end ------------------------------------------------------------------------------------


async def test_closing_answers_who_waits_and_is_for_good(fleet: Fleet) -> None:
    await fleet.node(made())
    client = Client(fleet.pool, fleet.url, settings=PATIENT, observers=(fleet.events.note,))
    ref = await aside(client.options(delay_s=60).dispatch, "double", "k", 1)
    reader, answers = client.map("flags"), list[object]()
    assert await aside(reader.get, "x") is None

    def wait() -> None:
        try:
            ref.result()
        except BaseException as error:  # noqa: BLE001 - whatever it is
            answers.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    await fleet.until(lambda: len(client._portals.portal()._flying) == 1)
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(aside, client.close)
    await aside(waiting.join)
    assert [type(answer) for answer in answers] == [NotRunning]
    for call in (
        ref.result,
        ref.status,
        client.close,
        partial(client.status, "k"),
        reader.snapshot,
    ):
        if call == client.close:
            call()
            continue
        with pytest.raises(NotRunning) as refused:
            call()
        assert refused.value.state == "closed"
    assert fleet.all_seen(NodeLeft, pool=fleet.pool)
    await (await fleet.node()).stop("k")


async def test_a_call_that_its_loop_never_began_is_answered(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came just when the loop ended: what was posted to it is not carried out any more."""
    await fleet.node(made())
    client, answers = (
        Client(fleet.pool, fleet.url, settings=PATIENT, observers=()),
        list[BaseException](),
    )
    portal = client._portals.portal()
    monkeypatch.setattr(portal, "_begin", lambda _: None)

    def ask() -> None:
        with pytest.raises(StoreUnavailable) as given_up:
            client.status("k")
        answers.append(given_up.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(aside, ask)
        await fleet.until(lambda: portal._flying)
        await aside(client.close)
    assert [error.maybe_done for error in answers if isinstance(error, StoreUnavailable)] == [True]


def test_one_that_is_never_used_opens_and_leaves_nothing(pool_name: str) -> None:
    before = threading.active_count()
    with Client(pool_name, "redis://nowhere.invalid", observers=()) as client:
        assert repr(client) == f"<Client of {pool_name!r}>"
        assert threading.active_count() == before
    with pytest.raises(ConfigError):
        Client("No Pool", "redis://nowhere.invalid")
    with pytest.raises(ConfigError):
        Client(pool_name, "http://nowhere.invalid")


async def test_one_that_nobody_holds_leaves(fleet: Fleet) -> None:
    """Its thread holds the node, and not the client."""

    def use() -> tuple[weakref.ref[Any], threading.Thread]:
        client = Client(fleet.pool, fleet.url, settings=PATIENT, observers=(fleet.events.note,))
        with pytest.raises(NoSuchJob):
            client.status("k")
        return weakref.ref(client._portals), client._portals.portal()._thread

    portals, thread = await aside(use)

    def is_gone() -> bool:
        gc.collect()
        return portals() is None

    await fleet.until(is_gone)
    await aside(thread.join, WAIT_S)
    assert not thread.is_alive()
    assert len(fleet.all_seen(NodeLeft)) == 1


class _Quits(BaseException):
    pass


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, _Quits, None])
async def test_what_a_function_raises_is_its_callers_and_the_node_stays(
    fleet: Fleet, kind: type[BaseException] | None
) -> None:
    """As `sys.exit()` in a function; None is the cancellation of what it waits for."""
    await fleet.node(made())

    async def leaves(node: Node) -> None:
        raise kind or anyio.get_cancelled_exc_class()

    def use(client: Client) -> str:
        with pytest.raises(BaseException) as told:  # noqa: PT011 - whatever it is
            client.call(leaves)
        assert doubled(client, "k", 2) == 4
        return told.type.__name__

    with client_of(fleet, observers=(fleet.events.note,)) as client:
        assert await aside(use, client) == (kind.__name__ if kind else "CancelledError")
    assert len(fleet.all_seen(NodeLeft)) == 1


async def test_a_node_that_has_failed_is_replaced_by_the_next_call(fleet: Fleet) -> None:
    """A client lives as long as its program: that of a web server is not entered again."""
    await fleet.node(made())
    settings = Settings(restarts_max=0, op_timeout_s=WAIT_S)
    with client_of(fleet, settings=settings, observers=(fleet.events.note,)) as client:
        ref = await aside(client.dispatch, "double", "k", 2)
        reader = client.map("flags")
        assert await aside(len, reader) == 0

        async def crash(node: Node) -> None:
            assert node._wiring is not None
            node._wiring.context.supervisor.fail(RuntimeError("on purpose"))
            await anyio.sleep_forever()

        with pytest.raises((NotRunning, StoreUnavailable)):
            await aside(client.call, crash)
        assert await aside(ref.result, WAIT_S) == 4
        assert await aside(len, reader) == 0
        assert len(fleet.all_seen(NodeJoined)) == 3  # the worker's node, and two of the client


# --- loops, signals, collectors -----------------------------------------------------------------


async def test_calls_work_where_a_loop_runs(fleet: Fleet) -> None:
    """As in a notebook's cell.  On its own loop a call would wait for itself."""
    await fleet.node(made())
    told = list[object]()

    def observe(event: object) -> None:
        if isinstance(event, NodeJoined):
            try:
                client.status("k")
            except BaseException as error:  # noqa: BLE001 - whatever it is
                told.append(error)
            told.append(len(client._portals.portal().maps))

    client = Client(fleet.pool, fleet.url, settings=PATIENT, observers=(observe,))

    async def cell() -> int:
        return int(client.dispatch("double", "k", 2).result(timeout_s=WAIT_S))

    with pytest.raises(NoSuchJob):
        client.status("k")  # this test's own loop, asyncio's or trio's
    for backend in ("asyncio", "trio"):
        assert await aside(partial(anyio.run, cell, backend=backend)) == 4
    assert isinstance(told[0], WrongLoop)

    async def closing(node: Node) -> None:
        client.close()  # on its own loop: it does not wait for itself
        await anyio.sleep_forever()

    with pytest.raises((NotRunning, StoreUnavailable)):
        await aside(client.call, closing)
    await aside(client.close)


def _run_with_worker(fn: Callable[[], T], pool: str, url: str) -> T:
    """Run it in this thread, the main one, with a worker in another."""
    with anyio.from_thread.start_blocking_portal() as portal:
        node = Node(pool, url, handlers=made(), observers=())
        with portal.wrap_async_context_manager(node):
            return fn()


def test_an_interrupted_call_is_taken_back_and_the_client_goes_on(
    pool_url: str, pool_name: str
) -> None:
    def use() -> None:
        ref = client.options(delay_s=60).dispatch("double", "k", 1)
        portal = client._portals.portal()

        def interrupt() -> None:
            until_s = time.monotonic() + WAIT_S
            while not portal._flying and time.monotonic() < until_s:
                pass
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            ref.result()
        assert not portal._flying
        assert client.dispatch("double", "k2", 4).result(timeout_s=WAIT_S) == 8

    with Client(pool_name, pool_url, settings=PATIENT, observers=()) as client:
        _run_with_worker(use, pool_name, pool_url)


@pytest.mark.parametrize("is_open", [True, False])
def test_calls_from_a_signals_handler_within_a_call(
    pool_url: str, pool_name: str, is_open: bool
) -> None:
    """Also while the call that is interrupted is still opening the client."""
    told = list[object]()

    def on_signal(*_: object) -> None:
        told.append(client.dispatch("double", "of-a-signal", 21).result(timeout_s=WAIT_S))

    def use() -> None:
        if is_open:
            assert client.dispatch("double", "k", 1).result(timeout_s=WAIT_S) == 2
        soon = threading.Timer(
            0.0, signal.pthread_kill, (threading.main_thread().ident or 0, signal.SIGUSR1)
        )
        soon.start()
        for n in range(20):
            assert client.dispatch("double", f"k{n}", n).result(timeout_s=WAIT_S) == 2 * n
        soon.join()

    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        with Client(pool_name, pool_url, settings=PATIENT, observers=()) as client:
            _run_with_worker(use, pool_name, pool_url)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert told == [42]


async def test_a_call_in_a_finalizer_is_answered_or_refused(fleet: Fleet) -> None:
    """The collector runs in any thread, the client's own among them: there it cannot wait."""
    await fleet.node(made())
    told = list[object]()

    class Careless:
        def __del__(self) -> None:
            try:
                client.status("k")
            except BaseException as error:  # noqa: BLE001 - whatever it is
                told.append(type(error))

    with client_of(fleet) as client:

        async def forgets(node: Node) -> None:
            mine = Careless()
            del mine

        await aside(client.call, forgets)
        mine = [Careless()]
        await aside(mine.clear)
    assert told == [WrongLoop, NoSuchJob]


# --- forks --------------------------------------------------------------------------------------


@contextmanager
def forked() -> Iterator[Callable[[Callable[[], object]], str]]:
    """Yield what runs something in a forked child, and returns what it said there."""

    def run(fn: Callable[[], object]) -> str:
        there, here = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                said = repr(fn())
            except BaseException as error:  # noqa: BLE001 - whatever it is
                said = repr(error)
            os.write(here, said.encode())
            os._exit(0)
        os.close(here)
        with os.fdopen(there, "rb") as pipe:
            said = pipe.read().decode()
        os.waitpid(pid, 0)
        return said

    yield run


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("is_open", [True, False])
async def test_a_forked_child_has_a_node_of_its_own(fleet: Fleet, is_open: bool) -> None:
    """gunicorn with --preload: made before the fork, perhaps used, and used in each child."""
    await fleet.node(made())
    with client_of(fleet) as client, forked() as run:
        reader = client.map("flags")
        refs = list[Ref[Any]]()
        if is_open:
            refs.append(await aside(client.dispatch, "double", "k", 2))
            assert await aside(refs[0].result, WAIT_S) == 4
            assert await aside(len, reader) == 0
        mine = client._portals._portal

        def child() -> object:
            said = [client.dispatch("double", f"child-{is_open}", 5).result(timeout_s=WAIT_S)]
            said += [len(reader), client._portals.portal() is mine]
            for ref in refs:
                said += [ref.result(timeout_s=WAIT_S), ref.status().state]
            client.close()
            return said

        said = await aside(run, child)
        assert said == repr([10, 0, False, *([4, "done"] if is_open else [])])
        assert await aside(doubled, client, "k", 3) == 6
        assert mine is None or client._portals._portal is mine  # the parent's stays open


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_lock_that_a_thread_held_at_the_fork_holds_nobody_up(fleet: Fleet) -> None:
    await fleet.node(made())
    held, go_on = threading.Event(), threading.Event()
    with client_of(fleet) as client, forked() as run:

        def hold() -> None:
            with client._portals._lock:
                held.set()
                go_on.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        try:
            assert await aside(run, partial(doubled, client, "k", 1)) == "2"
        finally:
            go_on.set()
            holder.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_one_closed_before_the_fork_is_closed_in_the_child(fleet: Fleet) -> None:
    with client_of(fleet) as client, forked() as run:
        await aside(client.close)
        assert "NotRunning(state='closed')" in await aside(run, partial(client.status, "k"))
