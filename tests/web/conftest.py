"""A gateway in a process of its own, for those that only ask."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pool.ops.web.access import ROLES, SIGNING_VARIABLE, VARIABLES
from tests.web.gateways import SECRETS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Yield where a gateway listens, whose pool is its own."""
    folder = tmp_path_factory.mktemp("gateway")
    command = [sys.executable, "-m", "pool.ops.cli", "dev", "--web", "0", "--json"]
    variables = {VARIABLES[role]: SECRETS[role] for role in ROLES}
    variables[SIGNING_VARIABLE] = "signing-secret-0123456789"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=log
        )
        with process:
            try:
                assert process.stdout is not None
                ready = json.loads(process.stdout.readline())
                host, _, port = ready["web"].rpartition("/")[2].rpartition(":")
                yield host, int(port)
            finally:
                process.terminate()
    told = (folder / "log").read_bytes()
    assert b"Traceback" not in told
    assert b"web.failed" not in told
    assert b"socket.send() raised" not in told
