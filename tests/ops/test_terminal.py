"""What users write is printed so that no terminal obeys it, and no line of ours can be forged."""

from __future__ import annotations

import ast
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest

from pool.core.pauses import Cordon, Pause
from pool.errors import JobParked
from pool.jobs.handlers import Handlers
from pool.jobs.job import Job
from pool.jobs.node import Node
from pool.ops.cli import main
from pool.ops.cli.parked import _line as letter_line
from pool.ops.cli.parked import _lines as letter_lines
from pool.ops.cli.status import lines as status_lines
from pool.ops.findings import Finding
from pool.ops.inspect import Oldest
from pool.ops.jsonable import DeadLetter
from pool.ops.members import NodeRow, WorkerRow
from pool.ops.summary import PoolStatus
from pool.ops.terminal import Safe, Screen, by_lines, is_coloured, progress, table, write
from pool.printable import plain
from tests.ops.commands import ROOT, WAIT_S, running

EVIL = "\x1b[31mred\x1b[0m\r\n! all is lost\x07\u202e\x9b2J\udc80"


def is_printable(text: str) -> bool:
    """Whether no terminal would obey it: a traceback may have its own lines."""
    return all(line.isprintable() for line in text.removesuffix("\n").split("\n"))


def is_safe(text: str) -> bool:
    """Whether it is printable, and no line begins as the evil one would."""
    return is_printable(text) and not re.search(r"^! all is lost", text, re.MULTILINE)


