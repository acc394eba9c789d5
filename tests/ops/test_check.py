"""`pool check`: what `pool run` would refuse, all of it, and no server is asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pool.ops.cli import FINDING, OK, main
from pool.ops.cli.loading import load_all

MODULES = {
    "chk_jobs.py": """
from pool import Handlers, Job
handlers, spare = Handlers(), Handlers()

@handlers.job("resize", timeout_s=30)
async def resize(job: Job, size: int) -> int:
    return size

@handlers.service("watch")
async def watch(job: Job) -> None: ...

@spare.job("spare")
def again(job: Job) -> None: ...
""",
    "chk_feeds.py": """
from pool import Handlers, Job
feeds, part = Handlers(), Handlers()
feeds.include(part, "part.")

@feeds.service("feed")
async def feed(job: Job) -> None: ...

@part.job("one")
async def one(job: Job) -> None: ...

def count(event: object) -> None: ...

async def late(event: object) -> None: ...
""",
    "chk_alias.py": "from chk_jobs import handlers\n",
    "chk_clash.py": """
from pool import Handlers, Job
mine = Handlers()

@mine.job("resize")
async def resize(job: Job) -> None: ...

@mine.job("feed")
async def feed(job: Job) -> None: ...
""",
    "chk_broken.py": "import chk_inner\n",
    "chk_inner.py": "\nx = {}['missing']\n",
    "chk_signature.py": """
from pool import Handlers
handlers = Handlers()

@handlers.job("none")
async def none() -> None: ...
""",
    "chk_option.py": """
from pool import Handlers
handlers = Handlers()

@handlers.job("many", attempts_max=0)
async def many(job) -> None: ...
""",
    "chk_schedule.py": """
from pool import Handlers, Job
handlers = Handlers()

@handlers.schedule("0 3 * * *", name="nightly")
@handlers.schedule("0 * * * *", name="hourly", args=[1])
@handlers.schedule("0 * * * *", name="often", args=[2], expires_s=1e12)
@handlers.job("report")
async def report(job: Job, size: int) -> None: ...
""",
    "chk_depends.py": """
from typing import Annotated
from pool import Depends, Handlers, Job
handlers = Handlers()

@handlers.job("mail")
async def mail(job: Job, *, client: "Annotated[Nowhere, Depends(nobody)]") -> None: ...
""",
    "chk_twice.py": """
from pool import Handlers, Job
handlers = Handlers()

@handlers.job("a")
async def one(job: Job) -> None: ...

@handlers.job("a")
async def two(job: Job) -> None: ...
""",
}
Check = Callable[..., tuple[int, str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Go to a folder with these modules; none of them is left behind."""
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield tmp_path
    for name in [each for each in sys.modules if each.startswith("chk_")]:
        del sys.modules[name]


@pytest.fixture
def check(here: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    def checked(*words: str) -> tuple[int, str]:
        code = main(["check", *words])
        return code, capsys.readouterr().out

    return checked


def test_handlers_that_are_sound_are_listed(check: Check) -> None:
    code, said = check("chk_jobs", "chk_feeds:feeds", "--observer", "chk_feeds:count")
    assert code == OK
    assert said.splitlines() == [
        "chk_jobs",
        "  job     resize",
        "  service watch",
        "chk_feeds:feeds",
        "  service feed",
        "  job     part.one",
        "4 handlers, 0 problems",
    ]


def test_values_of_the_file_that_do_not_count_are_named_and_judged(
    check: Check, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'handlers = ["chk_jobs"]\ncapacity = 7\ngrace_s = "soon"\nlabel = "a"\n'
    (here / "pool.toml").write_text(text, "utf-8")
    monkeypatch.setenv("POOL_GRACE_S", "3")
    words = ("--config", "pool.toml", "--capacity", "9")
    code, said = check(*words)
    assert code == OK
    notes = [line for line in said.splitlines() if line.startswith("note: ")]
    assert notes[0] == "note: capacity of pool.toml, line 2 does not count, as --capacity is set"
    begins = "note: grace_s of pool.toml, line 3 does not count, as POOL_GRACE_S is set; without"
    assert notes[1].startswith(begins)
    assert len(notes) == 2
    code, said = check(*words, "--json")
    told = json.loads(said)["overridden"]
    assert [(each["setting"], each["by"]) for each in told] == [
        ("capacity", "--capacity"),
        ("grace_s", "POOL_GRACE_S"),
    ]
    assert told[0]["problem"] == ""
    assert told[1]["problem"]


def test_as_json_with_their_options(check: Check) -> None:
    code, said = check("chk_jobs", "--json")
    told: dict[str, Any] = json.loads(said)
    assert (code, told["ok"], told["problems"]) == (OK, True, [])
    resize = told["handlers"][0]
    assert (resize["name"], resize["from"], resize["kind"]) == ("resize", "chk_jobs", "job")
    assert resize["options"]["timeout_s"] == 30


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chk_nowhere"], "there is no module chk_nowhere in "),
        (["chk_signature"], "none: does not take the Job as its first argument"),
        (["chk_option"], "option='attempts_max'"),
        (["chk_depends"], "mail: its annotation cannot be read"),
        (["chk_twice"], "Two handlers have the same name. (handler='a'"),
        (["chk_jobs:resize"], "it is of type Handler, not Handlers"),
        (["chk_jobs:hndlers"], "chk_jobs has no hndlers; there is chk_jobs:handlers and"),
        (["chk_jobs", "--observer", "chk_feeds:late"], "is not a plain function"),
        (["chk_jobs", "--observer", "chk_jobs:resize"], "is not a plain function"),
        (["chk_jobs", "--observer", "chk_feeds:cnt"], "chk_feeds has no cnt; is it count?"),
        (["chk_jobs", "--observer", "chk_feeds"], "it is not of the form module:attribute"),
        (["chk_jobs", "--capacity", "0"], "--capacity: 0 is not a whole number"),
        (["chk_jobs", "chk_feeds:part"], "other Handlers include it"),
    ],
)
def test_what_is_wrong_is_named(words: list[str], said: str, check: Check) -> None:
    code, found = check(*words)
    assert code == FINDING
    assert said in found
    assert found.endswith(" 1 problem\n")


