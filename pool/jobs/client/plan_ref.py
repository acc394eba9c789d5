"""A plan as others see it, and who sees to it that somebody keeps it.

A request is a message to the job that keeps the plan: it survives that job's owner, and is answered
by a turn that begins behind it, which is found by its number in what that job has saved.  With the
job itself it ends, and another one is asked anew: see `plans.py`.  A dry run is a job of its own,
on whichever worker has the producer.

Every node with a producer looks, at its start and then every `LOOK_S`, whether the plan's job is
there, and of its version or a later one; else it dispatches it, in the place of an earlier one.
Many may do so at once: one is accepted, and of several that wait for an earlier one the last.
Dying before that leaves it to the others, or to who starts next.  Who asks for a turn before that
waits for it.

Of a request that ended with the job that was asked nobody knows whether it was carried out, nor of
one that was under way when time was up: neither is ever told as not asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio
import attrs

from pool import checks
from pool.core.codec import encode_message
from pool.core.plans import (
    ANYTHING,
    PlanTurn,
    Turns,
    handler_of,
    plan_and_version,
    plan_key,
    stored_turns,
)
from pool.core.record import Record
from pool.errors import (
    HandlerError,
    InboxFull,
    JobExpired,
    NoSuchJob,
    NoSuchPlan,
    NotRunning,
    PlanRefused,
    PoolError,
    StoreError,
    StoreLost,
    StoreUnavailable,
    again,
    sentence,
    unsure,
)
from pool.jobs.client.gaps import Gaps, gaps_of
from pool.jobs.client.job_client import JobClient
from pool.jobs.client.options import DispatchOptions
from pool.jobs.client.ref import JobRef
from pool.jobs.handlers import Handler
from pool.jobs.producing import Producer
from pool.redis.commands.reply import read

LOOK_S: Final = 10.0
ASK_AGAIN_S: Final = 0.1
LATE_MAX: Final = 3  # answers in a row that may be late
DIFF_MAX_S: Final = 3600.0  # longer than that nobody waits for a dry run


@attrs.frozen(kw_only=True)
class PlanStatus:
    """How a plan is.

    `state`, `owner` and `why` are those of the job that keeps it, as of any job's `Status`;
    `version` is its producer's, and `last` how its last turn went.
    """

    plan: str
    state: str
    owner: str
    version: int
    why: str
    last: PlanTurn


@attrs.frozen(kw_only=True)
class PlanDiff:
    """What a plan's next turn would do.

    The four counts say how many of the `wanted` keys, and of those that are not wanted any more,
    it would start, stop and replace, and how many somebody else has; of each kind the first 20
    keys are named.  `is_held`: it would do nothing until `token` is confirmed.
    """

    wanted: int
    kept: int
    starts: int
    stops: int
    replaces: int
    taken: int
    start_keys: tuple[str, ...]
    stop_keys: tuple[str, ...]
    replace_keys: tuple[str, ...]
    taken_keys: tuple[str, ...]
    is_held: bool
    token: str


class PlanRef:
    """A plan of the pool, by its name; made by `Node.plan()`."""

    def __init__(self, name: str, opened: Callable[[], JobClient]) -> None:
        self.name: str = name
        self._opened = opened

    def __repr__(self) -> str:
        return f"PlanRef({self.name!r})"

    async def status(self) -> PlanStatus:
        """Return how the plan is, as of its last turn.

        Raises:
            NoSuchPlan: No job keeps one of this name.
            StoreUnavailable, NotRunning: As for `JobRef.status()`.
        """
        client = self._opened()
        record, turns = await self._found(client)
        return self._status(client, record, turns.last)

    async def _found(self, client: JobClient) -> tuple[Record, Turns]:
        client.check_open()
        record, turns = await _look(client, self.name)
        if record is None:
            raise NoSuchPlan(plan=self.name)
        return record, turns

    def _status(self, client: JobClient, record: Record, turn: PlanTurn) -> PlanStatus:
        return PlanStatus(
            plan=self.name,
            state=record.state,
            owner=record.owner,
            version=plan_and_version(record.handler)[1],
            why=client.why_waits(record, plan_key(self.name)),
            last=turn,
        )

    async def diff(self, timeout_s: float | None = None) -> PlanDiff:
        """Ask the producer, on whichever worker has it, and return what that would change.

        Nothing is changed.

        Raises:
            InvalidOption: `timeout_s` is no number from 0 to 365 days.
            NoSuchPlan: No worker has a producer of this name.
            PlanRefused: It failed, what it answered cannot be used, or the workers that are there
                have only earlier versions of it than the one that keeps the plan; or it would wait,
                as the pool or the producer is paused.
            TimeoutError: There was no answer within `timeout_s`, or an hour; 0: the time of a call.
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        timeout_s = checks.seconds("timeout_s", timeout_s, or_none=True)
        client, ref = self._opened(), None
        limit_s = DIFF_MAX_S if timeout_s is None else min(timeout_s, DIFF_MAX_S)
        clock = client.context.io.clock
        until_s = clock() + limit_s
        with anyio.move_on_after(limit_s or None):  # with 0 it takes the time of a call
            ref = await self._comparing(client, limit_s)
        if ref is None:
            late = f"plan {self.name!r} was not compared within {limit_s:g} s"
            raise TimeoutError(f"{late}: its store has not answered")
        try:
            facts = await ref.result(max(0.0, until_s - clock()))
        except JobExpired:
            raise TimeoutError(f"nobody has compared plan {self.name!r} in time") from None
        except HandlerError as error:  # of a worker that died of it, or somebody has stopped it
            raise PlanRefused(plan=self.name, key="", problem=sentence(error)) from None
        except BaseException:
            _stop_soon(client, ref)
            raise
        if "problem" in facts:
            raise PlanRefused(plan=self.name, key=facts["key"], problem=facts["problem"])
        counts = dict(zip(("starts", "stops", "replaces", "taken"), facts["counts"], strict=True))
        return PlanDiff(
            wanted=facts["wanted"],
            kept=facts["kept"],
            **counts,
            start_keys=tuple(facts["starts"]),
            stop_keys=tuple(facts["stops"]),
            replace_keys=tuple(facts["replaces"]),
            taken_keys=tuple(facts["taken"]),
            is_held=facts["is_held"],
            token=facts["token"],
        )

    async def _comparing(self, client: JobClient, limit_s: float) -> JobRef[Any]:
        """Have a worker compare; what nobody asks for any more, as its caller was killed, expires.

        Raises what `diff` does.
        """
        handler = await _compares(client, self.name)
        key = f"{plan_key(self.name)}:diff:{client.context.ids.next()}"
        if paused := client.context.roster.asked.pause_of(key, handler):
            why = f"{paused} is paused{f': {paused.reason}' if paused.reason else ''}; resume it"
            raise PlanRefused(plan=self.name, key="", problem=why)
        options = DispatchOptions(expires_s=max(limit_s, 1.0))
        admission = client.admitting(handler, options).admission(key, (), {}, is_plans=True)
        [pending] = client.dispatcher.admit([admission])
        told = await pending.wait()
        if isinstance(told, PoolError):
            raise again(told)
        return JobRef[Any](key, told.job_id, told.handler, client)

    async def apply(self, timeout_s: float | None = None) -> PlanStatus:
        """Have a turn taken now; return how it went.

        It is one that begins after this was called.  All who ask before it begins share it, and
        each is told of the turn that has answered it, though others may have been taken since.

        Raises:
            InvalidOption: `timeout_s` is no number from 0 to 365 days.
            NoSuchPlan: No job keeps one of this name, and no worker has a producer of it; where one
                has, the job is waited for.
            TimeoutError: That turn has not ended within `timeout_s` (0: the time of a call).  The
                text says what it waits for, and whether it stays asked for.
            InboxFull: `Settings.messages_max` others ask already, and none was answered within
                `timeout_s`: nothing was asked for.
            StoreUnavailable, StoreLost, NotRunning: As for `notify()`.
        """
        return await self._ask("", timeout_s)

    async def confirm(self, token: str | None = None, timeout_s: float | None = None) -> PlanStatus:
        """Let a turn, taken now, stop what one before it has held; return how it went.

        Args:
            token: `PlanTurn.token` or `PlanDiff.token`: just those stops.  If the producer means
                others by now, they are held again.  None: whatever it means now; but where the plan
                begins anew just then, as with a later version, it is held again, by a new token.
            timeout_s: As for `apply()`.

        Raises:
            InvalidOption: `token` is no text, or `timeout_s` as for `apply()`.
            NoSuchPlan, TimeoutError, InboxFull, StoreUnavailable, StoreLost, NotRunning: As for
                `apply()`.
        """
        if token is not None and not checks.text("token", token):
            raise checks.option("token", token, "one that a turn told")
        return await self._ask(ANYTHING if token is None else token, timeout_s)

    async def _ask(self, token: str, timeout_s: float | None) -> PlanStatus:
        timeout_s = checks.seconds("timeout_s", timeout_s, or_none=True)
        client = self._opened()
        asking = _Asking(client.context.ids.next(), token, self._generation(client))
        with anyio.move_on_after(timeout_s or None):  # with 0 it takes the time of a call
            await self._request(client, asking)
            if timeout_s != 0:
                return await self._answered(client, asking)
        late = f"plan {self.name!r} took no turn within {timeout_s:g} s"
        if isinstance(asking.sent, tuple):
            waits = _what_waits(client, asking.status)
            raise TimeoutError(f"{late}, which stays asked for: {waits}")
        if asking.may_be_done:
            raise TimeoutError(f"{late} that is known of, but one may be asked for, or taken")
        if asking.sent is not None:
            raise again(asking.sent)
        raise TimeoutError(f"{late}, nor is one asked for: no job keeps it yet")

    def _generation(self, client: JobClient) -> str:
        return client.context.lane_of(plan_key(self.name)).lane.generation

    async def _answered(self, client: JobClient, asking: _Asking) -> PlanStatus:
        """Wait for the turn that answers it; ask for it again where that is to no avail."""
        failures = 0  # in a row: a store that is busy with that turn may answer late
        while True:
            try:
                if isinstance(asking.sent, tuple):
                    job_id, number = asking.sent
                    record, turns = await self._found(client)
                    status, failures = self._status(client, record, turns.last), 0
                    asking.status = status
                    if record.id != job_id:
                        asking.sent = None  # it has ended with the job that was asked
                    elif (turn := turns.answer(number, asking.id)) is not None:
                        return attrs.evolve(status, last=turn)
            except NoSuchPlan:
                asking.sent = None
            except StoreError as error:
                failures += 1
                if failures == LATE_MAX or not isinstance(error, StoreUnavailable):
                    raise unsure(error) from None
            await anyio.sleep(ASK_AGAIN_S)
            if not isinstance(asking.sent, tuple):
                await self._request(client, asking)

    async def _request(self, client: JobClient, asking: _Asking) -> None:
        """Ask the job that keeps the plan."""
        was_sent, asking.may_be_done = asking.may_be_done, True
        # Whatever one job would stop was confirmed: what the next one would, nobody has seen.
        token = "" if was_sent and asking.token == ANYTHING else asking.token
        message = encode_message({"id": asking.id, "token": token})
        try:
            asking.sent = await client.requests.notify(plan_key(self.name), message)
            return
        except InboxFull as error:
            asking.sent = error.with_traceback(None)
        except NoSuchJob:
            asking.sent = None
            if not (_has_here(client, self.name) or _versions(client, self.name)):
                if self._generation(client) != asking.generation:
                    raise StoreLost(pool=client.pool, maybe_done=was_sent) from None
                raise NoSuchPlan(plan=self.name) from None
        except StoreError as error:
            raise (unsure(error) if was_sent else error) from None
        asking.may_be_done = was_sent


