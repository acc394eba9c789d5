"""Whether a server of the pool may evict jobs: asked when a node opens, and once a minute later.

A node refuses to open on a server whose `maxmemory-policy` is not noeviction, and so does a client
that writes.  Nodes that are open already go on, since leaving would cost their jobs; they report
the change.  Commands that look at a pool, or stop and pause jobs, are let through: `pool doctor`
reports the policy.

A user without the right to `INFO memory` is not asked again after the greeting: each try would
stand in the server's log of refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import anyio
import attrs

from pool.errors import AuthError, PoolError, UnsupportedServer
from pool.events import EvictionEnabled
from pool.redis.connection import KEEPS_ALL, policy_of
from pool.redis.pipeline import Pipeline

LOOK_S: Final = 60.0  # between two commands to each server


def check_policy(pipeline: Pipeline) -> None:
    """Refuse a server that may evict jobs, as of its greeting.

    Raises:
        UnsupportedServer: It says so.
    """
    if pipeline.server is not None:
        _check(pipeline.server.policy)


async def check_policies(pipeline: Pipeline, prefixes: Iterable[str], within_s: float) -> None:
    """Likewise, the primaries of a cluster that have these keys; who is silent is not judged.

    Raises:
        UnsupportedServer: One says so.
    """
    if not pipeline.is_of_cluster:
        return
    lines = {pipeline.at(prefix): None for prefix in prefixes}
    found = list[str]()

    async def ask(line: Pipeline) -> None:
        found.append(await _ask(line) or "")

    with anyio.move_on_after(within_s):
        async with anyio.create_task_group() as tasks:
            for line in lines:
                tasks.start_soon(ask, line)
    for policy in found:
        _check(policy)


def _check(policy: str) -> None:
    if policy not in ("", KEEPS_ALL):
        problem = f"maxmemory-policy is {policy}: it may evict jobs; set it to {KEEPS_ALL}"
        raise UnsupportedServer(problem=problem)


async def _ask(line: Pipeline) -> str | None:
    """Return the policy of the server; None: it is not known."""
    try:
        return policy_of(await line.execute("INFO", "memory", repeatable=True))
    except AuthError:
        return ""
    except PoolError:  # it is away: others report that
        return None


@attrs.define(eq=False, kw_only=True)
class EvictionWatch:
    """Reports a policy that was changed; of several lanes at one server it asks once."""

    pipeline: Pipeline
    prefixes: Callable[[], Iterable[str]]  # of the control keys and of all lanes
    emit: Callable[[EvictionEnabled], object]
    _policies: dict[str, str] = attrs.field(init=False, factory=dict)  # by server

    async def run(self) -> None:
        """Look at each server now and then."""
        while True:
            await anyio.sleep(LOOK_S)
            for where, line in self._servers():
                policy = await _ask(line)
                if policy is not None:
                    self._compare(where, policy)

    def _servers(self) -> Iterator[tuple[str, Pipeline]]:
        lines = {self.pipeline.at(prefix): None for prefix in self.prefixes()}
        servers = {line.server.where: line for line in lines if line.server and line.server.policy}
        yield from [*servers.items()]

    def _compare(self, where: str, policy: str) -> None:
        before = self._policies.get(where, KEEPS_ALL)
        self._policies[where] = policy
        if policy not in ("", KEEPS_ALL, before):
            self.emit(EvictionEnabled(server=where, policy=policy))
