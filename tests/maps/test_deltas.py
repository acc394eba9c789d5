"""A replica never drifts: it equals the truth at its position, or knows that it must ask."""

from __future__ import annotations

from types import MappingProxyType

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pool.errors import InvalidOption
from pool.maps.deltas import (
    Ask,
    Copy,
    Delta,
    Deltas,
    Doubted,
    Edit,
    Effect,
    Fetched,
    Follow,
    History,
    KeyChange,
    KeysChanged,
    MapState,
    Odd,
    Position,
    Probed,
    Resync,
    Value,
    apply,
)

START = Position("i1", 0)
Edits = tuple[Edit, ...]
CLEAR: Edit = ("*", b"", b"")

keys = st.sampled_from([b"a", b"b", b"c"])
texts = st.sampled_from([b"", b"1", b"2"])
edit: st.SearchStrategy[Edit] = st.one_of(
    st.tuples(st.sampled_from(["+", "a", "a", "r"]), keys, texts),
    st.tuples(st.just("-"), keys, st.just(b"")),
    st.just(CLEAR),
)
edits = st.lists(edit, min_size=1, max_size=3).map(tuple)


def place(change: KeyChange) -> tuple[int, bytes]:
    return change.revision, change.key  # the keys of one revision come in any order


def put(key: bytes, value: bytes) -> Edit:
    return "+", key, value


@attrs.define
class Truth:
    """The server's side: what a write script does, and every state that ever was."""

    at: Position = START
    items: dict[bytes, Value] = attrs.field(factory=dict)
    drawn: int = 0  # by writers: never the same twice
    floor: int = 0  # no map begins below it
    floors: dict[Position, int] = attrs.field(factory=lambda: {START: 0})
    log: list[Delta] = attrs.field(factory=list)
    states: dict[Position, dict[bytes, Value]] = attrs.field(factory=lambda: {START: {}})
    changes: list[KeyChange] = attrs.field(factory=list)

    def write(self, wanted: Edits) -> Delta:
        self.drawn += 1
        revision = max(self.at.revision, 0 if self.at.revision else self.floor) + 1
        at = Position(self.at.generation, revision, f"{self.drawn:x}")
        delta = Delta(at, (self.at.revision, self.at.stamp), wanted)
        self.at = at
        before = dict(self.items)
        touched: dict[bytes, None] = {}
        for each in wanted:
            touched |= dict.fromkeys(self._edit(*each))
        self.changes += [
            KeyChange(at.revision, key, before.get(key), self.items.get(key)) for key in touched
        ]
        self.log.append(delta)
        self.states[at] = dict(self.items)
        self.floors[at] = self.floor
        return delta

    def end(self) -> Delta:
        """Be destroyed: nothing is left but the log, and how far it came."""
        delta = self.write((CLEAR,))
        self.floor = max(self.floor, delta.at.revision)
        self.at = Position(self.at.generation, 0)
        self.states[self.at], self.floors[self.at] = {}, self.floor
        return delta

    def _edit(self, kind: str, key: bytes, text: bytes) -> list[bytes]:
        """Do it the long way: a list is a list, and an empty one is no key.  Return whom it met."""
        met = list(self.items) if kind == "*" else [key]
        for touched in met:
            old = self.items.get(touched)
            held = list(old) if isinstance(old, tuple) else []
            if kind == "a":
                held.append(text)
            while kind == "r" and text in held:
                held.remove(text)
            new = {"+": text, "a": tuple(held), "r": tuple(held) or None}.get(kind)
            if new is None:
                self.items.pop(touched, None)
            else:
                self.items[touched] = new
        return met

    def go_back(self, at: Position) -> None:
        """Be an older copy that was made the primary."""
        self.at, self.items, self.floor = at, dict(self.states[at]), self.floors[at]
        reached = at.revision or self.floor
        self.log = [delta for delta in self.log if delta.at.revision <= reached]

    def has(self, at: Position) -> bool:
        """Say what a server says of whether its history has this position."""
        stamps = {delta.at.revision: delta.at.stamp for delta in self.log}
        stamps |= {self.at.revision: self.at.stamp} if self.at.revision else {}
        return History(self.at.revision, self.floor, stamps).has(at)

    def state(self) -> MapState:
        return MapState(self.at, MappingProxyType(dict(self.items)))


