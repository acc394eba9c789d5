"""Programs as users write them, which their type checkers accept: see `test_typing.py`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, assert_type

from pool import (
    Call,
    Depends,
    Handler,
    Handlers,
    Job,
    JobRef,
    Node,
    PoolError,
    Progress,
    Result,
)
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


class Drawing:
    def __init__(self, client: Client = Depends(lifespan)) -> None:
        self.client = client

    async def run(self, job: Job, path: str, *, size: int = 1) -> str:
        raise NotImplementedError


class PlainDrawing:
    def run(self, job: Job, path: str) -> bytes:
        raise NotImplementedError


class Room:
    async def start(self, job: Job, topic: str, *, size: int = 3) -> None: ...
    async def stop(self, job: Job) -> None: ...


drawing = handlers.job("drawing")(Drawing)
plain_drawing = handlers.job("plain_drawing")(PlainDrawing)
room = handlers.service("room")(Room)
rooms = handlers.runner("rooms", Room(), healthy_s=5)


@handlers.job("report")
async def report(job: Job, rows: int) -> AsyncIterator[tuple[int, int] | Result[Order]]:
    yield rows, rows
    yield Result(Order(1, datetime.fromtimestamp(0, UTC)))


@handlers.job("counts")
async def counts(job: Job, rows: int) -> AsyncGenerator[float | None, None]:
    yield rows
    yield None


@handlers.job("sums")
def sums(job: Job, rows: int) -> Generator[int | Progress, None, str]:
    yield rows
    yield Progress(done=1, total=2, note="half")
    return ""


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


async def forms(node: Node, job: Job) -> None:
    assert_type(await node.dispatch(drawing, "k", "a.png", size=2), JobRef[str])
    assert_type(await node.dispatch(plain_drawing, "k", "a.png"), JobRef[bytes])
    assert_type(await node.dispatch(room, "k", "weather", size=1), JobRef[None])
    assert_type(await node.dispatch(rooms, "k", "weather"), JobRef[None])
    assert_type(await node.dispatch(report, "k", 3), JobRef[Order])
    assert_type(await node.dispatch(counts, "k", 3), JobRef[None])
    assert_type(await node.dispatch(sums, "k", 3), JobRef[str])
    assert_type(await job.run_blocking(len, "abc"), int)
    assert_type(await job.run_blocking(size_of, "abc", process=True, memory_bytes=2**30), int)
    assert_type(await job.run_blocking(size_of, "abc", 2), int)
    assert_type(await Drawing(Client()).run(job, "a.png"), str)


def size_of(path: str, times: int = 1) -> int:
    return len(path) * times


async def through(outgoing: Outgoing) -> str:
    return outgoing.key
