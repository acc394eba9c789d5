"""Every exception pool raises on purpose.  Floor 0: imports nothing of ours.

Six families say whose turn it is: `UsageError` (mend the call), `RefusedError` (the pool said
no), `LostError` (we no longer own what we tried to change), `StoreError` (Redis), `NodeError` (the
node itself failed), `HandlerError` (the job's own outcome).  One leaf is one stable code, and where
a script can answer it, the code is the word that the script uses.

The first line of a docstring is what the error says.  The rest is what `pool explain CODE` prints
and its entry in the documentation holds: when it comes, which limit it is about, what to do.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import ClassVar, Final, TypeVar
from zoneinfo import ZoneInfo

import attrs

__all__ = [
    "ArgumentsDiffer",
    "AuthError",
    "BatchDiffers",
    "BatchFailed",
    "BatchSealed",
    "BatchTooLarge",
    "ClaimRefused",
    "CodecMissing",
    "ConfigError",
    "DeadlockRisk",
    "DuplicateHandler",
    "Gone",
    "HandlerError",
    "IdempotencyConflict",
    "InboxFull",
    "InvalidKey",
    "InvalidOption",
    "JobCancelled",
    "JobExists",
    "JobExpired",
    "JobLost",
    "JobParked",
    "JobStopping",
    "JobSuperseded",
    "LostError",
    "MapFull",
    "MiddlewareFailed",
    "NoHandlers",
    "NoServer",
    "NoSuchBatch",
    "NoSuchJob",
    "NoSuchLetter",
    "NoSuchMember",
    "NoSuchPlan",
    "NoSuchSchedule",
    "NodeError",
    "NotInTime",
    "NotOwner",
    "NotRunning",
    "NotStarted",
    "NotStopped",
    "NotWaiting",
    "OutOfMemory",
    "OutcomeExpired",
    "PartEnded",
    "PayloadEncodingError",
    "PayloadTooLarge",
    "PlanRefused",
    "PoolError",
    "PoolFull",
    "ProcessDied",
    "ProcessFailed",
    "QueueFull",
    "RefusedError",
    "StartFailed",
    "StorageFull",
    "StoreError",
    "StoreFault",
    "StoreLost",
    "StoreUnavailable",
    "TooManyPaused",
    "TooManySteps",
    "UnknownHandler",
    "UnknownVersion",
    "UnsupportedServer",
    "UsageError",
    "WorkerGone",
    "WrongArguments",
    "WrongClaim",
    "WrongLoop",
    "WrongProtocol",
    "WrongValue",
]

E = TypeVar("E", bound="PoolError")

_SHOWN_MAX = 80  # characters of an offending value that an error may repeat
_BITS_SHOWN_MAX = 128  # of a whole number that is shown with all its digits
_PLAIN = frozenset({int, float, complex, bool, type(None)})  # their repr is short, and Python's own
_ZONES = frozenset({timezone, ZoneInfo, type(None)})  # nobody's code is called for these
_SAID = "problem"
_NAME = type.__dict__["__name__"].__get__


def shown(value: object) -> str:
    """Return a short, printable form of what the caller gave.

    Nobody's `repr` is called but Python's own, of what is small: another one may raise, tell a
    secret, or take for ever.
    """
    if type(value) is str:
        text = value[: _SHOWN_MAX + 1]
    elif type(value) is bytes:
        text = repr(value[: _SHOWN_MAX + 1])
    elif type(value) is datetime and type(value.tzinfo) in _ZONES:
        text = value.isoformat()
    elif type(value) is int and value.bit_length() > _BITS_SHOWN_MAX:
        text = f"<int of {value.bit_length()} bits>"
    else:
        text = repr(value) if type(value) in _PLAIN else f"<{name_of(type(value))}>"
    text = text if text.isprintable() else _escaped(text)
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 3]}..."


def duration_text(seconds: float) -> str:
    """Return a duration for a message, rounded to milliseconds: the rest of a limit has noise."""
    return f"{round(seconds, 3):.12g} s"


def name_of(kind: type) -> str:
    """Return the name of a type in a few characters, whatever its metaclass says."""
    text: str = _NAME(kind)
    return _escaped(text[: _SHOWN_MAX // 2])[: _SHOWN_MAX // 2]


def _escaped(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")


@attrs.define(eq=False, kw_only=True, str=False)
class PoolError(Exception):
    """Base of all pool errors.  Catch this to catch everything we raise."""

    code: ClassVar[str] = "POOL"
    retryable: ClassVar[bool] = False
    hint: ClassVar[str] = ""
    shell_hint: ClassVar[str] = ""  # for the command line, where `hint` names Python calls

    @property
    def hint_now(self) -> str:
        """What to do about this very error: `hint`, unless a value says more."""
        return self.hint

    def __str__(self) -> str:
        return self._text(self.hint_now)

    def _text(self, hint: str) -> str:
        said = (self.__doc__ or type(self).__name__).splitlines()[0]
        names = [fact.name for fact in attrs.fields(type(self))]
        if _SAID in names:  # what is wrong, in words: it goes on with the sentence
            names.remove(_SAID)
            said = f"{said.removesuffix('.')}: {_words(getattr(self, _SAID))}"
        facts = ", ".join(f"{name}={_fact(getattr(self, name))}" for name in names)
        tail = f"  Hint: {hint}" if hint else ""
        told = f"[{self.code}] {said}{f' ({facts})' if facts else ''}{tail}"
        return f"{told}  More: pool explain {self.code}"


def shell_text(error: PoolError) -> str:
    """Return the text of an error for the command line: its hint names commands and options."""
    return error._text(error.shell_hint or error.hint_now)


def again(error: E) -> E:
    """Return an error to be raised where the frame that raises it holds it, too.

    Raised itself it would be a cycle (error, traceback, frame), which keeps what is local in all
    who called until the collector comes.
    """
    anew = attrs.evolve(error)
    anew.__cause__ = error.__cause__
    return anew


def sentence(error: PoolError) -> str:
    """Return what an error says, to stand in another text: without its hint."""
    return str(error).partition("  Hint: ")[0].partition("  More: ")[0]


def _words(problem: object) -> str:
    """Return a problem as a sentence goes on, in one line."""
    text = problem if type(problem) is str else shown(problem)
    text = text if text.isprintable() else _escaped(text)
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _fact(fact: object) -> str:
    """Return a fact as Python writes it, if it is what it is declared as; see `shown`."""
    if type(fact) is tuple and {type(each) for each in fact} <= {str}:
        return repr(fact)
    return repr(fact) if type(fact) is str else shown(fact)


# --- the caller's mistake -------------------------------------------------------------------


@attrs.define(eq=False, kw_only=True, str=False)
class UsageError(PoolError):
    """The call cannot work as written."""

    code: ClassVar[str] = "POOLUSAGE"


@attrs.define(eq=False, kw_only=True, str=False)
class ConfigError(UsageError):
    """A setting, a name or an address is not usable.

    It comes before anything is sent, from `Settings(...)`, `Node(...)`, an address, or the command
    line. `setting` is what is meant and `problem` says what is wrong with it, often with the
    bounds. Two problems are found only at the server, when the node opens: another `lease_ttl_s`
    or another number of `lanes` than the pool has. Leave both out to go by the pool's; `pool ttl`
    changes the TTL for all.
    """

    code: ClassVar[str] = "POOLCONFIG"
    hint: ClassVar[str] = "correct it where it is given: call, Settings, address, command line"
    shell_hint: ClassVar[str] = (
        "correct the option, the environment variable or the --config file that gives it"
    )

    setting: str
    problem: str


@attrs.define(eq=False, kw_only=True, str=False)
class NoHandlers(UsageError):
    """There are no handlers where `pool run` was told to look.

    It takes modules, in each of which it looks for a `Handlers` with at least one handler: the one
    that is called `handlers`, or the only one; `module:attribute` names another. So `pool run jobs`
    is for `handlers = Handlers()` in jobs.py. The module is looked for as `python -m` does: in the
    working directory first. If the module itself failed while it was imported, its traceback stands
    above this line.
    """

    code: ClassVar[str] = "POOLHANDLERS"
    hint: ClassVar[str] = "`pool run jobs:handlers` is for `handlers = Handlers()` in jobs.py"

    reference: str
    problem: str


@attrs.define(eq=False, kw_only=True, str=False)
class InvalidKey(UsageError):
    """A job key must be 1 to 512 bytes of UTF-8 text without control characters.

    A key says what the job is about: a tenant, a device, a feed. Long or binary identifiers make
    bad keys: hash them, and pass the whole one as an argument. Keys that begin with `plan:` are of
    the jobs that keep plans; they can be looked at and stopped, and not dispatched.
    """

    code: ClassVar[str] = "POOLKEY"
    hint: ClassVar[str] = "use a short stable name, such as 'tenant-17'"

    key: str
    problem: str


@attrs.define(eq=False, kw_only=True, str=False)
class InvalidOption(UsageError):
    """An option of this call is not usable.

    Nothing was sent. `option` is the argument, `value` what was given (shortened), `problem` what
    it must be. Durations end at 365 days unless they say otherwise; without a limit is None, never
    infinity.
    """

    code: ClassVar[str] = "POOLOPTION"
    hint: ClassVar[str] = "nothing was sent: correct the option, and call again"

    option: str
    value: str
    problem: str


@attrs.define(eq=False, kw_only=True, str=False)
class DuplicateHandler(UsageError):
    """Two handlers have the same name.

    `where` says in which modules, if `pool run` was to put several together.
    """

    code: ClassVar[str] = "POOLDUPLICATE"
    hint: ClassVar[str] = "names are stored with jobs: give each handler one of its own"

    handler: str
    where: str = "these Handlers"


@attrs.define(eq=False, kw_only=True, str=False)
class UnknownHandler(UsageError):
    """No node has ever registered a handler of this name in this pool.

    The dispatch was refused, since a mistyped name would wait for ever. `close_matches` are
    registered names that look like it. Three causes: a typing error; the worker has never been
    started; another pool (`Node("media", ...)` and `Node("Media2", ...)` share nothing). Who
    deploys the caller before the worker uses `node.options(allow_unknown=True)`: then the job
    waits for a worker that knows it. This is about handlers that are dispatched by name. One that
    is dispatched as the object which `Handlers.job()` returned cannot be misspelt, so its job is
    accepted, and waits for its worker.
    """

    code: ClassVar[str] = "POOLUNKNOWN"
    hint: ClassVar[str] = (
        "check the name, start a worker first, or dispatch with node.options(allow_unknown=True)"
    )
    shell_hint: ClassVar[str] = (
        "check the name, start a worker first with `pool run`, or add --allow-unknown"
    )

    handler: str
    close_matches: tuple[str, ...] = ()


@attrs.define(eq=False, kw_only=True, str=False)
class PayloadEncodingError(UsageError):
    """A value cannot be encoded, or what is stored cannot be decoded.

    Arguments, results, messages and states are str, int, float, bool, None, lists and dicts with
    str keys, at most 100 deep; or one `bytes` value, which passes untouched. `path` says where the
    value is, as in `$.args[0].when`. All else needs an annotation of the handler, `when: datetime`,
    which must be there at run time. NaN and infinity are not JSON.
    """

    code: ClassVar[str] = "POOLENCODE"
    hint: ClassVar[str] = "use str, int, float, bool, None, list and dict, or one bytes argument"

    path: str
    problem: str

    @property
    def hint_now(self) -> str:
        """Of a codec of the user's own: what its values are is its own matter."""
        if self.problem.startswith("the codec "):
            return "mend the codec, or give it what it takes"
        return self.hint


