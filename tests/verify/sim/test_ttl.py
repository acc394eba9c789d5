"""The TTL of the pool is changed while a world is played, among faults that matter for leases."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from tests.verify.history import Event
from tests.verify.sim.config import Config
from tests.verify.sim.run import play

FAULTS = (
    (),
    ("pause", "crash"),
    ("stall", "leave"),
    ("silences",),
    *(
        pytest.param(faults, marks=pytest.mark.long)
        for faults in (("partition",), ("lossy-replies", "lossy-requests"), ("late", "slow"))
    ),
)


def _changed_in_silence(events: Sequence[Event]) -> bool:
    """Say whether the TTL of a lane was changed while the server answered nobody."""
    silences = set[int]()
    for event in events:
        if event.f == "fault" and event.extra.get("kind") == "silences":
            silences.add(event.extra["id"])
        elif event.f == "fault":
            silences.discard(event.extra["id"])
        elif event.f == "ttl" and silences:
            return True
    return False


@pytest.mark.parametrize("faults", FAULTS, ids="+".join)
def test_leases_hold_whatever_the_ttl_is_changed_to(faults: tuple[str, ...]) -> None:
    """G-02, G-03, G-06: shorter and back, at times in some lanes only."""
    for seed in range(2):
        config = attrs.evolve(
            Config.of(seed, "mixed"), faults=faults, shapes=("ttl",), pace_s=4.0, ttl_s=6.0
        )
        outcome = play(config)
        assert not outcome.broken, (config.text(), outcome.broken)
        if "silences" in faults:
            assert _changed_in_silence(outcome.events)
        if not faults:
            assert not any(event.f == "reap" for event in outcome.events)
