"""Comparing two revisions: what is said of the figures, and what each side runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.compare import Ratio, as_text, compared, sides_of


def ratio(name: str, low: float, median: float, high: float) -> Ratio:
    return Ratio(name=name, ours=median, theirs=1.0, median=median, low=low, high=high)


def git(root: Path, *words: str) -> str:
    program = shutil.which("git")
    assert program is not None, "these tests need git"
    who = ("-c", "user.name=t", "-c", "user.email=t@t")
    told = subprocess.run(
        [program, *who, *words], cwd=root, capture_output=True, text=True, check=True
    )
    return told.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository whose `pool` says `new`, uncommitted, and said `old` in its commit."""
    root = tmp_path / "repository"
    for name in ("pool", "benchmarks"):
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").write_text("old", "utf-8")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "old")
    for name in ("pool", "benchmarks"):
        (root / name / "__init__.py").write_text("new", "utf-8")
    return root


# --- the figures --------------------------------------------------------------------------------


def test_ratios_are_formed_within_each_round() -> None:
    """A machine that slows down hits both sides of a round, and so no ratio."""
    rounds = [({"x_per_s": 200.0}, {"x_per_s": 100.0}), ({"x_per_s": 50.0}, {"x_per_s": 20.0})]
    [found] = compared([*rounds, ({"x_per_s": 30.0}, {"x_per_s": 10.0})])
    assert (found.low, found.median, found.high) == (2.0, 2.5, 3.0)
    assert (found.ours, found.theirs) == (50.0, 20.0)


def test_a_figure_that_one_side_lacks_or_that_is_nothing_is_left_out() -> None:
    assert compared([({"new": 1.0, "zero": 0.0}, {"zero": 0.0})]) == []


@pytest.mark.parametrize(
    ("name", "low", "median", "high", "said"),
    [
        ("drain_1_per_s", 1.02, 1.2, 1.4, "better"),
        ("drain_1_per_s", 0.7, 0.8, 0.9, "worse"),
        ("drain_1_commands", 0.7, 0.8, 0.9, "better"),
        ("drain_1_commands", 1.02, 1.2, 1.4, "worse"),
        ("drain_1_per_s", 0.99, 1.2, 1.4, ""),  # one round says otherwise
        ("drain_1_per_s", 1.01, 1.04, 1.4, ""),  # too little
        ("raw_xadd_per_s", 1.1, 1.2, 1.4, ""),  # not ours
    ],
)
def test_better_and_worse_are_said_only_where_all_rounds_agree(
    name: str, low: float, median: float, high: float, said: str
) -> None:
    assert ratio(name, low, median, high).verdict == said


def test_the_yardsticks_stand_first_in_the_table() -> None:
    lines = list(as_text([ratio("b", 1, 1, 1), ratio("raw_a", 1, 1, 1)], "HEAD"))
    assert [line.split()[0] for line in lines[1:]] == ["raw_a", "b"]


# --- the sides ----------------------------------------------------------------------------------


def test_each_side_has_its_own_library_and_both_are_measured_in_this_trees_way(
    repository: Path,
) -> None:
    """Ours is the working tree, uncommitted changes and all."""
    with sides_of("HEAD", repository) as sides:
        said = [(side / "pool/__init__.py").read_text("utf-8") for side in sides]
        measured = [(side / "benchmarks/__init__.py").read_text("utf-8") for side in sides]
    assert said == ["new", "old"]
    assert measured == ["new", "new"]


def test_each_side_may_be_measured_in_its_own_way(repository: Path) -> None:
    with sides_of("HEAD", repository, is_own=True) as sides:
        found = [(side / "benchmarks" / "__init__.py").read_text("utf-8") for side in sides]
    assert found == ["new", "old"]


def test_nothing_is_left_of_the_other_tree_even_after_an_error(repository: Path) -> None:
    seen: list[Path] = []

    def fail() -> None:
        with sides_of("HEAD", repository) as sides:
            seen.extend(sides)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [side.exists() for side in seen] == [False, False]
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_a_revision_that_is_none_is_refused_by_name(repository: Path) -> None:
    with pytest.raises(SystemExit, match="no-such"), sides_of("no-such", repository):
        raise AssertionError
