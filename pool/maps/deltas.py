"""A replicated map as pure data: what a write asks, what a delta says, when a copy may apply it.

Each write that changes something is one *revision* of the map.  Its *delta* names the revision and
the stamp that it follows, so that a copy can tell whether the delta continues its own history: the
same revision number may carry another history after a failover to an older copy of the server.
A stamp is made of the one before and of what the writer has drawn: it names the whole history, and
no clock is asked.

    writer:   3-c --> 4-d --> 5-e          a delta is the arrow, a position is the box
    replica:  3-c --> 4-d                  `5-e after 4-d` applies; `5-x after 4-y` is a Gap
    replica:  9-k, empty                   `12-m after 0-0` applies: the map ended and began anew

`Copy` is the life of one local copy: it applies deltas, drops them while a snapshot is on its way,
and decides when it needs one.  It performs nothing; see `pool/maps/replica.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import attrs

from pool.checks import told
from pool.errors import InvalidOption

Value: TypeAlias = bytes | tuple[bytes, ...]  # a string, or a list, which is never empty

# --- what a writer asks ---------------------------------------------------------------------


@attrs.frozen
class Set:
    """Give `key` this value, whatever it had; many of these need not tell what that was."""

    key: bytes
    value: bytes
    is_told: bool = True


@attrs.frozen
class SetIfNotExists:
    """Give `key` this value if it has none."""

    key: bytes
    value: bytes


@attrs.frozen
class CompareAndSet:
    """Give `key` this value if it has the expected one."""

    key: bytes
    expected: bytes
    value: bytes


@attrs.frozen
class Delete:
    """Remove `key`; it need not be there."""

    key: bytes


@attrs.frozen
class CompareAndDelete:
    """Remove `key` if it has the expected value."""

    key: bytes
    expected: bytes


@attrs.frozen
class Increment:
    """Add to the whole number that `key` holds in decimal digits; absent counts as 0."""

    key: bytes
    by: int


Op: TypeAlias = Set | SetIfNotExists | CompareAndSet | Delete | CompareAndDelete | Increment


@attrs.frozen
class OpResult:
    """What became of one operation: whether its condition held, and what it found.

    Of a list that is its size: the answer to a write is no larger than a value.
    """

    is_met: bool
    previous: bytes | None
    size_before: int = 0


@attrs.frozen
class ListOp:
    """Append these values to the list of `key` (unique: those that it has not), or remove them."""

    kind: Literal["append", "append_unique", "remove"]
    key: bytes
    values: tuple[bytes, ...]


@attrs.frozen
class ResetOp:
    """Remove everything: if the map holds all that is expected, or if its time is up."""

    kind: Literal["reset", "destroy", "expire"] = "reset"
    expected: tuple[tuple[bytes, bytes], ...] = ()


# --- histories ------------------------------------------------------------------------------


NO_STAMP = "0"  # of a map that is not there

_TEXT = re.compile(r"([0-9]{1,16})-([0-9a-f]{1,16})-([!-~]{1,64})")


@attrs.frozen
class Position:
    """A point in one map's history.  Two equal positions have equal items.

    It can be sent to another process as text, and read there with `parse()`.
    """

    generation: str
    revision: int  # 0: the map is not there
    stamp: str = NO_STAMP  # tells histories apart

    def __str__(self) -> str:
        return f"{self.revision}-{self.stamp}-{self.generation}"

    @property
    def is_well_formed(self) -> bool:
        """Whether a writer may have been answered this: anybody can make one of anything."""
        found = _TEXT.fullmatch(str(self))
        return found is not None and self == Position(found[3], int(found[1]), found[2])

    @classmethod
    def parse(cls, text: str) -> Position:
        """Return the position that `str()` has made this text of.

        Raises:
            InvalidOption: No position was.
        """
        found = _TEXT.fullmatch(text) if type(text) is str else None
        if found is None:
            raise InvalidOption(option="text", value=told(text), problem="it is no position")
        return cls(found[3], int(found[1]), found[2])


@attrs.frozen
class WriteResult:
    """The answer to a write: where the map was after it, and what became of each operation."""

    at: Position
    outcomes: tuple[OpResult, ...]

    @property
    def revision(self) -> int:
        return self.at.revision


@attrs.frozen
class ResizeResult:
    """The answer to a write of a list, or of the whole map: how many items before it and after."""

    at: Position
    is_met: bool
    size_before: int
    size: int


# Set `key` to a string (+), remove it (-), append to its list (a), remove a value from its list
# wherever that stands (r), remove everything (*).  A plain tuple: many replicas read each of them.
Edit: TypeAlias = tuple[Literal["+", "-", "a", "r", "*"], bytes, bytes]


@attrs.frozen
class Delta:
    """One revision: `edits`, in order, turn the items at `after` into those at `at`."""

    at: Position
    after: tuple[int, str]  # revision and stamp
    edits: tuple[Edit, ...]


@attrs.frozen
class KeyChange:
    """What one revision did to one key; None stands for absent."""

    revision: int
    key: bytes
    old: Value | None
    new: Value | None
    # What keeping it costs beside the map itself, in bytes: its strings, and of lists the tuples.
    size: int = attrs.field(default=0, eq=False, repr=False)


_WORD_BYTES: Final = 8  # of a tuple, for each of its items

_NOTHING: MappingProxyType[bytes, Value] = MappingProxyType({})


@attrs.frozen
class MapState:
    """The items of a map at one position.  Never changed in place: a reader may keep it."""

    at: Position
    items: MappingProxyType[bytes, Value] = _NOTHING

    @cached_property
    def strings(self) -> int:
        """How many of its values are strings; the others are lists."""
        return sum(type(value) is bytes for value in self.items.values())

    @cached_property
    def counts(self) -> tuple[int, int]:
        """How many strings it has, and how many items in its lists."""
        listed = sum(len(value) for value in self.items.values() if type(value) is tuple)
        return self.strings, listed


@attrs.frozen
class Gap:
    """This delta does not continue our history; only a snapshot can."""

    ours: Position
    delta: Delta


@attrs.frozen
class Applied:
    """As far as the deltas continued: the new state, its changes in order, and what ended it."""

    state: MapState
    changes: tuple[KeyChange, ...] = ()
    gap: Gap | None = None
    passed: tuple[Position, ...] = ()  # where each of them led


def apply(state: MapState, deltas: Iterable[Delta]) -> Applied:
    """Apply those deltas that continue `state`, and stop at the first that cannot.

    Older ones and repeats are ignored.  The items are copied once per call, not once per delta:
    that costs 80 us at 10,000 keys, and under load many deltas come in one batch.
    """
    at = state.at
    items: dict[bytes, Value] | None = None
    changes: list[KeyChange] = []
    passed: list[Position] = []
    gap = None
    for delta in deltas:
        same_generation = delta.at.generation == at.generation
        if same_generation and (delta.at.revision < at.revision or delta.at == at):
            continue
        is_next = delta.after == (at.revision, at.stamp)
        is_first = delta.after == (0, NO_STAMP) and not (state.items if items is None else items)
        if not same_generation or not (is_next or is_first):
            gap = Gap(at, delta)
            break
        if items is None:
            items = state.items.copy()
        changes += _revised(items, delta)
        at = delta.at
        passed.append(at)
    if items is None:
        return Applied(state, gap=gap)
    state = MapState(at, MappingProxyType(items))
    return Applied(state, tuple(changes), gap, tuple(passed))


def _revised(items: dict[bytes, Value], delta: Delta) -> list[KeyChange]:
    """Do one revision's edits, and return one change per key, in the order first touched.

    A list is copied once per revision, not once per edit: 256 appends to 10,000 items are one
    revision, and nobody may see the map half way.
    """
    olds: dict[bytes, Value | None] = {}
    lists: dict[bytes, list[bytes]] = {}  # those under change
    moved: dict[bytes, int] = {}  # bytes that came into them, or went
    for kind, key, text in delta.edits:
        if kind == "*":
            for each, old in items.items():
                olds.setdefault(each, old)
            items.clear()
            lists.clear()
            continue
        if key not in olds:
            olds[key] = items.get(key)
        if kind == "+":
            lists.pop(key, None)
            items[key] = text
        elif kind == "-":
            lists.pop(key, None)
            items.pop(key, None)
        else:
            if key not in lists:
                now = items.pop(key, None)
                lists[key] = list(now) if isinstance(now, tuple) else []
            before = len(lists[key])
            if kind == "a":
                lists[key].append(text)
            else:
                lists[key] = [each for each in lists[key] if each != text]
            count = abs(len(lists[key]) - before)
            moved[key] = moved.get(key, 0) + count * len(text)
    items.update((key, tuple(held)) for key, held in lists.items() if held)
    changes = []
    for key, was in olds.items():
        new = items.get(key)
        size = moved.get(key, 0) + _size(was) + _size(new)
        if isinstance(was, tuple) and not isinstance(new, tuple):
            size += sum(map(len, was))
        changes.append(KeyChange(delta.at.revision, key, was, new, size))
    return changes


def _size(value: Value | None) -> int:
    if value is None:
        return 0
    return len(value) if type(value) is bytes else _WORD_BYTES * len(value)


# --- a copy in the making ---------------------------------------------------------------------


def _none(_: bytes) -> bool:
    return False


@attrs.frozen
class Page:
    """A part of a map, of one moment: what changed since the part before, then what comes next.

    Items come only where the deltas lead to that moment.
    """

    at: Position
    deltas: tuple[Delta, ...]
    has_more: bool  # there are more deltas before any items can come
    strings: Mapping[bytes, bytes]
    lists: Mapping[bytes, Sequence[bytes]]  # or parts of them, in their order
    is_whole: Callable[[bytes], bool]  # all that was in the list of a key has come by now
    is_last: bool
    strings_count: int  # in the map at that moment
    listed_count: int


@attrs.define
class Gathering:
    """A copy in the making, page by page, while the map goes on changing.

    What it holds is right at `at`: a page's items are, and the deltas up to them are applied over
    those of before.  A string may be set before its page comes, which brings the same or what it
    became.  A list grows at its end: what is appended to one that has not come as a whole comes
    with the rest of it.  So nothing is there that is not in the map, and when the counts are
    equal, nothing lacks, however the server has ordered its pages (another one, after a failover,
    orders them anew).
    """

    at: Position | None = None
    is_over: bool = False
    _strings: dict[bytes, bytes] = attrs.field(init=False, factory=dict)
    _lists: dict[bytes, list[bytes]] = attrs.field(init=False, factory=dict)
    _is_whole: Callable[[bytes], bool] = attrs.field(init=False, default=_none)

    def add(self, page: Page) -> bool:
        """Take the next page; False: it does not continue this history, or the counts differ."""
        at = page.at if self.at is None else self.at
        for delta in page.deltas:
            if delta.after != (at.revision, at.stamp) or delta.at.generation != at.generation:
                return False
            self._change(delta.edits)
            at = delta.at
        self.at = at
        if page.has_more:
            return bool(page.deltas)
        if at != page.at:
            return False
        self._strings.update(page.strings)
        for key, values in page.lists.items():
            self._lists.setdefault(key, []).extend(values)
        self._is_whole, self.is_over = page.is_whole, page.is_last
        return not page.is_last or self._counts == (page.strings_count, page.listed_count)

    def state(self) -> MapState:
        """Return the map at `at`, when all is here."""
        assert self.at is not None
        lists = {key: tuple(held) for key, held in self._lists.items() if held}
        return MapState(self.at, MappingProxyType({**self._strings, **lists}))

    @property
    def _counts(self) -> tuple[int, int]:
        return len(self._strings), sum(map(len, self._lists.values()))

    def _change(self, edits: Iterable[Edit]) -> None:
        for kind, key, text in edits:
            match kind:
                case "*":
                    self._strings.clear()
                    self._lists.clear()
                case "+":
                    self._lists.pop(key, None)
                    self._strings[key] = text
                case "-":
                    self._lists.pop(key, None)
                    self._strings.pop(key, None)
                case "a":
                    if self._is_whole(key):
                        self._lists.setdefault(key, []).append(text)
                case "r":
                    held = self._lists.get(key, ())
                    self._lists[key] = [each for each in held if each != text]


# --- whether a history has a position ---------------------------------------------------------


@attrs.frozen
class History:
    """What a server says of one map's history."""

    revision: int  # 0: the map is not there
    floor: int  # the highest at which any map has ended
    # Of revisions asked for, as far back as the map's log goes; NO_STAMP: it lacks this one.
    stamps: Mapping[int, str]

    def proves(self, at: Position) -> bool:
        """Say whether it is known to have a position of the map's generation."""
        return self.stamps.get(at.revision) == at.stamp

    def has(self, at: Position) -> bool:
        """Say whether it has a position of the map's generation.

        What no log reaches back to is taken for done: it is older than what a copy may miss, or
        the map has ended since.
        """
        is_told = at.revision in self.stamps
        return self.proves(at) if is_told else at.revision <= (self.revision or self.floor)


