"""The package as users get it: built, checked, installed where nothing else is, and used.

It needs no network: what builds it is in the development environment, and what it depends on is
lent from there, distribution by distribution, as far as its metadata ask for it.
"""

from __future__ import annotations

import email
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
# Compressed: half of it is Python, a quarter its docstrings and comments, a sixth Lua, of which
# half is headers and comments, the rest names and checksums of some 240 files.  The 350 kB that
# were wished for are about what is left without docstrings and comments.  They stay: `help()`,
# editors and `pool explain` show them, scripts are checked by their headers, and what is tested is
# what is shipped.
WHEEL_BYTES_MAX = 1_300_000
WHEN = "1700000000"  # any moment; the same one gives the same bytes
RUN_S = 120.0

_PROGRAM = re.compile(r"^```python\n(.*?)^```\n.*?^```text\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[.*\n", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:|#)")


def run(*words: str | Path, cwd: Path, **env: str) -> str:
    """Run a program and return what it printed."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ, "SOURCE_DATE_EPOCH": WHEN, "NO_COLOR": "1", **env},
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source distribution, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "-o", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    [path] = built.glob("*.whl")
    return path


def test_the_index_can_show_it(built: Path) -> None:
    said = run(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir(), cwd=built)
    assert said.count("PASSED") == 2


def test_the_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size <= WHEEL_BYTES_MAX


def test_the_wheel_is_the_same_from_the_repository_as_from_its_source_distribution(
    wheel: Path, tmp_path: Path
) -> None:
    """Anybody can build what was published: bytes depend on the source alone."""
    run(
        *(sys.executable, "-m", "build", "--no-isolation", "--wheel", "-o", tmp_path, ROOT),
        cwd=tmp_path,
    )
    [again] = tmp_path.glob("*.whl")
    assert digest(again) == digest(wheel)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    inside = {name for name in names if ".dist-info/" not in name}
    here = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "pool").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert inside == here
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_its_description_has_no_link_that_leads_nowhere(wheel: Path) -> None:
    """On an index there is no repository beside it."""
    assert not _LINK.findall(str(described(wheel).get_payload()))


def test_it_works_where_only_its_dependencies_are(wheel: Path, tmp_path: Path) -> None:
    """What README says first, in an environment without anything else of ours."""
    home, lent = tmp_path / "venv", tmp_path / "lent"
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=tmp_path)
    python = home / "bin/python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install")
    run(*pip, "--quiet", "--no-index", "--no-deps", wheel, cwd=tmp_path)
    lend({dist.name: dist for dist in needed(described(wheel), "embedded")}, lent)
    env = {"PYTHONPATH": str(lent), "PATH": f"{home / 'bin'}:/usr/bin:/bin"}
    where = run(python, "-c", "import pool; print(pool.__file__)", cwd=tmp_path, **env)
    assert Path(where.strip()).is_relative_to(home)
    version = described(wheel)["Version"]
    assert run(home / "bin/pool", "--version", cwd=tmp_path, **env) == f"pool {version}\n"
    [first, *_] = _PROGRAM.finditer((ROOT / "README.md").read_text("utf-8"))
    (tmp_path / "first.py").write_text(first[1], "utf-8")
    printed = run(python, "first.py", cwd=tmp_path, **env)
    assert _LOG_LINE.sub("", printed) == first[2]


def described(wheel: Path) -> email.message.Message:
    """Return the metadata of a wheel; its payload is the description."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def needed(metadata: email.message.Message, extra: str) -> Iterator[Distribution]:
    """Yield the distributions that are asked for, and those that they ask for."""
    waiting = [(str(line), extra) for line in metadata.get_all("Requires-Dist", [])]
    seen = set[str]()
    while waiting:
        line, of = waiting.pop()
        wanted = Requirement(line)
        if line in seen or (wanted.marker and not wanted.marker.evaluate({"extra": of})):
            continue
        seen.add(line)
        found = distribution(wanted.name)
        assert wanted.specifier.contains(found.version, prereleases=True), line
        yield found
        waiting += [(each, of) for of in ("", *wanted.extras) for each in found.requires or ()]


def lend(found: dict[str, Distribution], folder: Path) -> None:
    """Make `folder` a place to import exactly these from."""
    folder.mkdir()
    for each in found.values():
        tops = {path.parts[0] for path in each.files or () if path.parts[0] not in {"..", "bin"}}
        for top in tops - {"__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(each.locate_file(top))))
