"""Carrying out a verb: what it lacks is filled in, what goes wrong is a line and a code."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress

from pool.errors import (
    AuthError,
    NoServer,
    NotInTime,
    PoolError,
    StoreUnavailable,
    UnsupportedServer,
    UsageError,
    WrongProtocol,
    again,
    shell_text,
)
from pool.ops.cli.child import Leash
from pool.ops.cli.codes import FINDING, INTERRUPTED, OK, PROTOCOL, UNREACHABLE, USAGE
from pool.ops.terminal import Unwritable, write

_STANDARD_ERROR = 2


def carry_out(args: argparse.Namespace) -> int:
    """Run a verb, and return its exit code; what a user can cause is said in one line."""
    _open_streams()
    try:
        return _run(args)
    except BaseException as error:
        leaves = list(_leaves(error))  # a verb may have written in a task group
        if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
            return INTERRUPTED
        if not all(isinstance(leaf, BrokenPipeError | Unwritable) for leaf in leaves):
            raise
        _drop_output()
        refused = next((leaf for leaf in leaves if isinstance(leaf, Unwritable)), None)
        if refused is None:  # the reader of our output has seen enough
            return OK
        return _say(f"its output cannot be written: {refused}", FINDING)
    finally:
        _drop_errors()


def _run(args: argparse.Namespace) -> int:
    try:
        _complete(args)
        if getattr(args, "child", None) is not None:
            args.leash = Leash.of(args.child)
        code: int = importlib.import_module(args.module).run(args)
    except (PoolError, TimeoutError, BaseExceptionGroup) as error:
        cause = cause_of(error)
        if cause is None or any(isinstance(leaf, KeyboardInterrupt) for leaf in _leaves(error)):
            raise
        if isinstance(cause, UsageError) and "pool.ops.cli.loading" in sys.modules:
            write(sys.modules["pool.ops.cli.loading"].told(cause), sys.stderr)
        if (leash := getattr(args, "leash", None)) is not None:
            leash.tell("failed", child=leash.number, problem=str(cause))
        if args.json and "handlers" not in args:  # of those it is the form of the log
            write([json.dumps(failed_object(cause))])
        # A command that loads the user's modules shows errors of their Python calls, too.
        return _say(str(cause) if "handlers" in args else shell_text(cause), code_of(cause))
    return code


def _open_streams() -> None:
    """Open what is closed of standard input, output and error, as what nobody reads.

    Else the next thing that is opened, a socket say, would be in its place.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        pass
    os.close(fd)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(_STANDARD_ERROR, "w")


def _drop_errors() -> None:
    """Have Python not try again what standard error cannot take: its exit code would be 120."""
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STANDARD_ERROR)


def _drop_output() -> None:
    """Have Python not try again, at its end, what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complete(args: argparse.Namespace) -> None:
    """Fill in where the pool is; `run` and `check` do that themselves."""
    if "handlers" in args or "url" not in args:
        return
    from pool.ops.cli.config import gather
    from pool.redis.url import Url

    said = gather(args, os.environ)
    for problem in said.problems:
        if problem.setting in ("pool", "url", "config"):
            raise again(problem)
    for name in ("pool", "url"):
        setattr(args, name, said.given(name))
    args.url = Url.parse(args.url)  # which whoever shows the arguments may show


def cause_of(error: BaseException) -> PoolError | None:
    """Return the error of ours that is behind it, if there is nothing else.

    Whatever was waited for: that it has not come in time is no traceback's.
    """
    leaves = list(_leaves(error))
    ours = [leaf for leaf in leaves if isinstance(leaf, (PoolError, TimeoutError))]
    if len(ours) != len(leaves):
        return None
    first = next((leaf for leaf in ours if isinstance(leaf, PoolError)), None)
    return first or NotInTime(problem=str(ours[0]) or "time is up")


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def failed_object(error: PoolError) -> dict[str, object]:
    """Return what --json prints of a call that failed."""
    return {"v": 1, "ok": False, "error": {"code": error.code, "told": shell_text(error)}}


def code_of(error: PoolError) -> int:
    """Return the exit code of one that ends so."""
    match error:
        case UsageError():
            return USAGE
        case StoreUnavailable() | AuthError() | UnsupportedServer() | NoServer():
            return UNREACHABLE
        case WrongProtocol():
            return PROTOCOL
        case _:
            return FINDING


def _say(text: str, code: int) -> int:
    with suppress(BrokenPipeError, Unwritable):  # the code says it, too
        write([f"pool: {' '.join(text.split())}"], sys.stderr)
    return code
