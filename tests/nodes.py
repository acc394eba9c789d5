"""A fleet in one process: several nodes of one pool on the real server, and what they did."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import attrs
import pytest
import redis
from anyio.abc import TaskGroup, TaskStatus

from pool import Handlers, Node, Settings
from pool.core.record import Record
from pool.jobs.roster import WorkerEntry
from pool.jobs.wiring import Wiring
from pool.jobs.worker.worker import Worker
from pool.names import Control, Names
from pool.testing.audit import audit
from tests.servers import connect
from tests.stopwatch import Stopwatch, stopwatch

PATIENCE_S = 50.0  # for what is bound to happen; less than what tests put off by 60 s
LOOK_AGAIN_S = 0.01
LANES = 4
SETTINGS = Settings(lease_ttl_s=3.0, op_timeout_s=5.0, grace_s=2.0, settle_delay_s=0.05)

E = TypeVar("E")


@attrs.define(eq=False)
class Diary:
    """What handlers note, in order; tests wait for it.  Not for other threads."""

    entries: list[Any] = attrs.field(factory=list)
    _bell: anyio.Event | None = None

    def note(self, *entry: Any) -> None:
        self.entries.append(entry if len(entry) != 1 else entry[0])
        if self._bell is not None:
            self._bell.set()

    async def until(self, is_so: Callable[[list[Any]], object]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not is_so(self.entries):
                self._bell = anyio.Event()
                await self._bell.wait()

    async def has(self, *entry: Hashable, times: int = 1) -> None:
        wanted = entry if len(entry) != 1 else entry[0]
        await self.until(lambda entries: entries.count(wanted) >= times)

    async def counts(self, number: int) -> None:
        await self.until(lambda entries: len(entries) >= number)


@attrs.define(eq=False)
class _Member:
    node: Node
    leave: anyio.Event = attrs.field(factory=anyio.Event)
    left: anyio.Event = attrs.field(factory=anyio.Event)
    error: BaseException | None = None


@attrs.define(eq=False)
class Fleet:
    """Nodes of one pool.  Each is opened and closed in a task of its own, as in a process."""

    url: str
    pool: str
    client: redis.Redis
    settings: Settings = SETTINGS
    events: Diary = attrs.field(factory=Diary)
    is_audited: bool = True
    _members: list[_Member] = attrs.field(factory=list)
    _gone: set[str] = attrs.field(factory=set)  # nodes that have left in peace
    _gates: list[anyio.Event] = attrs.field(factory=list)
    _tasks: TaskGroup | None = None

    # --- nodes ---

    async def node(
        self, handlers: Handlers | None = None, *, url: str = "", **options: Any
    ) -> Node:
        """Open a node; what is not one of its own arguments is a setting."""
        names = {a.name for a in attrs.fields(Settings)}
        changes = {name: options.pop(name) for name in names & options.keys()}
        settings = attrs.evolve(self.settings, **changes)
        options.setdefault("observers", (self.events.note,))
        node = Node(self.pool, url or self.url, handlers=handlers, settings=settings, **options)
        member = _Member(node)
        assert self._tasks is not None
        await self._tasks.start(self._live, member)
        self._members.append(member)
        return node

    async def leave(self, node: Node) -> None:
        """Close a node; raises what ended it, if it did not end in peace."""
        member = next(m for m in self._members if m.node is node)
        member.leave.set()
        with anyio.fail_after(PATIENCE_S):
            await member.left.wait()
        self._members.remove(member)
        if member.error is not None:
            raise member.error
        self._gone.add(node.id)

    async def ended(self, node: Node) -> BaseException | None:
        """Wait until a node has ended by itself; return why."""
        member = next(m for m in self._members if m.node is node)
        with anyio.fail_after(PATIENCE_S):
            await member.left.wait()
        self._members.remove(member)
        return member.error

    def gate(self) -> anyio.Event:
        """Make an event for a shielded handler to wait for; the test's end sets it."""
        self._gates.append(anyio.Event())
        return self._gates[-1]

    async def _live(self, member: _Member, *, task_status: TaskStatus[None]) -> None:
        try:
            async with member.node:
                task_status.started()
                await member.leave.wait()
        except Exception as error:
            if member not in self._members:
                raise  # it never opened
            member.error = error
        finally:
            member.left.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Fleet]:
        async with anyio.create_task_group() as self._tasks:
            try:
                try:
                    yield self
                finally:
                    for gate in self._gates:
                        gate.set()
                with anyio.fail_after(2 * PATIENCE_S):
                    async with anyio.create_task_group() as leaving:
                        for member in list(self._members):
                            leaving.start_soon(self.leave, member.node)
            finally:
                self._tasks.cancel_scope.cancel()
        if self.is_audited:
            assert audit(self.client, self.pool) == []

    # --- looking ---

    async def seen(self, kind: type[E], times: int = 1, **fields: object) -> E:
        """Wait for an event of this kind, with these fields; return the last one."""
        await self.events.until(lambda _: len(self.all_seen(kind, **fields)) >= times)
        return self.all_seen(kind, **fields)[-1]

    def all_seen(self, kind: type[E], **fields: object) -> list[E]:
        return [
            event
            for event in self.events.entries
            if isinstance(event, kind)
            and all(getattr(event, name) == value for name, value in fields.items())
        ]

    async def until(
        self, is_so: Callable[[], object | Awaitable[object]], within_s: float = PATIENCE_S
    ) -> None:
        """Look again until it is so: for what only the server knows, and for what has a bound."""
        with anyio.fail_after(4 * PATIENCE_S), stopwatch() as watch:  # wide: what is asked may hang
            while True:
                answer = is_so()
                if isinstance(answer, Awaitable):
                    answer = await answer
                if answer:
                    return
                if watch.took_s() > within_s:
                    raise TimeoutError(f"not within {within_s} s")
                await anyio.sleep(LOOK_AGAIN_S)

    def wiring(self, node: Node) -> Wiring:
        """Return a node's actors, for tests that look behind the calls."""
        assert node._wiring is not None
        return node._wiring

    def shorten_stops(self, node: Node, budget_s: float) -> None:
        """Give handlers of a node so long to end; its leases last as long as they did."""
        object.__setattr__(self.wiring(node).context.timing, "stop_budget_s", budget_s)

    def workers(self, node: Node) -> list[Worker]:
        """Return a node's own workers."""
        return list(self.wiring(node).membership.workers.values())

    @staticmethod
    def entries(node: Node) -> tuple[WorkerEntry, ...]:
        """Return what a node's copy of the map says of all workers."""
        assert node._wiring is not None
        return node._wiring.context.roster.workers

    async def knows(self, node: Node, workers: int) -> None:
        """Wait until a node's copy of the map has so many workers, and none that has left."""

        def has_heard() -> bool:
            found = node.workers
            return len(found) == workers and self._gone.isdisjoint(info.node for info in found)

        await self.until(has_heard)

    @property
    def names(self) -> Names:
        return Names(self.pool, 0)

    @property
    def control(self) -> Control:
        return Control(self.pool)

    def record(self, key: str) -> Record | None:
        text: Any = self.client.hget(self.names.jobs, key)
        return Record.parse(text) if text is not None else None

    def key_names(self) -> list[str]:
        return sorted(
            key.decode().partition("}:")[2]
            for key in self.client.scan_iter(match=f"pool:{{{self.pool}*", count=1000)
        )