@given(st.lists(edits, max_size=8), st.data())
def test_what_is_lost_repeated_or_reordered_shows_as_a_gap_or_not_at_all(
    history: list[Edits], data: st.DataObject
) -> None:
    """G-10: after any delivery the copy is the truth of its own position."""
    truth = Truth()
    log = [truth.write(each) for each in history]
    delivered = data.draw(st.lists(st.sampled_from(log), max_size=16) if log else st.just([]))
    state = MapState(START)
    for delta in delivered:
        applied = apply(state, [delta])
        continues = delta.after == (state.at.revision, state.at.stamp)
        continues |= delta.after == (0, "0") and not state.items  # the map began there
        assert (applied.gap is not None) == (
            not continues and delta.at.revision > state.at.revision
        )
        state = applied.state
        assert dict(state.items) == truth.states[state.at]


@given(st.lists(edits, min_size=1, max_size=8))
def test_all_deltas_in_order_give_the_truth_and_every_change(history: list[Edits]) -> None:
    truth = Truth()
    log = [truth.write(each) for each in history]
    applied = apply(MapState(START), log)
    assert applied.gap is None
    assert (applied.state.at, dict(applied.state.items)) == (truth.at, truth.items)
    assert sorted(applied.changes, key=place) == sorted(truth.changes, key=place)


def test_a_kept_state_never_changes() -> None:
    truth = Truth()
    first = apply(MapState(START), [truth.write((put(b"a", b"1"),))]).state
    kept = first.items
    second = apply(first, [truth.write((("-", b"a", b""), put(b"b", b"2")))]).state
    assert (dict(kept), dict(second.items)) == ({b"a": b"1"}, {b"b": b"2"})


def test_the_same_revision_of_another_history_is_a_gap() -> None:
    """After a failover to an older copy the numbers are the same and the history is not."""
    truth = Truth()
    kept = truth.write((put(b"a", b"1"),))
    ours = apply(MapState(START), [kept, truth.write((put(b"a", b"lost"),))]).state
    truth.go_back(kept.at)
    other = truth.write((put(b"a", b"other"),))
    later = truth.write((put(b"b", b"2"),))
    assert other.at.revision == ours.at.revision
    assert apply(ours, [other]).gap is not None
    assert apply(ours, [later]).gap is not None


def test_another_generation_is_a_gap_even_with_the_same_numbers() -> None:
    state = MapState(Position("i1", 7, "70"))
    assert (
        apply(state, [Delta(Position("i2", 8, "80"), (7, "70"), (put(b"a", b"1"),))]).gap
        is not None
    )
    assert apply(state, [Delta(Position("i2", 3, "30"), (2, "20"), ())]).gap is not None


def test_a_first_revision_may_be_any_number_if_it_follows_ours() -> None:
    """The first revision of a generation is the server's time, far above the last one."""
    delta = Delta(Position("i1", 1_700_000_000_000_000, "9"), (0, "0"), (put(b"a", b"1"),))
    assert apply(MapState(START), [delta]).state.at == delta.at


# --- the life of a copy -----------------------------------------------------------------------


def synced(state: MapState) -> Copy:
    copy, effects = Copy(MapState(START)).step(Doubted("join"))
    assert effects == (Ask(1),)
    copy, effects = copy.step(Fetched(1, state))
    assert effects == (Follow(state.at),)
    return copy


