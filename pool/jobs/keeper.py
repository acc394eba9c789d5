"""What one run stores while it goes on: its state, and what its steps returned.

    save() --> the newest state --SaveEdge--> stored, and the messages in it removed
                    ^                |
                    +---- again -----+ the server is full: whoever waits is told
    progress() --> the newest --NoteEdge, one a second--> in the record, and at last in the outcome
    once(name, fn) --> stored before? --no--> fn --StepEdge--> what stands is returned

Who may write: the run's worker and handler, on their event loop; in Redis the owner alone, at its
epoch.  A run that is interrupted and goes on under the same epoch keeps its keeper.  Dying before
an edge was carried out leaves the state and the messages as they were, and the step without a
result: the next run calls its function again, with the same `step.key`.  Dying after it leaves all
of it stored.  An edge whose answer was lost is sent again: a state has a number, of which the
highest stands, and of a step's results the first.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, Final

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs

from pool import checks
from pool.core.codec import check_size, decode_value, encode_value
from pool.errors import (
    NotOwner,
    PayloadTooLarge,
    PoolError,
    StorageFull,
    StoreFault,
    TooManySteps,
    again,
)
from pool.names import check_step
from pool.redis.commands.edges import (
    Changed,
    Edge,
    EdgeStatus,
    NoteEdge,
    SaveEdge,
    SeenEdge,
    StepEdge,
)
from pool.redis.commands.talk import NO_MESSAGE, MessageId
from pool.settings import Settings

NOTES_S: Final = 1.0  # between two notes of how far a run is, however often it says so
_WITHIN: ContextVar[tuple[str, ...]] = ContextVar("steps", default=())  # in which a call is
_KEY_DIGITS: Final = 40  # of SHA-256, in hex: no two steps ever have the same


@attrs.frozen(kw_only=True)
class Step:
    """One step of a job, as its function sees it."""

    name: str
    key: str  # the same at every attempt, on every node: give it to a provider that deduplicates


@attrs.define(eq=False, kw_only=True)
class Keeper:
    """What one run stores."""

    pool: str
    key: str
    id: str
    origin: str = ""  # the job whose dead letter was replayed first, with these arguments
    epoch: int
    settings: Settings
    check_here: Callable[[], object]  # raises WrongLoop
    send: Callable[[Edge], object]  # to the store, behind what was sent before
    results: dict[str, bytes] = attrs.field(factory=dict)  # of its steps
    is_over: bool = False  # the run has ended, or is another's
    passed: MessageId = NO_MESSAGE  # the last message that was handled, or that a state holds
    _state: bytes = b""
    _number: int = 0  # of the newest state
    _stored: int = 0  # of the newest that is stored
    _refused: int = 0  # of the newest that was refused, and why
    _error: PoolError | None = None
    _bell: anyio.Event = attrs.field(factory=anyio.Event)
    _under_way: dict[str, anyio.Event] = attrs.field(factory=dict)  # step -> rung when it is not
    _waiting: dict[str, str] = attrs.field(factory=dict)  # step -> the one that it waits for
    _sending: dict[str, bytes] = attrs.field(factory=dict)  # results on their way to the store
    on_note: Callable[[], object] = lambda: None
    later: Callable[[float, Callable[[], object]], object]  # calls back after so many seconds
    _note: str = ""  # of how far it is, the newest; empty: it is sent
    _is_noting: bool = False  # one was sent not long ago
    _told: dict[str, bytes | PoolError] = attrs.field(factory=dict)  # of steps under way

    # --- its state ------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether the newest state was refused: what it holds stays in the inbox meanwhile."""
        return self._refused == self._number > self._stored

    def is_saving(self, state: bytes | None) -> bool:
        """Whether this is the newest state, and is not stored, or not known to be."""
        return self._stored < self._number and state is self._state

    def has_saved(self, state: bytes) -> bool:
        """Whether this is the newest state, and is stored."""
        return self._stored == self._number and state is self._state

    def handled(self, message: MessageId) -> bool:
        """Note a message that was handled; False: it may be removed at once.

        Else it goes when the newest state is stored: those before it may be in that one alone.
        """
        if self._stored == self._number:
            return False
        self.passed = message
        return True

    def save(self, state: bytes, message: MessageId) -> int:
        """Store a state, which holds all messages up to this one, if any; return its number."""
        self.check_here()
        self._check_ours()
        self._number += 1
        self._state, self.passed = state, message or self.passed
        self._send_state()
        return self._number

    async def wait_stored(self, number: int) -> None:
        """Return once this state is stored, or a later one."""
        while self._stored < number:
            if self._error is not None and self._refused >= number:
                raise again(self._error)
            self._check_ours()
            await self._bell.wait()

    def save_again(self) -> None:
        """Try once more what was refused."""
        if self.is_behind and not self.is_over:
            self._refused = 0
            self._send_state()

    def lose_sent(self) -> None:
        """Note that what was sent last may be lost: it is tried again as if it was refused."""
        if self._stored < self._number:
            self._refused, self._error = self._number, None

    def _send_state(self) -> None:
        edge = SaveEdge(
            self.key,
            self.epoch,
            self.id,
            state=self._state,
            message=self.passed,
            number=self._number,
        )
        self.send(edge)

    # --- how far it is --------------------------------------------------------------------------

    def note(self, progress: str) -> None:
        """Tell how far it is: at once, or with the newest when the last is `NOTES_S` old."""
        self.check_here()
        if self.is_over:
            return  # nobody would hear of it
        self._note = progress
        self.on_note()
        if not self._is_noting:
            self._send_note()

    def _send_note(self) -> None:
        self._is_noting = bool(self._note) and not self.is_over
        if self._is_noting:
            self.send(self._note_edge())
            self._note = ""
            self.later(NOTES_S, self._send_note)

    def _note_edge(self) -> NoteEdge:
        return NoteEdge(self.key, self.epoch, self.id, progress=self._note)

    # --- its steps ------------------------------------------------------------------------------

    async def once(self, name: str, fn: Callable[..., Any]) -> Any:
        """Return the stored result of a step; see `Job.once`."""
        check_step(name)
        if not callable(fn):
            raise checks.option("fn", fn, "a function")
        self.check_here()
        await _hear()
        within = _WITHIN.get()
        while name not in self.results and name in self._under_way:
            self._check_ends(name, within)
            self._waiting[within[-1] if within else ""] = name
            try:
                await self._under_way[name].wait()
            finally:
                self._waiting.pop(within[-1] if within else "", None)
        if name not in self.results:
            self._check_ours()
            if len(self.results) + len(self._under_way) >= self.settings.steps_max:
                raise TooManySteps(key=self.key, step=name, steps_max=self.settings.steps_max)
            bell = self._under_way[name] = anyio.Event()
            token = _WITHIN.set((*within, name))
            try:
                step = Step(name=name, key=self.step_key(name))
                result = encode_value(await _called(fn, step))
                self._check_size(name, result)
                await self._store(name, result)
            finally:
                _WITHIN.reset(token)
                del self._under_way[name]
                bell.set()
        return decode_value(self.results[name])

    def _check_ends(self, name: str, within: tuple[str, ...]) -> None:
        """Refuse to wait for a step that waits for one in which this call is."""
        at = name
        while at:
            if at in within:
                must = "another one: it is under way, and would wait for itself"
                raise checks.option("step", name, must)
            at = self._waiting.get(at, "")

    def step_key(self, name: str) -> str:
        """Return what tells a step from all others, at every attempt and on every node."""
        parts = (self.pool, self.key, self.origin or self.id, name)
        text = "".join(f"{len(part)}:{part}" for part in parts)
        return sha256(text.encode()).hexdigest()[:_KEY_DIGITS]

    def _check_size(self, name: str, result: bytes) -> None:
        check_size("result", result, self.settings.result_bytes_max)
        results = {**self._sending, **self.results}
        stored = sum(len(had) + len(each) for had, each in results.items())
        size_bytes = stored + len(name) + len(result)
        bytes_max = self.settings.steps_bytes_max
        if size_bytes > bytes_max:
            raise PayloadTooLarge(what="steps", size_bytes=size_bytes, size_bytes_max=bytes_max)

    async def _store(self, name: str, result: bytes) -> None:
        """Store a result; whoever stored one before wins."""
        self._check_ours()
        self._sending[name] = result
        self.send(StepEdge(self.key, self.epoch, self.id, step=name, result=result))
        try:
            while name not in self.results:
                told = self._told.pop(name, None)
                if isinstance(told, PoolError):
                    raise again(told)
                self._check_ours()
                await self._bell.wait()
        finally:
            del self._sending[name]

    # --- what the store says --------------------------------------------------------------------

    def on_answer(self, edge: SaveEdge | StepEdge, changed: Changed) -> None:
        """Take what became of an edge."""
        match edge, changed.status:
            case StepEdge(step=name, result=result), EdgeStatus.DONE:
                self.results.setdefault(name, result)
            case StepEdge(step=name), EdgeStatus.STANDS:
                self.results[name] = changed.stands
            case StepEdge(step=name), _:
                self._told[name] = StoreFault(problem="its steps cannot be read", maybe_done=False)
            case SaveEdge(number=number, message=message), EdgeStatus.DONE | EdgeStatus.REPEAT:
                self._stored = max(self._stored, number)
                if self._stored == self._number and self.passed != message:
                    self.send(SeenEdge(self.key, self.epoch, self.id, message=self.passed))
            case SaveEdge(number=number), EdgeStatus.FULL:
                self._refused, self._error = number, StorageFull()
            case SaveEdge(number=number), _:
                problem = "there is no inbox in its place"
                self._refused, self._error = number, StoreFault(problem=problem, maybe_done=False)
        self._ring()

    def settle(self) -> NoteEdge | None:
        """Take nothing more, as the run ends now; return what it said last, if it is not sent."""
        self.end()
        return self._note_edge() if self._note else None

    def end(self) -> None:
        """Take nothing more: the run has ended, or is another's."""
        self.is_over = True
        self._ring()

    def _ring(self) -> None:
        bell, self._bell = self._bell, anyio.Event()
        bell.set()

    def _check_ours(self) -> None:
        if self.is_over:
            raise NotOwner(key=self.key, job_id=self.id, epoch=self.epoch)


