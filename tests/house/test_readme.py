"""README says what is so: its programs run, its tables are generated, its links lead somewhere.

python tests/house/test_readme.py      writes the generated parts anew
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest

from pool import errors
from pool.errors import PoolError
from pool.model.job import diagram
from pool.ops.explain import kinds
from pool.settings import Settings

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TEXT = README.read_text("utf-8")
RUN_S = 60.0

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[.*\n", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FAMILIES = {
    errors.UsageError: "Mend the call",
    errors.RefusedError: "The pool said no",
    errors.LostError: "It is no longer ours",
    errors.StoreError: "Redis",
    errors.NodeError: "The node itself",
    errors.HandlerError: "How the job ended",
}


# --- the generated parts --------------------------------------------------------------------


def table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def settings_rows() -> Iterator[tuple[str, ...]]:
    for field in attrs.fields(Settings):
        meta: Any = field.metadata
        if "low" in meta:
            bounds = f"{meta['low']:,.12g} to {meta['high']:,.12g} {meta['unit']}".strip()
            yield (
                f"`{field.name}`",
                "the pool's" if field.default is None else f"{field.default:,.12g}",
                bounds,
                meta["doc"],
            )
        else:
            yield f"`{field.name}`", str(field.default), meta["unit"], meta["doc"]


def errors_rows() -> Iterator[tuple[str, ...]]:
    for family, title in _FAMILIES.items():
        yield f"**{title}**", f"`{family.__name__}`", ""
        for leaf in [kind for kind in kinds() if kind.__mro__[1] is family]:
            retry = " *retry*" if leaf.retryable else ""
            said = (leaf.__doc__ or "").splitlines()[0]
            yield f"`{leaf.__name__}`{retry}", said, leaf.hint


def generated() -> dict[str, str]:
    return {
        "diagram": f"```mermaid\n{diagram()}\n```",
        "settings": table(("setting", "default", "bounds", ""), settings_rows()),
        "errors": table(("error", "", "hint"), errors_rows()),
    }


def part(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)


@pytest.mark.parametrize("name", list(generated()))
def test_a_generated_part_is_as_generated(name: str) -> None:
    [present] = part(name).findall(TEXT)
    assert present == generated()[name] + "\n", f"run python {Path(__file__).relative_to(ROOT)}"


def test_every_family_of_errors_is_in_the_table() -> None:
    assert set(_FAMILIES) == {kind for kind in kinds() if kind.__mro__[1] is PoolError}


# --- programs -------------------------------------------------------------------------------


def programs() -> Iterator[tuple[str, str]]:
    """Yield each Python block, and what it prints if the prose behind it leads to that."""
    blocks = list(_BLOCK.finditer(TEXT))
    for block, following in pairwise([*blocks, blocks[-1]]):
        if block[1] == "python":
            prose = TEXT[block.end() : following.start()]
            yield block[2], following[2] if prose.rstrip().endswith("prints") else ""


def run(arguments: list[str], directory: Path) -> str:
    """Run python and return what it prints, but for log lines."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return _LOG_LINE.sub("", done.stdout)


@pytest.mark.parametrize("number", range(len(list(programs()))))
def test_a_program_runs_as_printed(number: int, tmp_path: Path) -> None:
    code, output = list(programs())[number]
    path = tmp_path / "test_printed.py"
    path.write_text(code, "utf-8")
    if "def test_" in code:
        assert "1 passed" in run(["-m", "pytest", "-q", path.name], tmp_path)
    else:
        printed = run([path.name], tmp_path)
        assert not output or printed == output


def test_the_first_program_is_short_and_says_what_it_prints() -> None:
    code, output = next(programs())
    assert len([line for line in code.splitlines() if line]) <= 20
    assert output


# --- what it refers to ----------------------------------------------------------------------


def test_links_lead_somewhere() -> None:
    headings = re.findall(r"^#+ (.*)$", TEXT, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
    for target in _LINK.findall(TEXT):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        else:
            assert (ROOT / target).is_file(), target


def test_every_example_is_linked() -> None:
    linked = set(_LINK.findall(TEXT))
    assert {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")} <= linked


def test_the_two_commands_are_targets() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"^    make (\w+)", TEXT, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("command", re.findall(r"^\| `pool (\w+)", TEXT, re.MULTILINE))
def test_a_command_has_the_options_that_are_named(command: str, tmp_path: Path) -> None:
    [row] = re.findall(rf"^\| `pool {command}.*$", TEXT, re.MULTILINE)
    said = run(["-m", "pool.ops.cli", command, "--help"], tmp_path)
    assert set(re.findall(r"--[\w-]+", row)) | {"--json"} <= set(re.findall(r"--[\w-]+", said))


def test_the_guarantees_are_numbered_without_a_gap() -> None:
    named = re.findall(r"^- \*\*(G-\d\d) ", TEXT, re.MULTILINE)
    assert named == [f"G-{number:02}" for number in range(1, 11)]


def test_events_that_are_named_exist() -> None:
    source = "".join(path.read_text("utf-8") for path in (ROOT / "pool/actors").glob("*.py"))
    known = set(re.findall(r'event: ClassVar\[str\] = "([\w.]+)"', source))
    [rows] = re.findall(r"^\| event \| meaning \|\n(.*?)\n\n", TEXT, re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"`([a-z]+\.[a-z]+)`", rows)) <= known


if __name__ == "__main__":
    for _name, _text in generated().items():
        TEXT = part(_name).sub(lambda _, text=_text: f"{text}\n", TEXT)  # type: ignore[misc]
    README.write_text(TEXT, "utf-8")