@attrs.define(eq=False, kw_only=True, str=False)
class CodecMissing(PayloadEncodingError):
    """Arguments, a result or a state were made by a codec that this program does not have.

    The name of the codec is stored with what it made. A worker without it leaves the job for one
    that has it, and looks again within the handler's `backoff_max_s`; a caller or an operator gets
    this error. Nothing is lost: a node that has a handler with this codec reads it. For `msgspec`
    any node does, if the package is installed.
    """

    code: ClassVar[str] = "POOLCODEC"
    hint: ClassVar[str] = "read it from a node that has a handler with this codec"

    codec: str

    @property
    def hint_now(self) -> str:
        """Of ours all that can be missing is the package."""
        if self.codec == "msgspec":
            return "install the extra: pip install 'keyed-pool[msgspec]'"
        return self.hint


@attrs.define(eq=False, kw_only=True, str=False)
class UnknownVersion(PayloadEncodingError):
    """Arguments are of a later version than this program knows.

    `version` is theirs, `known` is that of the handler here. A newer program has dispatched the
    job: it waits for a worker that knows the version, and nothing of it is lost. It is looked at
    again within the handler's `backoff_max_s`, and no attempt is counted.
    """

    code: ClassVar[str] = "POOLVERSION"
    hint: ClassVar[str] = "start workers of the newer program"

    version: int
    known: int