@pytest.fixture
def a_fleet(redis_url: str, pool_url: str, pool_name: str) -> Iterator[Fleet]:
    """Yield a fleet that is not running yet, for tests that choose when."""
    with connect(redis_url) as client:
        yield Fleet(pool_url, pool_name, client)


@pytest.fixture
def told_or_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is not told waits for longer than any test does: nobody asks or looks again.

    Else each limit that a busy machine needs would be long enough to be helped.  A lease is renewed
    every fifth of its TTL, however long that is: what its answers tell mends much, too.
    """
    monkeypatch.setattr("pool.jobs.client.waiters.ASK_AGAIN_S", 600.0)
    monkeypatch.setattr("pool.jobs.client.waiters.LAST_LOOK_S", -600.0)
    monkeypatch.setattr("pool.jobs.client.batches.ASK_AGAIN_S", 600.0)
    monkeypatch.setattr("pool.core.lease.RENEW_MAX_S", 600.0)


@pytest.fixture
def asks_again(told_or_never: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits asks again every second, for what is heard in no other way."""
    monkeypatch.setattr("pool.jobs.client.waiters.ASK_AGAIN_S", 1.0)
    monkeypatch.setattr("pool.jobs.client.batches.ASK_AGAIN_S", 1.0)


@pytest.fixture
async def fleet(anyio_backend: str, a_fleet: Fleet, told_or_never: None) -> AsyncIterator[Fleet]:
    """Yield a fleet without nodes; its nodes leave after the test, and the data must be sound."""
    async with a_fleet.running():
        yield a_fleet


@pytest.fixture
def watch() -> Iterator[Stopwatch]:
    """Yield what tells how long it took on a machine that has nothing else to do."""
    with stopwatch() as watch:
        yield watch


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture(params=[1, LANES], ids=["one lane", "four lanes"])
def lanes(request: pytest.FixtureRequest) -> int:
    """How many lanes a pool has: what goes from lane to lane goes so within one, too."""
    number: int = request.param
    return number
