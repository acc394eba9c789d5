"""What the running gateway answers is what its OpenAPI says, whatever is asked: schemathesis.

A short form; `make test-web` asks for longer, and for each boundary of each schema.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.web.gateways import SECRETS

LONG = os.environ.get("POOL_TEST_WEB") == "long"
CONFIG = Path(__file__).with_name("schemathesis.toml")


@pytest.mark.parametrize("role", ["admin", "worker"])
def test_it_keeps_what_its_document_promises(
    gateway: tuple[str, int], tmp_path: Path, role: str
) -> None:
    host, port = gateway
    program = Path(sys.executable).with_name("schemathesis")
    phases, examples = ("coverage,fuzzing,stateful", 20) if LONG else ("fuzzing", 2)
    command = [program, "--config-file", CONFIG, "run", f"http://{host}:{port}/openapi.json"]
    command += ["--phases", phases, "--max-examples", str(examples), "--seed", "1", "--no-color"]
    command += ["--header", f"Authorization: Bearer {SECRETS[role]}"]
    if role == "worker":
        command += ["--include-tag", "workers"]
    else:
        # What workers ask is for workers alone; a stream of events does not end.
        command += ["--exclude-tag", "workers", "--exclude-path", "/v1/events"]
    done = subprocess.run(
        [str(word) for word in command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=3600 if LONG else 300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    assert "passed" in done.stdout
    assert "0 generated" not in done.stdout
