"""Fresh seeds are those behind all that were run."""

from __future__ import annotations

from itertools import combinations

from tests.verify.sim.fresh import RANGES, SeedRange, fresh, ranges


def test_no_range_was_run_twice_and_the_next_one_lies_behind_all() -> None:
    known = ranges(RANGES.read_text("utf-8"))
    assert [
        (one, other)
        for one, other in combinations(known, 2)
        if max(one.first, other.first) < min(one.end, other.end)
    ] == []
    seeds = fresh(known, 300)
    assert (len(seeds), seeds.start % 1000) == (300, 0)
    assert all(each.end <= seeds.start for each in known)


def test_a_line_is_read_as_it_was_written() -> None:
    told = SeedRange(5, 10, "2026-01-02", "abc", (6, 14))
    text = f"# first\n\n{told.line()}\n{SeedRange(0, 5, '2026-01-01', 'abc', ()).line()}\n"
    assert ranges(text) == [told, SeedRange(0, 5, "2026-01-01", "abc", ())]
    assert fresh(ranges(text), 3) == range(1000, 1003)
