"""What users' type checkers say of programs: nothing of good ones, and all mistakes of the others.

Both checkers, as strict as they are: `mypy --strict`, and basedpyright in pyright's strict mode.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGES = ("accepted.py", "refused.py")
MARK = "# wrong"


def by_mypy(_: Path) -> dict[str, set[int]]:
    """Return the lines of each page that mypy refuses; with the cache that `make lint` has."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *(str(HERE / page) for page in PAGES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    found = re.findall(r"^(\S+?):(\d+): error: ", done.stdout, re.MULTILINE)
    assert {Path(path).name for path, _ in found} <= set(PAGES), done.stdout
    return {page: {int(n) for path, n in found if Path(path).name == page} for page in PAGES}


def by_basedpyright(folder: Path) -> dict[str, set[int]]:
    """Return the lines of each page that it refuses; `pool` it sees as users do, installed."""
    for page in PAGES:
        shutil.copy(HERE / page, folder)
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    done = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--level", "error"],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    told = json.loads(done.stdout)
    assert told["summary"]["filesAnalyzed"] == len(PAGES), done.stdout
    lines: dict[str, set[int]] = {page: set() for page in PAGES}
    for each in told["generalDiagnostics"]:
        if each["severity"] == "error":
            lines[Path(each["file"]).name].add(each["range"]["start"]["line"] + 1)
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("checked", [by_mypy, by_basedpyright])
def test_type_checkers_accept_good_programs_and_find_each_mistake(
    checked: Callable[[Path], dict[str, set[int]]], tmp_path: Path
) -> None:
    lines = (HERE / "refused.py").read_text("utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith(MARK)}
    assert len(marked) > 20
    assert checked(tmp_path) == {"accepted.py": set(), "refused.py": marked}
