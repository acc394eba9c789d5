"""`pool check`: would `pool run` start?  Everything that is wrong, at once; no server is asked."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import attrs

from pool.errors import ConfigError, PoolError, UsageError
from pool.jobs.client.schedules import wrong_in_code
from pool.jobs.handlers import Handlers
from pool.ops.cli.config import Configuration, Overridden, gather
from pool.ops.cli.loading import clashes, load, load_observer, together, told
from pool.ops.terminal import write

T = TypeVar("T")


@attrs.define
class _Checked:
    """What was found, and what is wrong."""

    handlers: dict[str, Handlers] = attrs.field(factory=dict)
    problems: list[UsageError] = attrs.field(factory=list)
    overridden: list[Overridden] = attrs.field(factory=list)

    def attempt(self, load: Callable[[str], T], reference: str) -> T | None:
        try:
            return load(reference)
        except UsageError as error:
            self.problems.append(error)
            return None


def run(args: argparse.Namespace) -> int:
    """Carry out `pool check`: 0, or 1 if something is wrong.

    Raises:
        ConfigError: No module is named.
    """
    said = gather(args, os.environ)
    if not said.problems:
        said.check("handlers")
    checked = _check(said)
    if args.json:
        write([json.dumps(_facts(checked))])
    else:
        for problem in checked.problems:
            write([*told(problem), f"! {problem}"])
        write(_lines(checked))
        write(map(_note, checked.overridden))
    return 1 if checked.problems else 0


def _check(said: Configuration) -> _Checked:
    checked = _Checked(problems=list(said.problems), overridden=said.overridden)
    for reference in dict.fromkeys(said.values.get("handlers", ())):
        found = checked.attempt(load, reference)
        if found is not None:
            checked.handlers[reference] = found
    checked.problems += clashes(checked.handlers)
    for reference in said.values.get("observers", ()):
        checked.attempt(load_observer, reference)
    if not checked.problems:
        try:
            whole = together(checked.handlers)
        except ConfigError as error:  # too many of them for one worker
            checked.problems.append(error)
        else:
            checked.problems += wrong_in_code(whole)
    return checked


def _facts(checked: _Checked) -> dict[str, Any]:
    return {
        "ok": not checked.problems,
        "handlers": [
            {"name": name, "from": reference, **_options(handlers, name)}
            for reference, handlers in checked.handlers.items()
            for name in sorted(handlers)
        ],
        "problems": [_problem(each) for each in checked.problems],
        "overridden": [attrs.asdict(each) for each in checked.overridden],
    }


def _options(handlers: Handlers, name: str) -> dict[str, Any]:
    options = attrs.asdict(handlers._options()[name])
    return {"kind": options.pop("kind"), "options": {**options, "park_on": [*options["park_on"]]}}


def _problem(error: PoolError) -> dict[str, str]:
    return {
        "code": error.code,
        "problem": str(error),
        "traceback": "".join(f"{line}\n" for line in told(error)),
    }


def _lines(checked: _Checked) -> Iterator[str]:
    for reference, handlers in checked.handlers.items():
        yield f"{reference}"
        for name in sorted(handlers):
            yield f"  {handlers._options()[name].kind:8}{name}"
    count, wrong = sum(map(len, checked.handlers.values())), len(checked.problems)
    yield f"{_counted(count, 'handler')}, {_counted(wrong, 'problem')}"


def _note(each: Overridden) -> str:
    wrong = f"; without that it could not be used: {each.problem}" if each.problem else ""
    return f"note: {each.setting} of {each.where} does not count, as {each.by} is set{wrong}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"
