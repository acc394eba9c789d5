"""Bugs planted on purpose, one at a time, to see that the simulation finds each of them.

    python -m tests.verify.mutants [NAME ...]        (make mutants: all, and docs/mutants.md)

A mutant is a text substitution that must apply exactly once in the whole library; `tests/planted`
has them, a file for each folder of the library.  The tool copies the tree, plants one, and plays
seeds in the copy until an invariant is violated; the same seed must be clean without it.  500 seeds
at most: the configuration that showed it last time, what was found before, then by the faults that
a mutant needs.  An error that only ends a process does not count: an invariant must fire.

The tool pins the configuration that shows a mutant in `mutants.txt`: what a seed draws changes with
each new kind of fault.  What one configuration plays may change, too.  So a mutant whose window can
be reached on purpose rather names a test that does.

What no simulated world can show (a thread that stands still, a whole process that ends, the bytes
of a connection) names the tests that must fail by it, and pass without it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import attrs

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "mutants.md"
DATA: Final = ROOT / "tests" / "planted"
PINS: Final = Path(__file__).parent / "mutants.txt"
SEEDS: Final = 500
_TESTS_FAILED: Final = 1  # pytest's exit code
_ON_BOTH: Final = {"POOL_TEST_LOOPS": "both"}  # a bug may show on one of them alone
_PATIENCE: Final = 5.0  # times as long as its tests take without it, and ...
_STARTS_S: Final = 30.0
_ONE_AT_A_TIME: Final = threading.Lock()  # a world owns trio's dice, and the Lua interpreter
_TEST: Final = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
_LEFT_BEHIND: Final = (
    *("__pycache__", ".*_cache", ".git", ".venv", ".peers", ".hypothesis", "build", "dist"),
)


@attrs.frozen
class Mutant:
    """One planted bug: a table of `tests/planted/*.toml`."""

    name: str
    breaks: str
    old: str  # it stands once in the library, wherever that is
    new: str
    # Faults or shapes, or `bursts` and `workers`, without which it can hardly show; their seeds
    # come first.
    needs: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    # The tests that must fail, if it is not for the simulation: `test_x`, `test_x[case]`, a whole
    # module `test_y`, or `test_y::test_x` where several modules have a test of that name.
    by: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    is_named: bool = False  # one of the eleven that every such campaign must kill

    @property
    def path(self) -> str:
        """The file that it changes."""
        found = [path for path, text in _library().items() for _ in range(text.count(self.old))]
        assert len(found) == 1, f"{self.name}: applies {len(found)} times, to {found}"
        return found[0]

    @property
    def tests(self) -> tuple[str, ...]:
        """The same tests as pytest is given them."""
        return tuple(map(_test_of, self.by))


@cache
def _library() -> dict[str, str]:
    """Return path -> text of what a bug may be planted in."""
    files = sorted((ROOT / "pool").rglob("*.py")) + sorted((ROOT / "pool").rglob("*.lua"))
    files += sorted((ROOT / "pool").rglob("*.md"))
    return {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in files}


@cache
def _tests() -> dict[str, list[str]]:
    """Return the name of each test and of each module of tests -> where it is."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        place = path.relative_to(ROOT).as_posix()
        modules = {path.stem, f"{path.parent.name}/{path.stem}"}
        for module in modules:
            found[module].append(place)
        for name in dict.fromkeys(_TEST.findall(path.read_text("utf-8"))):
            for each in (name, *(f"{module}::{name}" for module in modules)):
                found[each].append(f"{place}::{name}")
    return found


def _test_of(text: str) -> str:
    name, bracket, case = text.partition("[")
    found = _tests().get(name, [])
    assert len(found) == 1, f"{text} is {len(found)} tests: {found}"
    return found[0] + bracket + case


def _read() -> tuple[Mutant, ...]:
    tables = (tomllib.loads(path.read_text("utf-8")) for path in sorted(DATA.glob("*.toml")))
    return tuple(Mutant(**bug) for table in tables for bug in table["bug"])


MUTANTS: Final = _read()


# --- in the copy --------------------------------------------------------------------------------


