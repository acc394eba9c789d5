"""What users may use: few names at the top, and nothing that a signature names is hidden."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import pool
import pool.batches
import pool.codecs
import pool.errors
import pool.events
import pool.letters
import pool.listing
import pool.maps
import pool.metrics
import pool.middleware
import pool.pauses
import pool.plans
import pool.schedules
import pool.streams
import pool.sync
import pool.testing
import pool.web

HOMES = (
    pool,
    pool.batches,
    pool.codecs,
    pool.errors,
    pool.events,
    pool.letters,
    pool.listing,
    pool.maps,
    pool.metrics,
    pool.middleware,
    pool.pauses,
    pool.schedules,
    pool.plans,
    pool.streams,
    pool.sync,
    pool.testing,
    pool.web,
)
NAMES_MAX = 26
# What a public signature names, and nobody has to.
UNNAMED = {
    "_Decorator": "what `@handlers.job(...)` applies; the function's own type comes out of it",
}


def test_a_star_import_brings_every_error() -> None:
    names = {
        name
        for name, value in vars(pool.errors).items()
        if inspect.isclass(value) and issubclass(value, pool.errors.PoolError)
    }
    assert names <= set(pool.errors.__all__)


def public() -> dict[str, Any]:
    return {name: getattr(home, name) for home in HOMES for name in home.__all__}


def own(found: type) -> Iterator[tuple[str, Any]]:
    """The members of a public class that users see, `open` and the like, but not how it is made."""
    for base in found.__mro__:
        if base.__module__.split(".")[0] == "pool":
            for name, raw in vars(base).items():
                if not name.startswith("_") or name in ("__aenter__", "__anext__", "__call__"):
                    yield name, raw


def types_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and not typing.get_args(hint):
        yield hint
    origin = typing.get_origin(hint)
    if isinstance(origin, type):
        yield origin
    for each in typing.get_args(hint):
        if not isinstance(each, (str, int, list)):
            yield from types_in(each)
        elif isinstance(each, list):
            for inner in each:
                yield from types_in(inner)


def hints(what: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(what, localns=public())


def named(found: Any) -> Iterator[tuple[str, type]]:
    """Every type that a public class or function names, with where."""
    if not isinstance(found, type):
        if inspect.isfunction(found):
            for each in hints(found).values():
                yield from ((found.__name__, kind) for kind in types_in(each))
        return
    if not issubclass(found, Exception):
        made = {name: hint for name, hint in hints(found).items() if not name.startswith("_")}
        for name, hint in made.items():
            yield from ((f"{found.__name__}.{name}", kind) for kind in types_in(hint))
    for name, raw in own(found):
        call = raw.fget if isinstance(raw, property) else getattr(raw, "__func__", raw)
        if inspect.isfunction(call):
            for argument, each in hints(call).items():
                if not argument.startswith("_"):
                    yield from ((f"{found.__name__}.{name}", kind) for kind in types_in(each))


def test_few_names_stand_at_the_top() -> None:
    assert len(pool.__all__) <= NAMES_MAX
    assert len(set(pool.__all__)) == len(pool.__all__)
    for home in HOMES:
        assert list(home.__all__) == sorted(
            home.__all__, key=lambda n: (n[0].islower() or n[0] == "_", n)
        )


def test_one_name_has_one_home() -> None:
    names = [name for home in HOMES for name in home.__all__ if name != "PoolError"]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("home", HOMES, ids=lambda home: home.__name__)
def test_every_type_that_a_public_signature_names_is_public(home: Any) -> None:
    known = set(public().values())
    hidden = {
        f"{where}: {kind.__name__}"
        for name in home.__all__
        for where, kind in named(getattr(home, name))
        if kind.__module__.split(".")[0] == "pool"
        and kind not in known
        and kind.__name__ not in UNNAMED
    }
    assert hidden == set()


@pytest.mark.slow
def test_every_type_is_known_to_another_type_checker_too(tmp_path: Path) -> None:
    """As users' editors see the package: installed, and by its annotations alone."""
    shutil.copytree(Path(pool.__file__).parent, tmp_path / "pool")
    command = [sys.executable, "-m", "basedpyright"]
    asked = [*command, "--verifytypes", "pool", "--ignoreexternal", "--outputjson"]
    # What the package imports it looks for with the first `python` on the PATH.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        asked, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    told = json.loads(done.stdout)["typeCompleteness"]
    unknown = [
        f"{symbol['name']}: {each['message']}"
        for symbol in told["symbols"]
        if symbol["isExported"] and (not symbol["isTypeKnown"] or symbol["isTypeAmbiguous"])
        for each in symbol["diagnostics"]
    ]
    assert told["exportedSymbolCounts"]["withKnownType"] > 4_000
    assert unknown == []
    assert told["completenessScore"] == 1


def test_what_is_public_says_what_it_is() -> None:
    bare = [
        name
        for name, found in public().items()
        if (isinstance(found, type) or inspect.isfunction(found)) and not inspect.getdoc(found)
    ]
    assert bare == []


def test_internals_have_an_underscore() -> None:
    """What a public class shows, but for its fields, is told in its docstring or has its own."""
    bare = {
        f"{found.__name__}.{name}"
        for found in public().values()
        if isinstance(found, type)
        for name, raw in own(found)
        if not name.startswith("_")
        and (inspect.isfunction(raw) or isinstance(raw, (classmethod, staticmethod, property)))
        and not inspect.getdoc(raw)
        and name not in {field.name for field in attrs.fields(found)}
        if attrs.has(found)
    }
    assert bare == set()
