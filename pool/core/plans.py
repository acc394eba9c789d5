"""What a plan makes of an answer: which jobs begin, end and are replaced, and whether it may.

A job of a plan is told by its id, which is made of the plan's name, its handler and its arguments:
so the record itself says whose it is and what it was asked for, from the step that accepted it on.
Nothing else is stored of what a plan has.  What is stored of its turns has bounds of its own, and
is saved whatever `Settings.state_bytes_max` says: a turn that could not be saved would be taken
again and again, and answer nobody.

    wanted   has a live job        verdict
    yes      none                  start
    yes      of this id            keep
    yes      of the plan, other    replace: stop that one, and start once it has ended
    yes      anybody else's        taken: left alone
    no       of the plan           stop
    no       anybody else's        nothing
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final, Literal, TypeAlias, TypeVar

import attrs

from pool.core.codec import decode_value, encode_value
from pool.core.record import Record, more_of, state_of
from pool.errors import PayloadEncodingError
from pool.names import OF_PLANS

# Of the handler that keeps a plan, and of the one that compares and changes nothing.
Part: TypeAlias = Literal["plan", "diff"]
_HANDLER: Final = re.compile(r"(.+):(?:plan|diff)(?:[.](\d{1,6}))?", re.ASCII)
_ID: Final = re.compile(r"plan:([^:]+):([0-9a-f]+)(?:[.]\d+)?", re.ASCII)
NAME_CHARS_MAX: Final = 64
KEYS_MAX: Final = 100_000  # in one answer
TOLD_MAX: Final = 20  # keys of a kind that are named
# Turns that somebody had asked for and are remembered: more than there are between two looks of
# who asks, and no more than can be read as often as many look.
ANSWERED_MAX: Final = 64
ANSWERED_BYTES_MAX: Final = 16_384
CONFIRMED_MAX: Final = 256  # confirmations that are remembered as done: all of one turn
ID_CHARS_MAX: Final = 64  # of what a message calls itself: ours are half as long
PROBLEM_CHARS_MAX: Final = 500
# Which lets it stop all that it has, whatever that is at the next answer.
ANYTHING: Final = "any"

T = TypeVar("T")
Verdict: TypeAlias = Literal["start", "keep", "replace", "taken", "stop", "nothing"]


def plan_key(name: str) -> str:
    """Return the key of the job that keeps a plan."""
    return f"{OF_PLANS}{name}"


def handler_of(name: str, part: Part, version: int) -> str:
    """Return the name of a plan's handler.

    The version is in it: a worker that has only another one is never given the plan.
    """
    return f"{name}:{part}" if version == 1 else f"{name}:{part}.{version}"


def plan_and_version(handler: str) -> tuple[str, int]:
    """Return which plan a handler is of, and of which version; an empty name if it is of none."""
    match = _HANDLER.fullmatch(handler)
    return (match[1], int(match[2] or 1)) if match else ("", 0)


def planned_id(name: str, digest: str) -> str:
    """Return the id of a plan's job."""
    return f"{OF_PLANS}{name}:{digest}"


def plan_of(job_id: str) -> str:
    """Return the name of the plan that has started a job of this id; empty: none has."""
    return _plan_and_digest(job_id)[0]


def after(job_id: str, epoch: int) -> str:
    """Return the id of the one that follows a job of a plan which the plan itself has ended.

    The same whoever asks, and another one for each run: so it is started once, and at once, also
    while it is remembered how that one ended.
    """
    return f"{planned_id(*_plan_and_digest(job_id))}.{epoch}"


def _plan_and_digest(job_id: str) -> tuple[str, str]:
    found = _ID.fullmatch(job_id)
    return (found[1], found[2]) if found else ("", "")


def own_id(name: str, record: Record) -> str:
    """Return by which id a record is a plan's, without its run; empty if it is not.

    What was made from a dead letter of its is, too.
    """
    for job_id in ids_of(record.id, record.more):
        plan, digest = _plan_and_digest(job_id)
        if plan == name:
            return planned_id(name, digest)
    return ""


