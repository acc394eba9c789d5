"""Batches for callers that block: made, waited for, looked through, cancelled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Self, TypeVar

from pool import checks
from pool.core.batches import MEMBERS_MAX
from pool.errors import NotRunning
from pool.jobs.client.batch import Batch, BatchOptions, Refused
from pool.jobs.client.batch_ref import BatchRef, BatchStatus, Member
from pool.jobs.client.dispatch import Call
from pool.jobs.client.gaps import Gaps
from pool.jobs.handlers import Handler
from pool.jobs.node import Node
from pool.jobs.sync.portal import Portals
from pool.names import check_batch

R = TypeVar("R")
T = TypeVar("T")


class BlockingBatch:
    """A batch that is being made: `with client.batch(id) as batch`, see `Client.batch()`.

    Entering opens it; leaving seals it.  Left by an exception it stays open, and so it does if the
    process ends: who enters one of that id again, and adds the same members, goes on with it.
    """

    __slots__ = ("_limit_s", "_made", "_options", "_portals", "_within", "id")

    def __init__(
        self,
        portals: Portals,
        batch_id: str,
        options: BatchOptions,
        within: BlockingBatch | None,
        limit_s: float | None,
    ) -> None:
        self.id: str = batch_id
        self._portals, self._limit_s = portals, limit_s
        self._options, self._within = options, within
        self._made: Batch | None = None  # of the client's loop, once it is entered

    @property
    def added(self) -> int:
        """How many members have been added: noted, and accepted or refused."""
        return 0 if self._made is None else self._made.added

    @property
    def ref(self) -> BlockingBatchRef:
        """A reference to it."""
        nonce = "" if self._made is None else self._made._nonce
        return BlockingBatchRef(self._portals, self.id, nonce, self._limit_s)

    def __enter__(self) -> Self:
        outer = None if self._within is None else self._within._entered

        async def enter(node: Node) -> Batch:
            options = self._options
            made = node.batch(
                self.id,
                then=options.then,
                otherwise=options.otherwise,
                success_min=options.success_min,
                open_s=options.open_s,
                keep_s=options.keep_s,
                within=outer,
            )
            return await made.__aenter__()

        self._made = self._ask(enter)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        made = self._entered
        self._ask(lambda _: made.__aexit__(kind, error, traceback))

    def add(self, handler: Handler[..., Any] | str, calls: Iterable[Call | str]) -> list[Refused]:
        """Add members, some thousand at a time; return those that were refused.

        Args:
            handler: As for `Batch.add()`.
            calls: Likewise.  A generator runs in the client's thread.

        Raises:
            StoreUnavailable: Also after the client's `timeout_s`: all that `added` counts is added,
                the next ones may be.  Add them again.
            PoolError: As for `Batch.add()`.
        """
        made = self._entered
        return self._ask(lambda _: made.add(handler, calls))

    def seal(self) -> None:
        """Seal it: it has all its members, and settles when the last of them has ended.

        Raises:
            PoolError: As for `Batch.seal()`.
        """
        made = self._entered
        self._ask(lambda _: made.seal())

    @property
    def _entered(self) -> Batch:
        if self._made is None:
            raise NotRunning(state="new")
        return self._made

    def _ask(self, fn: Callable[[Node], Awaitable[T]]) -> T:
        return self._portals.portal().call(fn, self._limit_s)


class BlockingBatchRef:
    """A reference to a batch, as `BatchRef`, for callers that block.

    It stays good after restarts of anything, and in forked children.
    """

    __slots__ = ("_limit_s", "_nonce", "_portals", "_ref", "id")

    def __init__(self, portals: Portals, batch_id: str, nonce: str, limit_s: float | None) -> None:
        self.id: str = batch_id
        self._portals, self._limit_s = portals, limit_s
        self._nonce = nonce  # empty: whichever there is when it is first looked at
        self._ref: BatchRef | None = None

    def status(self) -> BatchStatus:
        """Return how it is now.

        Raises:
            PoolError: As for `BatchRef.status()`.
        """
        return self._portals.portal().call(lambda node: self._at(node).status(), self._limit_s)

    def wait(
        self,
        timeout_s: float | None = None,
        *,
        on_progress: Callable[[BatchStatus], object] | None = None,
    ) -> BatchStatus:
        """Return how it is once it has settled, whatever became of it; outages are waited out.

        Args:
            timeout_s: As for `BatchRef.wait()`.
            on_progress: Likewise.  It is called in the client's thread.

        Raises:
            TimeoutError: It has not settled within `timeout_s`.
            PoolError: As for `BatchRef.wait()`.
        """
        return self._portals.wait(
            lambda node, left_s: self._at(node).wait(left_s, on_progress=on_progress), timeout_s
        )

    def result(self, timeout_s: float | None = None) -> BatchStatus:
        """Return how it is once it is done: as many members have succeeded as must.

        Raises:
            TimeoutError: It has not settled within `timeout_s`.
            PoolError: As for `BatchRef.result()`.
        """
        return self._portals.wait(lambda node, left_s: self._at(node).result(left_s), timeout_s)

    def cancel(self, cause: str = "stopped") -> None:
        """Have it take no more members, and stop all that have not ended; return once that stands.

        Raises:
            PoolError: As for `BatchRef.cancel()`.
        """
        self._portals.portal().call(lambda node: self._at(node).cancel(cause), self._limit_s)

    def members(
        self, handler: Handler[..., R] | None = None, *, passed: int = 0
    ) -> Iterator[Member[R]] | Iterator[Member[Any]]:
        """Yield its members in the order in which they end: those that have, then each that does.

        That ends when it has settled; outages are waited out.

        Args:
            handler: As for `BatchRef.members()`.
            passed: Likewise.

        Raises:
            PoolError: As for `BatchRef.members()`.
        """
        if handler is not None:
            checks.instance("handler", handler, Handler)
        return self._pages(handler, checks.count("passed", passed, 0, MEMBERS_MAX))

    def _pages(self, handler: Handler[..., R] | None, passed: int) -> Iterator[Member[R]]:
        """Yield members; they cross to this thread a page at a time."""

        async def page(node: Node, _: float | None) -> list[Member[Any]]:
            return await self._at(node).members(handler, passed=passed).page()

        while some := self._portals.wait(page, None):
            passed += len(some)
            yield from some

    def _at(self, node: Node) -> BatchRef:
        """Return it as of the node that there is: that of before may be another process's."""
        client, known = node._open_client(), self._ref
        if known is None or known._client is not client:
            nonce = self._nonce if known is None else known._nonce
            self._ref = known = BatchRef(self.id, client, nonce)
        return known

    def __repr__(self) -> str:
        return f"BlockingBatchRef(id={self.id!r})"


class BlockingBatches:
    """The batches of a pool: `client.batches`."""

    __slots__ = ("_limit_s", "_portals")

    def __init__(self, portals: Portals, limit_s: float | None) -> None:
        self._portals: Portals = portals
        self._limit_s: float | None = limit_s

    def get(self, id: str) -> BlockingBatchRef:
        """Return a reference; nothing is asked: whether there is such a batch its calls tell.

        Raises:
            InvalidOption: No batch can be called so.
        """
        check_batch(id)
        return BlockingBatchRef(self._portals, id, "", self._limit_s)

    def list(self, *, newest: int = 100, gaps: Gaps | None = None) -> list[BatchStatus]:
        """Return the newest ones, the last that was opened first; see `Batches.list()`.

        Raises:
            PoolError: As for `Batches.list()`.
        """
        return self._portals.portal().call(
            lambda node: node.batches.list(newest=newest, gaps=gaps), self._limit_s
        )
