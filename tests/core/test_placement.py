"""Keys stay where they are unless they must move, and every worker gets its share."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core.placement import Candidate, Candidates
from pool.errors import ConfigError
from pool.names import key_hash, lane_of

HASHES = [key_hash(f"tenant-{i}") for i in range(20_000)]
HASH = st.integers(0, 2**64 - 1)
H = frozenset({"h"})


def fleet(size: int, *, weights: Iterable[float] = (1.0,)) -> list[Candidate]:
    cycle = list(weights)
    return [Candidate(f"w{i}", H, cycle[i % len(cycle)]) for i in range(size)]


def owners(workers: Iterable[Candidate], hashes: Iterable[int] = HASHES) -> list[str | None]:
    first = Candidates(workers).first
    return [first(number, "h") for number in hashes]


@st.composite
def fleets(draw: st.DrawFn) -> list[Candidate]:
    """Fleets of equal or of different weights, some workers labelled, some draining.

    Only workers of one weight share a label: of a shared place the greatest weight counts, so that
    it changes when that worker leaves.
    """
    ids = draw(st.lists(st.integers(0, 999).map("w{}".format), unique=True, max_size=12))
    weight, shared = draw(
        st.sampled_from([(st.just(1.0), "shared"), (st.floats(0.001, 1000.0), "")])
    )
    return [
        Candidate(
            id_,
            draw(st.sampled_from([H, frozenset({"g"}), frozenset({"g", "h"})])),
            draw(weight),
            draw(st.sampled_from(["", id_ + "-label", shared])),
            draw(st.integers(0, 4)) == 4,
        )
        for id_ in ids
    ]


# --- what is ranked -------------------------------------------------------------------------


@given(fleets(), HASH, st.integers(1, 15))
def test_ranked_holds_just_those_who_may(workers: list[Candidate], number: int, limit: int) -> None:
    may = {w.id for w in workers if "h" in w.handlers and not w.is_draining}
    candidates = Candidates(workers)
    ranked = candidates.ranked(number, "h", limit)
    assert len(ranked) == len(set(ranked)) == min(limit, len(may))
    assert set(ranked) <= may
    assert candidates.ranked(number, "h", 99)[:limit] == ranked
    assert candidates.first(number, "h") == (ranked[0] if ranked else None)


@given(fleets(), HASH, st.randoms(use_true_random=False))
def test_the_order_of_the_copy_does_not_matter(
    workers: list[Candidate], number: int, dice: random.Random
) -> None:
    shuffled = dice.sample(workers, len(workers))
    assert Candidates(shuffled).ranked(number, "h", 99) == Candidates(workers).ranked(
        number, "h", 99
    )


@pytest.mark.parametrize("size", [60, 70, 1000])
@pytest.mark.parametrize("weights", [(1.0,), (1.0, 2.0), (1000.0, *[0.001] * 400)])
def test_the_first_few_of_many_are_the_first_of_all(size: int, weights: tuple[float, ...]) -> None:
    """Only those over a cut are sorted; where they are too few, all are."""
    workers = [
        *fleet(size, weights=weights),
        *(Candidate(f"twin-{i}", H, label=f"pair-{i // 2}") for i in range(20)),
    ]
    candidates = Candidates(workers)
    for number in HASHES[:300]:
        order = candidates.ranked(number, "h", len(workers))
        assert len(order) == len(workers)
        for limit in (1, 8, 9, 40):
            assert candidates.ranked(number, "h", limit) == order[:limit]


def test_nobody_knows_the_handler() -> None:
    candidates = Candidates(fleet(3))
    assert candidates.first(1, "other") is None
    assert candidates.ranked(1, "other", 5) == ()
    assert Candidates([]).first(1, "h") is None


@given(st.lists(st.integers(0, 999).map("w{}".format), unique=True, min_size=2), HASH)
def test_one_multiplication_draws_for_all(ids: list[str], number: int) -> None:
    """The long multiplication is the plain rule, worker by worker."""
    draw = {id_: (number | 1) * (key_hash(id_) | 1) % 2**64 for id_ in ids}
    expected = tuple(sorted(ids, key=draw.__getitem__, reverse=True))
    assert Candidates(Candidate(id_, H) for id_ in ids).ranked(number, "h", len(ids)) == expected


@given(st.lists(st.tuples(st.integers(0, 999), st.floats(0.001, 1000.0)), min_size=2), HASH)
def test_weights_give_the_order_of_the_exponential_clocks(
    given_: list[tuple[int, float]], number: int
) -> None:
    weights = {f"w{i}": weight for i, weight in given_}
    clock = {
        id_: -math.log((number | 1) * (key_hash(id_) | 1) % 2**64 / 2**64) / weight
        for id_, weight in weights.items()
    }
    ranked = Candidates(Candidate(id_, H, w) for id_, w in weights.items()).ranked(number, "h", 99)
    times = [clock[id_] for id_ in ranked]
    assert all(a <= b or math.isclose(a, b, abs_tol=1e-12) for a, b in pairwise(times))


# --- movement -------------------------------------------------------------------------------


@given(fleets(), HASH, st.data())
def test_a_leaver_changes_nothing_between_the_others(
    workers: list[Candidate], number: int, data: st.DataObject
) -> None:
    """So only its own keys move, and each to the one that was next in line for it."""
    if not workers:
        return
    leaver = data.draw(st.sampled_from(workers))
    before = Candidates(workers).ranked(number, "h", 99)
    after = Candidates(w for w in workers if w is not leaver).ranked(number, "h", 99)
    assert after == tuple(id_ for id_ in before if id_ != leaver.id)


@pytest.mark.parametrize("weights", [(1.0,), (1.0, 2.0, 5.0)])
def test_a_joiner_only_takes(weights: tuple[float, ...]) -> None:
    workers = fleet(30, weights=weights)
    before, after = owners(workers[:-1]), owners(workers)
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {"w29"}
    share = workers[-1].weight / sum(worker.weight for worker in workers)
    assert_share(len(moved), share)


def test_the_keys_of_a_leaver_spread_over_all_others() -> None:
    workers = fleet(10)
    before, after = owners(workers), owners(workers[1:])
    heirs = Counter(new for old, new in zip(before, after, strict=True) if old == "w0")
    for worker in workers[1:]:
        assert_share(heirs[worker.id], 1 / 9, of=heirs.total())


@given(st.floats(0.001, 1000.0), st.floats(0.001, 1000.0), HASH)
def test_more_weight_never_loses_a_key(one: float, other: float, number: int) -> None:
    low, high = sorted((one, other))
    others = fleet(5, weights=(1.0, 3.0))
    if Candidates([*others, Candidate("x", H, low)]).first(number, "h") == "x":
        assert Candidates([*others, Candidate("x", H, high)]).first(number, "h") == "x"


# --- shares ---------------------------------------------------------------------------------


def assert_share(found: int, share: float, *, of: int = len(HASHES)) -> None:
    """Five standard deviations: one run in two million fails by chance, and ours is one run."""
    assert abs(found - share * of) <= 5 * math.sqrt(of * share * (1 - share))


@pytest.mark.parametrize(
    ("size", "weights"),
    [(2, (1,)), (10, (1,)), (300, (1,)), (2, (1, 9)), (10, (1, 2, 4)), (30, (0.1, 1))],
)
def test_shares_follow_the_weights(size: int, weights: tuple[float, ...]) -> None:
    workers = fleet(size, weights=weights)
    counts = Counter(owners(workers))
    total = sum(worker.weight for worker in workers)
    for worker in workers:
        assert_share(counts[worker.id], worker.weight / total)


@pytest.mark.parametrize("size", [10, 300])
def test_shares_are_as_even_as_chance(size: int) -> None:
    """Chi square, both sides: neither lumpy nor suspiciously regular."""
    counts = Counter(owners(fleet(size)))
    expected = len(HASHES) / size
    chi = sum((counts[f"w{i}"] - expected) ** 2 / expected for i in range(size))
    freedom = size - 1
    assert abs(chi - freedom) <= 5 * math.sqrt(2 * freedom)


def test_a_lane_is_shared_as_evenly_as_the_whole() -> None:
    """Lanes and placement use one hash: neither may show in the other."""
    keys = [key for key in (f"k{i}" for i in range(16_000)) if lane_of(key, 4) == 3]
    counts = Counter(owners(fleet(5), map(key_hash, keys)))
    for i in range(5):
        assert_share(counts[f"w{i}"], 1 / 5, of=len(keys))


def test_second_choices_are_independent_of_first_ones() -> None:
    ranked = Candidates(fleet(6)).ranked
    pairs = Counter(ranked(number, "h", 2) for number in HASHES)
    assert len(pairs) == 30
    for count in pairs.values():
        assert_share(count, 1 / 30)


# --- labels ---------------------------------------------------------------------------------


def test_a_restart_under_the_same_label_moves_nothing() -> None:
    old = [Candidate(f"w{i}", H, label=f"pod-{i}") for i in range(5)]
    new = [Candidate(f"x{9 - i}", H, label=f"pod-{i}") for i in range(5)]
    successor = {o.id: n.id for o, n in zip(old, new, strict=True)}
    assert [successor[str(owner)] for owner in owners(old)] == owners(new)


def test_a_draining_worker_gives_its_label_up_at_once() -> None:
    others = [Candidate(f"w{i}", H, label=f"pod-{i}") for i in range(1, 5)]
    draining = Candidate("w0", H, label="pod-0", is_draining=True)
    both = owners([draining, Candidate("x0", H, label="pod-0"), *others])
    before = owners([Candidate("w0", H, label="pod-0"), *others])
    assert both == ["x0" if owner == "w0" else owner for owner in before]


@pytest.mark.parametrize("weights", [(1.0,), (1.0, 2.0, 5.0)])
def test_a_rolling_deployment_moves_each_key_once(weights: tuple[float, ...]) -> None:
    """Old and new worker of a label side by side: only its own keys move, each to the new one."""
    size = 10
    workers = [
        Candidate(worker.id, H, worker.weight, f"pod-{worker.id}")
        for worker in fleet(size, weights=weights)
    ]
    moves: Counter[int] = Counter()
    hashes = HASHES[:2000]
    before = owners(workers, hashes)
    for n, old in enumerate(workers.copy()):
        new = Candidate(f"x{99 - n}", H, old.weight, old.label)
        for both_or_new in ([old, new], [new]):
            after = owners([*workers[:n], *both_or_new, *workers[n + 1 :]], hashes)
            moved = [i for i, owner in enumerate(after) if owner != before[i]]
            assert {(before[i], after[i]) for i in moved} == {(old.id, new.id)}
            moves.update(moved)
            before = after
        workers[n] = new
    assert len(moves) == len(hashes)
    assert set(moves.values()) == {1}


def test_workers_that_share_a_label_still_share_the_keys() -> None:
    workers = [Candidate(f"w{i}", H, label="web") for i in range(5)]
    found = owners(workers)
    assert owners(reversed(workers)) == found  # whose the label is does not hang on the copy
    counts = Counter(found)
    for i in range(5):
        assert_share(counts[f"w{i}"], 1 / 5)


# --- the same everywhere --------------------------------------------------------------------

GOLDEN = """
from pool.names import key_hash
from pool.core.placement import Candidate, Candidates
for weights in ([1, 1, 1, 1, 1], [1, 2, 3, 4, 5]):
    workers = [Candidate(f"w{i}", frozenset({"h"}), w, f"pod-{i}") for i, w in enumerate(weights)]
    for key in ("k0", "k1", "k2"):
        print(*Candidates(workers).ranked(key_hash(key), "h", 5))
