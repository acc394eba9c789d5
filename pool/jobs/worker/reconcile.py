"""Reconciliation: what Redis says a worker owns, compared with what it does; decided, not done.

Counts that differ, a reconnect, a restart of the actor or a signal about a key we do not know lead
here (DESIGN: reconciliation).  Starts that a lost read, a lost write or a bug of ours would leave
for ever are found by nothing else: their owner renews its lease, so nobody takes them over.

    names in our set of keys, in our stream --those not here--+
    what runs here, keys we were asked about -----------------+--> page of keys --reconcile.lua-->
    records --compare--> mend --> next page

Each page is compared with what is true here while it is read, and nothing is on its way out: what
came or ended between two pages is seen by neither, or as it is.  A pass that fails begins anew.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping

import attrs

from pool.core.record import Record, Start
from pool.jobs.run import Run
from pool.jobs.worker.outbox import Memory
from pool.redis.commands.edges import Edge
from pool.redis.commands.upkeep import Owned


@attrs.frozen
class HeldKey:
    """What a record says we own, as far as giving it up needs it."""

    key: str
    epoch: int
    id: str
    handler: str
    record: Record | None = None  # where more is known than the start says


@attrs.define(eq=False)
class Reconciliation:
    """What is to be done, and to which keys."""

    adopt: list[Start] = attrs.field(factory=list)  # ours, and not begun here
    resend: list[Edge] = attrs.field(factory=list)  # settled here; the server lost it
    release: list[HeldKey] = attrs.field(factory=list)  # ours by the record, and unknown here
    acknowledged: list[Run] = attrs.field(factory=list)
    again: list[Run] = attrs.field(factory=list)  # acknowledged, and the server lost that
    stop: list[tuple[Run, str]] = attrs.field(factory=list)  # an intent whose signal was lost
    cancel: list[Run] = attrs.field(factory=list)  # runs here and is not ours

    @property
    def is_needed(self) -> bool:
        """Whether anything differed."""
        return bool(self.adopt or self.resend or self.release or self.cancel)

    def counts(self, has_read: Callable[[int], bool]) -> Counter[str]:
        """Count what differed; a start that our reader has still to come to has not been lost."""
        return Counter(
            adopted=sum(has_read(start.epoch) for start in self.adopt),
            resent=len(self.resend),
            released=len(self.release),
            cancelled=len(self.cancel),
        )


@attrs.define(eq=False)
class Audit:
    """A pass over what one identity owns: what is still to be listed, and to be asked about."""

    asked: dict[tuple[bytes, str], None]  # key, and its entry in the stream or nothing
    mine: deque[Run]  # what was here when it began
    at: str = "0"  # see `reconcile.lua`
    after: str = "0"
    is_again: bool = False  # something came up since it began
    counts: Counter[str] = attrs.field(factory=Counter)

    @classmethod
    def begin(cls, asked: Iterable[str], runs: Iterable[Run]) -> Audit:
        """Begin with what the worker knows: keys of which it was asked, and what it runs."""
        return cls({(key.encode(errors="replace"), ""): None for key in asked}, deque(runs))

    @property
    def is_over(self) -> bool:
        """Whether everything has been compared."""
        return not (self.at or self.after or self.asked or self.mine)

    def page(
        self, runs: Mapping[str, Run], count: int
    ) -> tuple[list[tuple[bytes, str]], list[Run]]:
        """Take out the next keys, and of these the runs that are here."""
        items = list(self.asked)[:count]
        for item in items:
            del self.asked[item]
        known = []
        while self.mine and len(items) < count:
            run = self.mine.popleft()
            if runs.get(run.key) is run:
                known.append(run)
                items.append((run.key.encode(), ""))
        return items, known

    def list(self, theirs: Owned, runs: Mapping[str, Run]) -> None:
        """Note what was listed and is not here: of all else it is asked as of ours."""
        self.at, self.after = theirs.at, theirs.after
        for key in theirs.names:
            if key.decode(errors="surrogateescape") not in runs:
                self.asked[key, ""] = None
        for entry, key in theirs.entries:
            run = runs.get(key.decode(errors="surrogateescape"))
            if run is None or f"{run.start.epoch}-0" != entry:
                self.asked[key, entry] = None


def _run_of(what: Start | Record) -> tuple[int, str]:
    """Return which run it is about: of what was misread, or is damaged there, one part is wrong."""
    return what.epoch, what.id


def compare(
    theirs: Owned, runs: Mapping[str, Run], memory: Memory, known: Collection[Run]
) -> Reconciliation:
    """Compare a page; `runs` are those of the identity's lane, with nothing on its way out.

    `known` had come before the question was asked, which names them.  Of the others the answer may
    say nothing; what stamps say of that is no use: where the server went back all that it lost is
    newer than its own.
    """
    reconciliation = Reconciliation()
    starts = {start.key: start for start in theirs.starts}
    meant: dict[str, tuple[int, str]] = {}
    for start in theirs.starts:
        this = meant[start.key] = _run_of(start)
        run, settled = runs.get(start.key), memory.of(start.key, *this)
        if run is not None and _run_of(run.start) == this:
            if run.is_acknowledged:
                reconciliation.again.append(run)
        elif settled is not None:
            reconciliation.resend.append(settled)
        elif run is not None and not run.gives_way_to(start):
            pass  # it waits for a handler of before
        elif memory.latest.get(start.key, 0) <= start.epoch:
            reconciliation.adopt.append(start)
        else:  # the server went back to before what we settled last
            reconciliation.release.append(HeldKey(start.key, start.epoch, start.id, start.handler))
    for key, record in theirs.running.items():
        this = meant[key] = _run_of(record)
        run, settled = runs.get(key), memory.of(key, *this)
        if run is not None and _run_of(run.start) == this:
            reconciliation.acknowledged.append(run)
            if record.intent.startswith("s"):
                reconciliation.stop.append((run, record.intent[1:]))
        elif settled is not None:
            reconciliation.resend.append(settled)
        elif run is None or run.start.epoch < record.epoch:
            reconciliation.release.append(
                HeldKey(key, record.epoch, record.id, record.handler, record)
            )
    for key, record in theirs.lost.items():
        # Its start cannot be read from our stream any more.  Whether its payload still can is seen
        # by the script that takes it from us.
        this = meant[key] = _run_of(record)
        run, settled = runs.get(key), memory.of(key, *this)
        both = [starts.get(key), run.start if run is not None else None]
        if any(start is not None and _run_of(start) == this for start in both):
            continue  # it can, after all, or it runs here
        if settled is not None:
            reconciliation.resend.append(settled)
        elif run is None or run.start.epoch < record.epoch:  # else first that has to end
            reconciliation.release.append(
                HeldKey(key, record.epoch, record.id, record.handler, record)
            )
    for run in known:
        # Another epoch is not ours either: a service would go on for ever under one that is lost.
        is_theirs = meant.get(run.key) == _run_of(run.start) or run.key in theirs.unreadable
        is_lost = runs.get(run.key) is run and not is_theirs and not run.is_lost
        if is_lost and run.phase != "settling":
            reconciliation.cancel.append(run)
    return reconciliation