@attrs.define(eq=False, kw_only=True, str=False)
class WrongArguments(UsageError):
    """The arguments are not those that the handler takes.

    Too few, too many, one by a name that it does not have, or one of another type than its
    annotation says. Where the handler is known, nothing is sent. A worker parks the job with this
    as its cause, since another attempt would end in the same way: its letter can be edited and
    replayed.
    """

    code: ClassVar[str] = "POOLARGUMENTS"
    hint: ClassVar[str] = "give what the handler's signature says"

    handler: str
    problem: str


@attrs.define(eq=False, kw_only=True, str=False)
class PayloadTooLarge(UsageError):
    """A value is larger than the pool takes.

    `what` is the value that is meant, `size_bytes` what it takes encoded, `size_bytes_max` the
    limit. For jobs that is a setting: `payload_bytes_max` (arguments, and all followers of a job
    together), `result_bytes_max`, `message_bytes_max`, `state_bytes_max`, `steps_bytes_max` (all
    steps of a job). Redis holds all of it in memory, and each worker reads it before it begins: put
    what is large into a file or an object store, and pass its name. `payload_bytes_max` bounds what
    a stream's event carries, too. Of names and topics of streams, and of a map's keys and values,
    the limits are fixed.
    """

    code: ClassVar[str] = "POOLTOOLARGE"
    hint: ClassVar[str] = "store it elsewhere and pass a reference; for a job, raise the setting"

    what: str
    size_bytes: int
    size_bytes_max: int


@attrs.define(eq=False, kw_only=True, str=False)
class TooManySteps(UsageError):
    """The job has stored the results of as many steps as it may.

    `steps_max` (a setting, 100 by default) bounds the names that one job gives to `Job.once()`. The
    step's function was not called. A step for each item of a long list is a job of its own for
    each, or one `save()` of how far the list was worked off.
    """

    code: ClassVar[str] = "POOLSTEPS"
    hint: ClassVar[str] = "fewer, larger steps; or raise steps_max"

    key: str
    step: str
    steps_max: int


@attrs.define(eq=False, kw_only=True, str=False)
class BatchTooLarge(UsageError):
    """The batch would have more members than one may have.

    It stays open with the `members` it has. A member may itself be a batch: see `within`.
    """

    code: ClassVar[str] = "POOLMEMBERS"
    hint: ClassVar[str] = "make batches of it, within one"

    batch: str
    members: int
    members_max: int


@attrs.define(eq=False, kw_only=True, str=False)
class DeadlockRisk(UsageError):
    """A handler waits for a job that cannot end before its own.

    That is its own job, one that is queued behind it, or one whose handler waits for the result of
    its own, maybe over others. The handler whose wait closed the circle is told, as a rule; the
    others go on. Or it waits for a `batch` that the job itself is a member of, by its own batch or
    those that one is within, or one of whose members waits for that job; then `key` and `job_id`
    are that job's.
    """

    code: ClassVar[str] = "POOLDEADLOCK"
    hint: ClassVar[str] = "return the value, or let one of them go on without the result"

    key: str
    job_id: str
    batch: str = ""


@attrs.define(eq=False, kw_only=True, str=False)
class NotRunning(UsageError):
    """It is not open for this call.

    A node, map, stream, reader or sink is used inside its `async with` block, and not after it.
    `state` says what it is now: `new` was never entered, `closed` was left, `forked` is a copy in
    a child process, which may not use it. A call that comes while it opens or closes is refused,
    too. `of make_job()` is the node of a job for tests that was given none: open one, and pass it.
    One that is `draining`, or has `drained`, is a client, and takes no workers. A
    `pool.sync.Client` is used until it is closed, or the interpreter ends.
    """

    code: ClassVar[str] = "POOLNOTRUNNING"
    hint: ClassVar[str] = "use it inside its `async with` block; a pool.sync.Client before close()"
    shell_hint: ClassVar[str] = "run the command again"

    state: str

    @property
    def hint_now(self) -> str:
        """The node of a job for tests is opened by the test."""
        if self.state == "of make_job()":
            return "open a Node and pass it: make_job(..., node=node)"
        return self.hint


@attrs.define(eq=False, kw_only=True, str=False)
class WrongLoop(UsageError):
    """It belongs to another event loop, the one where it was opened; nothing was done.

    From a plain handler, or another thread that anyio knows, use
    `anyio.from_thread.run(node.dispatch, ...)`. Any other thread, such as a Flask view, uses a
    `pool.sync.Client`. That one says it to what runs on its own loop, such as an observer.
    """

    code: ClassVar[str] = "POOLLOOP"
    hint: ClassVar[str] = "call it there, or use a pool.sync.Client in a thread of its own"


@attrs.define(eq=False, kw_only=True, str=False)
class WrongValue(UsageError):
    """The map holds another kind of value under this key."""

    code: ClassVar[str] = "POOLMAPVALUE"
    hint: ClassVar[str] = "strings, lists and whole numbers have operations of their own"

    problem: str


