"""Every example runs as it is, and prints what its docstring says."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LINES_MAX = 80
RUN_S = 60.0
_LOG_LINE = re.compile(  # with the traceback that stands below it, if there is one
    r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\dZ]* \[.*\n"
    r"(?:Traceback \(most recent call last\):\n(?: +.*\n)+\w.*\n)?",
    re.MULTILINE,
)


def promised(path: Path) -> str:
    """Return what the docstring says that the program prints: its indented lines."""
    doc = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert doc, "an example begins by saying what it shows and what it prints"
    lines = [line[4:] for line in doc.splitlines() if line.startswith("    ")]
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_its_docstring_says(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, path],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "",  # else a line is two writes, and two processes' lines mix
            "NO_COLOR": "1",
            "TENANTS": "300",
        },
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert (done.returncode, _LOG_LINE.sub("", done.stderr)) == (0, "")
    assert promised(path) != ""
    assert _LOG_LINE.sub("", done.stdout) == promised(path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) < LINES_MAX