def test_a_probe_that_differs_once_is_only_a_doubt() -> None:
    """Deltas and probes race each other: without a fault no snapshot is taken."""
    truth = Truth()
    copy = synced(truth.state())
    delta = truth.write((put(b"a", b"1"),))
    copy, effects = copy.step(Probed(truth.at))
    assert effects == ()
    copy, effects = copy.step(Deltas((delta,)))
    assert effects == (KeysChanged((KeyChange(1, b"a", None, b"1"),), (delta.at,)),)
    assert copy.step(Probed(truth.at))[1] == ()


def test_a_difference_older_than_a_period_asks() -> None:
    truth = Truth()
    copy = synced(truth.state())
    truth.write((put(b"a", b"1"),))
    copy, _ = copy.step(Probed(truth.at))
    copy, effects = copy.step(Probed(truth.at))
    assert effects == (Ask(2),)
    _, effects = copy.step(Fetched(2, truth.state()))
    assert effects == (Resync("drift", 1, 0, is_fork=False), Follow(truth.at))


def test_after_a_reconnect_a_difference_asks_at_once_and_equality_costs_nothing() -> None:
    truth = Truth()
    copy = synced(truth.state())
    assert copy.step(Probed(truth.at, is_fresh=True)) == (copy, ())
    truth.write((put(b"a", b"1"),))
    assert copy.step(Probed(truth.at, is_fresh=True))[1] == (Ask(2),)


def test_a_copy_that_moves_is_not_in_doubt() -> None:
    """Under steady writes each probe differs, and each delta that applies proves the history."""
    truth = Truth()
    copy = synced(truth.state())
    for n in range(3):
        delta = truth.write((put(b"n", b"%d" % n),))
        copy, effects = copy.step(Probed(truth.at))
        assert effects == ()
        copy, _ = copy.step(Deltas((delta,)))


def test_while_a_snapshot_is_on_its_way_the_copy_stands_still() -> None:
    """So one that is older than the copy proves that the server went back."""
    truth = Truth()
    copy = synced(truth.state())
    copy, _ = copy.step(Doubted("overflow"))
    assert copy.step(Deltas((truth.write((put(b"a", b"1"),)),))) == (copy, ())
    assert copy.step(Probed(truth.at)) == (copy, ())


def test_a_log_that_never_continues_costs_one_snapshot_per_probe() -> None:
    """A foreign entry at the end of the log is read again after each snapshot."""
    truth = Truth()
    copy = synced(truth.state())
    foreign = Deltas((Delta(Position("", 9), (0, ""), ()),))
    copy, effects = copy.step(foreign)
    assert effects == (Ask(2),)
    for ask in (2, 3):
        copy, effects = copy.step(Fetched(ask, truth.state()))
        assert effects == (Follow(truth.at),)
        copy, effects = copy.step(foreign)
        assert effects == ()
        copy, effects = copy.step(Probed(truth.at))
        assert effects == (Ask(ask + 1),)


def test_only_the_newest_snapshot_counts() -> None:
    truth = Truth()
    copy = synced(truth.state())
    copy, _ = copy.step(Doubted("overflow"))
    stale = truth.state()
    truth.write((put(b"a", b"1"),))
    copy, effects = copy.step(Doubted("data lost"))
    assert effects == (Ask(3),)
    assert copy.step(Fetched(2, stale)) == (copy, ())
    copy, _ = copy.step(Fetched(3, truth.state()))
    assert copy.state.at == truth.at
    assert copy.step(Fetched(3, stale)) == (copy, ())