@attrs.define(eq=False, kw_only=True, str=False)
class WrongClaim(UsageError):
    """What a polling worker brings is no claim of its own: nothing was done.

    A claim is what registering, or a poll, has answered, and comes back as it was; those of another
    pool, and those of another worker's jobs, are refused.
    """

    code: ClassVar[str] = "POOLWRONGCLAIM"
    hint: ClassVar[str] = "send claims back as they were given to this worker"

    problem: str


# --- the pool said no -----------------------------------------------------------------------


@attrs.define(eq=False, kw_only=True, str=False)
class RefusedError(PoolError):
    """The pool refused; nothing was changed."""

    code: ClassVar[str] = "POOLREFUSED"


@attrs.define(eq=False, kw_only=True, str=False)
class JobExists(RefusedError):
    """The key has a live job already.

    One key has one job at a time; this is how the pool keeps two from working on it. `handler`,
    `kind`, `state`, `owner` and `job_id` say what is there. Wait for its result; stop it with
    `node.stop(key)`; or say with `node.options(if_exists=...)` what shall happen: `attach` returns
    a reference to the live one, `queue` lets this one wait behind it, `replace` stops it for this
    one, `coalesce` keeps the newest. A service (`kind`) ends only when it is stopped, so a job that
    is queued behind it waits until then. Where both should run at once, they need two keys.
    """

    code: ClassVar[str] = "POOLEXISTS"
    hint: ClassVar[str] = "wait for it, stop it, or dispatch with another if_exists"
    shell_hint: ClassVar[str] = (
        "wait for it (`pool why KEY` says how it is), or stop it with `pool stop KEY`"
    )

    key: str
    job_id: str
    handler: str
    kind: str
    state: str
    owner: str

    @property
    def hint_now(self) -> str:
        """Nobody waits for the end of a service."""
        if self.kind == "service":
            return "stop the service with node.stop(), or dispatch with if_exists attach or replace"
        return self.hint


@attrs.define(eq=False, kw_only=True, str=False)
class JobStopping(RefusedError):
    """The key's live job was asked to stop, so nobody attaches to it any more."""

    code: ClassVar[str] = "POOLSTOPPING"
    retryable: ClassVar[bool] = True
    hint: ClassVar[str] = "dispatch again when it has ended, or with if_exists='queue'"
    shell_hint: ClassVar[str] = "try again when it has ended; `pool why KEY` says how it is"

    key: str
    job_id: str


@attrs.define(eq=False, kw_only=True, str=False)
class ArgumentsDiffer(RefusedError):
    """The key's live job is of another handler, or was given other arguments.

    Whoever attaches to it would wait for the result of something else. With
    `node.options(if_exists="attach", attach_any=True)` that is what is meant.
    """

    code: ClassVar[str] = "POOLDIFFERS"
    hint: ClassVar[str] = "give the arguments of the live one, or ask for attach_any=True"

    key: str
    job_id: str
    handler: str


@attrs.define(eq=False, kw_only=True, str=False)
class QueueFull(RefusedError):
    """So many jobs are queued behind the live one of the key, and no more may."""

    code: ClassVar[str] = "POOLQUEUEFULL"
    retryable: ClassVar[bool] = True
    hint: ClassVar[str] = "retry later, raise queue_max, or use if_exists='coalesce'"
    shell_hint: ClassVar[str] = "retry later, or raise queue_max"

    key: str
    queue_max: int


@attrs.define(eq=False, kw_only=True, str=False)
class IdempotencyConflict(RefusedError):
    """The id, or idempotency key, is that of a job with another handler, arguments or followers.

    It answers for the job that it was given to first, as long as that lives or is remembered, and
    is never another one's. `handler` and `digest` (of handler and encoded arguments; behind a
    hyphen of what follows, if anything) are this dispatch's, `known_handler` and `known_digest`
    those of the job that stands. `differs` is handler, arguments or followers; or id, where that
    job was given none: nobody asks for it by the one that was made for it. It says that two
    callers, or two versions of one, make different jobs under one name: put what tells them apart
    into the key.
    """

    code: ClassVar[str] = "POOLCONFLICT"
    hint: ClassVar[str] = "give each job an id, or idempotency key, of its own"

    key: str
    job_id: str
    handler: str
    digest: str
    known_handler: str
    known_digest: str
    differs: str


@attrs.define(eq=False, kw_only=True, str=False)
class NotWaiting(RefusedError):
    """The job does not wait for a time, so it cannot be made to begin now.

    `state` is how it is: running, done, ...; `problem` says it in words.
    """

    code: ClassVar[str] = "POOLNOTWAITING"
    hint: ClassVar[str] = "requeue what waits for its delay or its next attempt, or a dead letter"

    key: str
    job_id: str
    state: str
    problem: str


@attrs.define(eq=False, kw_only=True, str=False)
class NoSuchLetter(RefusedError):
    """There is no such dead letter: it was replayed or discarded, or is too old."""

    code: ClassVar[str] = "POOLNOLETTER"
    hint: ClassVar[str] = "`node.parked.list()` tells which there are"
    shell_hint: ClassVar[str] = "`pool parked list` shows which there are"

    key: str
    job_id: str


@attrs.define(eq=False, kw_only=True, str=False)
class NoSuchSchedule(RefusedError):
    """There is no schedule of this name: it was removed, its only time is over, or never was."""

    code: ClassVar[str] = "POOLNOSCHEDULE"
    hint: ClassVar[str] = "`node.schedules.list()` tells which there are"
    shell_hint: ClassVar[str] = "`pool schedules list` shows which there are"

    schedule: str


@attrs.define(eq=False, kw_only=True, str=False)
class NoSuchPlan(RefusedError):
    """There is no plan of this name: no job keeps it, or no worker has its producer.

    A node with the producer dispatches that job when it starts, and looks every 10 s whether it is
    still there.
    """

    code: ClassVar[str] = "POOLNOPLAN"
    hint: ClassVar[str] = "`pool plans list` tells which there are"

    plan: str


