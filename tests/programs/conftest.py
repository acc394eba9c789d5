"""Real programs around the client that blocks: those of the how-to pages, in processes that die."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import attrs
import httpx
import pytest

from tests.ops.pages import ROOT, blocks

PATIENCE_S = 60.0  # for what is bound to happen on a busy machine
LOOK_AGAIN_S = 0.02
BIN = Path(sys.executable).parent
# A program of a page waits for its server as long as a busy machine makes it wait.
_OPENED = re.compile(r'\b(Client|Node)\("shop", ((?:[^()]|\([^()]*\))*)\)')
_PATIENTLY = ', settings=__import__("pool").Settings(op_timeout_s=30)'

JOBS = """\
from pool import Handlers, Job

handlers = Handlers()

@handlers.job("invoice")
def invoice(job: Job, customer: int) -> str:
    return f"invoice {customer} of {job.key}"

@handlers.job("report")
def report(job: Job) -> str:
    return f"report of {job.key}"

@handlers.service("stays")
async def stays(job: Job) -> None:
    async for _ in job.notifications():
        pass
"""


@attrs.define(eq=False)
class Program:
    """A process of a test, and what it has said."""

    process: subprocess.Popen[str]
    lines: list[str] = attrs.field(factory=list)
    _reader: threading.Thread = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def says(self, wanted: str, times: int = 1) -> str:
        """Wait until it was said so often; return the last line that fits."""
        form = re.compile(wanted)

        def found() -> list[str]:
            # By how often it was said: two processes may write into one line.
            return [line for line in list(self.lines) for _ in form.findall(line)]

        until(lambda: len(found()) >= times or self.process.poll() is not None)
        assert len(found()) >= times, f"{wanted!r} was not said:\n" + "\n".join(self.lines)
        return found()[-1]

    def ends(self, number: int | None = None) -> int:
        """Send it a signal, if one is given, and return its exit code."""
        if number is not None:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)  # what it said last is there
        return code

    def close(self) -> None:
        """End it, with all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.ends()
        assert self.process.stdout is not None
        self.process.stdout.close()


def until(is_so: Callable[[], object]) -> None:
    """Look again until it is so."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, f"not within {PATIENCE_S:g} s"
        time.sleep(LOOK_AGAIN_S)  # noqa: TID251 - it blocks, as its programs do


def two(answers: Callable[[], int]) -> set[int]:
    """Ask until two processes have answered; return which."""
    pids: set[int] = set()

    def both() -> bool:
        pids.add(answers())
        return len(pids) == 2

    until(both)
    return pids


@attrs.define(eq=False)
class Place:
    """A folder with a page's files, and what runs there."""

    folder: Path
    pool: str
    url: str
    programs: list[Program] = attrs.field(factory=list)

    def write(self, page: str) -> None:
        """Write down the files that a how-to page shows, for this test's pool."""
        text = (ROOT / "docs/how-to" / page).read_text("utf-8")
        for block in blocks(text):
            if block.kind == "python" and block.title:
                self.file(block.title, block.text)

    def file(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = _OPENED.sub(rf'\1("{self.pool}", \2{_PATIENTLY})', text)
        path.write_text(text, "utf-8")

    def start(self, *words: str, **environment: str) -> Program:
        """Start a program of this Python's."""
        process = subprocess.Popen(
            [str(BIN / words[0]), *words[1:]],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.programs.append(program := Program(process))
        return program

    def worker(self, *words: str) -> Program:
        """Start a worker, and wait until it is ready."""
        words = words or ("pool", "run", "jobs:handlers", "--pool", self.pool)
        program = self.start(*words)
        program.says("^ready")
        return program

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith(("POOL_", "DJANGO_"))},
            "POOL_URL": self.url,
            "PYTHONPATH": f"{ROOT}:{self.folder}",
            "PYTHONUNBUFFERED": "1",
            "NO_COLOR": "1",
        }

    def close(self) -> None:
        for program in self.programs:
            program.close()


@pytest.fixture
def place(tmp_path: Path, pool_url: str, pool_name: str) -> Iterator[Place]:
    made = Place(tmp_path, pool_name, pool_url)
    made.file("jobs.py", JOBS)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


@attrs.frozen
class Web:
    """A web server of a test, asked again where it is just starting, or its worker was killed."""

    port: int

    def get(self, path: str) -> httpx.Response:
        return self._ask("GET", path)

    def post(self, path: str) -> httpx.Response:
        return self._ask("POST", path)

    def _ask(self, method: str, path: str) -> httpx.Response:
        answers: list[httpx.Response] = []

        def ask() -> bool:
            try:
                url = f"http://127.0.0.1:{self.port}{path}"
                answers.append(httpx.request(method, url, timeout=PATIENCE_S, trust_env=False))
            except httpx.TransportError:
                return False
            return True

        until(ask)
        return answers[0]


@pytest.fixture
def web(free_port: int) -> Web:
    return Web(free_port)