def test_counts_that_differ_at_our_own_position_ask_once_and_are_told() -> None:
    """Another hand was at it.  What a snapshot does not mend is said, and not fetched for ever."""
    truth = Truth()
    truth.write((put(b"a", b"1"), ("a", b"l", b"1"), ("a", b"l", b"2")))
    copy = synced(truth.state())
    assert copy.step(Probed(truth.at, counts=(1, 2)))[1] == ()
    for counts in ((0, 2), (1, 1)):
        copy, effects = copy.step(Probed(truth.at, counts=counts))
        assert effects == (Ask(copy.ask),)
        copy, effects = copy.step(Fetched(copy.ask, truth.state()))
        assert effects == (Follow(truth.at),)
        assert copy.step(Probed(truth.at, counts=(1, 2)))[0].odd is None
        copy, effects = copy.step(Probed(truth.at, counts=counts))
        assert effects == (Odd(counts),)
        assert copy.step(Probed(truth.at, counts=counts)) == (copy, ())


def test_an_end_that_was_seen_is_no_news_whenever_it_is_forgotten() -> None:
    """G9: a day after `destroy()` copies heard that the server had gone back."""
    truth = Truth()
    truth.write((put(b"a", b"1"),))
    copy = synced(truth.state())
    copy, _ = copy.step(Deltas((truth.end(),)))
    for _ in range(3):
        copy, effects = copy.step(Probed(truth.at))
        assert effects == ()
    copy, effects = copy.step(Probed(truth.at, is_fresh=True))
    assert effects == ()
    copy, _ = copy.step(Doubted("overflow"))
    copy, effects = copy.step(Fetched(copy.ask, truth.state()))
    assert effects == (Follow(copy.state.at),)
    delta = truth.write((put(b"b", b"2"),))
    _, effects = copy.step(Deltas((delta,)))
    assert effects == (KeysChanged((KeyChange(delta.at.revision, b"b", None, b"2"),), (delta.at,)),)


def test_an_end_that_was_missed_is_told_from_a_server_that_went_back() -> None:
    for is_fork in (False, True):
        truth = Truth()
        written = truth.write((put(b"a", b"1"),)).at
        copy = synced(truth.state())
        if is_fork:
            truth.go_back(START)
        else:
            truth.end()
        copy, _ = copy.step(Probed(truth.at))
        copy, _ = copy.step(Probed(truth.at))
        fetched = Fetched(copy.ask, truth.state(), truth.has(written))
        assert copy.step(fetched)[1][0] == Resync("drift", 0, written.revision, is_fork)


def test_a_history_that_has_overtaken_ours_is_told_as_another() -> None:
    truth = Truth()
    kept = truth.write((put(b"a", b"1"),)).at
    ours = truth.write((put(b"a", b"lost"),)).at
    copy = synced(truth.state())
    truth.go_back(kept)
    for n in range(3):
        truth.write((put(b"n", b"%d" % n),))
    copy, _ = copy.step(Doubted("overflow"))
    _, effects = copy.step(Fetched(copy.ask, truth.state(), truth.has(ours)))
    assert effects[0] == Resync("overflow", 4, 2, is_fork=True)


def test_positions_come_back_from_their_text() -> None:
    at = Position("pool|1:x", 1_700_000_000_000_000, "0f3a")
    assert Position.parse(str(at)) == at
    for text in ("", "1", "1-g-i", "1-a-", "x" * 99, "1-a-b c", "1" * 17 + "-a-i", None, at):
        with pytest.raises(InvalidOption, match="position"):
            Position.parse(text)  # type: ignore[arg-type]


