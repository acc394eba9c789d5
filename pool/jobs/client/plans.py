"""Plans: the job that keeps one, and the calls about it from any node.

A plan as others see it, and who sees to it that somebody keeps it.

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

Keeping a plan: its producer says which keys should run, and its jobs are made to be those.

    ask the producer --> judge each key by its record --> held? --> stop, replace, start --> save
       ^                                                                                      |
       +---------------------- after `every_s`, or when somebody asks ------------------------+

Who keeps it is the job of a service under a key of its own: so one worker of the fleet does, under
a lease, and it is handed over and taken over as any other.  Only what its id says to be the plan's
is ever stopped, and by that id: see `core/plans.py`.  A key that somebody else has is left alone.

Each turn compares the answer with the records as they are, so every turn mends whatever the one
before left undone.  Dying

    before or while the producer is asked   nothing has changed
    between two stops                       those that were written are carried out by their owners
    after a stop, before its successor      the key has no job: the next turn starts it
    between two starts                      those accepted bear the plan's ids: found by the next
    before what was done is saved           it is told again as having been so already; the requests
                                            that it was to answer stand in the inbox still
    after that                              they are gone from there in the same step, and how the
                                            turn went that has answered them is saved with it

Requests are messages to that job.  All that stand when a turn begins share it, and who asks finds
it by the number of the message: of each of the last turns that were asked for, it is saved up to
which one it has answered.  They are taken between turns alone: saving one takes with it what was
given out by then, and what it knows nothing of would be asked for no more if its owner ended just
then.  A token lets pass just the stops that it was told of, beside whomever it is sent.  A message
that was sent twice, as an answer of the store was lost, costs a turn; but a confirmation has an id,
and is one only once.  One of whatever comes is for one job: to the next it is sent without that, as
nobody has seen what that one would stop.

Who keeps a plan first walks over the live jobs, and again once the time is over in which the calls
of one before it, frozen or cut off, may still have come; then every `WALK_S`.  In between it knows
from its own last turn which keys may have one.  A late start is a job of the plan's, so a walk
finds it; a late stop names one job, which the next turn starts again.

An answer that fails, hangs, names a key twice or cannot be dispatched changes nothing.  One that
would stop all, or more than `stop_max` of what there is, changes nothing until it is confirmed, by
the token of just these stops.  A producer that hangs is not called again before it has returned.

Two versions of a producer: the job of the later `version` takes the place of that of an earlier
one, and only workers that have the later one are given it.  Of the same version the plan's owner
alone asks its own; it moves when workers come and go, so in a rolling deployment the answer changes
as often as the job moves, and not with every turn.

Memory: of an answer each key and its arguments once; of the turn before the keys alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.lowlevel
import attrs

from pool import checks
from pool.core.codec import encode_message, encode_value
from pool.core.plans import (
    ANYTHING,
    ID_CHARS_MAX,
    KEYS_MAX,
    PROBLEM_CHARS_MAX,
    TOLD_MAX,
    Diff,
    PlanTurn,
    Turns,
    after,
    facts_of,
    handler_of,
    judge,
    pack_turns,
    parse_turns,
    plan_and_version,
    plan_key,
    planned_id,
    stored_turns,
)
from pool.core.record import Outcome, Record, digest_of, one_line
from pool.errors import (
    HandlerError,
    InboxFull,
    JobExists,
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
    shown,
    unsure,
)
from pool.events import PlanConflicted, PlanFailed, PlanHeld, PlanTurned
from pool.jobs.client.dispatch import Call
from pool.jobs.client.dispatcher import Accepted
from pool.jobs.client.job_client import JobClient
from pool.jobs.client.listing import PAGE_MAX, Gaps, JobFilter, Listing, gaps_of
from pool.jobs.client.options import DispatchOptions
from pool.jobs.client.ref import JobRef
from pool.jobs.handlers import Handler
from pool.jobs.job import Job
from pool.jobs.planned import Planned
from pool.jobs.producing import NoAnswer, Producer, StopAll, ask
from pool.jobs.raised import Raised
from pool.jobs.run import attempted
from pool.redis.commands.admission import Admission
from pool.redis.commands.calls import read
from pool.redis.commands.talk import number_in

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


WALK_S: Final = 300.0  # then all live jobs are looked at again
LOOKED: Final = 500  # records fetched at once: under 1 ms of the server's time
JUDGED: Final = 100  # of them without a pause
STOPS: Final = 128  # asked to stop at the same time
STARTS: Final = 64  # in one call: some 3 ms of the server's time
STOP_S: Final = 10.0  # a turn waits so long for all that it stops; the next one looks again, ...
SOON_S: Final = 1.0  # ... which is taken soon then
ASKED_MAX: Final = 256  # requests that one turn answers; the others have the next one
RUNS_MAX: Final = 8  # jobs of a key that the plan ended, within the time these are remembered

T = TypeVar("T")


@attrs.define(eq=False)
class Answer:
    """What a producer has answered so far, by key."""

    wanted: dict[str, Admission] = attrs.field(factory=dict)
    stops_all: bool = False
    is_whole: bool = False
    error: PoolError | None = None  # what the pool says of it
    raised: Raised | None = None  # what the producer raised


@attrs.frozen(eq=False, kw_only=True)
class Comparing:
    """Asks a plan's producer, and compares its answer with the jobs there are."""

    client: JobClient
    job: Job
    producer: Producer
    name: str
    options: DispatchOptions = attrs.field(init=False)

    @options.default
    def _options(self) -> DispatchOptions:
        # How one ended is remembered for as long as calls may be repeated, and no longer.
        brief_s = self.client.context.settings.known_s
        return DispatchOptions(if_exists="reject", window_s=brief_s, retention_s=brief_s)

    async def ask(self, answer: Answer, scope: anyio.CancelScope) -> None:
        """Have the producer answer, by the rule of handlers; whatever it does, this returns."""

        async def asking() -> None:
            try:
                await self._ask(answer)
            except PoolError as error:
                answer.error = error.with_traceback(None)
            except NoAnswer as error:
                answer.error = self.refused("", str(error))

        ended = await attempted(asking, scope)
        if isinstance(ended, Raised):
            answer.raised = ended

    def check(self, answer: Answer) -> None:
        """Raise what speaks against an answer.

        Raises:
            PlanRefused: It cannot be, or its producer failed.
            PoolError: What became of a call that the producer made.
        """
        error, raised, answer.error = answer.error, answer.raised, None
        if error is not None:
            raise again(error)
        if raised is not None or not answer.is_whole:
            said = raised.text if raised is not None else "it was cancelled"
            problem = f"its producer failed: {one_line(said, PROBLEM_CHARS_MAX)}"
            raise self.refused("", problem)

    def late(self) -> PlanRefused:
        """Say that the producer did not answer in time."""
        limit_s = self.producer.timeout_s
        return self.refused("", f"its producer has not answered within {limit_s:g} s (timeout_s)")

    async def _ask(self, answer: Answer) -> None:
        known = set(self.client.handlers or ())
        unknown = dict[str, str]()
        take = partial(self._take, answer, known, unknown)
        await ask(self.job, self.producer.fn, take)
        if unknown:
            await self._check_known(unknown)
        if answer.stops_all and answer.wanted:
            raise self.refused("", "StopAll() stands alone, and there are keys beside it")
        answer.is_whole = True

    def _take(self, answer: Answer, known: set[str], unknown: dict[str, str], each: Any) -> None:
        handler: Any = self.producer.handler
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        match each:
            case StopAll():
                answer.stops_all = True
                return
            case str():
                key = each
            case Call():
                key, args, kwargs = each.key, each.args, each.kwargs
                if each._known:
                    problem = "it has an id of its own: a plan's jobs are known by their arguments"
                    raise self.refused(shown(key), problem)
            case Planned():
                handler, key, args, kwargs = each.handler, each.key, each.args, each.kwargs
            case _:
                problem = f"{shown(each)} is neither a key nor Call(...), Planned(...), StopAll()"
                raise self.refused("", problem)
        if handler is None:
            raise self.refused(key, "it says no handler, and the plan has none: use Planned(...)")
        try:
            admission = self.client.admitting(handler, self.options).admission(
                key, args, kwargs, "plan"
            )
        except PoolError as error:
            raise self.refused(shown(key), sentence(error)) from error
        if key in answer.wanted:
            raise self.refused(key, "it is there twice")
        if len(answer.wanted) == KEYS_MAX:
            raise self.refused(key, f"there are over {KEYS_MAX:,} keys")
        digest = digest_of(admission.handler, admission.payload)
        admission.id = planned_id(self.name, digest)
        answer.wanted[key] = admission
        if admission.handler not in known and isinstance(handler, str):
            unknown.setdefault(handler, key)

    async def _check_known(self, unknown: Mapping[str, str]) -> None:
        """Refuse names that nobody has ever registered."""
        context = self.client.context
        names = context.lanes[0].lane.names.handlers
        told = await context.pipeline.execute("HKEYS", names)
        for handler in unknown.keys() - {name.decode(errors="replace") for name in told}:
            raise self.refused(unknown[handler], f"no node has registered {handler!r}")

    def refused(self, key: str, problem: str) -> PlanRefused:
        return PlanRefused(plan=self.name, key=key, problem=problem)

    async def walk(self) -> set[str]:
        """Return the keys that have a live job of the plan's."""
        found, cursor, listing = set[str](), "", Listing(self.client)
        prefix = planned_id(self.name, "")
        while True:
            page = await listing.page(JobFilter(), cursor, PAGE_MAX)
            for each in page.jobs:
                if each.job_id.startswith(prefix) or each.replay_of:
                    found.add(each.key)
            if not (cursor := page.cursor):
                return found

    async def compare(self, wanted: Mapping[str, Admission], had: set[str]) -> Diff:
        """Judge what is wanted, and each other key that may have a job of the plan's."""
        diff = Diff()
        await self._judge(diff, list(wanted), wanted)
        await self._judge(diff, [key for key in had if key not in wanted], wanted)
        return diff

    async def _judge(
        self, diff: Diff, keys: Sequence[str], wanted: Mapping[str, Admission]
    ) -> None:
        """Judge keys by the records of their live jobs, a page at a time."""
        context = self.client.context
        by_lane: dict[int, list[str]] = {}
        for key in keys:
            by_lane.setdefault(context.lane_of(key).number, []).append(key)
        for number, some in by_lane.items():
            name = context.lanes[number].lane.names.jobs
            for i in range(0, len(some), LOOKED):
                page = some[i : i + LOOKED]
                texts = await context.pipeline.execute("HMGET", name, *page)
                for n, (key, text) in enumerate(zip(page, texts, strict=True), 1):
                    record = None if text is None else read(key.encode(), text)
                    if text is None or record is not None:  # else it is about to be parked
                        wanted_id = wanted[key].id if key in wanted else ""
                        verdict = judge(self.name, wanted_id, record)
                        diff.add(key, verdict, record.id if record else "")
                    if n % JUDGED == 0:
                        await anyio.lowlevel.checkpoint()


