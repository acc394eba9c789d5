"""Logging for programs of ours: the library itself configures none."""

from __future__ import annotations

import logging
from typing import Final, TextIO

import structlog

from pool.ops.terminal import plain, plain_lines

_IN_LINES: Final = ("exception", "stack")


def configure(stream: TextIO, *, is_json: bool) -> None:
    """Write log lines to `stream`: structlog's as events, and those of other libraries.

    What the program has configured by now is left as it is: it knows better where lines go.
    """
    renderer: structlog.typing.Processor = structlog.dev.ConsoleRenderer(colors=stream.isatty())
    safe: list[structlog.typing.Processor] = [_safe]
    if is_json:
        safe, renderer = [], structlog.processors.JSONRenderer()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                *shared,
                structlog.processors.StackInfoRenderer(),
                structlog.processors.format_exc_info,
                *safe,
                renderer,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
            logger_factory=structlog.WriteLoggerFactory(stream),
            cache_logger_on_first_use=True,
        )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *safe,
                renderer,
            ],
            foreign_pre_chain=[*shared, structlog.processors.format_exc_info],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])  # nothing if there is a handler


def _safe(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Keep what a terminal would obey out of a line; JSON has its own way."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = plain_lines(value) if name in _IN_LINES else plain(value)
        elif not (text := repr(value)).isprintable():
            event[name] = plain(text)
    return event
