"""What an operator does to a pool, by the ways that any node has: one set of actions for all.

    dispatch, notify, stop, requeue    as a client that has joined: `node` is open
    purge                              from outside: nobody may be there

Many at once: they are counted first, and the caller may stop at that; what is then done is done in
pages, to no more than were counted, and told of as it goes on.  Dying at any moment leaves each job
either as it was or done; doing it again goes on.

`requeue` gives a job that waits for its time (a delay, a retry) away now, by the edge by which a
sweeper does it then: of two at once one wins, and the other is told that it has moved on.  A dead
letter is replayed.  What runs or waits for a slot already is left alone.

`purge` deletes the configuration last, so that one that was broken off is found and goes on.  Who
joins meanwhile finds its lane empty, as after a loss of data, and begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import attrs

from pool.core.options import Options
from pool.core.record import Outcome, Record
from pool.core.settlement import Grant
from pool.errors import ConfigError, NotWaiting, PayloadEncodingError, PoolError, shown
from pool.jobs.client.job_client import JobClient
from pool.jobs.client.listing import PAGE, JobFilter, Listing
from pool.jobs.client.ref import Status
from pool.jobs.client.stopping import StopMany, StopReport
from pool.jobs.node import Node
from pool.jobs.settlement import Recovery, judgement_of
from pool.names import Control, Names
from pool.ops import inspect, members, stores
from pool.ops.inspect import Found
from pool.ops.jsonable import TextEncoding, as_text
from pool.redis.commands.calls import Target
from pool.redis.pipeline import Pipeline

KEYS_TOLD: Final = 10
_UNLINKED: Final = 200  # keys that one command deletes

OnProgress: TypeAlias = Callable[[int], object]


@attrs.frozen(kw_only=True)
class Dispatched:
    """A job that was accepted.

    `state` is `accepted`, or, if its end was waited for, `done`, with its `result`, or `going on`.
    `encoding` base64: the result is bytes, so written.  `result_problem` says why a result that is
    there cannot be shown; else it is empty.
    """

    v: int = 1
    pool: str
    handler: str
    key: str
    job_id: str
    state: str = "accepted"
    encoding: TextEncoding = "json"
    result: Any = None
    result_problem: str = ""


@attrs.frozen(kw_only=True)
class Notified:
    """A message that was accepted."""

    v: int = 1
    pool: str
    key: str


@attrs.frozen(kw_only=True)
class JobsChanged:
    """What became of jobs that were to be stopped, or requeued.

    `found` were meant, `done` of them are stopped, or requeued; `keys` names the first of those
    meant, `problems` says of others why not.  Of a dry run `done` is 0.
    """

    v: int = 1
    pool: str
    action: str
    found: int
    done: int
    keys: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    is_dry: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to be done."""
        return self.is_dry or self.done >= self.found


@attrs.frozen(kw_only=True)
class Purged:
    """What is in a pool, and goes with it; `keys` of the server were deleted, or would be."""

    v: int = 1
    pool: str
    jobs: int
    parked: int
    keys: int
    is_dry: bool


# --- one --------------------------------------------------------------------------------------


async def dispatch(
    node: Node,
    handler: str,
    key: str,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    delay_s: float = 0.0,
    job_id: str | None = None,
    allow_unknown: bool = False,
    wait_s: float | None = None,
) -> Dispatched:
    """Dispatch a job, and wait for its result if that is asked for.

    Raises:
        PoolError: As `Node.dispatch` and `JobRef.result` say.
    """
    dispatching = node.options(delay_s=delay_s, job_id=job_id, allow_unknown=allow_unknown)
    ref = await dispatching.dispatch(handler, key, *args, **(kwargs or {}))
    told = Dispatched(pool=node.pool, handler=handler, key=key, job_id=ref.job_id)
    if wait_s is None:
        return told
    try:
        result, encoding = as_text(await ref.result(wait_s))
        return attrs.evolve(told, state="done", result=result, encoding=encoding)
    except PayloadEncodingError as error:
        return attrs.evolve(told, state="done", result_problem=error.problem)
    except TimeoutError:
        return attrs.evolve(told, state="going on")


async def notify(node: Node, key: str, payload: Any) -> Notified:
    """Send a message to a key's live job; raises as `Node.notify`."""
    await node.notify(key, payload)
    return Notified(pool=node.pool, key=key)


async def stop(
    node: Node, key: str, job_id: str | None, *, cause: str, timeout_s: float
) -> JobsChanged:
    """Stop one job; return when it has ended.  Raises as `JobRef.stop`."""
    ref = await node.job(key, job_id)
    await ref.stop(cause, timeout_s)
    return JobsChanged(pool=node.pool, action="stop", found=1, done=1, keys=(shown(key),))


async def requeue(node: Node, key: str, job_id: str | None) -> JobsChanged:
    """Have a job begin now that waits for its time, or make one of its dead letter again.

    Raises:
        NotWaiting: It does not wait for a time; the problem says what it does.
        NoSuchJob, JobExists, StoreUnavailable: As `Node.status` and `DeadLetters.replay` say.
    """
    client = node._open_client()
    found, _ = await client.look(key, job_id or "")
    if isinstance(found, Outcome):
        if found.word != "parked" or job_id is None:
            problem = f"it has ended: it is {found.word}"
            raise NotWaiting(key=key, job_id=job_id or "", state=found.word, problem=problem)
        await node.parked.replay(key, job_id)
    else:
        await _requeue(client, key, found)
    return JobsChanged(pool=node.pool, action="requeue", found=1, done=1, keys=(shown(key),))


