"""Putting keys back into the indexes where their records say that they stand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pool.core.options import Options
from pool.core.record import Record
from pool.errors import shown
from pool.events import IndexRestored
from pool.jobs.context import Context, LaneState
from pool.redis.commands.upkeep import Restored


async def restore(
    context: Context,
    state: LaneState,
    owner: str,
    seen: Sequence[tuple[str, bytes, Record]],
    options: Mapping[str, Options],
) -> list[bool]:
    """Put the records of one owner back, as they were seen; say of each if its owner is there.

    Raises:
        StoreUnavailable, StoreLost, StoreFault: As for every call.
    """
    timing, items = context.timing, []
    for key, text, record in seen:
        timeout_s = options.get(record.handler, Options()).limit_s
        limit_s = timeout_s + timing.stop_budget_s if timeout_s is not None else 0.0
        items.append((key, text, limit_s))
    call = state.lane.restore(owner, items, pending_s=timing.pending_timeout_s)
    told: list[Restored] = await context.pipeline.call(call, repeatable=True)
    into: dict[str, list[str]] = defaultdict(list)
    for item, each in zip(items, told, strict=True):
        for index in each.indexes:
            into[index].append(item[0])
    for index, keys in into.items():
        tell_restored(context, state, index, keys)
    return [not each.is_gone for each in told]


def tell_restored(context: Context, state: LaneState, index: str, keys: Iterable[str]) -> None:
    """Tell of keys that no index led to."""
    first, *more = keys
    context.emit(
        IndexRestored(lane=state.number, index=index, keys=1 + len(more), key=shown(first))
    )