@attrs.define(eq=False, kw_only=True, str=False)
class PlanRefused(RefusedError):
    """What a plan's producer answers cannot be used.

    It changes nothing: the jobs that the plan has go on, and it is asked again. It failed or did
    not answer in time, named a key twice or more than 100,000 of them, a handler that no node has
    registered, or arguments that cannot be dispatched; `key` says at which.
    """

    code: ClassVar[str] = "POOLPLAN"
    hint: ClassVar[str] = "correct the producer; `pool plans diff` tries it"

    plan: str
    key: str
    problem: str


@attrs.define(eq=False, kw_only=True, str=False)
class PoolFull(RefusedError):
    """The pool already holds as many waiting jobs as it may, or the key's lane its share.

    Nothing was written. `queued_jobs_max` (a setting, a million by default) bounds what is
    accepted and has not begun; each lane has an equal share. It says that more is dispatched than
    is worked off: `pool status` shows what waits, for which handler, and for how long. Add
    workers, or dispatch no faster than they work.
    """

    code: ClassVar[str] = "POOLFULL"
    retryable: ClassVar[bool] = True
    hint: ClassVar[str] = "add workers, raise queued_jobs_max, or retry with backoff"

    queued_jobs: int
    queued_jobs_max: int


@attrs.define(eq=False, kw_only=True, str=False)
class InboxFull(RefusedError):
    """The job already holds as many unhandled messages as it may.

    `messages_max` (a setting, 1,000 by default) bounds what waits in one job's inbox. A
    notification counts as handled when the handler asks for the next one. Send the newest state
    rather than every change, or make the handler faster.
    """

    code: ClassVar[str] = "POOLINBOX"
    retryable: ClassVar[bool] = True
    hint: ClassVar[str] = "the handler is slower than its notifiers: retry with backoff"

    key: str
    messages: int
    messages_max: int


@attrs.define(eq=False, kw_only=True, str=False)
class MapFull(RefusedError):
    """The map holds as many keys and list items as a map may."""

    code: ClassVar[str] = "POOLMAPFULL"
    hint: ClassVar[str] = "every replica keeps all of it in memory: use several maps, or a database"

    items: int
    items_max: int


@attrs.define(eq=False, kw_only=True, str=False)
class NoSuchJob(RefusedError):
    """There is no live job under this key, or none of this id."""

    code: ClassVar[str] = "POOLNOJOB"
    hint: ClassVar[str] = (
        "it has ended, or was never dispatched; by its id it is known while its outcome is kept"
    )

    key: str
    job_id: str = ""


@attrs.define(eq=False, kw_only=True, str=False)
class NoSuchMember(RefusedError):
    """No node with workers, and no worker, has this id.

    Ids are new with every start: it may have left, or died, since it was listed.
    """

    code: ClassVar[str] = "POOLNOMEMBER"
    hint: ClassVar[str] = "`pool status` and Node.workers tell which there are"
    shell_hint: ClassVar[str] = "`pool nodes` and `pool workers` show which there are"

    member: str


@attrs.define(eq=False, kw_only=True, str=False)
class TooManyPaused(RefusedError):
    """So many handlers, or keys, are paused, and no more may be.

    Each script that grants reads the names of paused handlers, and each node has a copy of all.
    """

    code: ClassVar[str] = "POOLPAUSEDMAX"
    hint: ClassVar[str] = "resume some, or pause the handler of these keys, or the whole pool"

    what: str
    paused_max: int


@attrs.define(eq=False, kw_only=True, str=False)
class NoSuchBatch(RefusedError):
    """There is no batch of this id.

    It was never opened, or settled longer than its `keep_s` ago (a day by default), or its lane has
    lost its data. What its members did stands, whatever became of it.
    """

    code: ClassVar[str] = "POOLNOBATCH"
    hint: ClassVar[str] = "pool batches list shows those there are; keep_s says for how long"

    batch: str


@attrs.define(eq=False, kw_only=True, str=False)
class BatchSealed(RefusedError):
    """The batch has all its members, and takes no more.

    Its maker has sealed it, or somebody has cancelled it; or nobody has added a member for its
    `open_s` (an hour by default), and it was sealed by itself. Members that it had before may be
    added again: that changes nothing.
    """

    code: ClassVar[str] = "POOLSEALED"
    hint: ClassVar[str] = "open another one, of another id"

    batch: str
    members: int


@attrs.define(eq=False, kw_only=True, str=False)
class BatchDiffers(RefusedError):
    """The batch that is there has another member in that place, or is within another one.

    It was opened before, and who opens it again must add the same members in the same order, each
    with the same handler and arguments: by their places they are known. `index` is that of the
    first which differs, or of one that others have added meanwhile. `differs` is key, or call: the
    digests of handler and arguments are compared; `known` is what stands there, `asked` what was
    to be added. Nothing of that was accepted.

    Where `differs` is within, a batch that has not ended was to be a member of `asked`, at `index`,
    and is within `known`, or within none: it stays as it was opened. Once it has ended it can be
    a member of any, and counts at once.
    """

    code: ClassVar[str] = "POOLBATCH"
    hint: ClassVar[str] = "add the same members in the same order, or open one of another id"

    batch: str
    index: int
    differs: str
    known: str
    asked: str


@attrs.define(eq=False, kw_only=True, str=False)
class OutcomeExpired(RefusedError):
    """Nothing is known of the job any more: it has ended, or was lost.

    Results other than None, and how jobs failed, are kept for `result_ttl_s` (an hour by default)
    after the end, as long as there is room (`results_bytes_max`); all else for `retry_window_s`.
    Who waits from the beginning gets them at any rate; who asks later must ask within that time.
    """

    code: ClassVar[str] = "POOLEXPIRED"
    hint: ClassVar[str] = "ask sooner, or raise result_ttl_s or the handler's retention_s"

    key: str
    job_id: str