"""


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_all_processes_agree(hash_seed: str) -> None:
    """Golden values: nodes of two versions of pool must not pull a key to and fro."""
    ran = subprocess.run(
        [sys.executable, "-c", GOLDEN],
        cwd=Path(__file__).parents[2],
        env={"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines() == [
        *("w1 w4 w3 w2 w0", "w3 w0 w2 w1 w4", "w1 w0 w4 w2 w3"),
        *("w4 w1 w3 w2 w0", "w3 w2 w4 w1 w0", "w4 w3 w2 w1 w0"),
    ]


@pytest.mark.parametrize("number", [0, 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("weights", [(1.0,), (0.001, 1000.0)])
def test_extreme_hashes_are_placed(number: int, weights: tuple[float, ...]) -> None:
    assert len(Candidates(fleet(7, weights=weights)).ranked(number, "h", 7)) == 7


@pytest.mark.parametrize("weight", [0.0, -1.0, 0.0009, 1000.1, math.inf, math.nan])
def test_a_weight_has_bounds(weight: float) -> None:
    with pytest.raises(ConfigError, match="weight"):
        Candidate("w", H, weight)


def test_a_worker_has_a_name_in_each_lane() -> None:
    worker = Candidate("w1", H, numbers=(1, 4))
    assert [worker.name_in(0), worker.name_in(1)] == ["w1.1", "w1.4"]
    assert Candidates([worker]).workers["w1"] is worker