# --- the life of a copy ---------------------------------------------------------------------

Reason: TypeAlias = Literal["join", "gap", "drift", "reconnect", "data lost", "overflow", "restart"]


@attrs.frozen
class Deltas:
    """The log was read."""

    deltas: tuple[Delta, ...]


@attrs.frozen
class Probed:
    """The server said where the map is; None if it could not say."""

    at: Position | None
    is_fresh: bool = False  # the connection is a new one: whatever differs has been missed
    counts: tuple[int, int] = (-1, -1)  # its strings, its lists' items; -1: that is not known
    damaged: str = ""  # the key of its that holds what is none of ours, or only a part of it


@attrs.frozen
class Fetched:
    """The snapshot number `ask` is here."""

    ask: int
    state: MapState
    has_ours: bool | None = None  # whether its history has our position; None: not known


@attrs.frozen
class Doubted:
    """The copy may be wrong: fetch a snapshot, whatever is on its way already."""

    reason: Reason


Event: TypeAlias = Deltas | Probed | Fetched | Doubted


@attrs.frozen
class Ask:
    """Effect: fetch a snapshot and come back with its number."""

    ask: int


@attrs.frozen
class KeysChanged:
    """Effect: tell watchers, and who waits for one of these positions."""

    changes: tuple[KeyChange, ...]
    passed: tuple[Position, ...] = ()


