"""Logging for programs of ours: the library itself configures none."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final, TextIO

import structlog
from structlog.typing import EventDict, Processor

from pool.ops.terminal import is_coloured
from pool.redis.log import COMMON, LEVELS, as_text, safe, show_traceback

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
