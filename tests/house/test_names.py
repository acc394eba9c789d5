"""Every Redis key is made in one place, and no script is given keys of two hash tags."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ROOT / "pool/names.py"
_COMMENT = re.compile(r"--\[\[.*?\]\]|--[^\n]*", re.DOTALL)


def texts(path: Path) -> Iterator[str]:
    """Yield the string constants of a file, the fixed parts of f-strings too; no docstrings."""
    tree = ast.parse(path.read_text("utf-8"))
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_key_names_are_made_in_one_file() -> None:
    folders = [ROOT / "pool", ROOT / "examples", ROOT / "benchmarks"]
    broken = [
        f"{path}: {text!r}"
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
        if path != NAMES
        for text in texts(path)
        if "pool:{" in text
    ]
    assert not broken, "\n".join(broken)


def test_scripts_make_no_key_names() -> None:
    """They touch the keys that they were given, so that they run on a cluster."""
    broken = [
        path.name
        for path in sorted((ROOT / "pool").rglob("*.lua"))
        if "pool:" in _COMMENT.sub("", path.read_text("utf-8"))
    ]
    assert not broken


@pytest.mark.parametrize(
    "keys", [(), ("pool:{p:0}:jobs",), ("pool:{p:0}:jobs", "pool:{p:0}:due"), ("plain",)]
)
def test_keys_of_one_tag_pass(
    assert_one_tag: Callable[[Sequence[str]], None], keys: tuple[str, ...]
) -> None:
    assert_one_tag(keys)


@pytest.mark.parametrize(
    "keys",
    [("pool:{p}:workers", "pool:{p:0}:jobs"), ("pool:{p:0}:jobs", "pool:{p:1}:jobs"), ("a", "b")],
)
def test_keys_of_two_tags_are_caught(
    assert_one_tag: Callable[[Sequence[str]], None], keys: tuple[str, ...]
) -> None:
    """Each test's script calls are checked like this, by a fixture in tests/conftest.py."""
    with pytest.raises(AssertionError, match="several hash tags"):
        assert_one_tag(keys)
