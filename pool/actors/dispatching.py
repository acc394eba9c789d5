"""The calls that dispatch: one job, or many in few round trips, with options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final, Literal, ParamSpec, Protocol, TypeVar, overload

import anyio.lowlevel
import attrs

from pool.actors.dispatcher import BATCH_MAX, Accepted, Dispatcher, Pending
from pool.actors.handlers import Handler
from pool.actors.ref import JobRef
from pool.errors import InvalidOption, PoolError
from pool.store.lane import Admission

P = ParamSpec("P")
R = TypeVar("R")

DELAY_MAX_S: Final = 365 * 86_400.0
MANY_MAX: Final = 100_000  # jobs in one `dispatch_many`
SLICE_MAX: Final = 1024  # of those, prepared at once: some 20 ms of the loop


class Call:
    """One job of a `dispatch_many`: its key, and its arguments."""

    __slots__ = ("args", "key", "kwargs")

    def __init__(self, key: str, /, *args: Any, **kwargs: Any) -> None:
        self.key = key
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        return f"Call({self.key!r}, ...)"


@attrs.frozen(kw_only=True)
class DispatchOptions:
    """How a dispatch is done; see `Node.options`."""

    delay_s: float = 0.0
    if_exists: Literal["reject", "attach"] = "reject"
    allow_unknown: bool = False

    def __attrs_post_init__(self) -> None:
        delay_s: object = self.delay_s
        is_number = isinstance(delay_s, (int, float)) and not isinstance(delay_s, bool)
        if not is_number or not 0 <= self.delay_s <= DELAY_MAX_S:  # refuses NaN too
            raise InvalidOption(
                option="delay_s", value=repr(delay_s), problem=f"not from 0 to {DELAY_MAX_S} s"
            )
        if self.if_exists not in ("reject", "attach"):
            raise InvalidOption(
                option="if_exists", value=repr(self.if_exists), problem="not 'reject' or 'attach'"
            )


class Home(Protocol):
    """What the dispatching calls need of their node."""

    @property
    def dispatcher(self) -> Dispatcher: ...
    def check_open(self) -> None: ...
    def admission(
        self,
        handler: Handler[Any, Any] | str,
        key: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: DispatchOptions,
    ) -> Admission: ...
    def ref(self, accepted: Accepted) -> JobRef[Any]: ...
    async def explained(self, error: PoolError, deadline_s: float) -> PoolError: ...


class Dispatching:
    """The dispatching calls, with options already chosen; `Node` is one, `Node.options` others."""

    _home: Home
    _options: DispatchOptions

    def __init__(self, home: Home, options: DispatchOptions) -> None:
        self._home = home
        self._options = options

    @overload
    async def dispatch(
        self, handler: Handler[P, R], key: str, /, *args: P.args, **kwargs: P.kwargs
    ) -> JobRef[R]: ...
    @overload
    async def dispatch(
        self, handler: str, key: str, /, *args: Any, **kwargs: Any
    ) -> JobRef[Any]: ...
    async def dispatch(
        self, handler: Handler[Any, Any] | str, key: str, /, *args: Any, **kwargs: Any
    ) -> JobRef[Any]:
        """Give the job `key` to the one worker that owns it; return once it is accepted.

        Accepted means recorded in Redis: the job will be started, once at a time (G-02), and ends
        done, parked or cancelled (G-01).  It may not have started yet; `started()` and `result()`
        of the returned reference wait for that.  Cancelling this call does not take the job back;
        use `stop()`.

        Args:
            handler: What `Handlers.job()` or `Handlers.service()` made of a function, or a name.
            key: What the job is about, 1 to 512 bytes in UTF-8.  Same key, same worker, as long
                as the set of workers stays as it is and that worker has room.
            *args: The function's own arguments, at most `Settings.payload_bytes_max` encoded.
            **kwargs: Likewise.

        Raises:
            JobExists: The key has a live job; `owner` says where.  See `options(if_exists=...)`.
            PoolFull: `Settings.queued_jobs_max` jobs wait already.  Retry later.
            UnknownHandler: No node ever registered the name; see `options(allow_unknown=...)`.
            InvalidKey, PayloadEncodingError, PayloadTooLarge: Nothing was sent.
            StorageFull: Redis is at its memory limit; nothing was written.
            StoreUnavailable: Redis cannot be reached; `maybe_done` says if the job may exist.
            StoreLost: Redis came back without the pool's data; dispatch again.
            NotRunning: The node is not open.
        """
        node = self._home
        node.check_open()
        [pending] = node.dispatcher.admit(
            [node.admission(handler, key, args, kwargs, self._options)]
        )
        answer = await pending.waiter.wait()
        if isinstance(answer, Accepted):
            return node.ref(answer)
        raise await node.explained(answer, pending.deadline_s)

    @overload
    async def dispatch_many(
        self, handler: Handler[..., R], calls: Iterable[Call | str], /
    ) -> list[JobRef[R] | PoolError]: ...
    @overload
    async def dispatch_many(
        self, handler: str, calls: Iterable[Call | str], /
    ) -> list[JobRef[Any] | PoolError]: ...
    async def dispatch_many(
        self, handler: Handler[..., Any] | str, calls: Iterable[Call | str], /
    ) -> list[JobRef[Any] | PoolError]:
        """Dispatch many jobs in few round trips; return a reference or an error for each, in order.

        Cancelling this call takes no job back, and leaves those undispatched whose turn had not
        come.

        Args:
            handler: As for `dispatch()`.
            calls: `Call(key, *args, **kwargs)` each, or just a key; at most 100,000.

        Raises:
            InvalidOption: Too many calls.
            NotRunning: The node is not open.
        """
        self._home.check_open()
        given = list(islice(calls, MANY_MAX + 1))
        if len(given) > MANY_MAX:
            raise InvalidOption(
                option="calls", value=f"over {MANY_MAX}", problem=f"at most {MANY_MAX}"
            )
        # By slices: encoding 100,000 calls would hold the event loop up for seconds, and the time
        # that each has for its second try would be over before it is sent once.
        answers: list[JobRef[Any] | PoolError] = []
        under_way: list[Pending | PoolError] = []
        # One call for each lane: the server carries them out while the next slice is prepared.  Of
        # larger slices it would wait for each.
        size = min(BATCH_MAX * len(self._home.dispatcher.context.lanes), SLICE_MAX)
        for first in range(0, len(given), size):
            taken = self._admit(handler, given[first : first + size])
            await anyio.lowlevel.checkpoint()  # the link sends it before the next one is prepared
            answers += await self._answers(under_way)
            under_way = taken
        return answers + await self._answers(under_way)

    def _admit(
        self, handler: Handler[Any, Any] | str, calls: Sequence[Call | str]
    ) -> list[Pending | PoolError]:
        node, items = self._home, list[Admission | PoolError]()
        for call in calls:
            one = Call(call) if isinstance(call, str) else call
            try:
                items.append(node.admission(handler, one.key, one.args, one.kwargs, self._options))
            except PoolError as error:
                items.append(error)
        pending = iter(node.dispatcher.admit([i for i in items if isinstance(i, Admission)]))
        return [item if isinstance(item, PoolError) else next(pending) for item in items]

    async def _answers(self, asked: Sequence[Pending | PoolError]) -> list[Any]:
        answers: list[JobRef[Any] | PoolError] = []
        for each in asked:
            answer = each if isinstance(each, PoolError) else await each.waiter.wait()
            answers.append(self._home.ref(answer) if isinstance(answer, Accepted) else answer)
        return answers
