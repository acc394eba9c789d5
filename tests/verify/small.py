"""Small mutants: lines of the library changed at random, to see whether the tests notice.

    python -m tests.verify.small [--count 100] [--seed 1] [--jobs 2] [--under pool/jobs]
                                 [--known] [--look tests/FILE ...] [--again]
                                                        (make small-mutants; docs/small-mutants.md)

`mutants.py` plants bugs of the protocol that somebody thought of; this one changes what nobody
thought of: a comparison, a number, a condition, a statement less.  The tests are run once with
coverage, which tells who of them runs which line.  Then lines are drawn, each is changed in a copy
of the tree, and the tests that run it are run there.  If none of them fails, the mutant survives: a
test is missing, the line is superfluous, or the change makes no difference, and then `EXCUSED` says
why not.

A busy machine is no killer.  Whoever fails, or hangs for a minute, is asked twice more by himself:
with the change, when he must fail again, and without it, when he must not.  Otherwise he is left
out, and the others are asked.  Who noticed a mutant is kept, and asked first the next time.

`--again` shows those only that nobody noticed the last time, such as when tests have been written
for them.  `--known` takes who runs what as it was looked up the last time, and `--look` adds some
test files to that.

Of the page, what somebody wrote below "At first sight" stays: what was noticed before anybody knew
which lines are drawn is written down there, as the table only tells what is noticed by now.

Lines of functions only: what stands outside of them are names and settings.  Lines that no test
runs in its own process are given to the tests that start processes, and scripts to those that call
scripts.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final, TypeAlias

import attrs

from tests.verify.mutants import ROOT, copy_tree, started

PAGE: Final = ROOT / "docs" / "small-mutants.md"
MAP: Final = ROOT / "build" / "who-runs-what.json"
NOTICED: Final = ROOT / "build" / "who-noticed.json"
TESTS_S: Final = 90.0  # of tests for one mutant, by what they take without it
_PATIENCE: Final = 5.0  # times as long
_STARTS_S: Final = 30.0
_OPTIONS: Final = (
    *("-v", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:pytest_cov"),
    *("-o", "faulthandler_exit_on_timeout=true"),  # of one test, see pyproject.toml
)
_UNCOVERED: Final = ("--deselect=tests/house/test_budgets.py",)  # it counts lines itself
_OF_PROCESSES: Final = ("tests/process", "tests/ops")
_OF_SCRIPTS: Final = (
    *sorted(
        (file.relative_to(ROOT).as_posix() for file in ROOT.glob("tests/redis/test_*.py")),
        key=lambda file: ("_script" not in file, file),
    ),
    "tests/fuzz/test_scripts.py",
    "tests/jobs/test_full_server.py",
)
_FAILED: Final = re.compile(
    r"^(?:FAILED|ERROR) (tests/\S+?::(?:[^\[\s]*\[.*?\]|\S+))(?: - .*)?$", re.MULTILINE
)
_BEGAN: Final = re.compile(  # the last one, whether or not it was told how it ended
    r"^(tests/\S+?::(?:[^\[\s]*\[.*?\]|\S+))(?: [A-Z]+ +\[ *\d+%\])? *$"
)
_GONE: Final = re.compile(r"^ERROR: not found: \S*?(tests/.*)$", re.MULTILINE)
_TOOK: Final = re.compile(r"^([0-9.]+)s (?:call|setup) +(tests/\S.*)$", re.MULTILINE)

EXCUSED: Final[Mapping[str, str]] = {
    "pool/jobs/worker/worker.py: free = self._executor.left() - self._coming() -> "
    "free = (self._executor.left() + self._coming())": (
        "a pull brings no more than `says` names, and that has what comes taken off"
    ),
    "pool/jobs/worker/executor.py: if is_asked_for(): / raise -> pass": (
        "its worker's tasks are being cancelled: what comes next is cancelled, too"
    ),
    "pool/jobs/fleet/reaper.py: except StoreLost as error: / "
    'self._troubled("reap", state.number, error) -> pass': (
        "that the data are lost renewals and fences tell as well"
    ),
    "pool/jobs/worker/worker.py: if not self._executor.is_holding: / return -> pass": (
        "where there is room nothing waits but suspects for their turn, and `surplus` leaves those"
    ),
    "pool/jobs/fleet/membership.py: state, steps = self.context.lanes[number], steps + 1 -> "
    "state, steps = self.context.lanes[number], steps + (2)": (
        "after how many steps it rests is a matter of pace"
    ),
    "pool/streams/reader.py: with anyio.CancelScope(shield=True): -> "
    "with anyio.CancelScope(shield=(False)):": "closing a tailer is shielded by itself",
    "pool/demo/conductor.py: number not in self.history.heard.get(key, ()) -> "
    "(number in self.history.heard.get(key, ()))": (
        "the demo waits for longer than it need; its verdict counts what was heard by itself"
    ),
    "pool/demo/conductor.py: self.show.paint(self.history) -> pass": (
        "the picture is for terminals only, which the demo's tests have not"
    ),
    "pool/redis/connection.py: self._until_s = 0.0 -> self._until_s = (1.0)": (
        "each exchange sets it before it looks at it"
    ),
    "pool/jobs/node.py: then.push_async_callback(anyio.lowlevel.checkpoint) -> pass": (
        "timers that were taken back end with the next turn of the loop in any case"
    ),
    "pool/redis/lua/signal.lua: redis.call('XLEN', signal) -> local _": (
        "the write before it never changes anything, and XADD refuses what is no stream as well"
    ),
    "pool/maps/replica.py: failures, self._is_failing = failures + 1, True -> "
    "failures, self._is_failing = failures + (2), True": (
        "how long it rests between its first tries is a matter of pace; what is told is the same"
    ),
    "pool/redis/lua/lib/lane.lua: if reached > STAMP_MAX / 1000 then -> "
    "if reached >= STAMP_MAX / 1000 then": "one moment of the year 2255",
}

Span: TypeAlias = tuple[int, int]  # offsets into a text


@attrs.frozen
class Change:
    """One place of a file, and what shall stand there."""

    path: str
    line: int
    span: Span
    new: str

    def apply(self, text: str) -> str:
        """Return the text of the file with the change in it."""
        begin, end = self.span
        return text[:begin] + self.new + text[end:]

    def told(self) -> str:
        """Return the line before and after it, as the page shows it."""
        text = (ROOT / self.path).read_text("utf-8")
        changed = self.apply(text)
        old, new = (each.splitlines()[self.line - 1].strip() for each in (text, changed))
        return f"{old} -> {new}"


# --- what may be changed ------------------------------------------------------------------------

_COMPARED: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE,
    ast.GtE: ast.Gt, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: Final[Mapping[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip


def _instead(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may stand in place of a node."""
    match node:
        case ast.Compare(left, [op], others) if type(op) in _COMPARED:
            yield ast.Compare(left, [_COMPARED[type(op)]()], others)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.BinOp(left, op, right) if type(op) in _COMPUTED:
            yield ast.BinOp(left, _COMPUTED[type(op)](), right)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1 if isinstance(value, int) else value * 2 or 1.0)
        case ast.Return(value) if value is not None and not _is_none(value):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete() | ast.Raise():
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()
        case ast.Continue() | ast.Return(None):
            yield ast.Pass()


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _conditions(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield node.test, ast.UnaryOp(ast.Not(), node.test)


def _walked(node: ast.AST, *, is_code: bool = False) -> Iterator[ast.AST]:
    """Yield the nodes of functions' bodies, but for annotations and what `_LEFT_ALONE` lists."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(
            node, ast.Call
        ):
            continue
        inside = is_code or (name == "body" and isinstance(node, _FUNCTIONS))
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, _LEFT_ALONE):
                if inside:
                    yield child
                yield from _walked(child, is_code=inside)


# What only asserts; where only a name or a number may stand; what does not know where it stands.
_LEFT_ALONE: Final = (ast.Assert, ast.pattern, ast.JoinedStr)
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def _python(path: str, text: str) -> Iterator[Change]:
    """Yield the changes that one may make to a module."""
    starts = [0, *itertools.accumulate(len(line.encode()) for line in text.splitlines(True))]
    raw = text.encode()

    def offset(line: int, column: int) -> int:
        return len(raw[: starts[line - 1] + column].decode())

    for node in _walked(ast.parse(text)):
        pairs = [(node, new) for new in _instead(node)] + list(_conditions(node))
        for old, new in pairs:
            assert isinstance(old, (ast.expr, ast.stmt))
            assert old.end_lineno is not None
            assert old.end_col_offset is not None
            span = offset(old.lineno, old.col_offset), offset(old.end_lineno, old.end_col_offset)
            written = ast.unparse(ast.fix_missing_locations(new))
            if isinstance(old, ast.expr):
                written = f"({written})"
            yield Change(path, old.lineno, span, written)


_IN_LUA: Final = (
    (re.compile(r"=="), "~="),
    (re.compile(r"~="), "=="),
    (re.compile(r"(?<=\s)<(?=\s)"), "<="),
    (re.compile(r"(?<=\s)>(?=\s)"), ">="),
    (re.compile(r"<="), "<"),
    (re.compile(r">="), ">"),
    (re.compile(r"\band\b"), "or"),
    (re.compile(r"\bor\b"), "and"),
    (re.compile(r"\bnot "), ""),
    (re.compile(r"\btrue\b"), "false"),
    (re.compile(r"\bfalse\b"), "true"),
    (re.compile(r"(?<=\s)\+(?=\s)"), "-"),
    (re.compile(r"(?<=\s)-(?=\s)"), "+"),
    (re.compile(r"(?<=[\s(,])\d+(?=[\s),])"), "77"),
    (re.compile(r"^ *redis\.call\([^\n]*\)$"), "local _"),
)


def _lua(path: str, text: str) -> Iterator[Change]:
    """Yield the changes that one may make to a script."""
    header = text.find("]]") + 2 if text.startswith("--[[") else 0
    begin = 0
    for number, line in enumerate(text.splitlines(True), 1):
        code = line.partition("--")[0].rstrip() if begin >= header else ""
        for pattern, new in _IN_LUA:
            for found in pattern.finditer(code):
                yield Change(path, number, (begin + found.start(), begin + found.end()), new)
        begin += len(line)


def changes(under: str) -> dict[tuple[str, int], list[Change]]:
    """Return what may be changed, by line."""
    found: dict[tuple[str, int], list[Change]] = defaultdict(list)
    kinds: Sequence[tuple[str, Callable[[str, str], Iterator[Change]]]]
    kinds = (("*.py", _python), ("*.lua", _lua))
    for pattern, make in kinds:
        for file in sorted((ROOT / under).rglob(pattern)):
            path = file.relative_to(ROOT).as_posix()
            for change in make(path, file.read_text("utf-8")):
                found[path, change.line].append(change)
    return found


# --- who runs what ------------------------------------------------------------------------------


@attrs.frozen
class Who:
    """Which tests run a line, and how long they take."""

    runs: Mapping[str, Mapping[str, Sequence[str]]]  # path -> line -> tests
    took_s: Mapping[str, float]

    def tests(self, change: Change) -> Sequence[str]:
        """Return whom a change is shown to, the likeliest first, for `TESTS_S` altogether."""
        if change.path.endswith(".lua"):
            return _OF_SCRIPTS
        all_of_them = self.runs.get(change.path, {}).get(str(change.line), ())
        by_file: dict[str, list[str]] = defaultdict(list)
        for test in sorted(all_of_them, key=self._cost_s):
            by_file[test.partition("::")[0]].append(test)
        name = Path(change.path).stem
        own = [test for file, tests in by_file.items() if name in file for test in tests]
        others = sorted(file for file in by_file if name not in file)
        others.sort(key=lambda file: len(by_file[file]))
        turns = itertools.zip_longest(*(by_file[file] for file in others))
        by_turns = [test for tests in turns for test in tests if test is not None]
        chosen: dict[str, None] = {}
        for asked, until_s in ((own, TESTS_S / 2), (by_turns, TESTS_S), (own, TESTS_S)):
            for test in asked:
                if sum(map(self._cost_s, chosen)) < until_s:
                    chosen[test] = None
        return list(chosen) or self._of_processes(change)

    def _of_processes(self, change: Change) -> Sequence[str]:
        those = sorted(filter(lambda test: test.startswith(_OF_PROCESSES), self.took_s))
        those.sort(key=self._cost_s)
        own = [test for test in those if Path(change.path).stem in test.partition("::")[0]]
        those = [*own, *(test for test in those if test not in own)]
        costs = itertools.accumulate(map(self._cost_s, those))
        few = [test for test, cost in zip(those, costs, strict=True) if cost < TESTS_S]
        return few or _OF_PROCESSES

    def allowed_s(self, tests: Sequence[str]) -> float:
        """Return how long these may take altogether on a busy machine."""
        took_s = sum(
            took_s for test, took_s in self.took_s.items() if test.startswith(tuple(tests))
        )
        return _STARTS_S + _PATIENCE * max(TESTS_S, took_s)

    def _cost_s(self, test: str) -> float:
        return self.took_s.get(test, 0.0)


def look(jobs: int, files: Sequence[str] = (), known: Who | None = None) -> Who:
    """Run the tests once, or those of some files; return which of them run which line."""
    import coverage

    runs: dict[str, dict[str, Sequence[str]]]
    runs = {path: dict(lines) for path, lines in known.runs.items()} if known is not None else {}
    took_s = defaultdict[str, float](float)
    if known is not None:
        took_s |= known.took_s

    with tempfile.TemporaryDirectory(prefix="pool-coverage-") as directory:
        data_file, copy = Path(directory) / "data", Path(directory) / "tree"
        copy_tree(copy)  # what fails in a copy anyhow would seem to notice everything
        command = ["pytest", "-q", "-n", str(jobs), "--dist", "worksteal", "-p", "no:cacheprovider"]
        command += ["--cov=pool", "--cov-context=test", "--cov-report="]
        command += ["--durations=0", "--durations-min=0.01", *_UNCOVERED, *files]
        done = started(copy, *command, env={"COVERAGE_FILE": str(data_file)})
        failed = _FAILED.findall(done.stdout)
        if done.returncode and not failed:
            raise SystemExit(f"the tests cannot run without any change:\n{done.stdout[-2000:]}")
        for test in failed:
            # They would seem to notice everything.
            sys.stdout.write(f"left out, as it fails without any change: {test}\n")
        data = coverage.CoverageData(str(data_file))
        data.read()
        for file in data.measured_files():
            told = runs.setdefault(Path(file).relative_to(copy).as_posix(), {})
            for line, tests in data.contexts_by_lineno(file).items():
                others = set(told.get(str(line), ())) - {*failed}
                those = {each.rpartition("|")[0] for each in tests if each} - {*failed}
                told[str(line)] = sorted(others | those)
    now_s = defaultdict[str, float](float)
    for seconds, test in _TOOK.findall(done.stdout):
        now_s[test] += float(seconds)
    took_s |= now_s
    MAP.parent.mkdir(exist_ok=True)
    MAP.write_text(json.dumps({"runs": runs, "took_s": took_s}), "utf-8")
    return Who(runs, took_s)


# --- the hunt -----------------------------------------------------------------------------------


@attrs.frozen
class Found:
    """What became of a mutant."""

    change: Change
    tests: int
    killer: str  # "" if it survived
    took_s: float


def _shown(change: Change, who: Who, first: str = "") -> Found:
    tests, began_s = who.tests(change), time.perf_counter()
    asked = [*dict.fromkeys([first, *tests] if first else tests)]
    with tempfile.TemporaryDirectory(prefix="pool-mutant-") as directory:
        copy = Path(directory)
        copy_tree(copy)
        file = copy / change.path
        text = file.read_text("utf-8")
        file.write_text(change.apply(text), "utf-8")
        left_out: list[str] = []
        while killer := _noticed(copy, who, asked, left_out):
            if killer == _IMPORT or _noticed(copy, who, [killer], ()):
                file.write_text(text, "utf-8")
                if killer == _IMPORT or not _noticed(copy, who, [killer], ()):
                    break
                file.write_text(change.apply(text), "utf-8")
            assert killer not in left_out, killer
            left_out.append(killer)
            asked = [test for test in asked if test != killer]
    return Found(change, len(tests), killer, time.perf_counter() - began_s)


_IMPORT: Final = "its import"
_NONE_LEFT: Final = 5  # pytest's word


def _noticed(copy: Path, who: Who, tests: Sequence[str], left_out: Sequence[str]) -> str:
    """Return who of these fails, or hangs, in a copy; "" if nobody does."""
    if not tests:
        return ""
    without = [f"--deselect={test}" for test in left_out]
    try:
        done = started(copy, "pytest", *_OPTIONS, *without, *tests, timeout_s=who.allowed_s(tests))
    except subprocess.TimeoutExpired:
        return ""  # slow, all of them together: that tells nothing
    if done.returncode in (0, _NONE_LEFT):
        return ""
    failed = _FAILED.findall(done.stdout)
    if not failed and (gone := _GONE.findall(done.stderr)):
        left = [test for test in tests if test.partition("[")[0] not in gone]
        return _noticed(copy, who, left, left_out)  # it has another name by now
    began = _BEGAN.match(done.stdout.rpartition("\n")[2])
    return failed[0] if failed else began[1] if began else _IMPORT


def _page(found: Sequence[Found], seed: int) -> str:
    by_part: dict[str, list[Found]] = defaultdict(list)
    for each in found:
        part = "Lua" if each.change.path.endswith(".lua") else Path(each.change.path).parts[1]
        by_part[part.removesuffix(".py")].append(each)
    rows = [
        f"| {part} | {len(all_)} | {sum(bool(each.killer) for each in all_)} |"
        for part, all_ in sorted(by_part.items())
    ]
    alive = [_survivor(each) for each in found if not each.killer] or ["| none | | | |"]
    return _HEAD.format(count=len(found), seed=seed, rows="\n".join(rows), alive="\n".join(alive))


def by_hand(page: str) -> str:
    """Return what is written by hand of a page: the next one ends with it, too."""
    _, heading, text = page.partition(_BY_HAND)
    return heading + text


def _survivor(found: Found) -> str:
    change = found.change
    told = change.told().replace("|", "\\|").replace("`", "'")
    why = EXCUSED.get(key(change), "**a test is missing**")
    return f"| `{change.path}:{change.line}` | `{told}` | {found.tests} | {why} |"


def key(change: Change) -> str:
    """Return what names a change in `EXCUSED`: not its line, which moves.

    Where others read as it does, the line before it tells which one it is.
    """
    lines = [line.strip() for line in (ROOT / change.path).read_text("utf-8").splitlines()]
    here = change.line - 1
    before = f"{lines[here - 1]} / " if lines.count(lines[here]) > 1 else ""
    return f"{change.path}: {before}{change.told()}"


_BY_HAND: Final = "\n## At first sight\n"
_HEAD: Final = """# Small mutants

Of {count} lines drawn at random (seed {seed}) each was changed in one place, and the tests that run
it were run: for a module those that are likeliest to notice and take a minute and a half together,
for a script all tests of scripts.  Noticed is what a test fails by, or hangs by for a minute, twice
in a row, and not without the change: so a busy machine has noticed nothing.  Where nobody noticed
and it matters, a test was written, and the change was shown to it (`--again`): so the tables say
what is noticed by now, and not how much was before.  That is told at the end.

`make small-mutants` does it again and writes this page, but for its end; with `SEED=` other lines
are drawn.

| part | changed | noticed |
|---|---|---|
{rows}

Those that no test noticed:

| where | change | tests run | why it may live |
|---|---|---|---|
{alive}
"""


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.verify.small", description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--under", default="pool", help="a directory of the library")
    parser.add_argument("--known", action="store_true", help="who runs what as it was last time")
    parser.add_argument("--again", action="store_true", help="only what nobody noticed last time")
    parser.add_argument("--look", nargs="+", default=(), help="tests to add to that")
    given = parser.parse_args()
    known = Who(**json.loads(MAP.read_text("utf-8"))) if given.known or given.look else None
    who = known if known and not given.look else look(given.jobs, given.look, known)
    noticed = json.loads(NOTICED.read_text("utf-8")) if NOTICED.exists() else {}
    dice = random.Random(given.seed)
    by_line = changes(given.under)
    drawn = dice.sample(sorted(by_line), min(given.count, len(by_line)))
    chosen = [dice.choice(by_line[line]) for line in drawn]
    done: dict[Change, Found] = {}
    with ThreadPoolExecutor(given.jobs) as workers:
        asked = []
        for change in chosen:
            before = noticed.get(key(change), "")
            if before and given.again:
                done[change] = Found(change, 1, before, 0.0)
            elif not (given.again and key(change) in EXCUSED):
                asked.append(workers.submit(_shown, change, who, before))
            else:
                done[change] = Found(change, len(who.tests(change)), "", 0.0)
        for answer in as_completed(asked):
            each = answer.result()
            done[each.change] = each
            noticed[key(each.change)] = each.killer
            NOTICED.write_text(json.dumps(noticed, indent=1), "utf-8")
            told = f"{each.killer or 'SURVIVED'}  {key(each.change)}  ({each.change.line})"
            sys.stdout.write(f"{each.took_s:5.0f} s  {each.tests:4} tests  {told}\n")
            sys.stdout.flush()
    found = [done[change] for change in chosen]
    alive = [each for each in found if not each.killer and key(each.change) not in EXCUSED]
    sys.stdout.write(f"{len(found) - len(alive)} of {len(found)} noticed or excused\n")
    if given.under == "pool":
        before = PAGE.read_text("utf-8") if PAGE.exists() else ""
        PAGE.write_text(_page(found, given.seed) + by_hand(before), "utf-8")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
