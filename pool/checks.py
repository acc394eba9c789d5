"""What callers give, checked before anything is sent.  Floor 0: imports only our errors.

A check returns the value as it may be used, or raises what names the argument, what was given and
what it must be.  Only the *type* of a stranger's value is asked, and of a subclass of `int` or
`float` what its base holds: a `repr`, a comparison, `bool()`, `__class__` of its own may raise,
lie, or take for ever.

Names have the rules of the keys that they end up in: see `pool.names`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from inspect import iscoroutinefunction
from typing import Any, Final, TypeAlias, TypeVar

from pool.errors import ConfigError, InvalidOption, UsageError, shown

SECONDS_MAX: Final = 365 * 86_400.0  # of a delay, a backoff, a time limit, or a wait

T = TypeVar("T")
# Makes the error: of which argument, what was given, and what it must be.
Refuse: TypeAlias = Callable[[str, object, str], UsageError]


def option(name: str, given: object, must: str) -> UsageError:
    """Say it of an option of a call."""
    return InvalidOption(option=name, value=shown(given), problem=f"not {must}")


def setting(name: str, given: object, must: str) -> UsageError:
    """Say it of what describes a node or a handler."""
    return ConfigError(setting=name, problem=f"{told(given)} is not {must}")


def told(given: object) -> str:
    """Return what was given as it stands within a sentence."""
    return repr(shown(given)) if type(given) is str else shown(given)


# --- numbers and words ----------------------------------------------------------------------


def number(
    name: str,
    given: object,
    low: float,
    high: float,
    *,
    unit: str = "",
    whole: bool = False,
    refuse: Refuse = option,
) -> Any:
    """Take a number within bounds, of whatever kind of `int` or `float`, as the plain one."""
    value: Any = given
    kind = type(given)
    if kind is not int and kind is not float:
        value = None
        if issubclass(kind, int) and kind is not bool:
            value = int.__int__(given)  # type: ignore[arg-type]
        elif issubclass(kind, float):
            value = float.__float__(given)  # type: ignore[arg-type]
    if value is None or (whole and type(value) is float) or not low <= value <= high:  # or NaN
        what = "a whole number" if whole else "a number"
        must = f"{what} from {_bound(low)} to {_bound(high)} {unit}".rstrip()
        raise refuse(name, given, must)
    return value


def count(name: str, given: object, low: int, high: int, *, refuse: Refuse = option) -> int:
    """Take a whole number within bounds."""
    value: int = number(name, given, low, high, whole=True, refuse=refuse)
    return value


def seconds(
    name: str, given: object, low: float = 0.0, high: float = SECONDS_MAX, *, or_none: bool = False
) -> Any:
    """Take a duration; None where that is a word for "no limit" or "the usual"."""
    if given is None and or_none:
        return None
    return number(name, given, low, high, unit="s")


def cursor_error(cursor: object, problem: str = "it is none that a page told") -> UsageError:
    """Say that a listing cannot go on there."""
    return InvalidOption(option="cursor", value=shown(cursor), problem=problem)


def cursor_lane(cursor: str, number: int, lanes: int) -> int:
    """Take the number of the lane that a cursor names."""
    if number >= lanes:
        raise cursor_error(cursor, f"it names lane {number}, and the last one is {lanes - 1}")
    return number


def is_scan_place(text: str) -> bool:
    """Say whether a server takes a text as the cursor of its SCAN, HSCAN or SSCAN."""
    return text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) < 2**64


def flag(name: str, given: object) -> bool:
    """Take a yes or no: other things are true by accident."""
    if type(given) is not bool:
        raise option(name, given, "True or False")
    return given


def word(name: str, given: object, *words: str, refuse: Refuse = option) -> str:
    """Take one of a few words."""
    if type(given) is not str or given not in words:
        raise refuse(name, given, f"one of {', '.join(words)}")
    return given


def text(name: str, given: object) -> str:
    """Take any text."""
    if type(given) is not str:
        raise option(name, given, "a text (str, and no subclass of it)")
    return given


def utf8(name: str, given: object, *, or_bytes: bool = False, errors: str = "strict") -> bytes:
    """Take text, of whatever kind of `str`, and return it as bytes.

    With `surrogateescape` text may stand for bytes that are no UTF-8.
    """
    kind = type(given)
    if or_bytes and issubclass(kind, bytes):
        return b"".join((given,))  # type: ignore[arg-type]
    if not issubclass(kind, str):
        raise option(name, given, "str or bytes" if or_bytes else "a text (str)")
    try:
        return str.encode(given, "utf-8", errors)  # type: ignore[arg-type]
    except UnicodeEncodeError as error:
        must = f"UTF-8: lone surrogate at offset {error.start}"
        raise option(name, str.__str__(given), must) from None


def _bound(bound: float) -> str:
    return f"{int(bound):,}" if bound == int(bound) else f"{bound:g}"


# --- things ---------------------------------------------------------------------------------


def instance(name: str, given: object, kind: type[T], *, refuse: Refuse = option) -> T:
    """Take one of ours."""
    if not issubclass(type(given), kind):
        raise refuse(name, given, f"a {kind.__name__}")
    return given  # type: ignore[return-value]


def plain_function(name: str, given: object, *, refuse: Refuse = option) -> Any:
    """Take what can be called and answers at once: a coroutine would never run."""
    if not callable(given) or is_async(given) or getattr(type(given), "is_for_workers", False):
        raise refuse(name, given, "a plain function")
    return given


def is_async(given: object) -> bool:
    """Say whether calling it makes a coroutine; an object with an async `__call__` does, too."""
    try:
        call = getattr(given, "__call__", None)  # noqa: B004
        return iscoroutinefunction(given) or iscoroutinefunction(call)
    except Exception:  # noqa: BLE001 - of the caller's own code
        return False


def several(name: str, given: object, of: str, *, refuse: Refuse = option) -> Iterator[Any]:
    """Iterate over what can be several things: text has characters, and a dict has keys."""
    if not issubclass(type(given), (str, bytes, bytearray, memoryview, Mapping)):
        try:
            return iter(given)  # type: ignore[call-overload, no-any-return]
        except Exception as error:
            raise refuse(name, given, f"an iterable of {of}") from error
    raise refuse(name, given, f"an iterable of {of}")


def mapping(name: str, given: object) -> Mapping[Any, Any]:
    """Take a dict, or what is like one."""
    if not issubclass(type(given), Mapping):
        raise option(name, given, "a dict")
    return given  # type: ignore[return-value]


def as_text(given: object) -> str:
    """Return what somebody gave as a reason in words, whatever it is."""
    if type(given) is str:
        return given
    try:
        return str.__str__(str(given))
    except Exception:  # noqa: BLE001 - of the caller's own code
        return shown(given)
