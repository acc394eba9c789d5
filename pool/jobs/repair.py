"""Repair of damaged or unindexed keys: parked, or put back into their indexes.

Parking what cannot be read, so that it neither stops its neighbours nor stays for ever.

A record may be damaged, or somebody else's, or its key no text.  Whoever meets it has it parked
with its bytes as they are; the script compares them first, so a repeat or a race does nothing.
What can be read and is not where it says is put back there (see `walker`).

Putting keys back into the indexes where their records say that they stand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pool.core.options import Options
from pool.core.record import Record
from pool.errors import StoreFault, shown
from pool.events import IndexRestored, RecordQuarantined
from pool.jobs.context import Context, LaneState
from pool.names import key_of
from pool.redis.commands.upkeep import Quarantined, Restored


async def quarantine(
    context: Context,
    state: LaneState,
    key: str,
    text: bytes,
    holder: str = "",
) -> bool:
    """Park a record that cannot be read, as it was seen.

    Returns False if the server would not: asking again at once would be no use.

    Raises:
        StoreUnavailable, StoreLost, StorageFull: As for every call.
    """
    told = Quarantined(False, "-")
    try:
        while told.after:  # its start is looked for, in so large a stream
            call = state.lane.quarantine(key, text, holder, told.after)
            told = await context.pipeline.call(call, repeatable=True)
    except StoreFault as error:  # a key of the wrong type: that must not hold up the others
        context.trouble("quarantine", state.number, error)
        return False
    if told.is_parked:
        context.emit(RecordQuarantined(key=shown(key_of(key))))
        context.on_due(state.number, 0.0)  # whoever was queued behind it has its turn
    return True


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
