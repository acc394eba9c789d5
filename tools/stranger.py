"""A stranger's walk: what somebody does who has found this repository, and what each step takes.

    python -m tools.stranger

A fresh clone, a clean PATH and an environment of its own, into which the package is installed as
the index would give it.  Then README and the tutorial are carried out there, block by block.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.ops.pages import Session, blocks

ROOT: Final = Path(__file__).parents[1]
KEPT: Final = ("HOME", "LANG", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR")


@contextmanager
def timed(step: str) -> Iterator[None]:
    """Print how long it took, when it has succeeded."""
    began_s = time.monotonic()
    yield
    sys.stdout.write(f"{time.monotonic() - began_s:7.1f} s  {step}\n")
    sys.stdout.flush()


def run(*words: str | Path, cwd: Path) -> None:
    """Run a program; what it says is shown only when it fails."""
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{words}\n{done.stdout}{done.stderr}")


def walk(folder: Path) -> None:
    """Do it all in this folder."""
    clone, home = folder / "clone", folder / "venv"
    with timed("a fresh clone"):
        run("git", "clone", "--quiet", ROOT, clone, cwd=folder)
    with timed("an environment"):
        run(Path(sys.base_prefix) / "bin/python3", "-m", "venv", home, cwd=folder)
    with timed("pip install keyed-pool[embedded] pytest"):
        run(home / "bin/pip", "install", "--quiet", f"{clone}[embedded]", "pytest", cwd=folder)
    for page in ("README.md", "docs/tutorial.md"):
        own = folder / Path(page).stem
        own.mkdir(mode=0o700)
        with timed(page), Session(own, bin=home / "bin", imports=()) as session:
            for block in blocks((clone / page).read_text("utf-8")):
                session.do(block)


def main() -> int:
    """Walk."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    kept |= {name: each for name, each in os.environ.items() if name.startswith("PIP_")}
    os.environ.clear()
    os.environ.update(kept, PATH="/usr/bin:/bin")
    with tempfile.TemporaryDirectory(prefix="pool-stranger-") as folder, timed("all of it"):
        walk(Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