NO_KEEPER: Final[Keeper | None] = None  # of a run that stores nothing


async def _called(fn: Callable[..., Any], step: Step) -> Any:
    """Call a step's function: a plain one in a thread, as a plain handler."""
    args = () if _takes_nothing(fn) else (step,)
    if checks.is_async(fn):
        return await fn(*args)
    # In a list, as it may be a plain function around an async one, `lambda step: charge(step.key)`:
    # trio takes no coroutine from a thread.
    [answer] = await anyio.to_thread.run_sync(lambda: [fn(*args)])
    return await answer if inspect.isawaitable(answer) else answer


async def _hear() -> None:
    """Raise if the handler was told to end.

    On asyncio a call that comes out of a thread into a scope that was cancelled before is never
    told: the first checkpoint of anyio's that looks would go round for ever (anyio 4.16).
    """
    if anyio.current_effective_deadline() == -math.inf:
        try:
            raise anyio.get_cancelled_exc_class()
        except TypeError:  # trio makes its own
            await anyio.lowlevel.checkpoint()


def _takes_nothing(fn: Callable[..., Any]) -> bool:
    """Say whether it can be called without a step: then what it takes beside is its own."""
    try:
        inspect.signature(fn).bind()
    except TypeError:
        return False
    except ValueError:  # a builtin that does not tell
        return True
    return True
