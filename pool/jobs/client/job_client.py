"""What the dispatching calls and the references need of their node, while it is open."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio
import attrs

from pool import checks
from pool.core.codec import (
    Codec,
    check_size,
    decode_call,
    decode_value,
    encode_call,
    head,
    head_of,
)
from pool.core.ids import is_derived
from pool.core.options import ATTACHES, Options
from pool.core.record import MORE, Attempt, Kind, Outcome, Record, attempts, left_by
from pool.errors import (
    CodecMissing,
    JobLost,
    NoSuchJob,
    OutcomeExpired,
    PoolError,
    StoreError,
    StoreLost,
    StoreUnavailable,
    UnknownHandler,
    UnknownVersion,
    UsageError,
    WrongArguments,
    again,
    duration_text,
)
from pool.jobs.around import AroundDispatch
from pool.jobs.client.dispatcher import Dispatcher
from pool.jobs.client.options import DispatchOptions, more_of
from pool.jobs.client.requests import Requests
from pool.jobs.client.waiters import Waiters, Waiting
from pool.jobs.context import Context, Seen
from pool.jobs.followers import Packer, outcome_by
from pool.jobs.handlers import Handler, Handlers
from pool.jobs.roster import WorkerInfo
from pool.jobs.typed.contract import ValueCodec, ours
from pool.names import (
    OF_PLANS,
    check_handler,
    check_key,
    followers,
    out,
    plans_own,
)
from pool.redis.commands.admission import Admission
from pool.redis.commands.talk import Missing

_OUT: Final = re.compile(rb"(\d{1,16}) (\d{1,16}) ", re.ASCII)  # see `lua/lib/out.lua`
ARRIVE_S: Final = 0.02  # before it is looked again at what is on its way


@attrs.frozen(kw_only=True, eq=False)
class JobClient:
    """One node's jobs as its callers reach them."""

    pool: str
    handlers: Handlers | None  # its own, whose kinds it knows
    context: Context
    dispatcher: Dispatcher
    waiters: Waiters
    requests: Requests
    check_open: Callable[[], object]  # raises NotRunning, WrongLoop

    def admitting(self, handler: Handler[Any, Any] | str, options: DispatchOptions) -> Admitting:
        """Return what makes admissions of a handler's jobs.

        Raises:
            ConfigError, InvalidOption: It is no handler, and cannot be the name of one.
        """
        mine: Any = handler
        if type(handler) is str:
            check_handler(handler)
            mine = self.handlers.get(handler) if self.handlers is not None else None
            return Admitting(self, options, handler, mine)
        if not issubclass(type(handler), Handler):
            raise no_handler(handler)
        return Admitting(self, options, mine.name, mine)

    def result_of(self, handler: str) -> ValueCodec | None:
        """Return how results of a handler are read, as far as we know it; None: as JSON."""
        known = self.handlers.get(handler) if self.handlers is not None else None
        return None if known is None else known._result

    def read_result(self, of: ValueCodec | None, body: bytes) -> Any:
        """Return a stored result: as its handler says, or without one in terms of JSON.

        Raises:
            PayloadEncodingError: It cannot be read; CodecMissing says by which codec.
        """
        return decode_value(body, self.codec_of(body)) if of is None else of.decode(body)

    def codec_of(self, data: bytes) -> Codec | None:
        """Return the codec that something was made by, if it is ours or that of a handler here.

        Raises:
            PayloadEncodingError: Its head cannot be read.
        """
        name, _, _ = head_of(data)
        found = ours(name)
        if name and found is None and self.handlers is not None:
            encodings = [self.handlers[each]._arguments.encoding for each in self.handlers]
            found = next((each.codec for each in encodings if each.name == name), None)
        return found

    def read_call(self, handler: str, data: bytes) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return stored arguments: as the handler takes them if it is known, else in terms of JSON.

        Raises:
            PayloadEncodingError: They cannot be read; CodecMissing says by which codec.
        """
        known = self.handlers.get(handler) if self.handlers is not None else None
        if known is not None:
            with suppress(WrongArguments, UnknownVersion):
                return known._arguments.decode(handler, data)
        return decode_call(data, self.codec_of(data))

    def check_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse at once what no handler that is known here takes; raises as `written_call()`."""
        known = self.handlers or Handlers()
        if all(known[name]._arguments.is_plain for name in known):
            encode_call(args, kwargs)

    def written_call(
        self, handler: str, data: bytes, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bytes:
        """Return arguments that take the place of stored ones, as these are stored.

        Raises:
            WrongArguments: They are not the handler's.
            PayloadEncodingError, CodecMissing: They cannot be encoded.
        """
        known = self.handlers.get(handler) if self.handlers is not None else None
        if known is not None:
            return known._arguments.encode(handler, args, kwargs)
        codec, version, _ = head_of(data)
        if codec and ours(codec) is None:  # a handler of ours reads JSON, too
            problem = f"those there were made by the codec {codec!r}: only its handler can"
            raise CodecMissing(path="$", problem=problem, codec=codec)
        return head(version=version) + encode_call(args, kwargs)

    def packer(self, *, has_kinds: bool = True) -> Packer:
        """Return what packs followers in this pool; without their kinds, only to be compared."""
        bytes_max, lanes = self.context.settings.payload_bytes_max, len(self.context.lanes)
        return Packer(lanes, bytes_max, self.handlers, has_kinds=has_kinds)

    async def explained(self, error: PoolError, deadline_s: float) -> PoolError:
        """Add what only another look tells, in time: names like the one that nobody knows."""
        if isinstance(error, UnknownHandler):
            context = self.context
            lane, names = context.lanes[0].lane, list[bytes]()
            with anyio.move_on_after(deadline_s - context.io.clock()), suppress(PoolError):
                names = await context.pipeline.execute("HKEYS", lane.names.handlers)
            known = sorted(name.decode(errors="replace") for name in names)
            close = difflib.get_close_matches(error.handler, known)
            return UnknownHandler(handler=error.handler, close_matches=tuple(close))
        return error

    async def wait(self, waiting: Waiting, limit_s: float | None) -> None:
        """Wait for a job of an open node; with 0 for what the store says now.  See `JobRef`."""
        op_timeout_s = self.context.settings.op_timeout_s
        # Not `fail_after()`: two generators around the same scope.
        with anyio.move_on_after(op_timeout_s if limit_s == 0 else limit_s) as scope:
            await self.waiters.wait(waiting, limit_s)
            if isinstance(waiting.answer, OutcomeExpired) and is_derived(waiting.job_id):
                waiting.answer = None
                await self.arrived(waiting.key)
                await self.waiters.wait(waiting, limit_s)
        if scope.cancelled_caught:
            raise TimeoutError

    def _cordoned(self, handler: str) -> str:
        """Say who cordoned all workers that have a handler; empty: not all are, or none has it."""
        roster = self.context.roster
        able = [(who.id, who.node) for who in roster.workers if handler in who.handlers]
        cordon = roster.asked.cordon_of_all(able) if roster.asked.cordons else None
        if cordon is None:
            return ""
        why = f": {cordon.reason}" if cordon.reason else ""
        return f"its workers {'drain' if cordon.is_drain else 'are cordoned'}, by {cordon.by}{why}"

    def why_waits(self, record: Record | None, key: str) -> str:
        """Return why a job has not begun, as its record was when it was looked at last."""
        workers = self.context.roster.workers
        if record is None:
            return "its store has not answered"
        match record.state:
            case "pending":
                return f"{record.owner} was given it, and has not begun it"
            case "waiting":
                return "its retry is not due" if record.error else "its delay is not over"
            case "unassigned" if paused := self.context.roster.asked.pause_of(key, record.handler):
                return f"{paused} is paused{f': {paused.reason}' if paused.reason else ''}"
            case "unassigned" if cordoned := self._cordoned(record.handler):
                return cordoned
            case "unassigned" if left_by(record.more):
                return f"no worker that can read it has a free slot: {record.error}"
            case "unassigned" if any(record.handler in who.handlers for who in workers):
                return f"all slots for {record.handler!r} are taken"
            case "unassigned":
                return f"no worker takes {record.handler!r}"
            case "queued":
                return "the job before it has not ended"
        return ""

    def why_goes_on(self, record: Record | None) -> str:
        """Return why a job that was asked to stop has not ended, as its record was."""
        if record is not None and record.state == "running":
            return "its handler has been told, and has not returned"
        if record is not None and record.state == "pending":
            return "its worker has not answered since it was given it"
        return "its store has not answered" if record is None else "nobody has come to end it yet"

    def what_waits(self, waiting: Waiting, timeout_s: float) -> str:
        """Return what somebody has waited for in vain, in words."""
        job, record = f"job {waiting.job_id} of {waiting.key!r}", waiting.record
        if record is None:
            how = "its store has not answered"
        elif record.state == "running":
            how = f"{record.owner} runs attempt {record.attempt} of it"
        else:
            how = f"it is {record.state}: {self.why_waits(record, waiting.key)}"
        return f"{job} has not ended within {duration_text(timeout_s)}: {how}"

    def worker(self, owner: str) -> WorkerInfo | None:
        """Return the worker of this name in a lane, if the fleet knows it."""
        worker_id = owner.partition(".")[0]
        workers = self.context.roster.workers
        return next((info for info in workers if info.id == worker_id), None)

    async def history(self, key: str, found: Record | Outcome) -> tuple[Attempt, ...]:
        """Fetch the attempts of a live job that failed, if it is still that job's."""
        if not isinstance(found, Record) or f",{MORE['attempts']}" not in f",{found.more}":
            return ()
        context = self.context
        name = context.lane_of(key).lane.names.attempts
        told: bytes | None = await context.pipeline.execute("HGET", name, key)
        job_id, _, text = (told or b"").decode(errors="replace").partition("\t")
        return attempts(text) if job_id == found.id else ()

    async def followers(self, key: str, job_id: str) -> bytes:
        """Fetch the followers of a job that has not ended, packed."""
        context = self.context
        payloads = context.lane_of(key).lane.names.payloads
        told = await context.pipeline.execute("HGET", payloads, followers(key, job_id))
        return told or b""

    async def look(
        self, key: str, job_id: str, seen: Seen | None = None, *, arrives: bool = True
    ) -> tuple[Record | Outcome, Seen | None]:
        """Fetch a job's record or outcome; and when it was seen alive, by that or before.

        With `arrives` one that was released, and is on its way, is waited for.

        Raises:
            NoSuchJob, JobLost: Neither is there.
            StoreUnavailable: Also where nobody has carried that over in time.
        """
        self.check_open()
        context = self.context
        state = context.lane_of(key)
        call, asked_s = state.lane.look([(key, job_id)]), context.io.clock()
        generation = state.lane.generation
        told: Record | Outcome | Missing
        try:
            [told] = await context.pipeline.call(call, repeatable=True)
            if isinstance(told, Missing) and arrives and is_derived(job_id):
                with anyio.fail_after(context.settings.op_timeout_s):
                    await self.arrived(key)
                asked_s = context.io.clock()
                [told] = await context.pipeline.call(call, repeatable=True)
        except StoreLost:
            context.on_data_lost(state.number)
            raise StoreLost(pool=self.pool) from None
        except TimeoutError:
            problem = f"lane {state.number} has not taken in what others have for it"
            raise StoreUnavailable(problem=problem, maybe_done=False) from None
        if isinstance(told, Missing):
            missing = self.waiters.missing(key, job_id, seen, told, generation)
            if isinstance(missing, JobLost):
                raise again(missing)
            raise NoSuchJob(key=key, job_id=job_id)
        if not isinstance(told, Record):
            return told, None
        return told, state.seen(asked_s, told.accepted, generation=generation)

    async def arrived(self, key: str) -> None:
        """Return once the lane of a key has taken in what other lanes have for it at this moment.

        The step that ends a job writes what follows it to its own lane (`lua/lib/channel.lua`), and
        names it from then on.  So who asks for that, and finds nothing, asks again after this: if
        it is not there then either, it has ended, or was lost.  A lane that does not answer, or
        has lost its data meanwhile, has nothing more to be waited for.
        """
        to = self.context.lane_of(key).number
        left = dict.fromkeys(range(len(self.context.lanes)), math.inf)  # behind which message
        while True:
            for lane, upto in list(left.items()):
                first, behind = await self._under_way(lane, to)
                left[lane] = min(upto, behind)
                if first >= left[lane]:
                    del left[lane]
            if not left:
                return
            await anyio.sleep(ARRIVE_S)

    async def _under_way(self, lane: int, to: int) -> tuple[int, int]:
        """Return which messages a lane has for another: the first, and the one behind the last."""
        payloads, told = self.context.lanes[lane].lane.names.payloads, None
        with suppress(StoreError):
            told = await self.context.pipeline.execute("HGET", payloads, out(to))
        head = _OUT.match(told or b"")
        return (int(head[1]), int(head[2])) if head else (0, 0)

    async def request_stop(self, key: str, job_id: str, cause: str) -> str:
        """Ask for a stop; return the job's id.  See `JobRef.stop`."""
        self.check_open()
        return await self.requests.stop(key, job_id, cause)


class Admitting:
    """Makes the admissions of one handler with the same options: what all have, it has found out.

    For one dispatch, or the many of a `dispatch_many`: a handler may change until it runs.
    """

    client: JobClient
    options: DispatchOptions
    name: str
    handler: Handler[Any, Any] | None  # None: this process does not know it
    around: tuple[AroundDispatch, ...]
    _usual: Options | None
    _kind: Kind | None
    _policy: str
    _is_special: bool
    _has_own_codec: bool
    __slots__ = (
        *("_has_own_codec", "_is_special", "_kind", "_policy", "_usual"),
        *("around", "client", "handler", "name", "options"),
    )

    def __init__(
        self,
        client: JobClient,
        options: DispatchOptions,
        name: str,
        handler: Handler[Any, Any] | None,
    ) -> None:
        self.client, self.options, self.name, self.handler = client, options, name, handler
        self._policy, self._is_special = options.policy, options.is_special
        if handler is None:
            self.around, self._usual, self._kind = (), None, None
            self._has_own_codec = False
            return
        self._has_own_codec = handler._arguments.encoding.codec is not None
        self.around, usual = handler._around_dispatch, handler._options
        self._usual, self._kind = usual, usual.kind
        if options.is_open:
            self._policy = usual.policy
        if usual.is_timed:
            self._is_special = True

    def admission(
        self,
        key: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        known: str = "",
        *,
        job_id: str = "",
        is_plans: bool = False,
        is_compared: bool = False,
    ) -> Admission:
        """Check one dispatch and make it ready to be sent; raises what `dispatch()` documents.

        `is_plans`: it is that of a job which keeps a plan, or compares one.  `is_compared`: its
        bytes are, whatever the options say.
        """
        context, handler, options = self.client.context, self.handler, self.options
        check_key(key)
        if key[:5] == OF_PLANS and not is_plans:
            raise plans_own(key)
        if handler is None:
            payload = encode_call(args, kwargs)
        else:
            payload = handler._arguments.encode(self.name, args, kwargs)
            if self._has_own_codec and (
                is_compared or known or options.known or self._policy == ATTACHES
            ):
                handler._arguments.check_canonical(payload, self.name, args, kwargs)
        check_size("payload", payload, context.settings.payload_bytes_max)
        allow_unknown = handler is not None or options.allow_unknown
        of = (self._kind, payload, options.delay_s, self._policy, allow_unknown)
        if known or self._is_special:
            return self._special(Admission(key, job_id, self.name, *of), known)
        return Admission(key, context.ids.next(), self.name, *of)

    def _special(self, item: Admission, known: str) -> Admission:
        """Add what hardly any job has."""
        options, payload = self.options, item.payload
        is_known, follows = known or options.known, options.then or options.otherwise
        if options.if_exists == "attach" and is_known:
            must = "another policy beside an id: that names this job, and attaching is to another"
            raise checks.option("if_exists", "attach", must)
        if options.if_exists == "attach" and follows:
            must = "another policy beside followers: they follow this job, not the live one"
            raise checks.option("if_exists", "attach", must)
        item.id, behind = is_known or item.id or self.client.context.ids.next(), b""
        told = b""
        if follows:
            behind = self._followers(item)
            told = self._followers(item, has_kinds=False) if is_known else b""
        item.more = more_of(options, known, self.name, payload, behind, told, self._usual)
        item.payload = payload + behind
        if item.more:
            item.go_by(item.policy)
        return item

    def _followers(self, item: Admission, *, has_kinds: bool = True) -> bytes:
        packer = self.client.packer(has_kinds=has_kinds)
        then, otherwise = self.options.then, self.options.otherwise
        after = outcome_by(self.handler)
        return packer.pack(then, otherwise, key=item.key, job_id=item.id, after=after)


def no_handler(given: object) -> UsageError:
    """Say that it is neither a handler nor a name of one."""
    return checks.option("handler", given, "a name, nor what Handlers.job() or .service() returned")