@attrs.define(eq=False)
class _Asking:
    """A request for a turn, until that is answered."""

    id: str
    token: str
    generation: str  # of the lane of the plan's job, when it began
    # Which job was asked, and by which message; or why it is to be asked again.  None: no job keeps
    # the plan, and one is dispatched just now, or in LOOK_S.
    sent: tuple[str, int] | InboxFull | None = None
    may_be_done: bool = False  # once any try may have left
    status: PlanStatus | None = None


def _stop_soon(client: JobClient, ref: JobRef[Any]) -> None:
    """Stop a dry run for which nobody waits any more; if that does not come through, it expires."""

    async def stop() -> None:
        with suppress(PoolError):
            await client.request_stop(ref.key, ref.job_id, "nobody waits for it")

    with suppress(NotRunning):
        client.context.supervisor.errand(f"{ref.key}/stop", stop)


def _has_here(client: JobClient, name: str) -> bool:
    """Say whether this node sees to it that a plan is kept."""
    mine = client.handlers._planned() if client.handlers is not None else ()
    return any(each == name for each, *_ in mine)


def _versions(client: JobClient, name: str) -> list[int]:
    """Return the versions of a plan's producer that workers have, the latest last."""
    known = {each for who in client.context.roster.workers for each in who.handlers}
    told = map(plan_and_version, known)
    return sorted({version for plan, version in told if plan == name})