@attrs.define(eq=False, kw_only=True, str=False)
class NotStarted(RefusedError):
    """The job was not seen to begin within the time given.

    The job is accepted and stays so. `why` says what it waited for when it was looked at last, or
    that its store has not answered: then it may have begun. It waits for a free slot (add workers,
    or raise their `capacity`), a worker that knows its handler (start one), its delay or its retry,
    or the worker that was given it and has not begun it.
    """

    code: ClassVar[str] = "POOLNOTSTARTED"
    retryable: ClassVar[bool] = True
    hint: ClassVar[str] = "`why` says what it waits for; add workers, or wait longer"

    key: str
    job_id: str
    waited_s: float
    why: str


@attrs.define(eq=False, kw_only=True, str=False)
class NotStopped(RefusedError):
    """The job has not ended within the time given; its stop stays requested.

    `owner` is the worker that had it when it was looked at last, and `why` says what it does there.
    Waiting longer is one way on: `stop()` again changes nothing and waits. If its handler does not
    end, it swallows cancellation, shields itself from it, or blocks a thread: `pool status` says on
    which host that worker is, and when its process ends the job is ended, too, and not run again.
    Until then nothing else runs under its key (G-02).
    """

    code: ClassVar[str] = "POOLNOTSTOPPED"
    retryable: ClassVar[bool] = True
    hint: ClassVar[str] = "stop it again to wait longer, or end the process of its owner"

    key: str
    job_id: str
    waited_s: float
    owner: str = ""
    why: str = ""


@attrs.define(eq=False, kw_only=True, str=False)
class NotInTime(RefusedError):
    """What a command waited for has not come within the time given; it may come yet.

    Calls of a program raise Python's own `TimeoutError`; the command line says that so. What was
    asked for is not taken back: a turn of a plan stays asked for, a job goes on.
    """

    code: ClassVar[str] = "POOLNOTINTIME"
    retryable: ClassVar[bool] = True
    hint: ClassVar[str] = "look what it waits for, or wait longer: --timeout"

    problem: str


# --- we no longer own it --------------------------------------------------------------------


@attrs.define(eq=False, kw_only=True, str=False)
class LostError(PoolError):
    """What we tried to change is no longer ours."""

    code: ClassVar[str] = "POOLNOTOURS"


@attrs.define(eq=False, kw_only=True, str=False)
class Gone(LostError):
    """This worker or node was fenced, or never joined."""

    code: ClassVar[str] = "POOLGONE"
    hint: ClassVar[str] = "its jobs run elsewhere; the node joins again by itself"

    identity: str


@attrs.define(eq=False, kw_only=True, str=False)
class NotOwner(LostError):
    """This run is over, or its job is another's by now; nothing was stored.

    A state or a step's result is taken from the job's owner alone. Who hears this was cut off, or
    stood still, for longer than its lease lasted, or its handler has ended. What the step's
    function did has happened: whoever runs the job now calls it again with the same `step.key`.
    """

    code: ClassVar[str] = "POOLNOTOWNER"
    hint: ClassVar[str] = "end: the job goes on elsewhere"

    key: str
    job_id: str
    epoch: int


@attrs.define(eq=False, kw_only=True, str=False)
class WorkerGone(LostError):
    """This polling worker has no lease any more: what it held runs elsewhere, or will.

    It was not heard for longer than its lease lasts, it has left, or the pool has lost its data. It
    registers again, as another worker, and ends everything it runs: none of it can be settled.
    """

    code: ClassVar[str] = "POOLWORKERGONE"
    hint: ClassVar[str] = "end what it runs, and register again"

    worker: str


@attrs.define(eq=False, kw_only=True, str=False)
class ClaimRefused(LostError):
    """A polling worker's word about a job was refused; nothing was done.

    `reason` is expired (its worker has no lease any more), timed out (it is past its limit, and was
    ended as such), moved (another worker has it, or it waits for one), superseded (it has ended by
    somebody else's word), or unreadable (its record is damaged, and will be parked).
    """

    code: ClassVar[str] = "POOLCLAIM"
    hint: ClassVar[str] = "drop the job: it goes on, or has ended, without this worker"

    key: str
    job_id: str
    epoch: int
    reason: str


# --- Redis ----------------------------------------------------------------------------------


@attrs.define(eq=False, kw_only=True, str=False)
class StoreError(PoolError):
    """The store did not do what was asked."""

    code: ClassVar[str] = "POOLSTORE"


@attrs.define(eq=False, kw_only=True, str=False)
class StoreUnavailable(StoreError):
    """Redis cannot be reached, or did not answer in time.

    `problem` says where and how: refused, no address, no answer in time, a certificate. The
    deadline is `op_timeout_s` (2 s by default), and counts while nothing moves. With
    `maybe_done=False` nothing was done. With True the call may have been carried out, or may still
    be. A dispatch repeated after that finds `JobExists` if the first one was done and runs still
    (`if_exists="attach"` takes that one); a stop may be repeated; a notification may come twice;
    of maps and streams, additions may count twice. Running handlers are not your worry: their node
    stops them before others may take their keys, and goes on afterwards.
    """

    code: ClassVar[str] = "POOLUNAVAILABLE"
    retryable: ClassVar[bool] = True
    hint: ClassVar[str] = "check the server and the network; the same call may be repeated"

    problem: str
    maybe_done: bool  # True: the server may have done it, or may still do it

    @property
    def hint_now(self) -> str:
        """Name the setting of a server that refuses all writes, or has no room for an answer."""
        if was_cut(self):
            return (
                "if other calls are answered, this answer is larger than the server may hold for a "
                "client: raise client-output-buffer-limit normal, or set it to 0 0 0"
            )
        if "MISCONF" in self.problem:
            return (
                "free space on the server's disk, or give it a directory that it may write to; see "
                "its log, and rdb_last_bgsave_status and aof_last_write_status in INFO persistence"
            )
        return self.hint