# --- many -------------------------------------------------------------------------------------


async def count(
    node: Node,
    action: str,
    wanted: JobFilter,
    *,
    on_progress: Callable[[int, int], object] = lambda *_: None,
) -> JobsChanged:
    """Count the jobs that an action is meant for, and name the first; nothing is changed.

    `on_progress` is told how many records were looked at, of how many (0: an index led to them).
    """
    found, looked, keys = 0, 0, list[str]()
    listing, cursor = Listing(node._open_client()), ""
    while True:
        page = await listing.page(wanted, cursor, PAGE)
        found, looked, cursor = found + len(page.jobs), looked + page.looked, page.cursor
        on_progress(looked, page.of)
        keys += [shown(each.key) for each in page.jobs[: KEYS_TOLD - len(keys)]]
        if not cursor:
            break
    return JobsChanged(
        pool=node.pool, action=action, found=found, done=0, keys=tuple(keys), is_dry=True
    )


async def stop_all(
    node: Node,
    wanted: JobFilter,
    counted: JobsChanged,
    *,
    cause: str,
    timeout_s: float,
    on_progress: OnProgress,
) -> JobsChanged:
    """Stop no more jobs than were counted; return when they have ended, or the time is up."""
    report: StopReport = await StopMany(
        node._open_client(),
        wanted,
        cause,
        timeout_s,
        is_dry=False,
        most=counted.found,
        on_stopped=on_progress,
    ).carry_out()
    return attrs.evolve(
        counted,
        found=report.found,
        done=report.stopped,
        keys=report.keys[:KEYS_TOLD],
        problems=tuple(map(str, report.problems)),
        is_dry=False,
    )


async def requeue_all(
    node: Node, wanted: JobFilter, counted: JobsChanged, *, on_progress: OnProgress
) -> JobsChanged:
    """Requeue no more jobs than were counted, of those that wait for their time."""
    client, done, problems = node._open_client(), 0, list[str]()
    tried = set[tuple[str, str]]()
    listing, cursor = Listing(client), ""
    while len(tried) < counted.found:
        page = await listing.page(wanted, cursor, PAGE)
        for each in page.jobs[: counted.found - len(tried)]:
            tried.add((each.key, each.job_id))
            try:
                await _requeue_status(client, each)
                done += 1
            except PoolError as error:
                problems.append(str(error))
            on_progress(len(tried))
        if not (cursor := page.cursor):
            break
    return attrs.evolve(
        counted,
        found=len(tried),
        done=done,
        problems=tuple(problems[:KEYS_TOLD]),
        is_dry=False,
    )


async def _requeue_status(client: JobClient, status: Status) -> None:
    found, _ = await client.look(status.key, status.job_id)
    if isinstance(found, Record):  # else it has ended since
        await _requeue(client, status.key, found)


async def _requeue(client: JobClient, key: str, record: Record) -> None:
    """Give a job away that waits for its time."""
    if record.state != "waiting":
        raise _not_waiting(key, record, f"it is {record.state}, and waits for no time")
    if "h" in record.flags:
        problem = "it is held: it may have killed its workers, see `pool why`"
        raise _not_waiting(key, record, problem)
    context = client.context
    state = context.lane_of(key)
    [text] = await inspect.fields_of(
        context.pipeline, [], state.lane.names.handlers, [record.handler]
    )
    options = (Options.parse(text) if text is not None else None) or Options()

    def targets(of: str, record: Record, _: Grant) -> tuple[Target, ...]:
        return context.targets(of, record.handler, lane=state.number)

    recovery = Recovery(context, state, await judgement_of(context, state, [record]))
    recovery.add(key, record, options, targets)
    await recovery.carry_out("free", "", client.requests.tell_waiters)


def _not_waiting(key: str, record: Record, problem: str) -> NotWaiting:
    return NotWaiting(key=key, job_id=record.id, state=record.state, problem=problem)


# --- all --------------------------------------------------------------------------------------


async def purge(
    pipeline: Pipeline, found: Found, *, is_dry: bool, on_progress: OnProgress
) -> Purged:
    """Delete a pool with all that is in it, or say what that would be.

    Raises:
        ConfigError: Somebody is there.
        AuthError: This user may not list the names of keys, or delete them.
    """
    view = await inspect.view(pipeline, found)
    if not is_dry:
        await _check_nobody(pipeline, found)
    control, keys = Control(found.pool), 0
    lanes = [Names(found.pool, number).prefix for number in range(found.lanes)]
    for begins in (*lanes, control.prefix):
        cursor = ""
        while True:
            names, cursor, _ = await stores.names_of(pipeline, begins, cursor=cursor)
            doomed = [f"{begins}{name}" for name in names if f"{begins}{name}" != control.config]
            if not is_dry:
                for at in range(0, len(doomed), _UNLINKED):
                    await pipeline.execute("UNLINK", *doomed[at : at + _UNLINKED], repeatable=True)
            keys += len(doomed)
            on_progress(keys)
            if not cursor:
                break
    if not is_dry:
        await pipeline.execute("UNLINK", control.config, repeatable=True)
    return Purged(
        pool=found.pool,
        jobs=sum(view.states.values()),
        parked=view.parked,
        keys=keys + 1,
        is_dry=is_dry,
    )


async def _check_nobody(pipeline: Pipeline, found: Found) -> None:
    there = await members.read(pipeline, found)
    live = [each for each in there.nodes if (each.lease_s or 0.0) > 0]
    if live:
        problem = f"{len(live)} nodes are here, such as {live[0].id}: end them first (`pool nodes`)"
        raise ConfigError(setting="purge", problem=problem)
