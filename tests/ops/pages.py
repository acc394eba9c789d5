"""Documents carried out: what stands in a page is done, in order, in a folder of its own.

    ```python                   a program: it runs (with pytest, if it has tests)
    ```python title="app.py"    a file of that name; it runs too, if it does more than define
    ```sh                       commands; they end well
    ```console                  `$ commands`, each with all that it writes; they may end badly
    ```js title="main.mjs"      a file of that name; likewise go, sh, and text
    ```sh title="terminal 1"    a command that goes on, in a terminal of that name
    ```text                     behind "prints": what the block before printed, and nothing else
    ```text title="terminal 1"  what comes there, in this order; other lines may stand between
    ```yaml, json, toml         can be read; toml with a title is a file of that name
    ```ini                      a unit of systemd whose ExecStart is a command that can be read
    ```dockerfile               its CMD is a command of ours that can be read
    ```shell                    for the reader alone: what needs more than this machine

In expected text `...` stands for anything within a line, and alone on one for any lines.  Log lines
of programs are left out.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Self

import attrs
import yaml

from pool.ops.cli.parser import make

ROOT: Final = Path(__file__).parents[2]
BIN: Final = Path(sys.executable).parent
WAIT_S: Final = 180.0

_BLOCK = re.compile(
    r'^(?P<indent> *)```(?P<kind>\w*)(?: +title="(?P<title>[^"]+)")?\n'
    r"(?P<text>.*?)^(?P=indent)```\n",
    re.DOTALL | re.MULTILINE,
)
_INCLUDED = re.compile(r'--8<-- "([^"]+)"$')
_PROMPT = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\S* \[.*\n", re.MULTILINE)
# What a block of these begins with, its reader may do and a test may not.
SHOWN_ONLY: Final = (
    "pip ",
    "docker ",
    "kubectl ",
    "python -m venv",
    "git ",
    "make ",
    "pool dev",
    "export ",
    # What needs a port, or a project around it: tests/programs runs these.
    "gunicorn ",
    "uvicorn ",
    "POOL_URL=redis://localhost:6379 uvicorn ",
    "python manage.py ",
    "pool run shop.worker:",
)


@attrs.frozen
class Block:
    """A fenced block of a page."""

    kind: str
    title: str
    text: str
    before: str  # the prose between it and the block before
    line: int

    @property
    def is_terminal(self) -> bool:
        """Whether it is about a terminal that stays."""
        return self.title.startswith("terminal")


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page, in order."""
    end = 0
    for found in _BLOCK.finditer(text):
        lines = found["text"].splitlines(keepends=True)
        body = "".join(_shown(line.removeprefix(found["indent"])) for line in lines)
        line = text.count("\n", 0, found.start()) + 1
        yield Block(found["kind"], found["title"] or "", body, text[end : found.start()], line)
        end = found.end()


def _shown(line: str) -> str:
    """Return what the site has in place of a line: a file of the repository, if it names one."""
    named = _INCLUDED.match(line)
    return (ROOT / named[1]).read_text("utf-8") if named else line


def needs_running(text: str) -> bool:
    """Say whether a page has a block that something is done with."""
    return any(block.kind not in {"", "text", "mermaid"} for block in blocks(text))