def _only_earlier(client: JobClient, name: str, of: int) -> str:
    """Say what is the matter where no worker has the version of a plan that keeps it, nor a later.

    Empty: one does.
    """
    found = _versions(client, name)
    if found and found[-1] >= of:
        return ""
    has = f"only version {found[-1]} is there" if found else "none is there"
    mend = f"deploy version {of} or a later one, or stop the job {plan_key(name)!r}"
    then = ", and a worker that is there begins it anew" if found else ""
    problem = f"no worker has version {of} of its producer, which keeps the plan, and {has}"
    return f"{problem}: {mend}{then}"


def _what_waits(client: JobClient, status: PlanStatus | None) -> str:
    """Say why a plan takes no turn."""
    if status is None:
        return "its store has not answered"
    if status.state == "running":
        return f"{status.owner} keeps it, and the turn that it is at, its producer, goes on"
    missing = _only_earlier(client, status.plan, status.version)
    return missing or f"the job that keeps it is {status.state}: {status.why}"


async def _compares(client: JobClient, name: str) -> str:
    """Return the handler to ask what a plan would do: of the version that keeps it, if one does.

    Raises:
        NoSuchPlan: No worker has it.
        PlanRefused: Those that have it will never be asked by the plan.
    """
    record, _ = await _look(client, name)
    of = plan_and_version(record.handler)[1] if record is not None else 0
    if not (found := _versions(client, name)):
        raise NoSuchPlan(plan=name)
    if problem := _only_earlier(client, name, of):
        raise PlanRefused(plan=name, key="", problem=problem)
    return handler_of(name, "diff", of if of in found else found[-1])


