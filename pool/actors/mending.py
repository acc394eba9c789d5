"""Reconciliation: what Redis says a worker owns, compared with what it does; decided, not done.

Counts that differ, a reconnect, a restart of the actor or a signal about a key we do not know lead
here (DESIGN: reconciliation).  Starts that a lost read, a lost write or a bug of ours would leave
for ever are found by nothing else: their owner renews its lease, so nobody takes them over.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from pool.actors.outbox import Memory
from pool.actors.run import Run
from pool.model.job import Record, Start
from pool.store.answers import Owned
from pool.store.lane import Edge


@attrs.define(eq=False)
class Mending:
    """What is to be done, and to which keys."""

    adopt: list[Start] = attrs.field(factory=list)  # ours, and not begun here
    resend: list[Edge] = attrs.field(factory=list)  # settled here; the server lost it
    release: list[tuple[str, Record]] = attrs.field(factory=list)  # ours, and unknown here
    acknowledged: list[Run] = attrs.field(factory=list)
    stop: list[tuple[Run, str]] = attrs.field(factory=list)  # an intent whose signal was lost
    cancel: list[Run] = attrs.field(factory=list)  # runs here and is not ours

    @property
    def is_needed(self) -> bool:
        """Whether anything differed."""
        return bool(self.adopt or self.resend or self.release or self.cancel)


def compare(theirs: Owned, runs: Mapping[str, Run], memory: Memory) -> Mending:
    """Compare; `runs` are those of the identity's lane, with nothing on its way out."""
    mending = Mending()
    pending = {start.key: start for start in theirs.starts}
    for start in theirs.starts:
        run, settled = runs.get(start.key), memory.of(start.key)
        if run is not None and run.start.epoch >= start.epoch:
            continue
        if settled is not None and settled.epoch >= start.epoch:
            if settled.epoch == start.epoch:
                mending.resend.append(settled)
        else:
            mending.adopt.append(start)
    for key, record in theirs.running.items():
        run, settled = runs.get(key), memory.of(key)
        if run is not None and run.start.epoch == record.epoch:
            mending.acknowledged.append(run)
            if record.intent.startswith("s"):
                mending.stop.append((run, record.intent[1:]))
        elif settled is not None and (settled.epoch, settled.id) == (record.epoch, record.id):
            mending.resend.append(settled)
        elif run is None or run.start.epoch < record.epoch:
            mending.release.append((key, record))
    for key, record in theirs.lost.items():
        # Its start cannot be read from our stream any more.  Whether its payload still can is seen
        # by the script that takes it from us.
        run, settled = runs.get(key), memory.of(key)
        meant = (record.epoch, record.id)
        known = run.start if run is not None else pending.get(key)
        if settled is not None and (settled.epoch, settled.id) == meant:
            mending.resend.append(settled)
        elif known is None or (known.epoch, known.id) != meant:
            mending.release.append((key, record))
    for key, run in runs.items():
        is_theirs = key in theirs.running or key in pending or key in theirs.unreadable
        is_theirs = is_theirs or key in theirs.lost
        # What was granted after that answer has a higher epoch than its stamp.
        if not is_theirs and run.start.epoch <= theirs.stamp and run.phase != "settling":
            mending.cancel.append(run)
    return mending
