"""One word for each thing (docs/glossary.md): no name says an old one, no two classes share one."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

POOL = Path(__file__).parents[2] / "pool"
# Those of the glossary's words of before that mean nothing else.
OLD = {"crew", "mover", "strand", "seam", "seams", "beside", "blob", "incarnation", "founded"}
# What each actor is told, and what each machine takes.
EACH_HAS = {"Message", "Event"}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


Trees: TypeAlias = list[tuple[Path, ast.AST]]


@pytest.fixture(scope="module")  # no longer: it is as much as all else that tests keep
def trees() -> Trees:
    paths = sorted(POOL.rglob("*.py"))
    return [(path.relative_to(POOL), ast.parse(path.read_text("utf-8"))) for path in paths]


def named(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ClassDef(name=name):
                yield name


def test_no_name_says_an_old_word(trees: Trees) -> None:
    said = [
        f"{path}: {name}"
        for path, tree in trees
        for name in sorted({*named(tree), path.stem})
        if OLD & {word.lower() for word in _WORD.findall(name)}
    ]
    assert not said, "\n".join(said)


def classes(trees: Trees) -> Counter[str]:
    """Count them, but what one module keeps to itself, and what is the demo's own."""
    return Counter(
        node.name
        for path, tree in trees
        if path.parts[0] != "demo"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )


def test_no_two_classes_share_a_name(trees: Trees) -> None:
    assert [name for name, times in classes(trees).items() if times > 1] == []


def test_no_alias_has_the_name_of_a_class(trees: Trees) -> None:
    aliases = [
        (path, node.target.id)
        for path, tree in trees
        if path.parts[0] != "demo"
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and ast.unparse(node.annotation) == "TypeAlias"
    ]
    assert aliases
    known = {*classes(trees)} - EACH_HAS
    assert [f"{path}: {name}" for path, name in aliases if name in known] == []
