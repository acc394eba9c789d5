"""Ids are cheap, and nobody else's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pool.core.ids import SEED_BYTES, Ids

SEED = st.binary(min_size=SEED_BYTES, max_size=SEED_BYTES)


def test_ids_are_a_prefix_and_a_counter() -> None:
    ids = Ids(bytes(range(8)))
    assert [ids.next(), ids.next("w"), ids.next("n")] == [
        "7g1a02c0281",
        "w7g1a02c0282",
        "n7g1a02c0283",
    ]
    assert Ids(b"\xff" * 8).next() == "zzzzzzzzzz1"


@given(SEED, st.integers(1, 300))
def test_ids_of_a_process_never_repeat(seed: bytes, count: int) -> None:
    ids = Ids(seed)
    made = [ids.next() for _ in range(count)]
    assert len(set(made)) == count
    assert all(id_.isalnum() and id_.isascii() and id_ == id_.lower() for id_ in made)


@given(SEED)
def test_each_of_the_50_bits_counts(seed: bytes) -> None:
    number = int.from_bytes(seed, "big")
    others = {Ids((number ^ 1 << bit).to_bytes(8, "big")).next() for bit in range(50)}
    assert len(others | {Ids(seed).next()}) == 51


def test_a_fork_makes_other_ids() -> None:
    parent, child = Ids(b"12345678"), Ids(b"12345678")
    assert parent.next() == child.next()
    child.redraw(b"abcdefgh")
    assert not {parent.next() for _ in range(99)} & {child.next() for _ in range(99)}