class CopyAgainstTruth(RuleBasedStateMachine):
    """Any order of writes, reads, losses, probes, late snapshots, failovers and data losses."""

    def __init__(self) -> None:
        super().__init__()
        self.truth = Truth()
        self.copy = Copy(MapState(START))
        self.asked: int | None = None
        self.snapshot: Fetched | None = None
        self.reading = 0  # all of the log above this revision is still to be read
        self.revision = 0  # the last that a watcher has heard of
        self.seen: dict[bytes, Value] = {}  # what a watcher pieces together from changes
        self.tell(Doubted("join"))

    def tell(self, event: Deltas | Probed | Fetched | Doubted) -> None:
        self.copy, effects = self.copy.step(event)
        for effect in effects:
            self.perform(effect)

    def perform(self, effect: Effect) -> None:
        match effect:
            case Ask(ask=ask):
                self.asked, self.snapshot = ask, None
            case Follow(at=at):
                self.reading = at.revision
                self.revision = at.revision
                self.seen = dict(self.copy.state.items)
            case Resync(revision=revision, revision_before=before, is_fork=is_fork):
                assert before == self.revision
                assert is_fork or revision >= before or not revision  # it has ended, unseen
            case KeysChanged(changes=changes, passed=passed):
                assert passed[-1] == self.copy.state.at
                self.revision = passed[-1].revision
                for change in changes:
                    assert self.seen.get(change.key) == change.old
                    self.seen.pop(change.key, None)
                    if change.new is not None:
                        self.seen[change.key] = change.new

    def read(self) -> tuple[Delta, ...]:
        found = tuple(delta for delta in self.truth.log if delta.at.revision > self.reading)
        self.reading = max([self.reading, *(delta.at.revision for delta in found)])
        return found

    @rule(wanted=edits)
    def write(self, wanted: Edits) -> None:
        self.truth.write(wanted)

    @rule()
    def end(self) -> None:
        self.truth.end()

    @rule()
    def deliver(self) -> None:
        self.tell(Deltas(self.read()))

    @rule()
    def deliver_twice(self) -> None:
        found = Deltas(self.read())
        self.tell(found)
        self.tell(found)

    @rule()
    def lose(self) -> None:
        self.read()

    @rule(kept=st.integers(0, 2))
    def trim(self, kept: int) -> None:
        self.truth.log = self.truth.log[len(self.truth.log) - kept :] if kept else []

    @rule(is_fresh=st.booleans())
    def probe(self, is_fresh: bool) -> None:
        self.tell(Probed(self.truth.at, is_fresh))

    @precondition(lambda self: self.asked is not None)
    @rule()
    def take_snapshot(self) -> None:
        assert self.asked is not None
        self.snapshot = Fetched(self.asked, self.truth.state(), self.truth.has(self.copy.state.at))
        self.asked = None

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def bring_snapshot(self) -> None:
        assert self.snapshot is not None
        brought, self.snapshot = self.snapshot, None
        self.tell(brought)

    @rule(data=st.data())
    def fail_over_to_an_older_copy(self, data: st.DataObject) -> None:
        mine = [at for at in self.truth.states if at.generation == self.truth.at.generation]
        came = self.truth.at.revision or self.truth.floor
        older = [at for at in mine if (at.revision or self.truth.floors[at]) <= came]
        self.truth.go_back(data.draw(st.sampled_from(older)))

    @rule()
    def lose_everything(self) -> None:
        truth = self.truth
        generation = f"i{int(truth.at.generation[1:]) + 1}"
        truth.at, truth.items, truth.log, truth.floor = Position(generation, 0), {}, [], 0
        truth.states[truth.at], truth.floors[truth.at] = {}, 0
        self.tell(Doubted("data lost"))

    @invariant()
    def equals_the_truth_of_its_position(self) -> None:
        """G-10."""
        assert dict(self.copy.state.items) == self.truth.states[self.copy.state.at]

    @invariant()
    def has_told_watchers_all_they_need(self) -> None:
        assert self.seen == dict(self.copy.state.items)

    def teardown(self) -> None:
        """Without further faults it is equal two probes after what is on its way has arrived."""
        for _ in range(3):
            self.tell(Deltas(self.read()))
            self.tell(Probed(self.truth.at))
            if self.asked is not None:
                self.take_snapshot()
            if self.snapshot is not None:
                self.bring_snapshot()
        assert self.copy.state.at == self.truth.at or not self.truth.at.revision
        assert dict(self.copy.state.items) == self.truth.items


TestCopyAgainstTruth = CopyAgainstTruth.TestCase
TestCopyAgainstTruth.settings = settings(max_examples=100, stateful_step_count=30)
