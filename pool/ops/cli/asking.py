"""How verbs reach a pool, and how they say what they found.

Who only looks opens a line (`looking`) and joins nothing; who changes something joins as a client
(`joined`), so that what it does is done as any node does it.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import attrs

from pool.errors import ConfigError
from pool.jobs.node import Node
from pool.names import check_pool
from pool.ops import inspect
from pool.ops.cli.codes import FINDING, OK, PARTLY
from pool.ops.inspect import Found
from pool.ops.jsonable import TextEncoding, json_line
from pool.ops.terminal import write
from pool.redis.embedded.server import EmbeddedServer, find_server
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url

T = TypeVar("T")


@contextmanager
def reachable(url: Url) -> Iterator[Url]:
    """Yield the address to connect to; a shared embedded server runs until we are done.

    Who looks makes nothing: where no server has ever been, none is started.
    """
    if url.kind != "embedded":
        yield url
        return
    if not url.path:
        problem = "embedded:// alone is a server of one process; give the address that it prints"
        raise ConfigError(setting="url", problem=problem)
    if not EmbeddedServer.has_been_in(Path(url.path)):
        raise ConfigError(setting="url", problem=f"no embedded server has ever been in {url.path}")
    with EmbeddedServer.start(find_server("path"), directory=Path(url.path)) as server:
        yield Url.parse(server.url)


async def check_there(pool: str, url: Url) -> None:
    """See to it that a pool is not founded by looking at it.

    Raises:
        ConfigError: There is no such pool.
    """
    async with inspect.opened(pool, url):
        return


def look(args: argparse.Namespace, read: Callable[[Pipeline, Found], Awaitable[T]]) -> T:
    """Return what is read of the pool that the words name; nothing is joined.

    Raises:
        PoolError: It cannot be; see `inspect.opened`.
    """
    check_pool(args.pool)

    async def work(url: Url) -> T:
        async with inspect.opened(args.pool, url) as (pipeline, found):
            return await read(pipeline, found)

    with reachable(args.url) as url:
        return anyio.run(work, url)


def act(
    args: argparse.Namespace, do: Callable[[Node], Awaitable[T]], *, is_operator: bool = True
) -> T:
    """Return what is done by a client that joins for it.

    One that is no operator makes new work: a server that may evict jobs is refused.

    Raises:
        PoolError: It cannot be; ConfigError: there is no such pool.
    """
    check_pool(args.pool)

    async def work(url: Url) -> T:
        async with joined(args.pool, url, is_operator=is_operator) as node:
            return await do(node)

    with reachable(args.url) as url:
        return anyio.run(work, url)


@asynccontextmanager
async def joined(pool: str, url: Url, *, is_operator: bool = True) -> AsyncIterator[Node]:
    """Join a pool that is there, as a client that tells nobody of what it sees."""
    await check_there(pool, url)
    node = Node(pool, url.credentials.text, observers=(), _is_operator=is_operator)
    async with node:
        yield node


def tell(args: argparse.Namespace, shape: Any, lines: Iterable[str], *, ok: bool = True) -> int:
    """Print what was found, as JSON or for people; return the exit code.

    A listing that lacks lanes says which, and ends with a code of its own: what it shows is true,
    and not all that there is.
    """
    unread = getattr(shape, "unread", ())
    if args.json:
        write([json_line({"ok": ok and not unread, **attrs.asdict(shape)})])
    else:
        write(lines)
        write(f"! cannot be read: {each}" for each in unread)
    return PARTLY if unread else OK if ok else FINDING


def written_in(encoding: TextEncoding) -> str:
    """Return what stands behind a value for people, if it is not written as it is."""
    return "  (bytes, in base64)" if encoding == "base64" else ""


@attrs.frozen
class VerbSaid:
    """What a verb has to say: its shape as JSON, or lines; whether that is all that was wanted."""

    shape: Any
    lines: Iterable[str]
    is_done: bool = True
