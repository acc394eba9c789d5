"""What a machine decides is assigned nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from pool.jobs.run import Run

ROOT = Path(__file__).parents[2]
MACHINES = {"pool/core/run.py"}
THEIRS = {"phase", "why"}
# Anything else may have a field of that name that is its own, as an error has its reason.
OWN = ("self",)


def assigned(tree: ast.Module) -> Iterator[ast.Attribute]:
    """Find what is written to one of these attributes of another object, by whatever statement."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            is_own = isinstance(node.value, ast.Name) and node.value.id in OWN
            if node.attr in THEIRS and not is_own:
                yield node


def test_the_life_of_a_run_is_assigned_by_its_machine_alone() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for name in ("pool", "tests", "benchmarks")
        for path in (ROOT / name).rglob("*.py")
        if str(path.relative_to(ROOT)) not in MACHINES
        for node in assigned(ast.parse(path.read_text("utf-8")))
    ]
    assert not found


def test_a_run_has_its_step_from_the_machine() -> None:
    """Nor is it assigned by methods of its own."""
    assert Run.step.__module__ == "pool.core.run"
    path = ROOT / "pool/jobs/run.py"
    stored = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    assert not stored & THEIRS
