"""One request, as the calls see it: who asks for what, on which node."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import attrs

from pool.errors import NotRunning, PoolError, WrongProtocol
from pool.jobs.client.pausing import Operator
from pool.jobs.node import Node
from pool.ops import inspect
from pool.ops.endpoints import Endpoints
from pool.ops.inspect import Found
from pool.ops.web.access import Caller, Tokens
from pool.ops.web.limits import Waits
from pool.ops.web.problems import WebRefusal
from pool.redis.pipeline import Pipeline

PROTOCOL_S: Final = 1.0  # for so long the pool's number counts as read


@attrs.frozen(kw_only=True)
class Gateway:
    """A node, and what its callers share."""

    node: Node
    endpoints: Endpoints
    waits: Waits
    streams: Waits
    tokens: Tokens
    _looked_s: list[float] = attrs.field(init=False, factory=lambda: [-math.inf])

    @property
    def pipeline(self) -> Pipeline:
        """The node's line to the server."""
        return self.node._open_client().context.pipeline

    async def found(self) -> Found:
        """Return how the pool was made.

        Raises:
            NotRunning: It is gone.
        """
        found = await inspect.find(self.pipeline, self.node.pool)
        if found is None:
            raise NotRunning(state=self.node.state)
        return found

    async def check_protocol(self) -> None:
        """Refuse what is asked of a pool that was replaced by one of another version.

        One reading of the pool's number serves all requests of the next `PROTOCOL_S` seconds.

        Raises:
            WrongProtocol: It is another one than ours.
        """
        now_s = self.node._io.clock()
        if now_s < self._looked_s[0] + PROTOCOL_S:
            return
        self._looked_s[0] = now_s
        try:
            await inspect.find(self.pipeline, self.node.pool)
        except WrongProtocol:
            self._looked_s[0] = -math.inf
            raise
        except PoolError:
            return  # what was asked for says by itself what it lacks


@attrs.frozen(kw_only=True)
class WebRequest:
    """A request that was let in; what is in it has been judged by the types of its route."""

    gateway: Gateway
    caller: Caller
    path: Mapping[str, str]
    query: Any
    body: Any
    headers: Mapping[str, str]

    @property
    def node(self) -> Node:
        """The node that does it."""
        return self.gateway.node

    @property
    def waits(self) -> Waits:
        """Those who wait here.

        Raises:
            WebRefusal: They are too many.
        """
        if self.gateway.waits.is_full:
            most = self.gateway.waits.most
            detail = f"{most} requests wait here already"
            raise WebRefusal("WEBBUSY", detail, facts={"waits_max": most})
        return self.gateway.waits

    @property
    def operator(self) -> Operator:
        """Who pauses and cordons, in the caller's name."""
        told = f"{self.caller.name}, over HTTP at node {self.node.id}"
        return attrs.evolve(self.node._operator(), by=told)


@attrs.frozen(kw_only=True)
class WebAnswer:
    """What is answered, where it is not just JSON under the route's own status."""

    status: int = 200
    told: object = None  # as JSON
    body: bytes | None = None  # as it is
    media_type: str = "application/json"
    headers: Mapping[str, str] = attrs.field(factory=dict)
    stream: AsyncIterator[bytes] | None = None