def test_nothing_else_in_the_command_line_writes() -> None:
    """So one place makes it safe."""
    found = []
    for path in sorted((ROOT / "pool" / "ops").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            is_write = isinstance(node, ast.Attribute) and node.attr in ("write", "writelines")
            if (is_write and "sys.std" in ast.unparse(node)) or ast.unparse(node) == "print":
                found.append(path.name)
    assert found == []


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_what_is_written_is_lines_in_any_encoding(encoding: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding)
    write([EVIL, "straße 東京"], stream)
    said = raw.getvalue().decode(encoding)
    assert said.count("\n") == 2
    assert is_safe(said)
    assert r"\x1b[31mred\x1b[0m\r\n! all is lost\x07\u202e\x9b2J\udc80" in said
    assert plain("straße 東京\t|") == "straße 東京\t|"


class Tty(io.StringIO):
    """A terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


ROWS = [("a", "live", 3), ("b" * 60, "hung", 12), ("\u6771" * 20, EVIL, None)]


def test_a_table_fits_the_terminal_and_is_whole_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    for columns in (40, 60, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = list(table(("KEY", "STANDING", "N"), ROWS, Tty()))
        wide = [len(line) + line.count("\u6771") for line in lines]
        assert max(wide) <= columns
        assert len({line.index("live") for line in lines[1:2]}) == 1
        assert all(is_printable(line) for line in lines)
    whole = list(table(("KEY", "STANDING", "N"), ROWS, io.StringIO()))
    assert "b" * 60 in whole[2]
    assert whole[1].endswith(" 3")
    assert whole[2].endswith("12")
    assert list(table(("KEY", "N"), [])) == ["KEY  N"]


def test_colour_is_for_terminals_and_no_color_turns_it_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert is_coloured(Tty())
    assert not is_coloured(io.StringIO())
    head, live, hung, foreign = table(("KEY", "STANDING", "N"), ROWS, Tty())
    assert "\x1b[32mlive\x1b[0m" in live
    assert "\x1b[31mhung\x1b[0m" in hung
    assert r"\x1b[31mred" in foreign  # it stays a text: only whole words of ours have colours
    assert isinstance(head, Safe)
    monkeypatch.setenv("TERM", "dumb")
    assert not is_coloured(Tty())
    with Screen(stream := Tty()) as screen:
        screen.clear()
    assert stream.getvalue() == ""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not is_coloured(Tty())


def test_what_lasts_tells_how_far_it_is_and_what_does_not_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    err, now_s = Tty(), [0.0]
    monkeypatch.setattr("sys.stderr", err)
    monkeypatch.setattr("pool.ops.terminal.time.monotonic", lambda: now_s[0])
    with progress("deleted", 4) as bar:
        bar.at(1)
        assert err.getvalue() == ""
        now_s[0] = 1.5
        bar.at(2)
    assert f"deleted [{'#' * 15}{'.' * 15}] 2/4" in err.getvalue()
    assert err.getvalue().endswith("\n")


def evil(kind: str) -> Any:
    """Return something evil of an annotated type."""
    match kind.replace(" | None", ""):
        case "str":
            return EVIL
        case "int" | "float" | "bool":
            return 1
        case text if "dict[str, int]" in text:
            return {EVIL: 1}
        case text if "dict" in text:
            return {EVIL: EVIL, "args": EVIL}
        case _:
            return [EVIL]


def test_each_field_of_a_status_is_safe(capsys: pytest.CaptureFixture[str]) -> None:
    def of(kind: type[Any]) -> Any:
        return kind(**{field.name: evil(str(field.type)) for field in attrs.fields(kind)})

    given: dict[str, Any] = {f.name: evil(str(f.type)) for f in attrs.fields(PoolStatus)}
    given |= {"nodes": [of(NodeRow)], "workers": [of(WorkerRow)], "oldest": of(Oldest)}
    given["findings"] = [attrs.evolve(of(Finding), severity=EVIL, fix=EVIL)]
    given |= {"paused": [of(Pause)], "cordons": [of(Cordon)]}
    write(status_lines(PoolStatus(**given)))
    said = capsys.readouterr().out
    assert said.count(r"\x1b[31mred") > 8
    assert is_safe(said)


@pytest.mark.anyio
async def test_what_a_job_raises_is_safe_in_each_command(
    pool_url: str, pool_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = Handlers()

    @handlers.job("fails", attempts_max=1)
    async def fails(job: Job, /, *args: str, **kwargs: str) -> None:
        raise type(f"Evil{EVIL[:8]}", (ValueError,), {})(EVIL)

    where = ["--pool", pool_name, "--url", pool_url]

    async def told(*words: str) -> tuple[str, str]:
        capsys.readouterr()
        await anyio.to_thread.run_sync(main, [*words, *where])
        said = capsys.readouterr()
        assert is_safe(said.out), words
        assert is_safe(said.err), words
        return said

    async with Node(pool_name, pool_url, handlers=handlers, observers=()) as node:
        ref = await node.dispatch("fails", "k", "\x1b[31m", x="\x1b[31m")
        with pytest.raises(JobParked):
            await ref.result(timeout_s=WAIT_S)
        named = ("k", ref.job_id)
        assert (await told("parked", "show", *named))[0].count(r"\x1b[31m") >= 4
        assert "[31mred" in (await told("parked", "list"))[0]
        letter = await node.parked.show(*named)
        for each in (
            (),
            ("status",),
            ("why", "k"),
            ("parked", "show", EVIL[:-1], EVIL[:-1]),
            ("parked", "edit", *named, "--args", f'["{EVIL[:5]}"'),
            ("parked", "list", "--cursor", EVIL[:-1]),
            ("parked", "discard", "--all", "--prefix", EVIL[:-1]),
            ("explain", EVIL[:-1]),
            ("check", EVIL[:-1]),
            (EVIL[:-1],),
        ):
            await told(*each)
        bad: dict[str, Any] = {
            field.name: EVIL
            for field in attrs.fields(type(letter))
            if isinstance(getattr(letter, field.name), str)
        }
        whole = attrs.evolve(letter, **bad, args=None)
        write([*letter_lines(DeadLetter.of(whole)), letter_line(whole)])
        said = capsys.readouterr().out
        assert is_safe(said)


@pytest.mark.anyio
async def test_log_lines_and_a_modules_own_failure_are_safe(
    pool_url: str, pool_name: str, tmp_path: Path
) -> None:
    (tmp_path / "evil.py").write_text(
        f"from pool import Handlers\nhandlers = Handlers()\nEVIL = {EVIL!r}\n"
        '@handlers.job("fails", attempts_max=1)\n'
        "async def fails(job):\n    raise ValueError(EVIL)\n"
        "def observe(event):\n    raise RuntimeError(EVIL)\n"
    )
    (tmp_path / "worse.py").write_text(f"raise ValueError({EVIL!r})\n")
    where = ["--pool", pool_name, "--url", pool_url]
    words = ["run", "evil", "--observer", "evil:observe", "--log-format", "console", *where]
    async with (
        Node(pool_name, pool_url, observers=()) as node,
        running(*words, cwd=tmp_path) as worker,
    ):
        await worker.line()
        with pytest.raises(JobParked):
            await (await node.dispatch("fails", "k")).result(WAIT_S)
        worker.process.terminate()
        log = (await worker.end())[1]
        assert r"\x1b[31mred" in log
        assert is_printable(log)
    for words in (["run", "worse", *where], ["check", "worse"], ["check", "worse", "--json"]):
        async with running(*words, cwd=tmp_path) as failing:
            _, log = await failing.end()
            assert is_printable(log)
            if words[0] == "check":
                out = await failing.process.stdout.receive() if failing.process.stdout else b""
                assert is_printable(out.decode())
                assert words[-1] != "--json" or not json.loads(out)["ok"]


def test_a_line_is_written_when_it_ends() -> None:
    """Into a pipe Python writes blocks: what is printed would come when the worker leaves."""
    read, written = os.pipe()
    os.set_blocking(read, False)
    with os.fdopen(read, "rb") as there, os.fdopen(written, "w") as here:
        print("one", file=here)
        assert there.read() is None
        lost: list[OSError] = []
        print("two", file=by_lines(here, lost.append))
        assert there.read() == b"one\ntwo\n"
        assert not lost


def test_a_line_that_cannot_be_written_is_reported_and_raises_nothing() -> None:
    read, written = os.pipe()
    lost: list[OSError] = []
    with os.fdopen(written, "w") as here:
        lines = by_lines(here, lost.append)
        os.close(read)
        print("one", file=lines)
        lines.flush()
    assert [type(error) for error in lost] == [BrokenPipeError]
