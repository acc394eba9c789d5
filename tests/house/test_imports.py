"""What `import pool` loads: judged by modules, since seconds depend on the machine."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import pool

ROOT = Path(__file__).parents[2]
# Of 389 with the packages that a plain installation has.  Each further one is a module that every
# process of a fleet loads: raise it with a reason.
NODE_MODULES_MAX = 407  # with evidence, gaps in listings, primaries (2), log lines (2), eviction
THERE = "it is in pool.errors: from pool.errors import JobExists"
NODE = "did you mean: from pool import Node"
_SHOW = """
import json, sys
before = set(sys.modules)
{}
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded(statement: str) -> set[str]:
    """Return the names of the modules that a statement loads in a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", _SHOW.format(statement)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout))


def test_the_package_alone_loads_nothing_of_its_own_nor_of_others() -> None:
    modules = loaded("import pool")
    assert {name for name in modules if name.partition(".")[0] == "pool"} == {
        "pool",
        "pool.version",
    }
    assert not {"attr", "anyio", "asyncio", "redis", "hiredis", "structlog"} & modules


def test_a_node_loads_neither_the_redis_client_nor_the_other_event_loop() -> None:
    modules = loaded("from pool import Node, Handlers, Settings, ReplicatedMap, Stream")
    assert not {"redis", "trio", "argparse", "pool.ops", "pool.testing"} & modules
    # structlog takes rich if it is there; a plain installation has none.
    ours = {m for m in modules if m.partition(".")[0] not in {"rich", "pygments", "colorama"}}
    assert len(ours) <= NODE_MODULES_MAX


CORE = {"attr", "attrs", "anyio", "asyncio", "redis", "hiredis", "sniffio", "structlog"}
LIGHT = {
    "pool",
    "pool.version",
    "pool.ops",
    "pool.ops.cli",
    "pool.ops.cli.codes",
    "pool.ops.cli.parser",
    "pool.printable",
}


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], ["--helpp"], *([verb, "--help"] for verb in ("status", "jobs"))],
)
def test_help_and_version_import_nothing_but_pythons_own(words: list[str]) -> None:
    """Of `run` and `check` alone the options are the settings, which are attrs classes."""
    call = "from pool.ops.cli import main; import io, contextlib as c; o = io.StringIO()\n"
    call += f"with c.redirect_stdout(o), c.redirect_stderr(o): main({words!r})"
    modules = loaded(call)
    assert not CORE & {name.partition(".")[0] for name in modules}
    ours = {name for name in modules if name.partition(".")[0] == "pool"}
    assert ours == LIGHT


def test_looking_imports_no_event_loop_that_it_does_not_run() -> None:
    modules = loaded("import pool.ops.cli.status, pool.ops.cli.jobs, pool.ops.cli.job")
    assert not {"redis", "trio", "shtab", "watchfiles", "pool.testing"} & modules


def test_handlers_can_be_written_without_a_node() -> None:
    assert "pool.jobs.node" not in loaded("from pool import Handlers, Job, Retry")


def test_type_checkers_are_told_where_each_name_is_at_run_time() -> None:
    """The block that they read names each public name once, with its home."""
    [block] = [
        node
        for node in ast.parse((ROOT / "pool/__init__.py").read_text("utf-8")).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    ]
    told = {
        alias.name: str(each.module)
        for each in block.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    assert sorted(told) == sorted(set(pool.__all__) - {"__version__"})
    homes = {name: getattr(sys.modules[home], name) for name, home in told.items() if _import(home)}
    assert homes == {name: getattr(pool, name) for name in told}
    assert set(pool.__all__) <= set(dir(pool))


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nood'"):
        pool.Nood  # type: ignore[attr-defined]  # noqa: B018


def raised(statement: str) -> str:
    """Return what a statement raises, as Python prints it."""
    done = subprocess.run(
        [sys.executable, "-c", statement], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "from pool import JobExists",
            f"ImportError: pool has no JobExists; {THERE}",
        ),
        (
            "import pool; pool.JobExists",
            f"AttributeError: module 'pool' has no attribute 'JobExists'; {THERE}",
        ),
        (
            "from pool import Node, Nood",
            f"ImportError: pool has no Nood; {NODE}",
        ),
        (
            "from pool import JobExist",
            "ImportError: pool has no JobExist; did you mean: from pool.errors import JobExists",
        ),
        (
            "import pool; pool.Nod",
            f"AttributeError: module 'pool' has no attribute 'Nod'; {NODE}",
        ),
    ],
)
def test_a_name_that_is_elsewhere_or_misspelt_is_told(statement: str, said: str) -> None:
    """In both forms: of `from pool import X` Python drops what an AttributeError says."""
    assert raised(statement) == said


def test_a_name_that_is_like_none_is_pythons_own_error() -> None:
    assert raised("from pool import Xyzzy").startswith("ImportError: cannot import name 'Xyzzy'")
    for name in ("JobExists", "Nood", "__wrapped__"):
        assert not hasattr(pool, name)
        assert getattr(pool, name, 7) == 7


@pytest.mark.parametrize("module", ["errors", "streams", "jobs"])
def test_a_module_is_imported_though_it_is_spelt_like_a_name(module: str) -> None:
    assert f"pool.{module}" in loaded(f"from pool import {module}")


def test_the_package_alone_is_imported_in_a_fraction_of_the_time_of_a_redis_client() -> None:
    """A ratio, of processor time: seconds depend on the machine."""
    took = {name: min(_cpu_s(name) for _ in range(3)) for name in ("pool", "redis.asyncio")}
    assert took["pool"] < took["redis.asyncio"] / 3


def _cpu_s(name: str) -> float:
    timed = "from time import process_time as s; was_s = s(); import {}; print(s() - was_s)"
    done = subprocess.run(
        [sys.executable, "-c", timed.format(name)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def _import(name: str) -> bool:
    __import__(name)
    return True