def ids_of(job_id: str, more: str) -> tuple[str, ...]:
    """Return the id of a job, and those of the dead letters that it was made from."""
    return (job_id, more_of(more, "lineage"), more_of(more, "origin"))


def judge(name: str, wanted_id: str, record: Record | None) -> Verdict:
    """Say what becomes of a key; `wanted_id` is empty where it is not wanted."""
    if record is None:
        return "start" if wanted_id else "nothing"
    own = own_id(name, record)
    if not wanted_id:
        return "stop" if own else "nothing"
    if not own:
        return "taken"
    return "keep" if own == wanted_id else "replace"


@attrs.define
class Diff:
    """What an answer would change.  Of what ends also the id, so that no other job is stopped."""

    starts: list[str] = attrs.field(factory=list)
    stops: list[tuple[str, str]] = attrs.field(factory=list)
    replaces: list[tuple[str, str]] = attrs.field(factory=list)
    taken: list[str] = attrs.field(factory=list)
    kept: int = 0
    _mark: int = 0

    def add(self, key: str, verdict: Verdict, live_id: str) -> None:
        """Take the verdict about a key."""
        match verdict:
            case "start":
                self.starts.append(key)
            case "keep":
                self.kept += 1
            case "replace":
                self.replaces.append((key, live_id))
            case "taken":
                self.taken.append(key)
            case "stop":
                self.stops.append((key, live_id))
                mark = blake2b(f"{live_id} {key}".encode(), digest_size=8).digest()
                self._mark ^= int.from_bytes(mark, "big")  # in whatever order they are found

    @property
    def had(self) -> int:
        """How many live jobs the plan has."""
        return self.kept + len(self.replaces) + len(self.stops)

    @property
    def token(self) -> str:
        """What tells these stops from any others."""
        return f"{len(self.stops)}-{self._mark:016x}"

    def is_held(self, stop_max: float, confirmed: Collection[str] = ()) -> bool:
        """Say whether it would stop more than it may without somebody's word.

        All, or more than this share of what the plan has.
        """
        stops = len(self.stops)
        if not stops or self.token in confirmed or ANYTHING in confirmed:
            return False
        return stops == self.had or stops > stop_max * self.had


# --- what is told of it -----------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class PlanTurn:
    """How a turn of a plan went; it is stored with the job that keeps the plan.

    `at_ms` is pool time, when it ended, and `took_ms` how long it took.  Of the `wanted` keys
    `kept` had their job already, `started` and `replaced` have a new one, `ended` had one that is
    over and still remembered, or parked; `refused` could not be started, and `problem` says why
    the first was; `taken` have a job of somebody else's.  `stopped` have ended, `stopping` were
    told to and had not.  `held` stops wait for `token` to be confirmed, and nothing was changed.
    Of keys the first 20 are named.  `asked` says how many requests it has answered.
    """

    number: int = 0
    epoch: int = 0
    at_ms: int = 0
    took_ms: int = 0
    wanted: int = 0
    kept: int = 0
    started: int = 0
    stopped: int = 0
    replaced: int = 0
    stopping: int = 0
    ended: int = 0
    refused: int = 0
    taken: int = 0
    taken_keys: tuple[str, ...] = ()
    held: int = 0
    held_keys: tuple[str, ...] = ()
    token: str = ""
    problem: str = ""
    asked: int = 0


@attrs.frozen
class AskedTurn:
    """A turn that somebody had asked for."""

    upto: int  # the newest request that it has answered, by its number in the inbox
    turn: PlanTurn