def test_all_that_is_wrong_is_told_at_once(check: Check) -> None:
    code, said = check("chk_broken", "chk_jobs:nope", "chk_jobs", "--weight", "x", "--json")
    told = json.loads(said)
    assert code == FINDING
    assert [each["code"] for each in told["problems"]] == [
        "POOLCONFIG",
        "POOLHANDLERS",
        "POOLHANDLERS",
    ]
    assert [each["name"] for each in told["handlers"]] == ["resize", "watch"]


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_module_that_fails_shows_where(words: list[str], check: Check) -> None:
    code, said = check("chk_broken", *words)
    said = json.loads(said)["problems"][0]["traceback"] if words else said
    assert code == FINDING
    lines = said.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert 'chk_broken.py", line 1, in <module>' in lines[1]
    assert "KeyError: 'missing'" in lines


def test_names_that_several_modules_have_are_all_named_with_their_modules(check: Check) -> None:
    code, said = check("chk_jobs", "chk_clash", "chk_feeds:feeds")
    assert code == FINDING
    assert "(handler='resize', where='chk_jobs and chk_clash')" in said
    assert "(handler='feed', where='chk_clash and chk_feeds:feeds')" in said
    assert said.endswith("6 handlers, 2 problems\n")


# --- put together -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("references", "names"),
    [
        (["chk_jobs"], ["resize", "watch"]),
        (["chk_jobs", "chk_alias", "chk_jobs:handlers"], ["resize", "watch"]),
        (["chk_jobs", "chk_jobs:spare"], ["resize", "spare", "watch"]),
        (["chk_feeds:feeds", "chk_feeds:part"], ["feed", "part.one"]),
        (["chk_feeds:part", "chk_feeds"], ["feed", "part.one"]),
        (["chk_feeds"], ["feed", "part.one"]),
        (["chk_jobs", "chk_feeds"], ["feed", "part.one", "resize", "watch"]),
    ],
)
def test_handlers_of_several_modules_are_one_set(
    here: Path, references: list[str], names: list[str]
) -> None:
    """The same by two names is there once, and so is a part of what is there."""
    assert sorted(load_all(references)) == names


def test_what_is_put_together_keeps_its_lifespan(here: Path) -> None:
    (here / "chk_span.py").write_text(
        "from contextlib import asynccontextmanager\nfrom pool import Handlers, Job\n"
        "@asynccontextmanager\nasync def span(node):\n    yield 7\n"
        "handlers = Handlers(lifespan=span)\n"
        "@handlers.job('spanned')\nasync def spanned(job: Job) -> None: ...\n",
        "utf-8",
    )
    whole = load_all(["chk_jobs", "chk_span"])
    assert [each.__name__ for each in whole._lifespans()] == ["span"]


def test_schedules_of_the_code_are_checked_as_pool_run_does(check: Check) -> None:
    """A handler that needs an argument which its schedule does not give."""
    code, said = check("chk_schedule")
    assert code == FINDING
    told = [line for line in said.splitlines() if line.startswith("!")]
    assert len(told) == 2, said
    assert "schedule 'nightly': [POOLARGUMENTS]" in "".join(told)
    assert "schedule 'often': [POOLOPTION]" in "".join(told)
    assert said.endswith("1 handler, 2 problems\n")