@attrs.frozen
class _Asked:
    """What stands when a turn begins: so many ask for it, and some of them with a token."""

    count: int = 0
    upto: int = 0  # the newest of them
    tokens: Mapping[str, str] = attrs.field(factory=dict)  # by the id of a confirmation


@attrs.define(eq=False, kw_only=True)
class PlanKeeper:
    """The job that keeps one plan, while it runs here."""

    comparing: Comparing
    _had: set[str] | None = None  # keys that may have a live job of the plan's; None: walk
    _walk_s: float = 0.0  # when to walk again
    _is_troubled: bool = False  # the store failed the last turn
    _late_s: float = 0.0  # until then calls of a former owner may come
    _turns: Turns = attrs.field(factory=Turns)
    _hanging: anyio.Event | None = None  # set once a producer that was too late has returned
    _interrupt: KeyboardInterrupt | None = None  # that the producer raised
    _told: dict[str, None] = attrs.field(factory=dict)  # keys that others have, and it was said

    async def run(self) -> None:
        """Take turns until the job is stopped or handed over."""
        job, every_s = self.comparing.job, self.comparing.producer.every_s
        self._turns = parse_turns(job.state)
        # A former owner's last calls may come as late as it would have repeated them.
        late_s = self._context.timing.ttl_s + self._context.settings.longest_s
        self._late_s = self._context.io.clock() + late_s
        within_s = 0.0
        # Of producers, some of which cannot be ended.
        async with anyio.create_task_group() as tasks:
            while True:
                asked, before = await self._requests(within_s), self._turns
                turn = await self._take_turn(tasks.start_soon, asked)
                self._turns = before.then(turn, asked.upto, [*asked.tokens])
                self._tell(turn, before.last)
                try:
                    await job._store(encode_value(pack_turns(self._turns)))
                finally:  # also where the plan is handed over just now
                    self._tell_node(before.last)
                is_whole = not (turn.stopping or self._is_troubled)
                within_s = every_s if is_whole else min(every_s, SOON_S)

    @property
    def _context(self) -> Any:
        return self.comparing.client.context

    def _tell_node(self, before: PlanTurn) -> None:
        """Tell the node of Ctrl-C, for all that can be seen, as out of a handler.

        But once: a producer that raises it each time would end one node after another for ever.
        """
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None and KeyboardInterrupt.__name__ not in before.problem:
            self._context.on_interrupt(interrupt)

    async def _requests(self, within_s: float) -> _Asked:
        """Return what stands; wait so long for somebody to ask for a turn."""
        standing = await self.comparing.job._standing(within_s, ASKED_MAX)
        told = [message for _, message in standing if isinstance(message, dict)]
        tokens = {
            str(each.get("id"))[:ID_CHARS_MAX]: str(each.get("token"))
            for each in told
            if each.get("token")
        }
        for done, _ in self._turns.confirmed:  # it was sent twice, and confirms nothing more
            tokens.pop(done, None)
        upto = number_in(standing[-1][0]) if standing else 0
        return _Asked(len(standing), upto, tokens)

    async def _take_turn(self, start_soon: Callable[..., Any], asked: _Asked) -> PlanTurn:
        """Take one turn; return how it went, whatever became of it."""
        context, number, self._is_troubled = self._context, self._turns.last.number + 1, False
        began_s = context.io.clock()
        base = PlanTurn(number=number, epoch=self.comparing.job.epoch, asked=asked.count)
        try:
            answer = await self._answer(start_soon)
            turn = await self._converge(base, answer, asked.tokens.values())
        except NotRunning:
            raise
        except PoolError as error:
            self._is_troubled = not isinstance(error, PlanRefused)
            if self._is_troubled:
                self._had = None  # what was done of it is not known
            turn = attrs.evolve(base, problem=_problem_of(error))
        state, now_s = context.lane_of(self.comparing.job.key), context.io.clock()
        at_ms = round(state.now_ms(now_s))
        return attrs.evolve(turn, at_ms=at_ms, took_ms=round(1000 * (now_s - began_s)))

    async def _answer(self, start_soon: Callable[..., Any]) -> Answer:
        """Have the producer answer in time, in a task of its own: some cannot be ended.

        Raises:
            PlanRefused: It has not, or it failed, or what it says cannot be.
        """
        comparing, limit_s = self.comparing, self.comparing.producer.timeout_s
        if self._hanging is not None and not self._hanging.is_set():
            problem = f"its producer, called before, has not returned within {limit_s:g} s"
            raise comparing.refused(
                "", f"{problem} (timeout_s), and is not called again until then"
            )
        answer, over, scope = Answer(), anyio.Event(), anyio.CancelScope()

        async def answered() -> None:
            try:
                await comparing.ask(answer, scope)
            finally:
                over.set()
                scope.cancel()  # what it began in a group that it left open ends, too

        start_soon(_apart, answered, over)
        with anyio.move_on_after(limit_s):
            await over.wait()
        if not over.is_set():
            scope.cancel()
            self._hanging = over
            raise comparing.late()
        self._interrupt = None if answer.raised is None else answer.raised.interrupt
        comparing.check(answer)
        return answer

    async def _converge(
        self, turn: PlanTurn, answer: Answer, confirmed: Collection[str]
    ) -> PlanTurn:
        """Make the jobs those that are wanted."""
        comparing, wanted, now_s = self.comparing, answer.wanted, self._context.io.clock()
        if self._had is None or now_s >= self._walk_s:
            self._had = await comparing.walk()
            self._walk_s = self._late_s if now_s < self._late_s else now_s + WALK_S
        diff = await comparing.compare(wanted, self._had)
        told = attrs.evolve(
            turn,
            wanted=len(wanted),
            kept=diff.kept,
            taken=len(diff.taken),
            taken_keys=tuple(diff.taken[:TOLD_MAX]),
        )
        if not answer.stops_all and diff.is_held(comparing.producer.stop_max, confirmed):
            return attrs.evolve(
                told,
                held=len(diff.stops),
                held_keys=tuple(key for key, _ in diff.stops[:TOLD_MAX]),
                token=diff.token,
            )
        self._had = {key for key, _ in diff.stops} | wanted.keys()
        until_s = self._context.io.clock() + STOP_S
        gone = await self._stop(diff.stops, "it is not in the plan any more", until_s)
        freed = await self._stop(diff.replaces, "the plan replaces it", until_s)
        started, ended, refused = await self._start(wanted, [*diff.starts, *freed])
        self._had -= set(gone)
        replaced = len(started & set(freed))
        return attrs.evolve(
            told,
            stopped=len(gone),
            stopping=len(diff.stops) - len(gone) + len(diff.replaces) - len(freed),
            replaced=replaced,
            started=len(started) - replaced,
            ended=ended,
            refused=len(refused),
            problem=refused[0] if refused else "",
        )

    async def _stop(self, jobs: Sequence[tuple[str, str]], cause: str, until_s: float) -> list[str]:
        """Stop jobs, a page at a time; return the keys of those that have ended in time."""
        client, ended = self.comparing.client, list[str]()

        async def stop(key: str, job_id: str) -> None:
            left_s = max(0.0, until_s - client.context.io.clock())
            try:
                await JobRef[Any](key, job_id, "", client).stop(self._cause(cause), left_s)
                ended.append(key)
            except NotRunning:
                raise
            except PoolError:
                return  # the next turn looks at it again

        for i in range(0, len(jobs), STOPS):
            async with anyio.create_task_group() as tasks:
                for key, job_id in jobs[i : i + STOPS]:
                    tasks.start_soon(stop, key, job_id)
        return ended

    def _cause(self, why: str) -> str:
        return f"plan {self.comparing.name}: {why}"

    async def _start(
        self, wanted: Mapping[str, Admission], keys: Sequence[str]
    ) -> tuple[set[str], int, list[str]]:
        """Start jobs; return those that were, how many have ended instead, and what went wrong."""
        client, started, refused = self.comparing.client, set[str](), list[str]()
        over, anew = list[str](), list[str]()

        async def start_after(key: str) -> None:
            try:
                if await self._start_after(wanted[key]):
                    anew.append(key)
            except NotRunning:
                raise
            except PoolError as error:
                refused.append(f"{key}: {one_line(str(error), PROBLEM_CHARS_MAX)}")

        for i in range(0, len(keys), STARTS):
            some = [wanted[key] for key in keys[i : i + STARTS]]
            for pending in client.dispatcher.admit(some, is_bounded=False):
                key, told = pending.item.key, await pending.wait()
                if isinstance(told, Accepted):
                    (started.add if told.seen else over.append)(key)
                elif not isinstance(told, JobExists):  # else the next turn says whose it is
                    refused.append(f"{key}: {one_line(str(told), PROBLEM_CHARS_MAX)}")
        for i in range(0, len(over), STARTS):
            async with anyio.create_task_group() as tasks:
                for key in over[i : i + STARTS]:
                    tasks.start_soon(start_after, key)
        return started | set(anew), len(over) - len(anew), refused

    async def _start_after(self, admission: Admission) -> bool:
        """Start one that the plan had, and ended itself: its next run has an id of its own.

        What has ended otherwise begins again when that is forgotten, or its letter discarded.
        """
        client, mine = self.comparing.client, self._cause("")
        for _ in range(RUNS_MAX):
            try:
                found, _seen = await client.look(admission.key, admission.id)
            except NoSuchJob:
                return False
            if not (isinstance(found, Outcome) and found.word == "cancelled"):
                return False
            if not found.cause.startswith(mine):
                return False
            anew = attrs.evolve(admission, id=after(admission.id, found.epoch))
            [pending] = client.dispatcher.admit([anew])
            told = await pending.wait()
            if not isinstance(told, Accepted):
                return False
            if told.seen:
                return True
            admission = anew
        return False

    def _tell(self, turn: PlanTurn, before: PlanTurn) -> None:
        """Tell what is new in how it went."""
        name, emit = self.comparing.name, self._context.emit
        for key in turn.taken_keys:
            if key not in self._told:
                emit(PlanConflicted(plan=name, key=key))
        self._told = dict.fromkeys(turn.taken_keys)
        if turn.token and turn.token != before.token:
            emit(PlanHeld(plan=name, stops=turn.held, wanted=turn.wanted, token=turn.token))
        if turn.problem and turn.problem != before.problem:
            emit(PlanFailed(plan=name, problem=turn.problem))
        if turn.started or turn.stopped or turn.replaced:
            emit(
                PlanTurned(
                    plan=name,
                    turn=turn.number,
                    epoch=turn.epoch,
                    wanted=turn.wanted,
                    kept=turn.kept,
                    started=turn.started,
                    stopped=turn.stopped,
                    replaced=turn.replaced,
                    stopping=turn.stopping,
                )
            )


