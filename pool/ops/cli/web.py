"""`pool web`: a gateway in a process of its own: the pool over HTTP, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import anyio
import attrs

from pool import checks
from pool.errors import ConfigError, shown
from pool.jobs.node import Node
from pool.names import check_pool
from pool.ops.cli.asking import reachable
from pool.ops.httpd import setting_of
from pool.ops.logs import configure
from pool.ops.metrics import Metrics
from pool.ops.terminal import write
from pool.ops.web import access
from pool.runtime.observers import log_observer

if TYPE_CHECKING:
    from ssl import SSLContext

    from pool.ops.web.app import WebOptions

PORT: Final = 8080
NEEDED: Final = ("httptools", "itsdangerous", "msgspec", "starlette", "uvicorn")


@attrs.frozen(kw_only=True)
class WebReady:
    """A gateway that answers: where, of which pool, and who may ask."""

    v: int = 1
    web: str
    pool: str
    node: str
    pid: int
    roles: tuple[str, ...]  # that somebody has a secret of; none: only who is on this machine


@attrs.frozen(kw_only=True)
class Serving:
    """What a gateway is told."""

    pool: str
    url: str
    host: str = "127.0.0.1"
    port: int = PORT
    port_option: str = "port"
    secrets: str = ""
    tls: tuple[str, str] | None = None  # files of certificate and key, which may be one
    requests_per_s: float = 2_000.0
    connections_max: int = 4_096
    body_bytes_max: int = 8 * 1024 * 1024
    is_json: bool = False


def run(args: argparse.Namespace) -> int:
    """Carry out `pool web`."""
    check_pool(args.pool)
    if args.certfile is None and args.keyfile is not None:
        raise ConfigError(setting="certfile", problem="give --certfile together with --keyfile")
    with reachable(args.url) as url:
        serving = Serving(
            pool=args.pool,
            url=url.credentials.text,
            host=args.host,
            port=args.port,
            secrets=args.secrets or "",
            tls=None if args.certfile is None else (args.certfile, args.keyfile or args.certfile),
            requests_per_s=args.requests_per_s,
            connections_max=args.connections_max,
            body_bytes_max=args.body_bytes_max,
            is_json=args.json,
        )
        serve(serving, partial(_tell, args.json))
    return 0


def _tell(is_json: bool, ready: WebReady) -> None:
    if is_json:
        write([json.dumps({"ok": True, **attrs.asdict(ready)})])
        return
    roles = ", ".join(ready.roles)
    who = f"secrets of {roles}" if roles else "without secrets, for programs of this machine"
    write([ready.web, f"pool {ready.pool}, node {ready.node}, {who}; Ctrl-C ends it"])


def serve(serving: Serving, on_ready: Callable[[WebReady], object]) -> None:
    """Be a gateway of a pool until a signal says that it is enough.

    Raises:
        PoolError: It could not begin, or has failed.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        problem = f"it needs {', '.join(missing)}: pip install 'keyed-pool[web]'"
        raise ConfigError(setting="web", problem=problem)
    from pool.ops.web.app import WebOptions
    from pool.ops.web.server import have_files_for, tls_of

    given = access.gather(os.environ, serving.secrets)
    _check(serving, given)
    tls = None if serving.tls is None else tls_of(*serving.tls)
    have_files_for(serving.connections_max)
    options = WebOptions(
        keyring=given.keyring or None,
        signing=given.signing,
        body_bytes_max=serving.body_bytes_max,
        requests_per_s=serving.requests_per_s,
    )
    with bound(serving.host, serving.port, serving.port_option) as listener:
        configure(sys.stderr, is_json=serving.is_json)
        roles = tuple(each for each in access.ROLES if given.keyring.has(each))
        anyio.run(_serve, serving, options, tls, listener, roles, on_ready)


async def _serve(
    serving: Serving,
    options: WebOptions,
    tls: SSLContext | None,
    listener: socket.socket,
    roles: tuple[str, ...],
    on_ready: Callable[[WebReady], object],
) -> None:
    from pool.ops.web.app import WebApp
    from pool.ops.web.server import make_server

    metrics = Metrics() if find_spec("prometheus_client") else None
    counting = () if metrics is None else (metrics,)
    async with Node(serving.pool, serving.url, observers=(log_observer, *counting)) as node:
        app, ready = WebApp(node, options, metrics=metrics), anyio.Event()
        server = make_server(app, ready, connections_max=serving.connections_max, tls=tls)

        async def tell() -> None:
            await ready.wait()
            on_ready(
                WebReady(
                    web=_address(listener, is_tls=tls is not None),
                    pool=serving.pool,
                    node=node.id,
                    pid=os.getpid(),
                    roles=roles,
                )
            )

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_heed, server)
            tasks.start_soon(tell)
            await server.serve(sockets=[listener])
            tasks.cancel_scope.cancel()


async def _heed(server: Any) -> None:
    """End it at the first signal, and at once at the second."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            server.force_exit = server.should_exit
            server.should_exit = True


def _check(serving: Serving, given: access.Secrets) -> None:
    """Refuse to be asked from elsewhere by whoever comes, or to sign what others cannot read."""
    if not access.is_loopback(serving.host) and not given.keyring:
        variables = ", ".join(access.VARIABLES.values())
        problem = (
            f"{shown(serving.host)} can be reached from elsewhere: set secrets first, in a file "
        )
        raise ConfigError(setting="host", problem=f"{problem}(--secrets) or {variables}")
    checks.count("connections_max", serving.connections_max, 1, 100_000, refuse=checks.setting)
    if given.keyring.has("worker") and not given.signing:
        problem = f"with a secret for workers set {access.SIGNING_VARIABLE}, the same at all "
        raise ConfigError(setting="signing", problem=f"{problem}gateways: it signs their tokens")


def bound(host: str, port: int, option: str = "port") -> socket.socket:
    """Return a socket that is bound there.

    Raises:
        ConfigError: It cannot be.
    """
    checks.count(option, port, 0, 65_535, refuse=checks.setting)
    kind = socket.SOCK_STREAM
    try:
        found: Iterable[Any] = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)
        family, _, proto, _, place = next(iter(found))
        # With its protocol named asyncio sets TCP_NODELAY, without which each answer takes 40 ms.
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen()  # of two that are bound only one can: known before a node joins
        except BaseException:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        problem = f"{shown(host)}:{port} cannot be listened on: {why}"
        raise ConfigError(setting=setting_of(error, "host", option), problem=problem) from None
    return listener


def _address(listener: socket.socket, *, is_tls: bool) -> str:
    host, port = listener.getsockname()[:2]
    place = f"[{host}]" if ":" in host else host
    return f"http{'s' if is_tls else ''}://{place}:{port}"
