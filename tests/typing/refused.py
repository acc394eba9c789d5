"""Mistakes that type checkers find: each line with `# wrong` is one, and no other line is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from pool import Depends, Handlers, Job, Node
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
