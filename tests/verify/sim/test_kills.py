"""Kills from outside in simulated fleets: whatever is killed, no innocent job is given up."""

from __future__ import annotations

import attrs
import pytest

from tests.verify.sim.campaign import told
from tests.verify.sim.config import OUTSIDE, Config
from tests.verify.sim.run import play


@pytest.mark.parametrize("seed", [630_100, 630_101, 630_103])
def test_no_innocent_is_given_up_for_kills_from_outside(seed: int) -> None:
    """I36, K1, K9: waves, a host that dies, one node again and again, drains cut short.

    I35 of the second one: suspects that waited for their time were given back, and waited again.
    """
    config = attrs.evolve(Config.of(seed), faults=OUTSIDE, pace_s=6.0, shapes=())
    outcome = play(config)
    assert outcome.fired.keys() & {*OUTSIDE}
    assert outcome.ok, told(outcome)
