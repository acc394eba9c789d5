"""HTTP endpoints about a node: whether it is healthy, and its metrics.

Whether a node lives, takes jobs, and moves: asked from any thread, and answered at once.

    live      nothing is lost by leaving it alone.  It does not look at the store: an outage must
              not have a whole fleet restarted, which mends nothing
    ready     jobs come to it: it is open, and in some lane it has a lease
    moving    every part moves: the node, its actors, the event loop, its renewals, its lanes

What is asked reads a few fields of the node's and waits for nothing, so it may be asked while the
event loop hangs; a thread that sees them change meanwhile sees one or the other.

What is answered over HTTP about a node, by path: for the server of `pool run`, and as ASGI.

    /metrics        the figures of this process, as text for Prometheus
    /metrics/pool   those of the whole pool, from one look at Redis in AGAIN_S at most
    /live  /ready   as an orchestrator asks: 200, or 503
    /progress       200 if every part moves, and which does not

Only these, and only GET and HEAD: nothing can be changed here, and no key is told.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import partial
from typing import Any, Final, TypeAlias

import anyio
import anyio.to_thread
import attrs

from pool import checks
from pool.errors import ConfigError, PoolError
from pool.jobs.context import LaneState
from pool.jobs.node import Node
from pool.jobs.wiring import Wiring
from pool.ops import poolwide
from pool.ops.metrics import MetricFamily, Metrics, as_prometheus
from pool.redis.url import Url
from pool.runtime.hang import HUNG_S

LIVE_S: Final = 60.0  # a loop that hangs for longer is not expected to go on
_OVER: Final = ("closed", "forked")


@attrs.frozen(kw_only=True)
class HealthPart:
    """One part of a node: `node`, `actors`, `loop`, `renewals` or `lanes`, and what is with it."""

    name: str
    is_moving: bool
    says: str = ""


@attrs.frozen(kw_only=True)
class Health:
    """How a node is."""

    is_live: bool
    is_ready: bool
    parts: tuple[HealthPart, ...]

    @property
    def is_moving(self) -> bool:
        """Whether every part moves."""
        return all(part.is_moving for part in self.parts)


def health(node: Node) -> Health:
    """Return how a node is at this moment; from any thread, and whatever hangs.

    Raises:
        InvalidOption: `node` is no `Node`.
    """
    checks.instance("node", node, Node)
    state, wiring = node.state, node._wiring
    at_work = HealthPart(name="node", is_moving=state == "open", says=state)
    if wiring is None or state in (*_OVER, "new", "opening"):
        return Health(is_live=state not in _OVER, is_ready=False, parts=(at_work,))
    silent_s = wiring.silent_s()
    return Health(
        is_live=silent_s < LIVE_S,
        is_ready=state == "open" and silent_s < HUNG_S and any(map(_has_lease, _known(wiring))),
        parts=(
            at_work,
            _part("actors", "down: ", wiring.down),
            HealthPart(
                name="loop", is_moving=silent_s < HUNG_S, says=f"silent for {silent_s:.1f} s"
            ),
            _part("renewals", "none in time in lanes ", _late(wiring)),
            _part("lanes", "without a lease: ", _missing(wiring)),
        ),
    )


def _part(name: str, says: str, wrong: tuple[str, ...]) -> HealthPart:
    return HealthPart(name=name, is_moving=not wrong, says=says + ", ".join(wrong) if wrong else "")


def _known(wiring: Wiring) -> list[LaneState]:
    return list(wiring.context.lanes)


def _has_lease(state: LaneState) -> bool:
    return bool(state.lane.generation) and state.lease.phase == "held"


def _late(wiring: Wiring) -> tuple[str, ...]:
    """Return the lanes where no renewal has succeeded for half of a lease."""
    context = wiring.context
    since_s = context.io.clock() - context.timing.ttl_s / 2
    return tuple(
        str(state.number)
        for state in _known(wiring)
        if state.lane.generation and wiring.renewed_s(state) < since_s
    )


def _missing(wiring: Wiring) -> tuple[str, ...]:
    """Return the lanes that were not joined, or whose lease has ended, as far as is known here."""
    return tuple(str(state.number) for state in _known(wiring) if not _has_lease(state))


AGAIN_S: Final = 15.0  # for so long a look at the pool is told again
LOOK_S: Final = 8.0  # and it takes no longer: Prometheus waits for 10 s
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_JSON: Final = "application/json"

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@attrs.frozen
class HttpAnswer:
    """What is answered."""

    status: int
    kind: str
    body: bytes


def _json(status: int, **facts: object) -> HttpAnswer:
    return HttpAnswer(status, _JSON, json.dumps(facts).encode() + b"\n")


@attrs.define(eq=False)
class Endpoints:
    """Answers for one node; `metrics` None: it has no figures, only its health.

    Raises:
        ConfigError: There are to be figures, and `prometheus-client` is not installed.
    """

    node: Node
    metrics: Metrics | None = None
    _registry: Any = attrs.field(init=False, default=None)
    _looking: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _seen: tuple[float, HttpAnswer] | None = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        if self.metrics is not None:
            try:
                from prometheus_client import CollectorRegistry
            except ImportError:
                problem = "it needs prometheus-client: pip install 'keyed-pool[metrics]'"
                raise ConfigError(setting="metrics", problem=problem) from None
            self._registry = CollectorRegistry()
            self.metrics.register(self._registry)

    def answer(self, method: str, path: str) -> HttpAnswer:
        """Answer a request; in a thread, as `/metrics/pool` waits for Redis."""
        if method not in {"GET", "HEAD"}:
            return _json(405, error="only GET and HEAD")
        match path.partition("?")[0]:
            case "/live":
                return _told(health(self.node), "is_live")
            case "/ready":
                return _told(health(self.node), "is_ready")
            case "/progress":
                return _told(health(self.node), "is_moving")
            case "/metrics" if self.metrics is not None:
                return self._own()
            case "/metrics/pool" if self.metrics is not None:
                return self._pool()
        paths = ["/live", "/ready", "/progress"]
        paths += ["/metrics", "/metrics/pool"] if self.metrics is not None else []
        return _json(404, error="no such path", paths=paths)

    def _own(self) -> HttpAnswer:
        """Tell our figures, and what else this process has in Prometheus' client."""
        from prometheus_client import REGISTRY, generate_latest

        text = generate_latest(self._registry) + generate_latest(REGISTRY)
        return HttpAnswer(200, _TEXT, text)

    def _pool(self) -> HttpAnswer:
        """Tell of the pool; of many who ask at once one looks."""
        with self._looking:
            if self._seen is None or time.monotonic() - self._seen[0] >= AGAIN_S:
                self._seen = time.monotonic(), self._look()
            return self._seen[1]

    def _look(self) -> HttpAnswer:
        try:
            families = anyio.run(self._fetch)
        except (PoolError, BaseExceptionGroup, TimeoutError) as error:
            return _json(503, error=f"the pool cannot be looked at: {type(error).__name__}")
        return HttpAnswer(200, _TEXT, _as_text(families))

    async def _fetch(self) -> list[MetricFamily]:
        with anyio.fail_after(LOOK_S):
            return await poolwide.look(self.node.pool, Url.parse(self.node.url))


