"""Mistakes that type checkers find: each line with `# wrong` is one, and no other line is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from pool import Depends, Handlers, Job, Node, Result
from pool.codecs import Codec


@dataclass
class Order:
    id: int
    at: datetime


class Client:
    """What handlers depend on."""


def client() -> Client:
    return Client()


class Half:
    """No codec: it decodes nothing."""

    name = "half"

    def encode(self, value: Any) -> bytes:
        return repr(value).encode()


handlers = Handlers()


@handlers.job("invoice")
async def invoice(job: Job, order: Order, *, draft: bool = False) -> Decimal:
    return Decimal(0)


@handlers.job("needs")
async def needs(job: Job, to: str, *, of: Client = Depends(client)) -> list[str]:
    return [to]


@handlers.service("feed")
async def feed(job: Job, topic: str) -> None: ...


class Drawing:
    def __init__(self, client: Client = Depends(client)) -> None:
        self.client = client

    async def run(self, job: Job, path: str, *, size: int = 1) -> str:
        raise NotImplementedError


class PlainDrawing:
    def run(self, job: Job, path: str) -> bytes:
        raise NotImplementedError


class Room:
    async def start(self, job: Job, topic: str, *, size: int = 3) -> None: ...
    async def stop(self, job: Job) -> None: ...


class NoStop:
    async def start(self, job: Job) -> None: ...


drawing = handlers.job("drawing")(Drawing)
room = handlers.service("room")(Room)


@handlers.job("report")
async def report(job: Job, rows: int) -> AsyncIterator[int | Result[str]]:
    yield rows


@handlers.job("text")
async def text(job: Job, of: str = Depends(client)) -> None: ...  # wrong


@handlers.job("none")  # wrong
async def none() -> None: ...


@handlers.job("other")  # wrong
async def other(number: int) -> None: ...


@handlers.service("limited", timeout_s=5)  # wrong
async def limited(job: Job) -> None: ...


half: Codec = Half()  # wrong


def upcast(version: int) -> None: ...


async def main(node: Node, at: datetime) -> None:
    await node.dispatch(invoice, "k")  # wrong
    await node.dispatch(invoice, "k", 1)  # wrong
    await node.dispatch(invoice, "k", Order(1, "now"))  # wrong
    await node.dispatch(invoice, "k", Order(1, at), True)  # wrong
    await node.dispatch(invoice, "k", Order(1, at), draft="yes")  # wrong
    await node.dispatch(invoice, "k", Order(1, at), drafts=True)  # wrong
    await node.dispatch(invoice, 7, Order(1, at))  # wrong
    await node.dispatch(invoice.fn, "k", Order(1, at))  # wrong
    await node.dispatch(needs, "k")  # wrong
    await node.dispatch(needs, "k", 5)  # wrong
    await node.dispatch(feed, "k", 5)  # wrong
    await node.options(if_exists="later").dispatch(feed, "k", "x")  # wrong
    ref = await node.dispatch(invoice, "k", Order(1, at))
    total: int = await ref.result()  # wrong
    print(total, await ref.results())  # wrong
    handlers.job("x", codec="yaml")  # wrong
    handlers.job("x", version="2")  # wrong
    handlers.job("x", version=2, upcast=upcast)  # wrong
    await node.dispatch_many(feed, [("k", "x")])  # wrong
    await node.dispatch(drawing, "k", 7)  # wrong
    await node.dispatch(drawing, "k", "a.png", sizes=2)  # wrong
    await node.dispatch(room, "k")  # wrong
    await node.dispatch(report, "k", "x")  # wrong
    rows: int = await (await node.dispatch(report, "k", 3)).result()  # wrong
    handlers.runner("no", NoStop())  # wrong
    print(rows, handlers.job("y")(PlainDrawing))


async def blocks(job: Job) -> None:
    await job.run_blocking(len, 7)  # wrong
    await job.run_blocking(size_of)  # wrong
    await job.run_blocking(size_of, "abc", process="yes")  # wrong
    text: str = await job.run_blocking(size_of, "abc")  # wrong
    print(text)


def size_of(path: str) -> int:
    return len(path)