@attrs.define(eq=False, kw_only=True, str=False)
class StoreLost(StoreError):
    """The server came back without this pool's data.

    With `maybe_done=True` the call may have been carried out before that: an earlier try of it had
    no answer, or it was accepted and waited for its end. A handler may have seen it; what the store
    kept of it is gone. With `maybe_done=False` nothing was done.
    """

    code: ClassVar[str] = "POOLDATALOST"
    hint: ClassVar[str] = "what was accepted before is gone: do it again, and check persistence"

    pool: str
    maybe_done: bool = False  # True: the server may have done it before it lost its data


@attrs.define(eq=False, kw_only=True, str=False)
class JobLost(StoreError):
    """The store has lost the job: it was there, and neither it nor an outcome is."""

    code: ClassVar[str] = "POOLJOBLOST"
    hint: ClassVar[str] = "dispatch it again if it is still wanted, and check persistence"

    key: str
    job_id: str


@attrs.define(eq=False, kw_only=True, str=False)
class StorageFull(StoreError):
    """Redis is at its memory limit; nothing was written.

    `maxmemory` of the server is reached, and a pool never lets it evict. What ends jobs still
    works, so that a full server drains itself. See what takes the memory: waiting jobs (`pool
    status`), outcomes (`result_ttl_s`), dead letters (`parked_ttl_s`), events of streams without a
    `length_max`, maps, or somebody else's keys.
    """

    code: ClassVar[str] = "POOLSTORAGE"
    retryable: ClassVar[bool] = True
    hint: ClassVar[str] = "raise maxmemory, wait until jobs have drained, or trim streams and maps"


@attrs.define(eq=False, kw_only=True, str=False)
class AuthError(StoreError):
    """Redis refused these credentials, or what they may do.

    Either user and password are wrong, or the user lacks a right: `problem` names the command or
    key. `pool acl NAME` prints the rules that a user of that pool needs, for `ACL SETUSER` or an
    ACL file; a user of `pool maps`, `streams` or `purge` needs those of `pool acl NAME --operator`.
    Print them anew for each version, before you roll it out.
    """

    code: ClassVar[str] = "POOLAUTH"
    hint: ClassVar[str] = "check user and password; `pool acl NAME` prints the rules it needs"

    problem: str

    @property
    def hint_now(self) -> str:
        """The rules of a pool's nodes lack the right to list the names of all keys."""
        if "+scan " in self.problem:
            return "`pool acl NAME --operator` prints the rules that `maps` and the like need"
        return self.hint


@attrs.define(eq=False, kw_only=True, str=False)
class UnsupportedServer(StoreError):
    """This server cannot hold a pool.

    It is too old, a replica, in cluster mode (use `redis+cluster://`), or may evict keys: a pool
    needs `maxmemory-policy noeviction`, as jobs would vanish otherwise. Managed servers often have
    another policy by default.
    """

    code: ClassVar[str] = "POOLSERVER"
    hint: ClassVar[str] = "use a primary of Redis >= 7.0 or Valkey that evicts nothing"

    problem: str


@attrs.define(eq=False, kw_only=True, str=False)
class WrongProtocol(StoreError):
    """The pool is kept in another layout than this version of pool reads and writes.

    `protocol` is the number that stands in the pool (-1: it cannot be read), `ours` is that of this
    version. Nothing was read beyond the number, and nothing was written. All nodes, gateways and
    command lines of a pool need versions with the same number. `pool --version` prints the version
    of a command line. A pool of another number can only be looked at, operated and purged by
    its own version.
    """

    code: ClassVar[str] = "POOLPROTOCOL"
    hint: ClassVar[str] = "use the version that the pool's nodes run, or another pool"

    pool: str
    protocol: int
    ours: int


@attrs.define(eq=False, kw_only=True, str=False)
class NoServer(StoreError):
    """No server program was found for an embedded:// address."""

    code: ClassVar[str] = "POOLNOSERVER"
    hint: ClassVar[str] = "pip install 'keyed-pool[embedded]'"

    tried: tuple[str, ...]


@attrs.define(eq=False, kw_only=True, str=False)
class StoreFault(StoreError):
    """Redis answered with what pool does not expect: an error, or what cannot be read."""

    code: ClassVar[str] = "POOLFAULT"
    hint: ClassVar[str] = "this may be a bug in pool, or foreign data under its keys"

    problem: str
    maybe_done: bool = True  # such an answer does not say that nothing was done


_TRIED: Final = "an earlier try had no answer, and may have been carried out; the last one: "


_CUT: Final = " times in a row while it answered"


def unsure(error: PoolError) -> StoreUnavailable | StoreFault | StoreLost:
    """Return what to raise where the last try failed, and one before it may have been done."""
    if isinstance(error, StoreLost):
        return attrs.evolve(error, maybe_done=True)
    if not isinstance(error, (StoreUnavailable, StoreFault)):
        return StoreUnavailable(problem=f"{_TRIED}{error}", maybe_done=True)
    if error.maybe_done:
        return attrs.evolve(error)
    return attrs.evolve(error, problem=_TRIED + error.problem, maybe_done=True)


def cut(error: StoreUnavailable, times: int) -> StoreUnavailable:
    """Return what to raise where the server ended so many connections, and answered nothing."""
    return attrs.evolve(error, problem=f"{error.problem}, {times}{_CUT}")


def was_cut(error: PoolError) -> bool:
    """Whether the server ended several connections in a row instead of an answer."""
    return isinstance(error, StoreUnavailable) and _CUT in error.problem


def unchanged(error: StoreUnavailable | StoreFault) -> StoreUnavailable | StoreFault:
    """Return what to raise where all tries only looked, whatever became of each."""
    return attrs.evolve(error, problem=error.problem.removeprefix(_TRIED), maybe_done=False)


# --- the node itself ------------------------------------------------------------------------


@attrs.define(eq=False, kw_only=True, str=False)
class NodeError(PoolError):
    """The node cannot go on."""

    code: ClassVar[str] = "POOLNODE"


