"""Fleets in which some workers lack a version or a codec: each job reaches a worker that has it."""

from __future__ import annotations

import attrs
import pytest

from tests.verify.sim.campaign import told
from tests.verify.sim.config import VERSIONED_SLOTS, Config
from tests.verify.sim.run import play
from tests.verify.sim.versions import JOBS
from tests.verify.versioning import LEFT


@pytest.mark.parametrize("seed", [630_002, 630_003])
def test_a_job_reaches_a_worker_that_can_read_it(seed: int) -> None:
    """I74, K7: where nothing goes wrong, and some workers have left a job to others."""
    peace = attrs.evolve(Config.of(seed), faults=(), workers=1, capacity=VERSIONED_SLOTS)
    outcome = play(attrs.evolve(peace, shapes=("versions",)))
    assert outcome.ok, told(outcome)
    assert outcome.report.judged["I74"] == JOBS
    failed = [e.extra for e in outcome.events if e.extra.get("event") == "attempt.failed"]
    assert any(word in facts["error"] for facts in failed for word in LEFT)