@attrs.frozen
class Turns:
    """How a plan's last turns went: what the job that keeps it has saved."""

    last: PlanTurn = attrs.field(factory=PlanTurn)
    asked: tuple[AskedTurn, ...] = ()  # the oldest first
    confirmed: tuple[tuple[str, int], ...] = ()  # id of a confirmation, number of its turn

    @property
    def upto(self) -> int:
        """The newest request that was answered."""
        return self.asked[-1].upto if self.asked else 0

    def answer(self, number: int, asked: str) -> PlanTurn | None:
        """Return the turn that has answered a request; None: none has yet.

        What was sent twice, as an answer of the store was lost, has its id; whoever looks too late
        finds the earliest that is remembered of those that came behind it.
        """
        turn = dict(self.confirmed).get(asked)
        for each in self.asked:
            if each.upto >= number if turn is None else each.turn.number >= turn:
                return each.turn
        return None

    def then(self, turn: PlanTurn, upto: int, confirmed: Sequence[str]) -> Turns:
        """Return them with one more, which has answered all up to a request, if to any.

        Numbers of requests rise.  If this one is lower than one before it, the server lost those
        requests, and their turns have answered none of now.
        """
        if not turn.asked:
            return attrs.evolve(self, last=turn)
        of_now = (each for each in self.asked if each.upto <= upto)
        asked = [*of_now, AskedTurn(upto, turn)][-ANSWERED_MAX:]
        sizes = [len(encode_value(_pack(each.turn))) for each in asked]
        while len(asked) > 1 and sum(sizes) > ANSWERED_BYTES_MAX:
            del asked[0], sizes[0]
        done = [*self.confirmed, *((each, turn.number) for each in confirmed)]
        return Turns(turn, tuple(asked), tuple(done[-CONFIRMED_MAX:]))


def pack_turns(turns: Turns) -> dict[str, Any]:
    """Return them in terms of JSON."""
    return {
        "last": _pack(turns.last),
        "asked": [[each.upto, _pack(each.turn)] for each in turns.asked],
        "confirmed": [list(each) for each in turns.confirmed],
    }


def parse_turns(state: object) -> Turns:
    """Return them; what cannot be read is left out."""
    if not isinstance(state, Mapping):
        return Turns()
    asked = [AskedTurn(upto, _parse(turn)) for upto, turn in _pairs(state.get("asked"), int)]
    done = [(each, turn) for each, turn in _pairs(state.get("confirmed"), str) if type(turn) is int]
    return Turns(_parse(state.get("last")), tuple(asked), tuple(done))


def _pairs(value: object, kind: type[T]) -> Iterator[tuple[T, Any]]:
    for each in value if isinstance(value, (list, tuple)) else ():
        if isinstance(each, (list, tuple)) and len(each) == 2 and type(each[0]) is kind:
            yield each[0], each[1]


def _pack(turn: PlanTurn) -> dict[str, Any]:
    """Return a turn in terms of JSON, without what is nothing."""
    return {name: value for name, value in attrs.asdict(turn).items() if value}


def _parse(state: object) -> PlanTurn:
    """Return a turn; what cannot be read is left out."""
    if not isinstance(state, Mapping):
        return PlanTurn()
    found: dict[str, Any] = {}
    for field in attrs.fields(PlanTurn):
        value = state.get(field.name)
        if isinstance(field.default, tuple) and isinstance(value, (list, tuple)):
            found[field.name] = tuple(str(each) for each in value)
        elif type(value) is type(field.default):
            found[field.name] = value
    return PlanTurn(**found)


def stored_turns(saved: bytes | None) -> Turns:
    """Return the last turns of a plan, by what the job that keeps it has saved."""
    with suppress(PayloadEncodingError):  # of another's, who has written there
        return parse_turns(None if saved is None else decode_value(state_of(saved)))
    return Turns()


def facts_of(diff: Diff, *, is_held: bool, wanted: int) -> Mapping[str, Any]:
    """Return a diff in terms of JSON, with the first keys of each kind."""
    return {
        "wanted": wanted,
        "kept": diff.kept,
        "counts": [len(diff.starts), len(diff.stops), len(diff.replaces), len(diff.taken)],
        "starts": diff.starts[:TOLD_MAX],
        "stops": [key for key, _ in diff.stops[:TOLD_MAX]],
        "replaces": [key for key, _ in diff.replaces[:TOLD_MAX]],
        "taken": diff.taken[:TOLD_MAX],
        "is_held": is_held,
        "token": diff.token if is_held else "",
    }
