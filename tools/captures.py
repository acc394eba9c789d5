"""What `pool status`, `top`, `why` and `doctor` print, in docs/how-to/terminal.md: from a real run.

    python -m tools.captures            makes a pool in trouble, looks at it, writes the page anew
    python -m tools.captures --check    does the same, and says what is stale; writes nothing

A worker runs two crawls, blocks on nothing, and fails to send a mail; a job waits for a handler
that nobody has.  The mail's next attempt is due at any moment of a day, so not while verbs run.
Then the verbs run in a terminal of WIDE columns.  What differs from run to run (ids, times,
numbers) is left out when two captures are compared, nothing else.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import anyio

from pool import Node
from pool.redis.embedded.server import EmbeddedServer, find_server

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs/how-to/terminal.md"
WIDE: Final = 112
POOL: Final = "shop"
WAIT_S: Final = 60.0
VERBS: Final[dict[str, Sequence[str]]] = {
    "status": ("status",),
    "top": ("top", "--frames", "2", "--every", "1"),
    "why": ("why", "order-17"),
    "doctor": ("doctor",),
}
WORKER: Final = """
import anyio
from pool import Handlers

handlers = Handlers()

@handlers.service("crawl")
async def crawl(job):
    await anyio.sleep_forever()

@handlers.job("mail", attempts_max=5, backoff_s=86400, backoff_max_s=86400)
async def mail(job, to):
    raise ValueError(f"no such address: {to}")
"""
_CODES: Final = re.compile(r"\x1b\[[?\d;]*[a-zA-Z]")
# What a run says of itself alone.
_OWN: Final = (
    (re.compile(r"\b[nw][0-9a-hjkmnp-tv-z]{11,}(?:\.\d+)?\b"), "ID"),
    (re.compile(r"\b[0-9a-hjkmnp-tv-z]{11,}\b"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"), "WHEN"),
    (re.compile(r"-?\d+(?:\.\d+)?"), "N"),
    (re.compile(r"\b(?:valkey|redis)\b"), "SERVER"),
    (re.compile(r"^ {6}.*\n", re.MULTILINE), ""),  # a traceback's frames: the code's business
    (re.compile(r"\b(?:ms|s|min|h)\b"), "T"),
    (re.compile(r" +"), " "),
)


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if stale")
    is_check = parser.parse_args().check
    before = after = PAGE.read_text("utf-8")
    stale = []
    for verb, text in captures().items():
        if like(captured(before, verb)) != like(text):
            stale.append(verb)
        after = put(after, verb, text)
    if not is_check:
        PAGE.write_text(after, "utf-8")
    sys.stdout.writelines(f"{verb}: is not what it prints now\n" for verb in stale)
    return int(is_check and bool(stale))


def captured(page: str, verb: str) -> str:
    """Return what the page shows of a verb."""
    found = re.search(_form(verb), page, re.DOTALL)
    assert found, f"the page has no part {verb}"
    return found[2]


def put(page: str, verb: str, text: str) -> str:
    """Return the page with that in its place."""
    return re.sub(_form(verb), lambda m: f"{m[1]}{text}{m[3]}", page, flags=re.DOTALL)


def _form(verb: str) -> str:
    return rf"(<!-- capture {verb} -->\n\n```text\n)(.*?)(```\n\n<!-- /capture -->)"


def like(text: str) -> str:
    """Return it without what differs from run to run."""
    for form, word in _OWN:
        text = form.sub(word, text)
    return text


def captures() -> dict[str, str]:
    """Make a pool in trouble; return what each verb says of it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "shop.py").write_text(WORKER)
        with (
            EmbeddedServer.start(find_server("path"), directory=Path(folder) / "data") as server,
            _worker(Path(folder), server.url),
        ):
            anyio.run(_trouble, server.url)
            shown = {v: _shown(words, _environ(server.url)) for v, words in VERBS.items()}
            return {verb: _placed(text, folder) for verb, text in shown.items()}


def _placed(text: str, folder: str) -> str:
    """Return a text whose files are where a reader's may be."""
    return text.replace(folder, "/srv/shop").replace(str(ROOT), "/srv/site-packages")


async def _trouble(url: str) -> None:
    async with Node(POOL, url, observers=()) as client:
        for site in ("site-1", "site-2"):
            await (await client.dispatch("crawl", site)).started(WAIT_S)
        await client.dispatch("mail", "order-17", "nobody")
        await client.options(allow_unknown=True).dispatch("invioce", "order-18")
        with anyio.fail_after(WAIT_S):
            while (await client.status("order-17")).state != "waiting":  # noqa: ASYNC110
                await anyio.sleep(0.05)


def _environ(url: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k != "COLUMNS" and not k.startswith("POOL_")}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "POOL_NAME": POOL,
        "POOL_URL": url,
        "NO_COLOR": "1",
        "TERM": "xterm",
    }


@contextmanager
def _worker(folder: Path, url: str) -> Iterator[None]:
    words = [sys.executable, "-m", "pool.ops.cli", "run", "shop", "--capacity", "8"]
    words += ["--version-label", "1.4.2", "--label", "shop-0"]
    with subprocess.Popen(
        words, cwd=folder, env=_environ(url), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready"), "the worker has not begun"
            yield
        finally:
            process.terminate()


def _shown(words: Sequence[str], environ: dict[str, str]) -> str:
    """Run a verb in a terminal; return what is seen of it at its end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, WIDE, 0, 0))
    command = [sys.executable, "-m", "pool.ops.cli", *words]
    said = b""
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, cwd="/"
    ):
        os.close(theirs)
        while True:
            try:
                piece = os.read(ours, 65_536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not piece:
                break
            said += piece
    os.close(ours)
    host = socket.gethostname()  # nobody else's business, and as wide
    shown = "host-1234567890"[: len(host)].ljust(len(host))
    said = re.sub(rb"\b" + re.escape(host.encode()) + rb"\b", shown.encode(), said)  # not in ids
    last = said.decode().replace("\r", "").split("\x1b[H\x1b[J")[-1]
    lines = [line.rstrip() for line in _CODES.sub("", last).split("\n")]
    return "\n".join(lines).strip("\n") + "\n"


if __name__ == "__main__":
    sys.exit(main())
