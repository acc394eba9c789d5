"""Jobs that follow a job: what is to be dispatched when it has ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs

from pool import checks
from pool.core.codec import check_size, encode_call
from pool.core.followers import NO_PLACE, Follows, When, follower_id
from pool.errors import InvalidOption
from pool.jobs.handlers import Handler, Handlers
from pool.jobs.typed.contract import OutcomeForms, check_first, outcome_of
from pool.jobs.typed.converters import ANY
from pool.names import check_handler, check_new_key, lane_of

WHY_NOT: Final = OutcomeForms("why the one before it was not done, str", frozenset({"text"}))
COUNTS: Final = OutcomeForms("the counts of a batch, dict", frozenset({"object"}))
FOLLOWERS_MAX: Final = 256  # of one dispatch, and of one run, those of its followers included
CHAIN_MAX: Final = 32  # followers of followers


class Follower:
    """A job that is dispatched when another one has ended.

    Give it to `Node.options(then=...)` or `(otherwise=...)`, or to `Job.then()`.  It cannot be
    changed, so no chain of them leads back to its beginning.

    It is accepted in the step that ends its predecessor: whichever process dies then, it runs, and
    once.  It is never refused: if its key has a live job it waits behind that one, whatever its
    handler's `if_exists` says, and it does not count against `Settings.queued_jobs_max`.

    Args:
        handler: As for `Node.dispatch()`.
        key: Likewise.
        *args: The function's own arguments.
        **kwargs: Likewise.
    """

    __slots__ = (
        *("args", "handler", "key", "kwargs"),
        *("_delay_s", "_otherwise", "_takes_result", "_then"),
    )

    def __init__(
        self, handler: Handler[..., Any] | str, key: str, /, *args: Any, **kwargs: Any
    ) -> None:
        self.handler: Handler[..., Any] | str = handler
        self.key: str = key
        self.args: tuple[Any, ...] = args
        self.kwargs: dict[str, Any] = kwargs
        self._then: tuple[Follower, ...] = ()
        self._otherwise: tuple[Follower, ...] = ()
        self._delay_s, self._takes_result = 0.0, False

    def options(
        self,
        *,
        then: Follower | Iterable[Follower] = (),
        otherwise: Follower | Iterable[Follower] = (),
        takes_result: bool = False,
        delay_s: float = 0.0,
    ) -> Follower:
        """Return it with other options.

        Args:
            then: What follows when it is done, at most 32 one after another, 256 in all.
            otherwise: What follows when it was stopped or parked.  A parked one without any keeps
                `then` for its replay.
            takes_result: Its first argument is what its predecessor returned, or, where it follows
                otherwise, why that one was not done: text, such as "parked: failed: ValueError: 3".
                `bytes` can only be its only argument, and what a codec other than JSON made none:
                what can never fit, by what both handlers say, is refused when it is dispatched.
            delay_s: Start it no earlier than so many seconds after that, at most 365 days.

        Raises:
            InvalidOption: A value is out of bounds, or is none.
        """
        made = Follower(self.handler, self.key, *self.args, **self.kwargs)
        made._then = several("then", then)
        made._otherwise = several("otherwise", otherwise)
        made._takes_result = checks.flag("takes_result", takes_result)
        made._delay_s = checks.seconds("delay_s", delay_s)
        return made

    def __repr__(self) -> str:
        name = self.handler if isinstance(self.handler, str) else self.handler.name
        return f"Follower({name!r}, {self.key!r}, ...)"


def several(option: str, given: object) -> tuple[Follower, ...]:
    """Return one or several followers.

    Raises:
        InvalidOption: There is something else among them, or there are too many.
    """
    if issubclass(type(given), Follower):
        return (given,)  # type: ignore[return-value]
    found = []
    for each in checks.several(option, given, "Follower(...) or several"):
        found.append(checks.instance(option, each, Follower))
        if len(found) > FOLLOWERS_MAX:
            raise _too_many(option)
    return tuple(found)


def count_of(followers: Sequence[Follower]) -> int:
    """Return how many these are, with their own."""
    return sum(1 + count_of(each._then) + count_of(each._otherwise) for each in followers)


@attrs.define(eq=False)
class Packer:
    """Packs followers for the script that ends their predecessor."""

    lanes: int
    payload_bytes_max: int
    handlers: Handlers | None = None  # those that are known by their names
    has_kinds: bool = attrs.field(default=True, kw_only=True)  # else as who does not know them
    left: int = FOLLOWERS_MAX  # how many more there may be

    def pack(
        self,
        then: Sequence[Follower],
        otherwise: Sequence[Follower] = (),
        *,
        key: str,
        job_id: str,
        who: str = "",
        had: bytes = b"",
        after: OutcomeForms | None = None,
    ) -> bytes:
        """Return the followers of a job, behind those that it had; `who` has added them.

        `after` is what the job may end with, as far as that is known.

        Raises:
            InvalidKey, InvalidOption, ConfigError: One cannot be dispatched.
            PayloadEncodingError, WrongArguments: Nor with these arguments.
            PayloadTooLarge: One is too large, or all are together.
        """
        who = f"{who} {len(had)}"
        packed = had + self._of(then, otherwise, key, job_id, who, CHAIN_MAX, after)
        check_size("followers", packed, self.payload_bytes_max)
        return packed

    def _of(
        self,
        then: Sequence[Follower],
        otherwise: Sequence[Follower],
        key: str,
        job_id: str,
        who: str,
        depth_left: int,
        after: OutcomeForms | None,
    ) -> bytes:
        texts = []
        some: tuple[tuple[When, Sequence[Follower]], ...]
        some = (("then", then), ("otherwise", otherwise))
        for when, followers in some:
            for number, follower in enumerate(followers):
                own_id = follower_id(key, job_id, f"{who} {when} {number}")
                outcome = WHY_NOT if when == "otherwise" else after
                texts.append(self._one(when, follower, own_id, depth_left, outcome))
        return b"".join(texts)

    def _one(
        self,
        when: When,
        follower: Follower,
        job_id: str,
        depth_left: int,
        outcome: OutcomeForms | None,
    ) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise _too_many(when)
        if not depth_left:
            raise checks.option(when, follower, f"a chain of at most {CHAIN_MAX}")
        key, handler, then = follower.key, follower.handler, (follower._then, follower._otherwise)
        check_new_key(key)
        known: Handler[..., Any] | None
        if isinstance(handler, Handler):
            known, name = handler, handler.name
        else:
            check_handler(handler)
            name = handler
            known = self.handlers.get(name) if self.handlers is not None else None
        if follower._takes_result:
            call = self._behind(name, known, follower, outcome)
        elif known is None:
            call = encode_call(follower.args, follower.kwargs)
        else:
            call = known._arguments.encode(name, follower.args, follower.kwargs)
            if not self.has_kinds:
                known._arguments.check_canonical(call, name, follower.args, follower.kwargs)
        check_size("payload", call, self.payload_bytes_max)
        return Follows(
            when=when,
            key=key,
            id=job_id,
            handler=name,
            kind=known._options.kind if known and self.has_kinds else None,
            lane=lane_of(key, self.lanes),
            delay_ms=round(follower._delay_s * 1000),
            place=call.index(b"null") if follower._takes_result else NO_PLACE,
            call=call,
            followers=self._of(*then, key, job_id, "", depth_left - 1, outcome_by(known)),
        ).pack()

    def _behind(
        self,
        name: str,
        known: Handler[..., Any] | None,
        follower: Follower,
        outcome: OutcomeForms | None,
    ) -> bytes:
        """Return a call that lacks its first argument.  What never fits is refused now: later it
        would park a job whose predecessor has done its work.
        """
        args, kwargs = follower.args, follower.kwargs
        is_alone = not args and not kwargs
        first = ANY if known is None else known._arguments.first
        if outcome is not None:
            check_first(name, outcome, first, is_alone=is_alone)
        if known is None:
            return encode_call((None, *args), kwargs)
        return known._arguments.encode_behind(name, args, kwargs)


def outcome_by(handler: Handler[..., Any] | None) -> OutcomeForms | None:
    """Return what the jobs of a handler may end with, as far as it is known."""
    if handler is None:
        return None
    return outcome_of(handler.name, handler.fn, handler._arguments.encoding.name)


def _too_many(option: str) -> InvalidOption:
    problem = f"at most {FOLLOWERS_MAX}, those of followers included"
    return InvalidOption(option=option, value=f"over {FOLLOWERS_MAX}", problem=problem)
