"""Programs as users write them, which their type checkers accept: see `test_typing.py`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, assert_type

from pool import Call, Depends, Handler, Handlers, Job, JobRef, Node, PoolError
from pool.codecs import Codec
from pool.middleware import Happened, Outgoing


@dataclass
class Order:
    id: int
    at: datetime


class Client:
    """What handlers depend on."""


@asynccontextmanager
async def lifespan(node: Node) -> AsyncGenerator[Client, None]:
    assert_type(node.pool, str)
    yield Client()


async def awaited(job: Job, client: Client = Depends(lifespan)) -> int:
    return job.attempt


def plain() -> str:
    return ""


async def generator() -> AsyncIterator[Client]:
    yield Client()


def plain_generator() -> Iterator[Client]:
    yield Client()


class Pickle:
    """A codec."""

    name = "own"

    def encode(self, value: Any) -> bytes:
        return repr(value).encode()

    def decode(self, data: bytes) -> Any:
        return data


own: Codec = Pickle()
handlers = Handlers(lifespan=lifespan, timeout_s=5.0, log_jobs="info")


def upcast(
    version: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (*args, version), kwargs


@handlers.job("invoice", attempts_max=3, version=2, upcast=upcast)
async def invoice(job: Job, order: Order, *, draft: bool = False) -> Decimal:
    return Decimal(0)


@handlers.job("resize", codec="bytes")
def resize(job: Job, image: bytes) -> bytes:
    return image


@handlers.job("own", codec=own)
async def owned(job: Job, /, *numbers: int, **names: str) -> None: ...


@handlers.job("needs")
async def needs(
    job: Job,
    to: str,
    *,
    client: Client = Depends(lifespan),
    number: int = Depends(awaited),
    text: str = Depends(plain),
    made: Client = Depends(generator),
    other: Client = Depends(plain_generator),
) -> list[str]:
    return [to, text]


@handlers.service("feed")
async def feed(job: Job, topic: str) -> None:
    async for message in job.notifications():
        await job.save(message)


@handlers.around_run
async def timed(job: Job, call_next: Any) -> Any:
    return await call_next()


@handlers.on("parked")
def heard(happened: Happened) -> None:
    assert_type(happened.handler, str)


assert_type(invoice.name, str)
some: list[Handler[..., Any]] = [invoice, resize, owned, needs, feed]


async def main(node: Node, at: datetime) -> None:
    ref = await node.dispatch(invoice, "k", Order(1, at), draft=True)
    assert_type(ref, JobRef[Decimal])
    assert_type(await ref.result(timeout_s=5), Decimal)
    assert_type(await (await node.dispatch(resize, "k", b"x")).result(), bytes)
    await node.dispatch(owned, "k", 1, 2, a="b")
    assert_type(await (await node.dispatch(needs, "k", "x")).result(), list[str])
    assert_type(await node.dispatch(feed, "k", "prices"), JobRef[None])
    assert_type(await node.dispatch("invoice", "k", 1, anything="goes"), JobRef[Any])
    answers = await node.dispatch_many(invoice, [Call("a", Order(1, at)), "b"])
    assert_type(answers, list[JobRef[Decimal] | PoolError])
    later = node.options(delay_s=5, if_exists="queue")
    assert_type(await later.dispatch(invoice, "k", Order(1, at)), JobRef[Decimal])


async def through(outgoing: Outgoing) -> str:
    return outgoing.key
