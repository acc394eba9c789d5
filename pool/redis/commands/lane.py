"""One lane's scripts as named operations: what goes in, what comes out; no I/O of its own.

Every operation is one script call, built here and sent by whoever has a connection; it stands with
what reads its reply.  All times given are seconds, all times returned server milliseconds.
"""

from __future__ import annotations

from typing import Final

import attrs

from pool.redis.commands import (
    admission,
    batches,
    channel,
    edges,
    journal,
    letters,
    member,
    pausing,
    recovery,
    schedules,
    talk,
    upkeep,
)
from pool.redis.commands.admission import AdmissionCalls
from pool.redis.commands.batches import BatchCalls
from pool.redis.commands.channel import ChannelCalls
from pool.redis.commands.edges import ChangeCalls
from pool.redis.commands.journal import FigureCalls, JournalCalls
from pool.redis.commands.letters import LetterCalls
from pool.redis.commands.member import MemberCalls
from pool.redis.commands.pausing import PauseCalls
from pool.redis.commands.recovery import RecoveryCalls
from pool.redis.commands.schedules import ScheduleCalls
from pool.redis.commands.talk import TalkCalls
from pool.redis.commands.upkeep import UpkeepCalls
from pool.redis.scripts import Script

SCRIPTS: Final = tuple(
    script
    for family in (
        *(admission, batches, edges, channel, journal, letters, member),
        *(pausing, recovery, schedules, talk, upkeep),
    )
    for script in vars(family).values()
    if isinstance(script, Script)
)


@attrs.frozen
class Lane(
    AdmissionCalls,
    BatchCalls,
    ChangeCalls,
    ChannelCalls,
    FigureCalls,
    JournalCalls,
    LetterCalls,
    MemberCalls,
    PauseCalls,
    RecoveryCalls,
    ScheduleCalls,
    UpkeepCalls,
    TalkCalls,
):
    """Builds the script calls of one lane."""
