"""Where the output of a command goes, and what becomes of a command whose output goes nowhere."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from anyio import to_thread

from pool.jobs.node import Node
from pool.ops.cli import FINDING, OK, UNREACHABLE, USAGE, main
from pool.ops.logs import line

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


@pytest.mark.parametrize("where", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_where_no_error_can_be_said_the_code_says_it(tmp_path: Path, where: str) -> None:
    """Of a command that fails, and of a worker, whose log is lost alone."""
    (tmp_path / "mine.py").write_text(
        "from pool import Handlers\nhandlers = Handlers()\nhandlers.job('h')(lambda _: None)\n"
    )
    for words in ("status", "run mine"):
        done = shell(f"cd {tmp_path} && {POOL} {words} --pool p --url {NOWHERE} {where}")
        assert (done.returncode, done.stdout) == (UNREACHABLE, "")


def test_a_program_whose_standard_error_is_closed_has_no_log() -> None:
    """Nor has it lines of ours in its output."""
    code = "from pool.redis.log import Log; Log('pool').info('event', fact=1)"
    done = shell(f'{sys.executable} -c "{code}" 2>&-')
    assert (done.returncode, done.stdout) == (OK, "")


def test_lines_go_where_a_program_has_them_written_by_coroutines() -> None:
    """Those of structlog's `AsyncBoundLogger`, which nobody would await for us."""
    code = """
import structlog
from pool.redis.log import Log
log = Log("pool")
structlog.configure([structlog.processors.KeyValueRenderer()], structlog.stdlib.AsyncBoundLogger)
log.info("node.joined", fact=1)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("fact=1 event='node.joined'\n", "")


def test_ctrl_c_while_modules_are_read_is_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pool.ops.cli.parser.make", interrupted)
    assert main(["status"]) == 128 + signal.SIGINT


def test_lines_that_no_logger_writes_have_the_form_of_the_others() -> None:
    told = json.loads(line("warning", "log.dropped", is_json=True, lines=3))
    datetime.fromisoformat(told.pop("timestamp"))
    assert told == {"event": "log.dropped", "level": "warning", "lines": 3}
    time, level, event, fact = (
        line("error", "process.hangs", is_json=False, code=70).replace("[", "").replace("]", "")
    ).split()
    datetime.fromisoformat(time)
    assert (level, event, fact) == ("error", "process.hangs", "code=70")


def test_who_reads_no_further_has_seen_enough() -> None:
    done = shell(f"{{ {POOL} completion bash; echo $? >&2; }} | head -n 1 >/dev/null")
    assert done.stderr == f"{OK}\n"


@pytest.fixture
def view(pool_url: str, pool_name: str) -> str:
    """A command that writes while it has tasks, and would never end by itself."""
    return f"{POOL} top --json --every 0.2 --pool {pool_name} --url {pool_url}"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # it is the command that is looked at
async def test_a_view_whose_output_is_gone_or_full_ends_as_any_command(
    view: str, pool_url: str, pool_name: str
) -> None:
    async with Node(pool_name, pool_url, observers=()):
        closed = await to_thread.run_sync(shell, f"{{ {view}; echo $? >&2; }} | head -n 1")
        full = await to_thread.run_sync(shell, f"{view} >/dev/full")
    assert json.loads(closed.stdout)["ok"]
    assert closed.stderr == f"{OK}\n"
    assert full.stderr == "pool: its output cannot be written: No space left on device\n"
    assert full.returncode == FINDING


def test_a_failure_that_nobody_reads_is_no_traceback() -> None:
    done = shell(f"{{ {POOL} explain POOLNOSUCH --json; echo $? >&2; }} | head -c 0")
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
