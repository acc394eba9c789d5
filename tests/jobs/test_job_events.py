"""The events of ordinary jobs: for observers that ask for them, and for nobody else."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from pool import Handlers, Job, JobRef, Node, Park, Retry
from pool.errors import ConfigError, JobCancelled, JobParked
from pool.events import CommitRefused, Event, JobAccepted, JobEvents, JobSettled, JobStarted
from pool.jobs.worker import telling
from pool.names import Names
from pool.runtime.observers import JobListeners
from tests.nodes import PATIENCE_S, Diary, Fleet

pytestmark = pytest.mark.anyio
KINDS = (JobAccepted, JobStarted, JobSettled)


@pytest.fixture
def handlers() -> Handlers:
    made = Handlers(backoff_s=0.01)

    @made.job("fine")
    async def fine(job: Job) -> str:
        return job.key

    @made.job("flaky", attempts_max=3)
    async def flaky(job: Job) -> None:
        if job.attempt == 1:
            raise Retry(after_s=0.01)
        raise Park("enough")

    @made.service("lasting")
    async def lasting(job: Job) -> None:
        await anyio.sleep_forever()

    return made


def about(events: list[Any], key: str) -> list[Any]:
    return [event for event in events if isinstance(event, KINDS) and event.key == key]


def told(events: list[Any], key: str) -> list[str]:
    return [getattr(event, "outcome", event.event) for event in about(events, key)]


async def test_the_life_of_a_job_is_told_with_its_durations(
    fleet: Fleet, handlers: Handlers, diary: Diary
) -> None:
    node = await fleet.node(handlers, observers=[JobEvents(diary.note)])
    ref: JobRef[Any] = await node.dispatch("fine", "k")
    await ref.result(timeout_s=PATIENCE_S)
    await diary.until(lambda events: len(about(events, "k")) == 3)
    accepted, started, settled = sorted(
        about(diary.entries, "k"), key=lambda e: KINDS.index(type(e))
    )
    for event in (accepted, started, settled):
        assert (event.handler, event.key, event.job_id) == ("fine", "k", ref.job_id)
    assert (started.attempt, settled.attempt, settled.outcome) == (1, 1, "done")
    assert started.epoch == settled.epoch > 0
    assert started.worker == settled.worker == f"{node.workers[0].id}.1"
    assert started.waited_s == settled.waited_s >= 0
    assert accepted.took_s > 0
    assert settled.ran_s > 0
    assert settled.took_s > 0


async def test_each_run_ends_in_its_own_way(fleet: Fleet, handlers: Handlers, diary: Diary) -> None:
    node = await fleet.node(handlers, observers=[JobEvents(diary.note)])
    with pytest.raises(JobParked):
        await (await node.dispatch("flaky", "f")).result(timeout_s=PATIENCE_S)
    stopped = await node.dispatch("lasting", "s")
    await stopped.started(timeout_s=PATIENCE_S)
    await stopped.stop(timeout_s=PATIENCE_S)
    moved = await node.dispatch("lasting", "m")
    await moved.started(timeout_s=PATIENCE_S)
    await node.drain(grace_s=0)
    await diary.until(lambda events: "moved" in told(events, "m"))
    assert [each for each in told(diary.entries, "f") if each != "job.accepted"] == [
        *("job.started", "retried", "job.started", "parked")
    ]
    assert told(diary.entries, "s")[-1] == "cancelled"
    await fleet.node(handlers, observers=[JobEvents(diary.note)])
    await diary.until(lambda events: told(events, "m").count("job.started") == 2)
    first, second = (e for e in about(diary.entries, "m") if isinstance(e, JobStarted))
    assert first.worker != second.worker
    assert first.epoch < second.epoch
    assert second.attempt == 1
    await moved.stop(timeout_s=PATIENCE_S)


async def test_each_way_to_end_without_a_run_is_told_once(
    fleet: Fleet, handlers: Handlers, diary: Diary
) -> None:
    """Stopped while it waits, expired, superseded: who ended it tells, and its handler is known."""
    observers = [JobEvents(diary.note)]
    await fleet.node(handlers, observers=observers)
    client = await fleet.node(observers=observers)
    late = client.options(delay_s=3600.0)
    stopped = await late.dispatch("fine", "stopped")
    await stopped.stop(timeout_s=PATIENCE_S)
    first = await late.dispatch("fine", "line")
    second = await client.options(delay_s=3600.0, if_exists="queue").dispatch("fine", "line")
    third = await client.options(delay_s=3600.0, if_exists="coalesce").dispatch("fine", "line")
    expires = client.options(expires_s=0.05, allow_unknown=True)
    late_one = await expires.dispatch("nobodys", "expires")
    with pytest.raises(JobCancelled):
        await late_one.result(timeout_s=PATIENCE_S)
    ids = {ref.job_id for ref in (stopped, second)}

    def ends(events: list[Event]) -> list[JobSettled]:
        return [event for event in events if isinstance(event, JobSettled)]

    await diary.until(lambda events: len(ends(events)) >= 3)
    await first.stop(timeout_s=PATIENCE_S)
    await third.stop(timeout_s=PATIENCE_S)
    await diary.until(lambda events: len(ends(events)) >= 5)
    told = ends(diary.entries)
    assert len({event.job_id for event in told}) == len(told) == 5
    assert ids < {event.job_id for event in told}
    assert {event.key for event in told} == {"stopped", "line", "expires"}
    assert {(e.handler, e.outcome, e.worker, e.ran_s) for e in told} == {
        (handler, "cancelled", "", 0.0) for handler in ("fine", "nobodys")
    }


async def test_what_the_store_refuses_is_not_told_as_settled(
    fleet: Fleet, handlers: Handlers, diary: Diary
) -> None:
    """G-02: it is refused, `commit.refused` says so, and whoever has it now tells of its end."""
    end = anyio.Event()

    @handlers.job("held")
    async def held(job: Job) -> None:
        await end.wait()

    node = await fleet.node(handlers, observers=[JobEvents(diary.note)], lanes=1)
    ref = await node.dispatch("held", "k")
    await ref.started(timeout_s=PATIENCE_S)
    fleet.client.hdel(Names(fleet.pool, 0).jobs, "k")  # somebody else's hand
    fleet.is_audited = False
    end.set()
    await diary.until(lambda events: any(isinstance(e, CommitRefused) for e in events))
    assert told(diary.entries, "k")[-1] != "done"


async def test_nobody_is_told_who_has_not_asked(
    fleet: Fleet, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anything made of it: no event, no share of a job."""

    def made(*_: Any, **__: Any) -> Any:
        raise AssertionError("nobody listens")

    monkeypatch.setattr(JobListeners, "share", made)
    monkeypatch.setattr(telling.Teller, "telling", made)
    node = await fleet.node(handlers, observers=[fleet.events.note, JobEvents(print, rate=0)])
    assert node._open_wiring.context.jobs is None
    await (await node.dispatch("fine", "k")).result(timeout_s=PATIENCE_S)
    assert not about(fleet.events.entries, "k")


