"""The campaign of outside deaths in small: no innocent is given up, and killers are found."""

from __future__ import annotations

import pytest

from tests.verify.evidence import KINDS, found_after, goal, outside


@pytest.mark.parametrize("seed", range(3))
def test_no_innocent_is_given_up_whatever_kills(seed: int) -> None:
    """K1, K9: uneven hosts, waves, drains, freezes, ages, one process to twelve."""
    result = outside(seed, 1_600, per_world=100, jobs_max=30)
    assert result.events.keys() == KINDS.keys()
    assert not result.innocents


@pytest.mark.parametrize("seed", range(3))
def test_no_innocent_is_given_up_where_a_coin_is_tossed(seed: int) -> None:
    """Fleets of one and two processes, in which kills from outside are a crash loop."""
    result = outside(seed, 1_600, per_world=200, jobs_max=30, sizes=3)
    assert result.events.keys() == KINDS.keys()
    assert not result.innocents


@pytest.mark.parametrize("dealt", [1, 2, 3, 6, 12])
@pytest.mark.parametrize("jobs", [10, 60])
def test_a_late_killer_is_found_after_as_many_deaths_as_it_takes(dealt: int, jobs: int) -> None:
    """G-06: the fewer, the more processes may take it, and hardly more in a larger pool."""
    most = max(found_after(seed, dealt, jobs)[0] for seed in range(3))
    assert most <= 1.2 * goal(jobs, dealt)


@pytest.mark.parametrize("after_ms", [0, 40, 2_000, 30_000])
def test_a_job_that_kills_in_a_third_of_its_runs_is_found(after_ms: int) -> None:
    """At once, or half a minute later."""
    [deaths] = found_after(1, 6, 40, after_ms=after_ms, share=0.3)
    assert deaths <= 4 * goal(40, 6)


def test_two_killers_are_found_that_hide_each_other() -> None:
    """Each sees the deaths by the other one as deaths elsewhere."""
    assert sum(found_after(1, 6, 60, killers=2)) <= 5 * goal(60, 6)
