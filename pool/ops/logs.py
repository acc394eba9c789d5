"""Logging for programs of ours, over streams that never make their writers wait.

Text streams that never make their writers wait: status lines and log lines of `pool run`.

A full pipe blocks `write()` for as long as its reader stalls.  The parent of `--processes` would
then replace no child and pass on no signal, and a worker would not drain.  So a thread writes (see
`pool.redis.io.scribe`): its callers wait for 0.05 s at most.

The thread writes to the descriptor and not to `sys.stdout`: it would hold that stream's lock while
it waits, and Python waits for this lock at its end.

Logging for programs of ours: the library itself configures none.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor

from pool.ops.terminal import is_coloured
from pool.redis.io.scribe import Scribe
from pool.redis.log import COMMON, LEVELS, as_text, safe, show_traceback

END_S: Final = 1.0  # the last lines may take so long, where the reader is slow
Dropped = Callable[[int], str]


class Lines:
    """A stream of lines; what does not fit is counted, and reported once its reader goes on."""

    def __init__(self, stream: TextIO, dropped: Dropped) -> None:
        self._stream = stream
        self.encoding: str = stream.encoding or "utf-8"
        self._scribe = Scribe(lambda count: self._send(f"{dropped(count)}\n"))

    @property
    def stream(self) -> TextIO:
        """This object as its writers use it: by `write`, `flush`, `isatty` and `encoding`."""
        return cast("TextIO", self)

    def isatty(self) -> bool:
        """Whether the stream below is a terminal."""
        return self._stream.isatty()

    def write(self, text: str) -> int:
        """Have a text written soon."""
        self._scribe.write(partial(self._send, text))
        return len(text)

    def flush(self) -> None:
        """Do nothing: what was written is on its way."""

    def end(self) -> None:
        """Wait until everything is written, for `END_S` at most."""
        self._scribe.settle(END_S)

    def _send(self, text: str) -> None:
        left = memoryview(text.encode(self.encoding, "backslashreplace"))
        while left:
            left = left[os.write(self._stream.fileno(), left) :]


_EXTRA: Final = structlog.stdlib.ExtraAdder()


def line(level: str, event: str, *, is_json: bool, **facts: Any) -> str:
    """Return a line of ours that no logger writes, in the form of those that one does."""
    entry: Any = {"event": event, **facts}
    for processor in (*COMMON, *_rendering(None, is_json=is_json)):
        entry = processor(None, level, entry)
    return str(entry)


def configure(stream: TextIO, *, is_json: bool) -> None:
    """Write log lines to `stream`: structlog's as events, and those of other libraries.

    What the program has configured by now is left as it is: it knows better where lines go.
    """
    rendering = _rendering(stream, is_json=is_json)
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                *COMMON,
                structlog.processors.StackInfoRenderer(),
                structlog.processors.format_exc_info,
                *rendering,
            ],
            wrapper_class=LEVELS,
            logger_factory=structlog.WriteLoggerFactory(stream),
            cache_logger_on_first_use=True,
        )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *rendering,
            ],
            foreign_pre_chain=[
                _add_extra,
                *COMMON,
                structlog.stdlib.add_logger_name,
                structlog.processors.format_exc_info,
            ],
        )
    )
    handler.addFilter(lambda record: not _is_written(record.name, handler))
    is_ours = not logging.getLogger().handlers
    if is_ours:
        logging.basicConfig(level=logging.INFO, handlers=[handler])
    if is_json and warnings.showwarning.__module__ != logging.__name__:
        _log_warnings(None if is_ours else handler)


def _log_warnings(handler: logging.Handler | None) -> None:
    """Have Python's warnings logged: otherwise they are lines that are no JSON.

    Args:
        handler: Writes them, as the root logger's handlers are not ours and may write other lines.
    """
    logging.captureWarnings(capture=True)
    logger = logging.getLogger("py.warnings")
    if handler is not None and not logger.handlers:
        logger.addHandler(handler)
        logger.propagate = False


def _add_extra(logger: logging.Logger, level: str, event: EventDict) -> EventDict:
    """Add the facts that a line of `logging` was given as `extra=`; none replaces its text."""
    return {**_EXTRA(logger, level, {"_record": event["_record"]}), **event}


def _rendering(stream: TextIO | None, *, is_json: bool) -> Sequence[Processor]:
    """Return the last steps of a line: from its facts to text."""
    if is_json:
        return (structlog.processors.JSONRenderer(_as_json),)
    colored = structlog.dev.ConsoleRenderer(colors=stream is not None and is_coloured(stream))
    return (show_traceback, safe, colored)


def _as_json(event: EventDict, default: Callable[[Any], Any]) -> str:
    """Return a line that every reader of JSON takes: a fact that JSON cannot hold is text in it."""

    def fact(value: Any) -> Any:
        try:
            json.dumps(value, default=default, allow_nan=False)
        except Exception:  # noqa: BLE001 - a value of the user's own, that may raise anything
            return as_text(value)
        return value

    try:
        return json.dumps(event, default=default, allow_nan=False)
    except Exception:  # noqa: BLE001 - as above
        facts = {str(name): fact(value) for name, value in event.items()}
        return json.dumps(facts, default=default)


def _is_written(name: str, ours: logging.StreamHandler[TextIO]) -> bool:
    """Say whether a logger has another handler of its own that writes to the terminal."""
    terminals = (ours.stream, sys.stdout, sys.stderr)
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None and logger.parent is not None:  # the root's handlers are not its own
        others = (each for each in logger.handlers if each is not ours)
        if any(getattr(each, "stream", None) in terminals for each in others):
            return True
        logger = logger.parent
    return False
