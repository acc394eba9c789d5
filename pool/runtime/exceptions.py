"""What an exception is and says; whatever user code it is made of, asking it ends nobody."""

from __future__ import annotations

from collections.abc import Iterator

from pool.redis.io.loops import is_cancellation


def told(error: BaseException) -> str:
    """Return what is kept of an error: one of a group is the first that has a cause of its own."""
    others = 0
    while inner := members(error):
        others += len(inner) - 1
        error = inner[0]
    name = "an error"
    try:
        name = f"{type(error).__name__}"
        text = "cancelled by itself or by its own tasks" if is_cancellation(error) else str(error)
        return f"{name}: {text}" + (f" (and {others} more)" if others else "")
    except BaseException:  # noqa: BLE001 - its text is user code too
        return f"{name}, whose text cannot be had"


def plain(error: BaseException) -> BaseException:
    """Return an error that a cancel scope can take apart without calling what is its own."""
    return BaseExceptionGroup("", list(leaves(error))) if members(error) else error


def has_cancellation(error: BaseException) -> bool:
    """Whether it is what cancels tasks, or a group with such a one in it."""
    return any(is_cancellation(each) for each in leaves(error))


def members(error: BaseException) -> tuple[BaseException, ...]:
    """Return what a group is of; nothing of what is none."""
    if not issubclass(type(error), BaseExceptionGroup):
        return ()
    found: tuple[BaseException, ...] = BaseExceptionGroup.exceptions.__get__(error)
    return found


def leaves(error: BaseException) -> Iterator[BaseException]:
    left = [error]
    while left:
        each = left.pop()
        inner = members(each)
        left += reversed(inner)
        if not inner:
            yield each