@attrs.define(eq=False, kw_only=True, str=False)
class PartEnded(NodeError):
    """A part of the node ended though nobody had asked it to."""

    code: ClassVar[str] = "POOLPART"
    hint: ClassVar[str] = "report it with the lines of actor.crashed before; start the node again"

    part: str
    problem: str


# --- the job's own outcome ------------------------------------------------------------------


@attrs.define(eq=False, kw_only=True, str=False)
class HandlerError(PoolError):
    """The job ended without a result."""

    code: ClassVar[str] = "POOLHANDLER"


@attrs.define(eq=False, kw_only=True, str=False)
class StartFailed(HandlerError):
    """The job's last attempt failed, and it waits for the next one."""

    code: ClassVar[str] = "POOLSTARTFAILED"
    hint: ClassVar[str] = "mend the cause; `result()` waits for how it ends"
    shell_hint: ClassVar[str] = "mend the cause; `pool why KEY` says when the next attempt is due"

    key: str
    job_id: str
    last_error: str


@attrs.define(eq=False, kw_only=True, str=False)
class ProcessFailed(HandlerError):
    """A function that a handler had called in a process raised.

    `raised` is the name of the exception's type, `problem` its text; a note of this error is the
    traceback (`error.__notes__`). Nothing else comes over from another process. It also says so
    if the function cannot be imported there: the process has our `sys.path` and environment, and
    imports the function's module anew.
    """

    code: ClassVar[str] = "POOLPROCFAILED"
    hint: ClassVar[str] = "its traceback stands below, and in the attempt's"

    function: str
    raised: str
    problem: str


@attrs.define(eq=False, kw_only=True, str=False)
class ProcessDied(HandlerError):
    """The process of a function ended before it had an answer.

    `signal` is what ended it, such as SIGSEGV, and empty if it exited by itself, with `exit_code`.
    SIGKILL is the kernel's, as a rule, where the machine or the container has no memory left:
    `memory_bytes` lets the function know before that. What it printed last stands in our output.
    """

    code: ClassVar[str] = "POOLPROCDIED"
    hint: ClassVar[str] = "look at what it printed; SIGKILL often means that memory ran out"

    function: str
    exit_code: int  # below 0: minus the signal's number
    signal: str


@attrs.define(eq=False, kw_only=True, str=False)
class OutOfMemory(HandlerError):
    """A function wanted more memory than its process may have.

    `memory_bytes` of `Job.run_blocking()` limits the address space, Python itself and what
    libraries reserve included: numpy takes some hundred megabytes before it holds anything.
    """

    code: ClassVar[str] = "POOLMEMORY"
    hint: ClassVar[str] = "raise memory_bytes, or give it less to do at a time"

    function: str
    memory_bytes: int


@attrs.define(eq=False, kw_only=True, str=False)
class MiddlewareFailed(HandlerError):
    """What stands around the dispatches of a handler raised.

    Of `dispatch_many()`, in the place of the call that it was: the others went on.  `__cause__` is
    what was raised; `dispatch()` raises that itself.
    """

    code: ClassVar[str] = "POOLMIDDLEWARE"
    hint: ClassVar[str] = "nothing was sent, unless it raised behind its call_next()"

    key: str
    problem: str


@attrs.define(eq=False, kw_only=True, str=False)
class JobParked(HandlerError):
    """The job was given up and lies in the dead letters.

    `cause` says why: "failed" or "timed out" (its `attempts` are used up, `last_error` is the last
    one's), "poison" (it is suspected of having killed its workers), "malformed payload" (its
    arguments cannot be read), "undeliverable payload" (the server ends each connection that fetches
    its arguments, as where `client-output-buffer-limit` is smaller than they are), "unusable
    result" (what it returned cannot be stored), "wrong arguments" (they are not those of its
    handler), or what its handler said with `Park`, in one line, with `¦` for `|`. Dead letters are
    kept for `parked_ttl_s`, 30 days by default, and hold no key: a new dispatch may follow at
    once. If one was replayed, `replayed_as` is the id of the job that was made from it.
    """

    code: ClassVar[str] = "POOLPARKED"
    hint: ClassVar[str] = "mend the cause, then replay it: `pool parked`"

    key: str
    job_id: str
    cause: str
    attempts: int
    last_error: str
    replayed_as: str = ""


@attrs.define(eq=False, kw_only=True, str=False)
class BatchFailed(HandlerError):
    """The batch has settled, and fewer members have succeeded than must.

    Or it was cancelled, as `state` says. The counts are those of its end; `BatchRef.members()`
    tells of each member what became of it. A dead letter that is replayed is a new job, and changes
    nothing here.
    """

    code: ClassVar[str] = "POOLBATCHFAILED"
    hint: ClassVar[str] = "members() says which failed, and pool parked why"
    shell_hint: ClassVar[str] = (
        "`pool batches show ID` counts the failed ones, and `pool parked list` says why"
    )

    batch: str
    state: str
    expected: int
    succeeded: int
    failed: int
    cancelled: int
    missing: int
    cause: str = ""


@attrs.define(eq=False, kw_only=True, str=False)
class JobCancelled(HandlerError):
    """The job was stopped before it had a result."""

    code: ClassVar[str] = "POOLCANCELLED"
    hint: ClassVar[str] = "dispatch it again if it is wanted after all"

    key: str
    job_id: str
    cause: str


@attrs.define(eq=False, kw_only=True, str=False)
class JobSuperseded(JobCancelled):
    """It was queued behind a live job, and a newer dispatch took its place before it began.

    `by` is the id of that one; its result is what is left to wait for.
    """

    code: ClassVar[str] = "POOLSUPERSEDED"
    hint: ClassVar[str] = "wait for the job that took its place"

    by: str


@attrs.define(eq=False, kw_only=True, str=False)
class JobExpired(JobCancelled):
    """It was not started within its `expires_s`, so it never was, and never will be."""

    code: ClassVar[str] = "POOLTOOLATE"
    hint: ClassVar[str] = "dispatch it again if it is still wanted; see if it lacks workers"