async def _look(client: JobClient, name: str) -> tuple[Record | None, Turns]:
    """Return the record of the job that keeps a plan, and how its last turns went."""
    key, context = plan_key(name), client.context
    names = context.lane_of(key).lane.names
    text, saved = await context.pipeline.execute_all(
        [("HGET", names.jobs, key), ("HGET", names.checkpoints, key)]
    )
    record = None if text is None else read(key.encode(), text)
    if record is None or plan_and_version(record.handler)[0] != name:
        return None, Turns()
    return record, stored_turns(saved)


async def plans(client: JobClient, gaps: Gaps | None = None) -> list[str]:
    """Return the names of all plans that a node has ever had a producer of, and that are kept."""
    client.check_open()
    context, kept = client.context, list[str]()
    known = await gaps_of(gaps, context.pipeline, [each.lane.names for each in context.lanes])
    # Handlers are registered in every lane.
    first = next(each for each in context.lanes if each.number not in known.errors)
    told = await context.pipeline.execute("HKEYS", first.lane.names.handlers)
    names = sorted({plan_and_version(name.decode(errors="replace"))[0] for name in told} - {""})
    for name in names:
        number = context.lane_of(plan_key(name)).number
        if number not in known.errors:
            with known.reading(number):
                if (await _look(client, name))[0] is not None:
                    kept.append(name)
    return kept


async def see_to(
    client: JobClient, producers: Sequence[tuple[str, Handler[..., Any], Producer]]
) -> None:
    """See to it that these plans are kept, until the node leaves."""
    while True:
        for name, handler, producer in producers:
            try:
                await _see_to(client, name, handler, producer)
            except NotRunning:
                return
            except PoolError:
                continue  # there is a next time; what troubles the store others tell
        await anyio.sleep(LOOK_S)


async def _see_to(
    client: JobClient, name: str, handler: Handler[..., Any], producer: Producer
) -> None:
    record, _ = await _look(client, name)
    if record is not None:
        is_late = plan_and_version(record.handler)[1] < producer.version
        if not is_late or "n" in record.flags:  # one stands behind it already
            return
    policy = DispatchOptions(if_exists="reject" if record is None else "replace")
    admission = client.admitting(handler, policy).admission(plan_key(name), (), {}, is_plans=True)
    [pending] = client.dispatcher.admit([admission])
    await pending.wait()  # who was refused: another node was first, or the next time comes
