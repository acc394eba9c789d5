"""Planted bugs: each can still be planted.  That the simulation finds it, `make mutants` shows."""

from __future__ import annotations

import pytest

from tests.verify.mutants import MUTANTS, Mutant, pins, planted
from tests.verify.sim.config import FAULTS, SHAPES, Config


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_still_applies(mutant: Mutant) -> None:
    """Its text stands in the library exactly once, and what it makes of it can be read."""
    text = planted(mutant)
    if mutant.path.endswith(".py"):
        compile(text, mutant.path, "exec")
    assert set(mutant.needs) <= {*FAULTS, *SHAPES, "bursts", "workers"}
    assert len(mutant.tests) == len(mutant.by)


def test_planted_bugs_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_a_planted_bug_names_tests_or_a_whole_configuration() -> None:
    """A seed alone does not last: what it draws changes with each new kind of fault."""
    assert pins().keys() == {mutant.name for mutant in MUTANTS if not mutant.by}
    for text in pins().values():
        config = Config.parse(text)
        assert {*config.faults} <= FAULTS.keys()
        assert {*config.shapes} <= SHAPES.keys()