def _hunt(needs: Sequence[str], seeds: int, after: int, pin: str) -> int:
    """Play seeds until an invariant fires; print which, as JSON.  The first so many were played."""
    from tests.verify.sim.campaign import regressions
    from tests.verify.sim.config import Config
    from tests.verify.sim.run import play

    wanted = set(needs)

    def price(seed: int) -> tuple[int, float]:
        config = Config.of(seed)
        has = {*config.faults}
        has |= {"bursts"} if config.bursts else set()
        has |= {"workers"} if config.workers > 1 else set()
        has |= {*config.shapes}
        return len(wanted - has), len(config.faults) * 3 + config.jobs * 0.1 + 20 / config.ttl_s

    began_s, tried = time.perf_counter(), after
    pinned = [Config.parse(pin)] if pin else []
    drawn = [Config.of(seed) for seed in sorted(range(seeds), key=price)]
    for config in (*pinned, *regressions(), *drawn)[after:]:
        tried += 1
        outcome = play(config)
        broken = [name for name in outcome.broken if name != "failure"]
        if broken:
            took_s = time.perf_counter() - began_s
            found = {"seed": config.seed, "broken": broken, "tried": tried}
            found |= {"took_s": round(took_s, 1), "config": config.text()}
            sys.stdout.write(json.dumps(found))
            return 0
    sys.stdout.write(json.dumps({"tried": tried}))
    return 0


# --- the tool -----------------------------------------------------------------------------------


def planted(mutant: Mutant) -> str:
    """Return the text of its file with the bug in it."""
    return _library()[mutant.path].replace(mutant.old, mutant.new)


def copy_tree(target: Path) -> None:
    """Copy the tree without what tools and tests leave behind."""
    ignored = shutil.ignore_patterns(*_LEFT_BEHIND)
    shutil.copytree(ROOT, target, ignore=ignored, dirs_exist_ok=True)


def _run(mutant: Mutant, seeds: int, pin: str, clean_s: Mapping[str, float]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="pool-mutant-") as directory:
        copy = Path(directory)
        copy_tree(copy)
        (copy / mutant.path).write_text(planted(mutant), "utf-8")
        if mutant.by:
            return _tested(mutant, copy, clean_s)
        found: dict[str, Any] = {"tried": 0}
        while True:  # what is bad without it too says nothing of it
            options = ("--seeds", str(seeds), "--after", str(found["tried"]), "--pin", pin)
            hunt = ("--hunt", ",".join(mutant.needs), *options)
            done = started(copy, "tests.verify.mutants", *hunt)
            if done.returncode:
                return {"error": done.stderr[-500:]}
            found = json.loads(done.stdout)
            if "seed" not in found or _is_control_clean(found["config"]):
                return found | {"control": True}
            sys.stderr.write(f"bad without {mutant.name!r}, too: {found['config']}\n")


