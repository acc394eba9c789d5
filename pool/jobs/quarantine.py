"""Parking what cannot be read, so that it neither stops its neighbours nor stays for ever.

A record may be damaged, or somebody else's, or its key no text.  Whoever meets it has it parked
with its bytes as they are; the script compares them first, so a repeat or a race does nothing.
What can be read and is not where it says is put back there (see `walker`).
"""

from __future__ import annotations

from pool.errors import StoreFault, shown
from pool.events import RecordQuarantined
from pool.jobs.context import Context, LaneState
from pool.names import key_of
from pool.redis.commands.upkeep import Quarantined


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