@attrs.define(eq=False)
class Terminal:
    """A command that goes on, and what it has printed."""

    process: subprocess.Popen[str]
    lines: list[str] = attrs.field(factory=list)
    seen: int = 0
    _came: threading.Condition = attrs.field(factory=threading.Condition)
    _reader: threading.Thread = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._came:
                self.lines.append(line.rstrip("\n"))
                self._came.notify_all()

    def expect(self, wanted: list[str]) -> None:
        """Wait for these lines, behind those that were expected before."""
        for line in wanted:
            form = masked(line)

            def come(form: re.Pattern[str] = form) -> int | None:
                for i in range(self.seen, len(self.lines)):
                    if form.fullmatch(self.lines[i]):
                        return i + 1
                return None

            with self._came:
                assert self._came.wait_for(lambda: come() is not None, WAIT_S), (
                    f"{line!r} does not come; there is {self.lines[self.seen :]}"
                )
                self.seen = come() or self.seen

    def close(self) -> None:
        """End it and what it has started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            self.process.poll()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def masked(line: str) -> re.Pattern[str]:
    """Return the pattern of a line in which `...` stands for anything."""
    return re.compile(".*".join(re.escape(part) for part in line.split("...")))


@attrs.define(eq=False)
class Session:
    """A reader who does what a page says."""

    folder: Path
    bin: Path = BIN  # where `python` and `pool` are
    imports: Sequence[Path] = (ROOT,)  # what can be imported besides
    terminals: dict[str, Terminal] = attrs.field(factory=dict)
    printed: str = ""
    programs: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for terminal in self.terminals.values():
            terminal.close()

    def do(self, block: Block) -> None:
        """Do what a block says."""
        match block.kind:
            case "python":
                self._python(block)
            case "console":
                for command, wanted in _PROMPT.findall(block.text):
                    self.printed = self._run("/bin/sh", "-uc", f"{command} 2>&1", is_free=True)
                    self._compare(wanted)
            case "sh" if block.is_terminal:
                self._begin(block)
            case "sh" if block.title:
                (self.folder / block.title).write_text(block.text, "utf-8")
            case "sh":
                self.printed = self._run("/bin/sh", "-euc", block.text)
            case "text" if block.is_terminal:
                self.terminals[block.title].expect(block.text.splitlines())
            case "text" if block.before.rstrip().endswith("prints"):
                self._compare(block.text)
            case "yaml":
                assert list(yaml.safe_load_all(block.text))
            case "json":
                json.loads(block.text)
            case "toml":
                tomllib.loads(block.text)
                if block.title:
                    (self.folder / block.title).write_text(block.text, "utf-8")
            case "ini":
                check_unit(block.text)
            case "dockerfile":
                check_dockerfile(block.text)
            case "shell":
                for line in block.text.splitlines():
                    assert line.startswith(SHOWN_ONLY), f"can this not be done? {line}"
            case "js" | "go" if block.title:
                (self.folder / block.title).write_text(block.text, "utf-8")
            case "text" if block.title and not block.is_terminal:
                (self.folder / block.title).write_text(block.text, "utf-8")
            case "text" | "" | "mermaid":
                pass
            case other:
                raise AssertionError(f"a block of kind {other}")

    def _python(self, block: Block) -> None:
        self.programs += 1
        name = block.title or f"test_printed_{self.programs}.py"
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(block.text, "utf-8")
        if re.search(r"^(async )?def test_", block.text, re.MULTILINE):
            said = self._run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", name)
            assert re.search(r"\d passed", said), said
            assert "skipped" not in said
        elif block.title and not re.search(r"^(anyio|asyncio)\.run\(", block.text, re.MULTILINE):
            self._run("python", "-c", f"import {'.'.join(Path(name).with_suffix('').parts)}")
        else:
            self.printed = self._run("python", name)

    def _begin(self, block: Block) -> None:
        former = self.terminals.pop(block.title, None)
        if former is not None:  # who reads would have to wait for it, too
            former.process.wait(WAIT_S)
            former.close()
        process = subprocess.Popen(
            ["/bin/sh", "-euc", block.text],
            cwd=self.folder,
            env=self._env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.terminals[block.title] = Terminal(process)

    def _compare(self, wanted: str) -> None:
        form = "".join(
            "(?:.*\n)*" if line == "..." else f"{masked(line).pattern}\n"
            for line in wanted.splitlines()
        )
        came = "".join(f"{line}\n" for line in self.printed.splitlines())
        assert re.fullmatch(form, came), f"{came!r} instead of {wanted!r}"

    def _run(self, *words: str, is_free: bool = False) -> str:
        done = subprocess.run(
            [shutil.which(words[0], path=str(self.bin)) or words[0], *words[1:]],
            cwd=self.folder,
            env=self._env(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert is_free or done.returncode == 0, f"{words[-1]}\n{done.stdout}{done.stderr}"
        return _LOG_LINE.sub("", done.stdout)

    def _env(self) -> dict[str, str]:
        return {
            # As few readers set PYTHONUNBUFFERED: what is printed comes without it.
            **{
                k: v
                for k, v in os.environ.items()
                if not k.startswith("POOL_") and k != "PYTHONUNBUFFERED"
            },
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join(map(str, (*self.imports, self.folder))),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NO_COLOR": "1",
            # As a reader would set them in each terminal.
            "POOL_NAME": "shop",
            "POOL_URL": f"embedded://{self.folder}/data",
        }


def check_unit(text: str) -> None:
    """See that the command line of a unit is one that `pool` takes."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    program, *rest = unit["Service"]["ExecStart"].split()
    assert Path(program).name == "pool"
    make().parse_args(rest)


def check_dockerfile(text: str) -> None:
    """See that the command line of an image is one that `pool` takes."""
    [words] = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    program, *rest = json.loads(words)
    assert program == "pool"
    make().parse_args(rest)
