"""Arguments and results by annotation, and a deployment that changes them.

It prints:

    order-7, due in May: 3.10
    refused: order.due is str, expected date
    from a program of before: order-7, due in June: 3.10
"""

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import anyio

from pool import Handlers, Job, Node
from pool.errors import WrongArguments


@dataclass
class Order:
    id: UUID
    due: date
    lines: list[Decimal]


before = Handlers()


@before.job("invoice")
async def old_invoice(job: Job, order: UUID, lines: list[Decimal]) -> tuple[str, Decimal]:
    return f"{job.key} of {order}", sum(lines, Decimal(0))


def upcast(version: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make present arguments of those of version 1, in terms of JSON."""
    assert version == 1
    order, lines = args
    return [{"id": order, "due": "2026-06-01", "lines": lines}], kwargs


handlers = Handlers()


@handlers.job("invoice", version=2, upcast=upcast)
async def invoice(job: Job, order: Order) -> tuple[str, Decimal]:
    return f"{job.key}, due in {order.due:%B}", sum(order.lines, Decimal(0))


async def main() -> None:
    order = Order(UUID(int=7), date(2026, 5, 1), [Decimal("1.10"), Decimal(2)])
    wrong: Any = "2026-05-01"  # Any: a type checker refuses it, too
    async with (
        Node("shop", "embedded://", handlers=handlers, observers=()) as node,
        Node("shop", node.url, observers=()) as old,
    ):
        text, total = await (await node.dispatch(invoice, "order-7", order)).result()
        print(f"{text}: {total}")
        try:
            await node.dispatch(invoice, "order-7", Order(order.id, wrong, order.lines))
        except WrongArguments as error:
            print("refused:", error.problem)
        ref = await old.dispatch(old_invoice, "order-7", order.id, order.lines)
        text, total = await ref.result()
        print(f"from a program of before: {text}: {total}")


if __name__ == "__main__":
    anyio.run(main)