def _told(how: Health, what: str) -> HttpAnswer:
    is_so: bool = getattr(how, what)
    parts = {p.name: {"ok": p.is_moving, "says": p.says} for p in how.parts}
    return _json(200 if is_so else 503, ok=is_so, pid=os.getpid(), parts=parts)


def _as_text(families: Iterable[MetricFamily]) -> bytes:
    from prometheus_client import CollectorRegistry, generate_latest

    class Once:
        def collect(self) -> Iterable[Any]:
            return as_prometheus(families)

        def describe(self) -> list[Any]:
            return []

    registry = CollectorRegistry()
    registry.register(Once())
    text: bytes = generate_latest(registry)
    return text


class MetricsApp:
    """An ASGI application that tells of a node: mount it where only operators come.

        app.mount("/pool", MetricsApp(node, metrics))

    It answers from the application's own event loop: while that hangs, it does not, which a prober
    takes for "no" just as well.
    """

    def __init__(self, node: Node, metrics: Metrics | None = None) -> None:
        """Tell of this node; without `metrics` only of its health.

        Raises:
            ConfigError: An argument cannot be used, or there are `metrics` and `prometheus-client`
                is not installed.
        """
        refuse = checks.setting
        checks.instance("node", node, Node, refuse=refuse)
        if metrics is not None:
            checks.instance("metrics", metrics, Metrics, refuse=refuse)
        self._endpoints = Endpoints(node, metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it; of a lifespan there is nothing to be done."""
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        if scope["type"] != "http":
            raise ConfigError(setting="scope", problem=f"no {scope['type']}: HTTP only")
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        work = partial(self._endpoints.answer, scope["method"], path)
        answer = await anyio.to_thread.run_sync(work)
        length = str(len(answer.body)).encode()
        headers = [(b"content-type", answer.kind.encode()), (b"content-length", length)]
        headers.append((b"cache-control", b"no-store"))
        start = {"type": "http.response.start", "status": answer.status, "headers": headers}
        await send(start)
        body = b"" if scope["method"] == "HEAD" else answer.body
        await send({"type": "http.response.body", "body": body})
