"""Errors are data: one leaf, one code, one word that scripts may answer with."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import attrs
import pytest

from pool import errors
from pool.errors import PoolError
from pool.ops.cli.explain import kinds
from pool.ops.cli.parser import make

PACKAGE = Path(__file__).parents[2] / "pool"
_WORD = re.compile(r"\bPOOL[A-Z]+")
# A value for each type that a fact may have.
FACTS: dict[str, Any] = {
    "str": "it",
    "int": 7,
    "float": 0.5,
    "bool": True,
    "tuple[str, ...]": ("a", "b"),
}


KINDS = list(kinds())
LEAVES = [kind for kind in KINDS if PoolError not in kind.__bases__ and kind is not PoolError]


def sample(kind: type[PoolError]) -> PoolError:
    """Make an error with a value for each of its facts."""
    return kind(**{fact.name: FACTS[str(fact.type)] for fact in attrs.fields(kind)})


def test_every_error_is_defined_in_the_one_file() -> None:
    assert {kind.__module__ for kind in KINDS} == {errors.__name__}


def test_every_code_is_one_errors_own() -> None:
    codes = [kind.code for kind in KINDS]
    assert sorted(codes) == sorted(set(codes))
    assert all(_WORD.fullmatch(code) for code in codes if code != PoolError.code)


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_an_error_says_what_happened_and_what_to_do_in_one_line(kind: type[PoolError]) -> None:
    said = str(sample(kind))
    first = (kind.__doc__ or "").splitlines()[0]
    names = [fact.name for fact in attrs.fields(kind)]
    first = f"{first.removesuffix('.')}: it." if "problem" in names else first
    assert said.startswith(f"[{kind.code}] {first}")
    assert kind.hint, "an error without a hint leaves its reader alone"
    assert said.endswith(f"  Hint: {kind.hint}  More: pool explain {kind.code}")
    assert len(said.splitlines()) == 1
    for fact in attrs.fields(kind):
        assert fact.name == "problem" or f"{fact.name}={FACTS[str(fact.type)]!r}" in said


_PYTHON = re.compile(r"\w\(|\w=|\bnode\.|\bNode\b|\bSettings\b|async with|if_exists|sync\.Client")
_COMMAND = re.compile(r"`pool (\w+)(?: ([a-z]+))?")
# Errors about a user's own code.
OF_CODE = {"ArgumentsDiffer", "MiddlewareFailed", "NoHandlers", "WrongLoop"}


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_a_hint_on_the_command_line_names_commands_that_exist(kind: type[PoolError]) -> None:
    said = errors.shell_text(sample(kind))
    assert kind.__name__ in OF_CODE or not _PYTHON.search(said.partition("  Hint: ")[2])
    for command, verb in _COMMAND.findall(kind.shell_hint):
        with pytest.raises(SystemExit) as ended:
            make().parse_args([command, *([verb] if verb else []), "--help"])
        assert ended.value.code == 0


def test_a_problem_goes_on_with_the_sentence_in_one_printable_line() -> None:
    """Whatever it repeats of what others said."""
    for problem, said in (
        ("give --pool", "give --pool."),
        ("is it jobs?", "is it jobs?"),
        ("a\nb\x1b[2J", "a\\nb\\x1b[2J."),
        (7, "7."),
    ):
        text = str(errors.ConfigError(setting="s", problem=problem))  # type: ignore[arg-type]
        assert text.startswith(
            f"[POOLCONFIG] A setting, a name or an address is not usable: {said} ("
        )


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_what_may_be_retried_is_decided_for_its_family(kind: type[PoolError]) -> None:
    """The caller's own mistake stays a mistake, and what we lost does not come back."""
    if issubclass(kind, errors.UsageError | errors.LostError | errors.HandlerError):
        assert not kind.retryable


def test_scripts_answer_only_with_words_that_are_codes() -> None:
    codes = {kind.code for kind in LEAVES}
    unknown = [
        f"{path.name}: {word}"
        for path in sorted(PACKAGE.rglob("*.lua"))
        for word in _WORD.findall(path.read_text("utf-8"))
        if word not in codes
    ]
    assert not unknown


MAY_HOLD = {
    "error": "of the task group of a slot, which ends its worker: likewise",
    "crash": "ends its part: at most `restarts_max` in a minute",
    "failed": "likewise; and of what ran beside the loop, where it is dropped at once",
    "caught": "the last word of a thread",
    "raised": "what a handler raised: it is dropped at once",
    "flying": "what closing has raised: likewise",
}


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_no_error_is_raised_that_its_frame_holds(path: Path) -> None:
    """It would be a cycle, which keeps the locals of all callers until the collector comes."""
    tree = ast.parse(path.read_text("utf-8"))
    caught = {
        node
        for handler in ast.walk(tree)
        if isinstance(handler, ast.ExceptHandler)
        for node in ast.walk(handler)
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Name)
        and node.exc.id == handler.name  # which Python itself drops
    }
    held = [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
        and node not in caught
        and isinstance(node.exc, ast.Name)
        and node.exc.id[0].islower()
        and node.exc.id not in MAY_HOLD
    ]
    assert held == [], "raise again(...)"