@attrs.frozen
class Resync:
    """Revisions were skipped, and the copy is whole again: look at it.

    `reason` says what made the copy be fetched, and is one of

        gap        the map's log had lost what comes next: it was trimmed before it was read
        reconnect  the connection was a new one, and the map another than the copy
        drift      a probe, once per renewal period, found the map to be another than the copy
        data lost  the server had lost the pool's data, and the pool was made anew
        restart    the copy's own task had crashed, and was started again
        overflow   more came than this process could keep; of a watch, more than its buffer holds
        join       the copy had not been fetched as a whole yet; a watch of a map never sees it
    """

    reason: Reason
    revision: int
    revision_before: int
    is_fork: bool  # the server went back, or began anew: what we had seen beyond it is lost


@attrs.frozen
class Odd:
    """Effect: tell that what the server counts is not what it gives; another hand was at it."""

    counts: tuple[int, int]


@attrs.frozen
class Follow:
    """Effect: read the log on from here; what was read before counts no more."""

    at: Position


Effect: TypeAlias = Ask | KeysChanged | Resync | Follow | Odd


@attrs.frozen
class Copy:
    """A local copy as a machine: events in, effects out; no clock: a probe is the tick.

    While a snapshot is on its way (`reason` is set) the state stands still and deltas are dropped:
    the log is read again from the snapshot's position.  So a snapshot older than the state proves
    that the server itself went back.
    """

    state: MapState
    is_synced: bool = False  # a first snapshot has arrived
    ask: int = 0  # number of the newest snapshot asked for
    reason: Reason | None = None  # why it was asked for; None: nothing is on its way
    doubt: Position | None = None  # where we were when a probe first differed
    is_strained: bool = False  # the last gap's snapshot was followed by no delta that applied
    is_gapped: bool = False  # a gap is left to the next probe
    odd: tuple[int, int] | None = None  # counts that were not ours, and no snapshot has mended that
    is_odd_told: bool = False

    def step(self, event: Event) -> tuple[Copy, tuple[Effect, ...]]:
        match event:
            case Doubted(reason=reason):
                return self._asking(reason)
            case Fetched(ask=ask) if self.reason is not None and ask == self.ask:
                return self._fetched(self.reason, event)
            case _ if self.reason is not None or not self.is_synced:
                return self, ()
            case Deltas(deltas=deltas):
                return self._applied(apply(self.state, deltas))
            case Probed():
                return self._probed(event)
            case _:
                return self, ()  # a snapshot that a newer one has overtaken

    def _asking(self, reason: Reason) -> tuple[Copy, tuple[Effect, ...]]:
        ask = self.ask + 1
        return attrs.evolve(self, ask=ask, reason=reason), (Ask(ask),)

    def _applied(self, applied: Applied) -> tuple[Copy, tuple[Effect, ...]]:
        copy = self
        effects: tuple[Effect, ...] = ()
        if applied.state is not self.state:
            copy = attrs.evolve(self, state=applied.state, is_strained=False, is_gapped=False)
            effects = (KeysChanged(applied.changes, applied.passed),)
        if applied.gap is None:
            return copy, effects
        if copy.is_strained:
            # The last snapshot did not mend it either: the log is trimmed faster than we read, or
            # holds foreign entries.  One snapshot per probe from here on, not one per round trip.
            return attrs.evolve(copy, is_gapped=True), effects
        asking, asks = attrs.evolve(copy, is_strained=True)._asking("gap")
        return asking, effects + asks

    def _probed(self, probed: Probed) -> tuple[Copy, tuple[Effect, ...]]:
        if self.is_gapped:
            return self._asking("gap")
        ours = self.state.at
        is_over = probed.at is not None and probed.at.revision == 0 and not self.state.items
        if probed.at == ours or is_over:
            copy = attrs.evolve(self, doubt=None, is_strained=False)
            return copy._counted(probed.counts)
        if probed.is_fresh:
            return self._asking("reconnect")
        if self.doubt == ours:
            # For one whole period the server said otherwise and we have not moved.  (Where we did
            # move, each delta that applied has proved that we are on the server's history.)
            return self._asking("drift")
        return attrs.evolve(self, doubt=ours), ()

    def _counted(self, counts: tuple[int, int]) -> tuple[Copy, tuple[Effect, ...]]:
        """Compare counts of our own position: what differs there is no write of ours."""
        if counts in ((-1, -1), self.state.counts):
            return attrs.evolve(self, odd=None, is_odd_told=False), ()
        if counts != self.odd:  # somebody deleted items by hand
            return attrs.evolve(self, odd=counts, is_odd_told=False)._asking("drift")
        if self.is_odd_told:
            return self, ()
        return attrs.evolve(self, is_odd_told=True), (Odd(counts),)

    def _fetched(self, reason: Reason, fetched: Fetched) -> tuple[Copy, tuple[Effect, ...]]:
        state = fetched.state
        ours, theirs = self.state.at, state.at
        copy = attrs.evolve(
            self, state=state, is_synced=True, reason=None, doubt=None, is_gapped=False
        )
        is_equal = self.state.items == state.items
        is_same = ours.generation == theirs.generation
        if not self.is_synced or (ours == theirs and is_equal):
            return copy, (Follow(theirs),)
        if is_same and theirs.revision == 0 and is_equal:  # it has ended, which we knew
            return attrs.evolve(copy, state=self.state), (Follow(ours),)
        is_fork = not is_same or fetched.has_ours is False
        if theirs.revision <= ours.revision and ours != theirs:
            is_fork |= theirs.revision > 0 or fetched.has_ours is None
        return copy, (Resync(reason, theirs.revision, ours.revision, is_fork), Follow(theirs))
