"""A reference to a job for callers that block."""

from __future__ import annotations

from typing import Generic, NoReturn, TypeVar

import attrs

from pool.jobs.client.ref import JobRef, Status
from pool.jobs.node import Node
from pool.jobs.sync.portal import Portals

R = TypeVar("R")


class Ref(Generic[R]):
    """A reference to one accepted job, as `JobRef`, for callers that block.

    It stays good after restarts of anything, and in forked children.  A `timeout_s` of 0 asks the
    store once.
    """

    __slots__ = ("_limit_s", "_portals", "_ref")

    def __init__(self, portals: Portals, ref: JobRef[R], limit_s: float | None) -> None:
        self._portals: Portals = portals
        self._ref: JobRef[R] = ref
        self._limit_s: float | None = limit_s

    @property
    def key(self) -> str:
        """The job's key."""
        return self._ref.key

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._ref.job_id

    @property
    def handler(self) -> str:
        """The name of its handler; empty if it is not known."""
        return self._ref.handler

    def started(self, timeout_s: float | None = None) -> None:
        """Return once the job's handler has begun, also where it has returned since.

        Raises:
            PoolError: As for `JobRef.started()`.
        """
        self._portals.wait(lambda node, left_s: self._at(node).started(left_s), timeout_s)

    def result(self, timeout_s: float | None = None) -> R:
        """Return what the handler returned, once it has.

        Raises:
            TimeoutError: It has not ended within `timeout_s`; it goes on.
            PoolError: As for `JobRef.result()`.
        """
        return self._portals.wait(lambda node, left_s: self._at(node).result(left_s), timeout_s)

    def status(self) -> Status:
        """Return how the job is now, or how it ended.

        Raises:
            PoolError: As for `JobRef.status()`.
        """
        return self._portals.portal().call(lambda node: self._at(node).status(), self._limit_s)

    def stop(self, cause: str = "stopped", timeout_s: float | None = None) -> None:
        """Stop the job; return when it has really ended.  One that has ended is fine.

        Raises:
            PoolError: As for `JobRef.stop()`.
        """
        self._portals.wait(lambda node, left_s: self._at(node).stop(cause, left_s), timeout_s)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ref):
            return NotImplemented
        return self._portals is other._portals and self._named == other._named

    def __hash__(self) -> int:
        return hash(self._named)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Ref belongs to its client: pass its key and job_id, see Client.job()")

    @property
    def _named(self) -> tuple[str, str]:
        return self.key, self.job_id

    def __repr__(self) -> str:
        return f"Ref(key={self.key!r}, job_id={self.job_id!r}, handler={self.handler!r})"

    def _at(self, node: Node) -> JobRef[R]:
        """Return it as of the node that there is: that of before may be another process's."""
        if self._ref._client is not (client := node._open_client()):
            self._ref = attrs.evolve(self._ref, client=client)
        return self._ref
