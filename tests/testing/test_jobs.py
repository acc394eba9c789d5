"""What users test their handlers with."""

from __future__ import annotations

from typing import Any

import pytest

from pool import Follower, Handlers, Job
from pool.errors import InvalidOption, NotRunning
from pool.testing import find_server, make_job

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


@pytest.mark.anyio
async def test_a_job_for_tests_has_the_followers_that_its_handler_adds() -> None:
    """Checked as in a pool, and there to be looked at."""

    @Handlers().job("order")
    async def order(job: Job, count: int) -> None:
        for number in range(count):
            job.then(Follower(double, f"{job.key}/{number}", number))

    job = make_job("o1")
    await order(job, 2)
    assert [(each.key, each.args) for each in job.followers] == [("o1/0", (0,)), ("o1/1", (1,))]


@pytest.mark.anyio
async def test_a_handler_that_uses_the_node_is_told_how_to_give_it_one() -> None:
    """The error names the argument of `make_job()` that is missing."""

    @Handlers().job("ask")
    async def ask(job: Job) -> str:
        return (await job.node.dispatch(double, "k", 1)).job_id

    with pytest.raises(NotRunning, match=r"pass it: make_job\(\.\.\., node=node\)"):
        await ask(make_job("k"))
    with pytest.raises(NotRunning, match=r"make_job\("):
        _ = make_job("k").node.workers


def test_a_server_is_preferred_by_one_of_two_words() -> None:
    with pytest.raises(InvalidOption, match="one of path, wheel"):
        find_server("any")  # type: ignore[arg-type]
