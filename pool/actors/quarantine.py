"""Parking what cannot be worked on, so that it neither stops its neighbours nor stays for ever.

A record may be damaged, or somebody else's: it is not a record, its key is no text, its start or
its payload is gone, or it does not stand where it says.  Whoever meets it has it parked with its
bytes as they are; the script compares them first, so a repeat or a race does nothing.
"""

from __future__ import annotations

from pool.actors.context import Context, LaneState
from pool.actors.observe import RecordQuarantined, StoreTroubled
from pool.actors.outcome import outcome_ttl_ms
from pool.errors import StoreFault, shown


async def quarantine(
    context: Context,
    state: LaneState,
    key: str,
    text: bytes,
    holder: str = "",
) -> bool:
    """Park a record as it was seen; one that can be read, only if it is not where it says.

    Returns False if the server would not: asking again at once would be no use.

    Raises:
        StoreUnavailable, StoreLost, StorageFull: As for every call.
    """
    ttl_ms = outcome_ttl_ms(context.settings)
    call = state.lane.quarantine(key, text, holder, ttl_ms=ttl_ms)
    try:
        reply = await context.link.call(call.script, call.keys, call.args, repeatable=True)
    except StoreFault as error:  # a key of the wrong type: that must not hold up the others
        context.emit(StoreTroubled(during="quarantine", problem=str(error)))
        return False
    if reply.startswith(b"OK"):
        context.emit(RecordQuarantined(key=shown(key)))
    return True
