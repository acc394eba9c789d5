"""From the names on a command line to handlers and observers: what the user's modules hold.

What has no attribute behind its module means the `Handlers` in it: `handlers` if there is one of
that name, else the only one.  Observers are named by themselves: a function that is found by its
name alone could have been meant for something else.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pool import checks
from pool.errors import (
    ConfigError,
    DuplicateHandler,
    NoHandlers,
    PoolError,
    UsageError,
    again,
    shown,
)
from pool.events import Observer
from pool.jobs.handlers import Handlers

_USUAL = "handlers"


def load(reference: str) -> Handlers:
    """Return the `Handlers` that `module` or `module:attribute` names.

    Raises:
        NoHandlers: There is none; `problem` says what is there instead.  Where the module failed by
            itself, that failure is the cause.
    """
    name, colon, attribute = reference.partition(":")
    if not name or (colon and not attribute):
        raise _none(reference, "it is not of the form module or module:attribute")
    module = _module(reference, name)
    if not attribute:
        attribute = _only(reference, name, module)
    found = _attribute(reference, name, module, attribute, _instead(name, module))
    if not isinstance(found, Handlers):
        kind = type(found).__name__
        raise _none(reference, f"it is of type {kind}, not Handlers{_instead(name, module)}")
    if not len(found):
        raise _none(reference, "it has no handlers: decorate some with @handlers.job(...)")
    return found


def load_all(references: Sequence[str]) -> Handlers:
    """Return the handlers of all of them, as one.

    Raises:
        NoHandlers, DuplicateHandler: They cannot be found, or put together.
    """
    found = {reference: load(reference) for reference in dict.fromkeys(references)}
    for problem in clashes(found):
        raise again(problem)
    return together(found)


def together(found: Mapping[str, Handlers]) -> Handlers:
    """Put handlers together that do not clash; those that others include are there already."""
    several = list(dict.fromkeys(found.values()))
    outer = [each for each in several if not {*each._line()[1:]} & {*several}]
    if len(outer) == 1:
        return outer[0]
    whole = Handlers()
    for each in outer:
        whole.include(each)
    return whole


def clashes(found: Mapping[str, Handlers]) -> Iterator[UsageError]:
    """Yield why they cannot be put together."""
    several = {handlers: reference for reference, handlers in reversed([*found.items()])}
    owners: dict[str, str] = {}
    for reference, handlers in found.items():
        line = handlers._line()
        if several[handlers] != reference or {*line[1:]} & {*several}:
            continue  # the same again, or a part of another one
        if len(line) > 1 and len(several) > 1:
            yield _none(reference, "other Handlers include it: name those, or it alone")
        for name in handlers:
            owner = owners.setdefault(name, reference)
            if owner != reference:
                yield DuplicateHandler(handler=name, where=f"{owner} and {reference}")


def load_observer(reference: str) -> Observer:
    """Return the function that `module:attribute` names.

    Raises:
        ConfigError: There is none, or the module fails; that failure is the cause.
    """
    name, _, attribute = reference.partition(":")
    try:
        if not name or not attribute:
            raise _none(reference, "it is not of the form module:attribute")
        module = _module(reference, name)
        near = difflib.get_close_matches(attribute, vars(module), n=1)
        instead = f"; is it {near[0]}?" if near else ""
        found = _attribute(reference, name, module, attribute, instead)
    except NoHandlers as error:
        problem = f"{shown(reference)}: {error.problem}"
        raise ConfigError(setting="observers", problem=problem) from error.__cause__
    observer: Observer = checks.plain_function("observers", found, refuse=checks.setting)
    return observer


def told(error: PoolError) -> list[str]:
    """Return the lines of a user's module's traceback, from its own first one on, if it failed."""
    is_theirs = isinstance(error, NoHandlers) or getattr(error, "setting", "") == "observers"
    if error.__cause__ is None or not is_theirs:
        return []
    lines = traceback.TracebackException.from_exception(error.__cause__)
    ours = (importlib.__file__, "<frozen importlib", str(Path(__file__).parent))
    lines.stack[:] = [frame for frame in lines.stack if not frame.filename.startswith(ours)]
    return "".join(lines.format(chain=False)).splitlines()


# --- modules --------------------------------------------------------------------------------


def _module(reference: str, name: str) -> Any:
    if name.endswith(".py") or "/" in name:
        raise _none(reference, "a module is named without .py, and without a path")
    # As `python -m` does: what is being developed lies in the working directory.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _none(reference, _failed(name, error)) from error
        raise _none(reference, f"there is no module {error.name}{_near(error.name)}") from None
    except (Exception, SystemExit) as error:  # the module's own code runs here: anything may come
        raise _none(reference, _failed(name, error)) from error


def _attribute(reference: str, name: str, module: Any, attribute: str, instead: str) -> Any:
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise _none(reference, f"{name} has no {attribute}{instead}")
        found = getattr(found, part)
    return found


def _only(reference: str, name: str, module: Any) -> str:
    """Return which attribute is meant if none was said."""
    names = _names(module)
    if _USUAL in names:
        return _USUAL
    outer = [each for each in names if len(getattr(module, each)._line()) == 1]
    if len(outer) == 1:
        return outer[0]
    what = "several Handlers" if names else "no Handlers"
    raise _none(reference, f"{name} has {what}{_instead(name, module)}")


def _names(module: object) -> list[str]:
    return sorted(name for name, each in vars(module).items() if isinstance(each, Handlers))


def _failed(name: str, error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return f"{name} fails while it is imported, as the traceback above says: {text}"


def _near(name: str) -> str:
    """Return where a module was looked for, and which one there is spelled alike."""
    here = [path.stem for path in Path.cwd().glob("*.py")]
    near = difflib.get_close_matches(name, here, n=1)
    return f" in {Path.cwd()}, nor installed" + (f"; is it {near[0]}?" if near else "")


def _instead(name: str, module: object) -> str:
    names = _names(module)
    return f"; there is {' and '.join(f'{name}:{each}' for each in names)}" if names else ""


def _none(reference: str, problem: str) -> NoHandlers:
    return NoHandlers(reference=shown(reference), problem=problem)