async def test_a_sample_is_of_whole_lives_and_the_same_at_all_nodes(
    fleet: Fleet, handlers: Handlers
) -> None:
    few, more, every = Diary(), Diary(), Diary()
    client = await fleet.node(observers=[JobEvents(few.note, rate=0.2), JobEvents(every.note)])
    await fleet.node(handlers, observers=[JobEvents(few.note, 0.2), JobEvents(more.note, 0.6)])
    keys = [f"k{n}" for n in range(100)]
    given = await client.dispatch_many("fine", keys)
    refs = [ref for ref in given if isinstance(ref, JobRef)]
    for ref in refs:
        await ref.result(timeout_s=PATIENCE_S)
    listeners = JobListeners.among([JobEvents(print, rate=0.2)])
    assert listeners is not None
    chosen = {ref.key for ref in refs if listeners.share(ref.key, ref.job_id) is not None}
    await few.until(lambda events: sum(isinstance(e, JobSettled) for e in events) >= len(chosen))
    assert 0 < len(chosen) < 50
    for key in keys:
        kinds = {type(event) for event in about(few.entries, key)}
        assert kinds == (set(KINDS) if key in chosen else set())
    assert {event.key for event in more.entries if isinstance(event, KINDS)} > chosen
    assert {e.key for e in every.entries if isinstance(e, JobAccepted)} == set(keys)


async def test_other_events_come_as_to_any_observer_and_an_error_of_one_is_nobody_elses(
    fleet: Fleet, handlers: Handlers, diary: Diary
) -> None:
    def angry(event: Event) -> None:
        raise ValueError(event.event)

    observers = [JobEvents(angry), JobEvents(diary.note)]
    with capture_logs() as logs:
        node = await fleet.node(handlers, observers=observers)
        await (await node.dispatch("fine", "k")).result(timeout_s=PATIENCE_S)
        await diary.until(lambda events: len(about(events, "k")) == 3)
        await fleet.leave(node)
    assert "node.joined" in [event.event for event in diary.entries]
    assert {line["event"] for line in logs} == {"observer.failed"}


async def waits(event: Event) -> None: ...


@pytest.mark.parametrize(
    "observer",
    [
        JobEvents(waits),
        JobEvents(None),  # type: ignore[arg-type]
        *(JobEvents(print, rate=rate) for rate in (1.1, -0.1, float("nan"), True)),
    ],
)
def test_what_cannot_be_told_is_refused(observer: JobEvents) -> None:
    with pytest.raises(ConfigError, match="observers"):
        Node("p", "redis://localhost", observers=[observer])
