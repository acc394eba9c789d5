"""Where each peer lives: a virtual environment of its own, with the newest versions.

They are named without a version on purpose: a comparison is with what a user gets today.  What that
was stands in the result.  `--upgrade`, or deleting the folder, gets what is newest then.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / ".peers"
OURS: Final = "ours"  # has this environment

# Adapter (a module beside this one) -> what is installed.  hiredis is what each of them recommends,
# or what redis-py does for them; streaQ brings a client of its own.
PEERS: Final[dict[str, tuple[str, ...]]] = {
    "arq": ("arq", "redis[hiredis]"),
    "bullmq": ("bullmq", "redis[hiredis]"),
    "celery": ("celery[redis]", "redis[hiredis]"),
    "docket": ("pydocket", "redis[hiredis]"),
    "dramatiq": ("dramatiq[redis]", "redis[hiredis]"),
    "huey": ("huey", "redis[hiredis]"),
    "rq": ("rq", "redis[hiredis]"),
    "saq": ("saq[redis]", "redis[hiredis]", "typing-extensions"),  # it imports that undeclared
    "streaq": ("streaq",),
    "taskiq": ("taskiq", "taskiq-redis", "redis[hiredis]"),
}


def python_of(name: str) -> str:
    """Return the interpreter of an adapter."""
    return sys.executable if name == OURS else str(FOLDER / name / "bin" / "python")


def prepare(name: str, *, is_upgrade: bool = False, packages: Sequence[str] = ()) -> None:
    """Make a peer's environment unless it is there; of `packages`, if some are given.

    Raises:
        RuntimeError: pip failed; the error repeats what it said.
    """
    if name == OURS:
        return
    stamp = FOLDER / name / "ready"
    if stamp.exists() and not is_upgrade:
        return
    wanted = packages or PEERS[name]
    print(f"{stamp.parent.relative_to(ROOT)}: {' '.join(wanted)}", file=sys.stderr)
    venv.create(stamp.parent, with_pip=True, clear=not is_upgrade)
    pip = [python_of(name), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "--upgrade", *wanted], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"pip install {' '.join(wanted)}: {done.stderr[-2000:]}")
    stamp.touch()
