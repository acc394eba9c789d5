"""`pool top` in a terminal of its own, and what a shell is given to complete our words."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import attrs
import pytest

from pool.errors import JobParked, StoreError, StoreFault, StoreUnavailable
from pool.jobs.handlers import Handlers
from pool.jobs.job import Job
from pool.jobs.node import Node
from pool.ops.cli import FINDING, OK, UNREACHABLE, USAGE, main
from pool.ops.cli.parser import make
from pool.ops.cli.shapes import SHAPES, faults
from pool.ops.cli.status import fetch
from pool.ops.cli.top import picture_of
from pool.ops.cli.watching import watch
from pool.redis.url import Url
from pool.settings import Settings
from tests.ops.commands import ROOT, running
from tests.servers import connect

if TYPE_CHECKING:
    from pathlib import Path

    from pool.redis.embedded.server import EmbeddedServer

WAIT_S = 60.0


@pytest.mark.parametrize("key", [b"q", b"\x03"])
@pytest.mark.anyio
async def test_it_is_live_in_a_terminal_until_a_key_ends_it(
    pool_url: str, pool_name: str, key: bytes
) -> None:
    """It takes the second screen, and leaves the terminal as it was."""
    settings = Settings(lease_ttl_s=30.0)
    async with Node(pool_name, pool_url, settings=settings, observers=()) as node:
        await node.options(allow_unknown=True).dispatch("nobodys", "\u6f22" * 150)
        words = ["top", "--pool", pool_name, "--url", pool_url, "--every", "0.2"]
        said, code = await _in_a_terminal(words, key)
    bare = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said)
    assert "\u6f22" in bare
    assert max(len(line.rstrip("\r")) + line.count("\u6f22") for line in bare.split("\n")) <= 100
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


VIEWS = ("top --json", "jobs --watch --json", "events -f --json --since all")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # it is the command that is looked at
@pytest.mark.parametrize("view", VIEWS)
async def test_a_view_that_goes_on_outlives_what_its_server_goes_through(
    view: str, own_server: EmbeddedServer, pool_name: str, tmp_path: Path
) -> None:
    """Frozen, killed, emptied: it says that it cannot be looked at, and goes on when it can."""
    handlers = Handlers(attempts_max=1)

    @handlers.job("fail")
    async def fail(job: Job) -> None:
        raise ValueError("no luck")

    is_journal = view.startswith("events")

    async def fill() -> None:
        async with Node(pool_name, own_server.url, handlers=handlers, observers=()) as node:
            with pytest.raises(JobParked):
                await (await node.dispatch("fail", "k")).result(WAIT_S)

    await fill()
    where = ["--pool", pool_name, "--url", own_server.url]
    every = [] if is_journal else ["--every", "0.2"]
    async with running(*view.split(), *every, *where, cwd=tmp_path, wait_s=4 * WAIT_S) as cli:

        async def sees(*, trouble: bool) -> None:
            while True:
                told = await cli.event()
                if (told.get("edge") == "unread" if is_journal else "error" in told) is trouble:
                    return

        async def comes_back() -> None:
            if is_journal:
                await fill()
            await sees(trouble=False)

        await sees(trouble=False)
        os.kill(own_server.pid, signal.SIGSTOP)
        await sees(trouble=True)
        os.kill(own_server.pid, signal.SIGCONT)
        await comes_back()
        own_server.kill()
        await sees(trouble=True)
        own_server.restart()
        await comes_back()
        with connect(own_server.url) as client:
            client.flushall()
        await comes_back()
        await fill()
        await sees(trouble=False)
        cli.process.send_signal(signal.SIGINT)
        code, said = await cli.end()
    assert (code, said) == (128 + signal.SIGINT, "")


@pytest.mark.anyio
async def test_it_shows_the_last_picture_and_since_when_there_is_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    args = make(is_whole=False).parse_args(["top", "--frames", "3", "--every", "0"])
    looks: list[str | StoreError] = [
        "a picture",
        StoreUnavailable(problem="frozen", maybe_done=True),
        StoreFault(problem="WRONGTYPE", maybe_done=False),
    ]

    async def take() -> str:
        look = looks.pop(0)
        if isinstance(look, StoreError):
            raise look
        return look

    assert await watch(args, take, lambda look: [look], lambda _: True) == FINDING
    said = capsys.readouterr().out.split("! cannot be looked at since ")
    assert [each.count("a picture\n") for each in said] == [1, 1, 1]
    assert said[1].split(" (")[0] == said[2].split(" (")[0]
    assert "frozen" in said[1]
    assert "WRONGTYPE" in said[2]
    looks[:] = [StoreUnavailable(problem="frozen", maybe_done=True)]
    args.frames = 1
    assert await watch(args, take, lambda look: [look], lambda _: True) == UNREACHABLE


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
