"""What users test their handlers with."""

from __future__ import annotations

from typing import Any

import pytest

from pool import Handlers, Job
from pool.testing import make_job

handlers = Handlers()


@handlers.job("double")
async def double(job: Job, n: int) -> str:
    return f"{job.key}: {2 * n}, attempt {job.attempt}"


@pytest.mark.anyio
async def test_a_handler_is_called_like_the_function_it_is() -> None:
    """No pool, no server."""
    assert await double(make_job("k", attempt=3), 21) == "k: 42, attempt 3"


@pytest.mark.anyio
async def test_a_job_for_tests_has_state_and_messages() -> None:
    """As after a hand-off with unhandled messages."""
    job = make_job("k", kind="service", state={"n": 1}, notifications=["a", {"b": 2}])
    assert job.state == {"n": 1}
    notes = job.notifications()
    heard: list[Any] = [await anext(notes), await anext(notes)]
    assert heard == ["a", {"b": 2}]
    job.state = {"n": 2}
    assert job._checkpoint() == b'{"n":2}'