async def _apart(call: Callable[[], Coroutine[Any, Any, None]], over: anyio.Event) -> None:
    """Call it in a group of its own: a task in which a scope was left open cannot end in peace."""
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
    except BaseExceptionGroup:
        if not over.is_set():
            raise


def _problem_of(error: PoolError) -> str:
    """Return in a sentence what speaks against a turn."""
    said = sentence(error)
    if isinstance(error, PlanRefused):
        said = f"{error.key!r}: {error.problem}" if error.key else error.problem
    return one_line(said, PROBLEM_CHARS_MAX)


async def keep_plan(client: JobClient, job: Job, producer: Producer, name: str) -> None:
    """Be the job that keeps a plan."""
    comparing = Comparing(client=client, job=job, producer=producer, name=name)
    await PlanKeeper(comparing=comparing).run()


async def compared(client: JobClient, job: Job, producer: Producer, name: str) -> Mapping[str, Any]:
    """Return what a plan's next turn would do, in terms of JSON; nothing is changed."""
    comparing = Comparing(client=client, job=job, producer=producer, name=name)
    async with anyio.create_task_group() as tasks:
        try:
            answer = await PlanKeeper(comparing=comparing)._answer(tasks.start_soon)
            diff = await comparing.compare(answer.wanted, await comparing.walk())
        except PlanRefused as error:
            return {"key": error.key, "problem": one_line(error.problem, PROBLEM_CHARS_MAX)}
        except PoolError as error:
            return {"key": "", "problem": _problem_of(error)}
    is_held = not answer.stops_all and diff.is_held(producer.stop_max)
    return facts_of(diff, is_held=is_held, wanted=len(answer.wanted))
