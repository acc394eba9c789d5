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
NODE_MODULES_MAX = 400
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


def _import(name: str) -> bool:
    __import__(name)
    return True
