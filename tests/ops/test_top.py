"""`pool top` in a terminal of its own, and what a shell is given to complete our words."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import attrs
import pytest

from pool.jobs.node import Node
from pool.ops.cli import OK, USAGE, main
from pool.ops.cli.parser import make
from pool.ops.cli.shapes import SHAPES, faults
from pool.ops.cli.status import fetch
from pool.ops.cli.top import picture_of
from pool.redis.url import Url
from pool.settings import Settings
from tests.ops.commands import ROOT, running

if TYPE_CHECKING:
    from pathlib import Path

WAIT_S = 60.0


@pytest.mark.parametrize("key", [b"q", b"\x03"])
@pytest.mark.anyio
async def test_it_is_live_in_a_terminal_until_a_key_ends_it(
    pool_url: str, pool_name: str, key: bytes
) -> None:
    """It takes the second screen, and leaves the terminal as it was."""
    async with Node(pool_name, pool_url, settings=Settings(lease_ttl_s=30.0), observers=()):
        words = ["top", "--pool", pool_name, "--url", pool_url, "--every", "0.2"]
        said, code = await _in_a_terminal(words, key)
    assert said.startswith("\x1b[?1049h")
    assert said.count(f"pool {pool_name} on ") >= 2
    assert said.rstrip().endswith("\x1b[?1049l")
    assert code == (OK if key == b"q" else 130)


async def _in_a_terminal(words: list[str], key: bytes) -> tuple[str, int]:
    import anyio.to_thread

    return await anyio.to_thread.run_sync(_run, words, key)


def _run(words: list[str], key: bytes) -> tuple[str, int]:
    pid, fd = pty.fork()
    if pid == 0:
        os.environ |= {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
        program = [sys.executable, "-m", "pool.ops.cli", *words]
        os.execv(sys.executable, program)  # noqa: S606 - in a terminal of its own
    said, until_s, is_pressed = b"", time.monotonic() + WAIT_S, False
    while time.monotonic() < until_s:
        if not select.select([fd], [], [], 0.2)[0]:
            continue
        try:
            piece = os.read(fd, 65_536)
        except OSError:  # how Linux says that the other end is closed
            break
        said += piece
        if not piece:
            break
        if said.count(b"TTL 30 s") >= 2 and not is_pressed:
            os.write(fd, key)
            is_pressed = True
    else:
        os.kill(pid, 9)
    os.close(fd)
    return said.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.anyio
async def test_into_a_pipe_it_is_one_object_for_each_look(
    pool_url: str, pool_name: str, tmp_path: Path
) -> None:
    async with Node(pool_name, pool_url, settings=Settings(lease_ttl_s=30.0), observers=()):
        words = ["top", "--pool", pool_name, "--url", pool_url, "--frames", "2", "--json"]
        async with running(*words, "--every", "0.2", cwd=tmp_path) as top:
            looks = [await top.event() for _ in range(2)]
            assert (await top.end())[0] == OK
    assert all(list(faults(look, SHAPES["top"])) == [] for look in looks)
    assert looks[0]["for_s"] == 0
    assert looks[1]["for_s"] > 0


@pytest.mark.anyio
async def test_what_happens_per_second_is_the_difference_of_two_looks(
    pool_url: str, pool_name: str
) -> None:
    async with Node(pool_name, pool_url, observers=()):
        status = await fetch(pool_name, Url.parse(pool_url))
    was = attrs.evolve(status, counters={"done": 10, "parked": 7})
    now = attrs.evolve(status, counters={"done": 30, "parked": 3, "failed": 4})
    picture = picture_of(now, was, 2.0)
    assert picture.per_s == {"done": 10.0, "parked": 1.5, "failed": 2.0}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_given_all_our_words(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == OK
    said = capsys.readouterr().out
    for word in ("doctor", "older-than", "lease-ttl-s", "unassigned"):
        assert word in said
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=said, text=True, check=True)
    assert main(["completion", shell, "--json"]) == OK
    assert json.loads(capsys.readouterr().out)["script"].rstrip("\n") + "\n" == said


def test_bash_completes_our_words_without_starting_us(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "bash"]) == OK
    (tmp_path / "pool.bash").write_text(capsys.readouterr().out)
    ask = """
    source pool.bash
    COMP_WORDS=(pool do) COMP_CWORD=1
    $(complete -p pool | sed 's/.*-F \\([^ ]*\\).*/\\1/') pool do pool 2>/dev/null
    echo "${COMPREPLY[@]}"
    """
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    done = subprocess.run(
        [bash, "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["doctor"]


def test_without_the_extra_it_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert main(["completion", "bash"]) == USAGE
    assert "keyed-pool[cli]" in capsys.readouterr().err


def test_every_verb_has_help() -> None:
    usage = make(is_whole=False).format_help()
    for verb in (*SHAPES, "completion"):
        assert f" {verb.partition(' ')[0]}" in usage