def started(
    tree: Path,
    module: str,
    *args: str,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a module of a tree; with its time it ends, and whatever it has started in its session."""
    command = [sys.executable, "-m", module, *args]
    environment = {**os.environ, "PYTHONPATH": str(tree), **(env or {})}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with subprocess.Popen(
            command, cwd=tree, env=environment, stdout=out, stderr=err, start_new_session=True
        ) as process:
            try:
                code = process.wait(timeout_s)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        texts = [file.read() for file in (out, err) if file.seek(0) == 0]
    return subprocess.CompletedProcess(command, code, *texts)


def _tested(mutant: Mutant, copy: Path, clean_s: Mapping[str, float]) -> dict[str, Any]:
    """Run its tests with the bug; without it only those that were not clean before, or are new."""
    began_s, options = time.perf_counter(), ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    if all(test.endswith("]") for test in mutant.tests):
        options += ["-m", "not languages"]  # it is named, so it may be a long one
    without, took_s = 0, sum(clean_s.get(test, 0.0) for test in mutant.tests)
    if not all(test in clean_s for test in mutant.tests):
        without = started(ROOT, "pytest", *options, *mutant.tests, env=_ON_BOTH).returncode
        took_s = time.perf_counter() - began_s
    try:
        by_then_s = _PATIENCE * took_s + _STARTS_S
        with_it = started(
            copy, "pytest", *options, *mutant.tests, env=_ON_BOTH, timeout_s=by_then_s
        ).returncode
    except subprocess.TimeoutExpired:
        with_it = _TESTS_FAILED  # whoever waits for ever stops the tests as well
    took_s = round(time.perf_counter() - began_s, 1)
    found: dict[str, Any] = {"seed": "-", "tried": "-", "took_s": took_s, "control": not without}
    if with_it == _TESTS_FAILED:
        found["broken"] = [f"`{test.rpartition('/')[2]}`" for test in mutant.tests]
    if without:
        found["error"] = "its tests fail without it, too"
    return found


def _clean_s(mutants: Sequence[Mutant], jobs: int) -> dict[str, float]:
    """Run the tests of all of them without any bug; return of those that pass how long they take.

    Once for all: many bugs have the same tests, and each of these would be run with each.
    """
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    with tempfile.TemporaryDirectory(prefix="pool-mutant-") as directory:
        report = Path(directory) / "report.xml"
        options = (
            *("-q", "-p", "no:cacheprovider", "-n", str(jobs), "--dist", "worksteal"),
            *("-o", "junit_family=xunit1"),  # the newer one refuses tests with properties
        )
        started(ROOT, "pytest", *options, f"--junitxml={report}", *tests, env=_ON_BOTH)
        cases = list(ElementTree.parse(report).iter("testcase"))  # noqa: S314 - our own file
    clean: dict[str, float] = {}
    for test in tests:
        path, _, name = test.partition("::")
        module = path.removesuffix(".py").replace("/", ".")
        its = [
            case
            for case in cases
            if case.attrib["classname"] == module
            and (not name or case.attrib["name"].partition("[")[0] == name.partition("[")[0])
        ]
        bad = [
            case
            for case in its
            if case.find("failure") is not None or case.find("error") is not None
        ]
        if its and not bad:
            clean[test] = sum(float(case.attrib["time"]) for case in its)
    return clean


def _is_control_clean(config: str) -> bool:
    from tests.verify.sim.config import Config
    from tests.verify.sim.run import play

    with _ONE_AT_A_TIME:
        return play(Config.parse(config)).ok


def _is_killed(found: dict[str, Any]) -> bool:
    return bool(found.get("broken")) and bool(found.get("control"))


def _row(mutant: Mutant, found: dict[str, Any]) -> str:
    if _is_killed(found):
        verdict = f"{', '.join(found['broken'])} | {found['seed']} | {found['tried']}"
    else:
        verdict = f"**survived** {found.get('error', '')} | - | {found.get('tried', 0)}"
    star = " *" if mutant.is_named else ""
    return f"| {mutant.name}{star} | {mutant.breaks} | `{mutant.path}` | {verdict} |"


def pins() -> dict[str, str]:
    """Return the configuration that showed each mutant last, by the mutant's name."""
    lines = PINS.read_text("utf-8").splitlines()
    return {name[2:]: text for name, text in zip(lines[::2], lines[1::2], strict=True)}


def _pin(found: Mapping[str, str]) -> None:
    """Keep what showed mutants now; forget those that are gone, or name tests."""
    known = {**pins(), **found}
    names = [mutant.name for mutant in MUTANTS if not mutant.by and mutant.name in known]
    PINS.write_text("".join(f"# {name}\n{known[name]}\n" for name in names), "utf-8")


_HEAD: Final = """# Planted bugs

What a verifier is worth is shown by what it catches.  Each of these bugs was planted alone, and the
simulation (`make sim`) was run until an invariant fired; the same seed without the bug is clean
(`tests/verify/mutants.txt` has its configuration, for `python -m tests.verify.sim --config`).
Those with a star are the classical ones that every such campaign must kill; those that no simulated
world can show name the tests that failed by them.  `make mutants` runs all of them and writes this
page.

| planted bug | what it breaks | where | killed by | seed | seeds tried |
|---|---|---|---|---|---|
"""


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.verify.mutants", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--hunt", help=argparse.SUPPRESS)
    parser.add_argument("--after", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--pin", default="", help=argparse.SUPPRESS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    if given.hunt is not None:
        needs = [need for need in given.hunt.split(",") if need]
        return _hunt(needs, given.seeds, given.after, given.pin)
    chosen = [m for m in MUTANTS if not given.names or m.name in given.names]
    for mutant in chosen:
        planted(mutant)
    pinned, rows, alive = pins(), list[str](), 0
    # Without a test to name pytest would run all that there are.
    has_tests = len(chosen) > 1 and any(mutant.by for mutant in chosen)
    clean_s = _clean_s(chosen, given.jobs) if has_tests else {}
    with ThreadPoolExecutor(given.jobs) as workers:
        results = workers.map(
            lambda m: _run(m, given.seeds, pinned.get(m.name, ""), clean_s), chosen
        )
        for mutant, found in zip(chosen, results, strict=True):
            rows.append(_row(mutant, found))
            alive += not _is_killed(found)
            if _is_killed(found) and "config" in found:
                _pin({mutant.name: found["config"]})
            sys.stdout.write(f"{rows[-1]}  {found.get('took_s', '')}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - alive} of {len(chosen)} mutants killed\n")
    if not given.names:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(_HEAD + "\n".join(rows) + "\n", "utf-8")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
