"""Where the output of a command goes, and what becomes of a command whose output goes nowhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pool.ops.cli import FINDING, OK, UNREACHABLE, USAGE, main

NOWHERE = "redis://127.0.0.1:1"
POOL = f"{sys.executable} -m pool.ops.cli"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-c", line], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("words", ["explain POOLKEY", "acl shop", "completion bash"])
def test_output_that_cannot_be_written_is_one_line_and_a_code(words: str) -> None:
    done = shell(f"{POOL} {words} >/dev/full")
    assert done.returncode == FINDING
    assert done.stderr == "pool: its output cannot be written: No space left on device\n"


def test_a_closed_output_is_nobodys_and_no_error() -> None:
    """The next thing that is opened, a socket say, must not take its place."""
    done = shell(f"{POOL} explain POOLKEY >&-")
    assert (done.returncode, done.stderr) == (OK, "")


def test_who_reads_no_further_has_seen_enough() -> None:
    done = shell(f"{{ {POOL} completion bash; echo $? >&2; }} | head -n 1 >/dev/null")
    assert done.stderr == f"{OK}\n"


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["status", "--pool", "p", "--url", NOWHERE], UNREACHABLE, "POOLUNAVAILABLE"),
        (["batches", "show", "b", "--pool", "p", "--url", NOWHERE], UNREACHABLE, "POOLUNAVAILABLE"),
        (["why", "k", "--pool", "no pool", "--url", NOWHERE], USAGE, "POOLCONFIG"),
        (["explain", "POOLNOSUCH"], USAGE, "POOLOPTION"),
    ],
)
def test_a_call_that_fails_prints_an_object_too(
    words: list[str], code: int, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--json"]) == code
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["ok"], told["error"]["code"]) == (False, named)
    assert " ".join(told["error"]["told"].split()) in err
    assert main(words) == code
    assert capsys.readouterr().out == ""
