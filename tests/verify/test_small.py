"""Small mutants: what is changed, who is asked about it, and who has noticed."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

import pytest

from tests.verify.mutants import ROOT, started
from tests.verify.small import (
    _BEGAN,
    _FAILED,
    EXCUSED,
    PAGE,
    Change,
    Who,
    _lua,
    _page,
    _python,
    _shown,
    by_hand,
    changes,
    key,
)

MODULE = '''\
"""A module: 1 == 1."""

LIMIT: Final[Literal[3]] = 3


def f(x: Annotated[int, 1 < 2] = 7) -> Literal[4]:
    """Say 2 == 2."""
    assert x != 5
    if x < 3 and not x:
        g("é", x + 1)
    return x
'''
BACKOFF = "tests/core/test_retry.py"
CHANGED = {
    "if (not (x < 3 and (not x))):",
    "if (x < 3 or not x):",
    "if (x <= 3) and not x:",
    "if x < (4) and not x:",
    "if x < 3 and (x):",
    'g("é", (x - 1))',
    'g("é", x + (2))',
    "pass",
    "return None",
}


def line_of(change: Change, text: str) -> str:
    return change.apply(text).splitlines()[change.line - 1].strip()


def test_bodies_are_changed_and_nothing_else() -> None:
    assert {line_of(change, MODULE) for change in _python("m.py", MODULE)} == CHANGED


def test_the_header_and_the_comments_of_a_script_stay() -> None:
    text = "--[[\na == b\n]]\nif a == 1 then -- a < b\n  redis.call('DEL', x)\nend\n"
    assert {line_of(change, text) for change in _lua("s.lua", text)} == {
        "if a ~= 1 then -- a < b",
        "if a == 77 then -- a < b",
        "local _",
    }


def test_each_part_of_the_library_can_be_drawn() -> None:
    parts = {Path(path).parent.as_posix() for path, _ in changes("pool")}
    assert {"pool/jobs", "pool/core", "pool/ops", "pool/redis", "pool/redis/lua"} <= parts


def test_the_likeliest_are_asked_first_and_not_for_ever() -> None:
    took_s = {"a/test_x.py::slow": 89.0, "a/test_x.py::quick": 0.1, "b/test_m.py::t": 5.0}
    took_s["c/test_y.py::t"] = 1.0
    who = Who({"pool/m.py": {"3": list(took_s)}}, took_s)
    assert who.tests(Change("pool/m.py", 3, (0, 1), "")) == [
        "b/test_m.py::t",
        "c/test_y.py::t",
        "a/test_x.py::quick",
        "a/test_x.py::slow",
    ]
    own = {f"b/test_m.py::t{i}": 20.0 for i in range(5)}
    who = Who({"pool/m.py": {"3": [*own, "c/test_y.py::t"]}}, own)
    asked = who.tests(Change("pool/m.py", 3, (0, 1), ""))
    assert asked == [*list(own)[:3], "c/test_y.py::t", *list(own)[3:]]
    assert "tests/process" in who.tests(Change("pool/m.py", 4, (0, 1), ""))
    of_scripts = who.tests(Change("pool/s.lua", 4, (0, 1), ""))
    assert of_scripts[0] == "tests/redis/test_advance_script.py"
    assert "tests/redis/test_room.py" in of_scripts


def test_what_hangs_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    held = tmp_path / "held"
    child = (
        "import fcntl, time; file = open('held.new', 'w'); fcntl.flock(file, fcntl.LOCK_EX); "
        "import os; os.rename('held.new', 'held'); time.sleep(1000)"
    )
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    (tmp_path / "hangs.py").write_text(code)
    timeout_s = 0.5
    while not held.exists():
        with pytest.raises(subprocess.TimeoutExpired):
            started(tmp_path, "hangs", timeout_s=timeout_s)
        timeout_s *= 2
    with held.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # whoever held it is gone


@pytest.mark.parametrize(
    ("new", "killer"),
    [
        ("(0.6 + 0.5 * dice.random())", BACKOFF),
        ("(0.5 + dice.random() / 2)", ""),
    ],
)
def test_the_dead_are_told_from_the_living(new: str, killer: str) -> None:
    """What changes a figure is noticed; what only writes it otherwise is not."""
    path, old = "pool/core/retry.py", "(0.5 + 0.5 * dice.random())"
    text = (ROOT / path).read_text("utf-8")
    begin = text.index(old)
    line = text.count("\n", 0, begin) + 1
    who = Who({path: {str(line): [BACKOFF]}}, {})
    found = _shown(Change(path, line, (begin, begin + len(old)), new), who)
    assert found.killer.partition("::")[0] == killer


def test_who_fails_without_any_change_is_known_by_its_whole_name() -> None:
    told = "FAILED tests/a/test_b.py::test_c[x - y|z] - a[1] == 2\nERROR tests/d.py::e\nFAILED 1\n"
    told += "FAILED tests/f.py::g - assert 1 == [2]\n"
    assert _FAILED.findall(told) == [
        "tests/a/test_b.py::test_c[x - y|z]",
        "tests/d.py::e",
        "tests/f.py::g",
    ]


@pytest.mark.parametrize("name", ["tests/a.py::b", "tests/a.py::b[x - y z]"])
@pytest.mark.parametrize("ended", [" ", " PASSED      [  2%]", " SKIPPED [100%]"])
def test_who_was_the_last_to_begin_is_known_by_its_whole_name(name: str, ended: str) -> None:
    """It hangs, or has ended the process when it was over."""
    found = _BEGAN.match(f"{name}{ended}")
    assert found is not None
    assert found[1] == name


def test_each_excuse_is_of_a_change_that_can_be_drawn() -> None:
    drawn = {key(change) for each in changes("pool").values() for change in each}
    assert EXCUSED.keys() <= drawn


def test_what_was_written_by_hand_stays_on_the_next_page() -> None:
    text = PAGE.read_text("utf-8")
    kept = by_hand(text)
    assert "noticed at first" in kept
    assert text.endswith(kept)
    anew = _page([], 7) + kept
    assert "(seed 7)" in anew
    assert by_hand(anew) == kept
    assert by_hand(_page([], 7)) == ""
