"""The logger of the library, and the format of its lines where nobody has configured one.

If the program has configured structlog, lines go where it says.  Otherwise they go to standard
error, as those of `pool run` do: structlog's own defaults write to standard output, where they mix
with what a program prints, and have local times without a zone.

A line that the program's configuration cannot write (a processor raises, its stream is closed)
goes to standard error, too, with the reason: its trouble must not hide ours.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Final

import structlog
from structlog.typing import EventDict, Processor

from pool.printable import plain, plain_lines

_IN_LINES: Final = ("exception", "stack")
_UNTOLD: Final = "<no repr of"


def safe(_: object, __: str, event: EventDict) -> EventDict:
    """Keep what a terminal would obey out of a line; JSON has its own way."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = plain_lines(value) if name in _IN_LINES else plain(value)
        elif not (text := as_text(value)).isprintable() or text.startswith(_UNTOLD):
            event[name] = plain(text)
    return event


def as_text(value: object) -> str:
    """Return a value as Python writes it; what a user's own `repr` raises fails no line."""
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - of the program's own code
        return f"{_UNTOLD} {type(value).__name__}: {type(error).__name__}>"


def show_traceback(_: object, __: str, event: EventDict) -> EventDict:
    """Have a traceback that is a fact of an event stand below its line, as others do."""
    if text := event.pop("traceback", ""):
        event.setdefault("exception", str(text).rstrip())
    return event


COMMON: Final[Sequence[Processor]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso"),
)
LEVELS: Final = structlog.make_filtering_bound_logger(logging.INFO)
_BY_DEFAULT: Final[Sequence[Processor]] = (
    *COMMON,
    structlog.processors.StackInfoRenderer(),
    structlog.processors.format_exc_info,
    show_traceback,
    safe,
    structlog.dev.ConsoleRenderer(colors=False),
)


def _reason(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - its text is the program's own code, too
        return type(error).__name__


class Log:
    """A logger that asks for each line whether the program has configured structlog by now."""

    def __init__(self, name: str) -> None:
        self._configured = structlog.get_logger(name)
        self._plain = structlog.wrap_logger(
            None, wrapper_class=structlog.stdlib.BoundLogger, logger_factory_args=(name,)
        )

    def __getattr__(self, level: str) -> Callable[..., None]:
        """Return the method that writes a line of that level."""
        return partial(self._write, level)

    def _program_logger(self) -> Any:
        """Return the logger that the program has configured, with methods that are plain.

        Those of `AsyncBoundLogger` need the event loop of asyncio, where our lines may not be.
        """
        wrapper = structlog.get_config()["wrapper_class"]
        is_async = iscoroutinefunction(getattr(wrapper, "info", None))
        return self._plain if is_async else self._configured

    def _write(self, level: str, event: str, **facts: Any) -> None:
        if structlog.is_configured():
            try:
                getattr(self._program_logger(), level)(event, **facts)
            except BaseException as error:  # noqa: BLE001 - of the program's own code
                facts["log_error"] = _reason(error)
            else:
                return
        if sys.stderr is None:  # closed: structlog would write to standard output instead
            return
        # Made anew for each line: `sys.stderr` may be another one by now.
        to_stderr = structlog.WriteLogger(sys.stderr)
        getattr(structlog.wrap_logger(to_stderr, _BY_DEFAULT, LEVELS), level)(event, **facts)
