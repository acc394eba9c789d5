"""Flags, variables and the file of `pool run`: one declaration, and every mistake is named."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import attrs
import pytest

from pool.errors import ConfigError
from pool.ops.cli import UNREACHABLE, USAGE, config, main
from pool.ops.cli.config import FILE_BYTES_MAX, OPTIONS, Configuration, Option, gather
from pool.settings import Settings

ROOT = Path(__file__).parents[2]
# What each kind of option may be, as text; never its default.
SAMPLES = {
    "pool": "shop",
    "url": "redis://h",
    "loop": "trio",
    "log_format": "json",
    "on_overrun": "report",
    "on_store_loss": "continue",
}


def sample(option: Option) -> str:
    """Return another value than the default, as text."""
    if option.name in SAMPLES:
        return SAMPLES[option.name]
    if option.kind == "number":
        low, high = option.meta["low"], option.meta["high"]
        return f"{high if option.default in (low, None) else low:.12g}"
    return {"flag": "true", "text": "x", "texts": "a:b"}[option.kind]


def as_toml(option: Option, text: str) -> str:
    match option.kind:
        case "number" | "flag":
            return f"{option.name} = {text}\n"
        case "texts":
            return f'{option.name} = ["{text}"]\n'
        case _:
            return f'{option.name} = "{text}"\n'


def flags_of(option: Option, text: str) -> list[str]:
    if not option.flag:
        return [text]
    if option.kind == "flag":
        return [option.flag] if text == "true" else []
    return [option.flag.removesuffix("s") if option.kind == "texts" else option.flag, text]


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    config.add_to(parser)
    return parser.parse_args(words)


def told(file: Path | None = None, *words: str, **environ: str) -> Configuration:
    more = ["--config", str(file)] if file else []
    return gather(parse(*more, *words), environ)


def problem(said: Configuration) -> str:
    [found] = said.problems
    return found.problem


# --- the three ways ---------------------------------------------------------------------------


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.name)
def test_every_option_comes_from_a_flag_a_variable_and_the_file(
    option: Option, tmp_path: Path
) -> None:
    text = sample(option)
    file = tmp_path / "pool.toml"
    file.write_text(as_toml(option, text), "utf-8")
    got = [
        told(None, *flags_of(option, text)),
        told(None, **{option.variable: text}),
        told(file),
        gather(parse(), {"POOL_CONFIG": str(file)}),
    ]
    assert [each.problems for each in got] == [[]] * 4
    values = {each.values[option.name] for each in got}
    assert len(values) == 1
    assert values != {option.default}


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.name)
def test_nothing_said_is_the_default(option: Option) -> None:
    said = told()
    got = {**attrs.asdict(said.options), **attrs.asdict(said.settings)}
    assert got[option.name] == option.default


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.name)
def test_an_empty_variable_says_nothing(option: Option) -> None:
    assert option.name not in told(None, **{option.variable: ""}).values or option.name in (
        config.DEFAULTS
    )


def test_a_flag_counts_before_a_variable_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text('capacity = 1\nweight = 1.5\nlabel = "file"\n', "utf-8")
    environ = {"POOL_WEIGHT": "2.5", "POOL_LABEL": "variable"}
    options = told(file, "--label", "flag", **environ).options
    assert (options.capacity, options.weight, options.label) == (1, 2.5, "flag")


def test_the_file_that_a_flag_names_counts_before_that_of_the_variable(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(f'label = "{name}"\n', "utf-8")
    said = told(tmp_path / "one", POOL_CONFIG=str(tmp_path / "two"))
    assert said.options.label == "one"


def test_several_modules_in_each_way(tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text('handlers = ["a", "b:c"]\n', "utf-8")
    wanted = ("a", "b:c")
    for said in (told(None, *wanted), told(None, POOL_HANDLERS="a, b:c"), told(file)):
        assert said.options.handlers == wanted


def test_a_program_of_its_own_ends_by_an_overrun_and_an_embedded_node_does_not() -> None:
    assert (told().settings.on_overrun, Settings().on_overrun) == ("exit", "report")


def test_no_flag_variable_or_key_is_declared_twice() -> None:
    names = [
        field.name for owner in {o.owner for o in OPTIONS.values()} for field in attrs.fields(owner)
    ]
    assert sorted(names) == sorted(OPTIONS)
    variables = [option.variable for option in OPTIONS.values()]
    assert len(set(variables)) == len(variables)


# --- mistakes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("capacty = 1\n", "line 1: there is no setting 'capacty'; is it capacity?"),
        ("\n# of ours\nlease_ttl = 5\n", "line 3: there is no setting 'lease_ttl'; is it lease_t"),
        ("zzz = 1\n", "line 1: there is no setting 'zzz'"),
        ("\n[settings]\nlanes = 2\n", "line 2: there is no setting 'settings', and no tables"),
        ("capacity = 0\n", "line 1: 0 is not a whole number from 1 to 10,000 jobs"),
        ("capacity = 1.0\n", "line 1: 1.0 is not a whole number from 1 to 10,000 jobs"),
        ("capacity = true\n", "line 1: True is not a whole number"),
        ('pool = "p"\n"capacity" = "7"\n', "line 2: '7' is not a whole number"),
        ("weight = nan\n", "line 1: nan is not a number from 0.001 to 1,000"),
        ("lease_ttl_s = 0.5\n", "line 1: 0.5 is not a number from 1 to 3,600 s"),
        ('loop = "curio"\n', "line 1: 'curio' is not one of asyncio, trio"),
        ("label = 7\n", "line 1: 7 is not a text"),
        ("label = 1979-05-27\n", "line 1: <date> is not a text"),
        ("handlers = [1]\n", "line 1: <tuple> is not a list of modules"),
        ('handlers = "jobs"\n', "line 1: 'jobs' is not a list of modules"),
        ('pool = "No Pool"\n', "line 1: "),
        ('url = "localhost"\n', "line 1: the address has no scheme"),
        ("queued_jobs_max = 3\nlanes = 7\n", "3 is not at least 1 for each of the 7 lanes"),
        ("capacity = \n", ": Invalid value (at line 1, column 12)"),
        ("a = 1\na = 2\n", ": Cannot overwrite a value (at line 2, column 6)"),
        ("x = " + "[" * 5_000, ": "),
    ],
)
def test_what_is_wrong_with_the_file_is_named_with_its_line(
    text: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "pool.toml"
    file.write_text(text, "utf-8")
    found = [each.problem for each in told(file).problems]
    assert found
    assert said in found[-1]
    assert found[-1].startswith(str(file)[:30]) or "lanes" in said


def test_a_file_may_begin_as_some_editors_begin_it(tmp_path: Path) -> None:
    """With a byte order mark."""
    file = tmp_path / "pool.toml"
    file.write_text("capacity = 3\n", "utf-8-sig")
    assert told(file).values["capacity"] == 3


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"label = '\xff'\n")
    (tmp_path / "large").write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    (tmp_path / "full").write_bytes(b"#" * FILE_BYTES_MAX)
    assert told(tmp_path / "full").problems == []
    for name, why in (
        ("nowhere", "No such file or directory"),
        ("bytes", "byte 9 is no UTF-8"),
        ("large", "it has more than 1,048,576 bytes"),
        ("", "Is a directory"),
        ("\0", "null byte"),
    ):
        assert why in problem(gather(parse("--config", f"{tmp_path}/{name}"), {}))


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"POOL_CAPCITY": "7"}, "POOL_CAPCITY: there is no such variable; is it POOL_CAPACITY?"),
        ({"POOL_CAPACITY": "many"}, "POOL_CAPACITY: 'many' is not a whole number from 1 to 10,0"),
        ({"POOL_CAPACITY": "5e1"}, "POOL_CAPACITY: '5e1' is not a whole number from 1 to 10,0"),
        ({"POOL_CAPACITY": "1_0"}, "POOL_CAPACITY: '1_0' is not a whole number from 1 to 10,0"),
        ({"POOL_CAPACITY": "\u0661"}, "is not a whole number from 1 to 10,000 jobs"),
        ({"POOL_GRACE_S": "1_0"}, "POOL_GRACE_S: '1_0' is not a number from 0 to 86,400 s"),
        ({"POOL_GRACE_S": "\u0661"}, "is not a number from 0 to 86,400 s"),
        ({"POOL_GRACE_S": "-1"}, "POOL_GRACE_S: -1 is not a number from 0 to 86,400 s"),
        ({"POOL_LOOP": "curio"}, "POOL_LOOP: 'curio' is not one of asyncio, trio"),
    ],
)
def test_what_is_wrong_with_a_variable_is_named(environ: dict[str, str], said: str) -> None:
    assert said in problem(told(None, **environ))


def test_variables_of_others_are_let_be() -> None:
    """Kubernetes sets these for a service of the name `pool`; a program has a pool of its own."""
    theirs = {
        "POOL_SERVICE_HOST": "10.0.0.1",
        "POOL_SERVICE_PORT": "80",
        "POOL_SERVICE_PORT_HTTP": "80",
        "POOL_PORT": "tcp://10.0.0.1:80",
        "POOL_PORT_80_TCP_ADDR": "10.0.0.1",
        "POOL_SIZE": "many",
        "POOLING": "yes",
    }
    assert told(None, **theirs).problems == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--capacity", "0"], "--capacity: 0 is not a whole number from 1 to 10,000 jobs"),
        (["--lease-ttl-s", "x"], "--lease-ttl-s: 'x' is not a number from 1 to 3,600 s"),
        (["--label", "x" * 129], "--label: "),
    ],
)
def test_what_is_wrong_with_a_flag_is_named(words: list[str], said: str) -> None:
    assert problem(told(None, *words)).startswith(said)


def test_all_mistakes_are_kept_and_the_first_is_raised(tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text("capacty = 1\n", "utf-8")
    said = told(file, "--capacity", "0", POOL_WEIGHT="x")
    assert len(said.problems) == 3
    with pytest.raises(ConfigError, match="capacty"):
        said.check()


@pytest.mark.parametrize("name", ["handlers", "pool", "url"])
def test_what_is_missing_is_named_in_all_its_ways(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        told().check(name)
    for word in (OPTIONS[name].flag or "MODULE", OPTIONS[name].variable, f"{name} = ..."):
        assert word in caught.value.problem


def test_a_password_of_the_file_is_never_repeated(tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text('url = "redis://me:hunter2@host:x"\n', "utf-8")
    assert "hunter2" not in str(told(file).problems)
    assert "hunter2" not in problem(told(None, "--url", "redis://me:hunter2@host:x"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "jobs", "--capcity", "3"], "is it --capacity?"),
        (["run", "jobs", "--capcity=3"], "is it --capacity?"),
        (["run", "jobs", "--grace-s", "1", "feeds"], "several modules stand side by side"),
        (["run", "jobs", "--cap", "3"], "is it --capacity?"),
        (
            ["parked", "show", "-lead", "5ed"],
            "what begins with - and is no option stands behind --",
        ),
        (["run", "jobs", "-lead"], "what begins with - and is no option stands behind --"),
        (["status", "--ulr", "x"], "is it --url?"),
        (["run", "jobs", "--zzzz"], "unrecognized arguments: --zzzz\n"),
        (["status", "--nope"], "unrecognized arguments: --nope\n"),
        (["nodes", "--pge", "3"], "unrecognized arguments: --pge 3\n"),
        (["nodes", "--page", "3"], "`nodes` has no such option"),
        (["parked", "list", "--dry-run"], "`parked list` has no such option"),
        (["parked", "list", "--prefx", "a"], "is it --prefix?"),
    ],
)
def test_a_flag_that_is_none_is_likened_to_one(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == USAGE
    assert said in capsys.readouterr().err


# --- what it costs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["run", "--help"], ["check", "--help"]]
)
def test_help_and_version_load_nothing_that_works(words: list[str]) -> None:
    """So that they are there at once: judged by modules, since seconds depend on the machine."""
    show = (
        "import sys; from pool.ops.cli import main; main(sys.argv[1:]); "
        "print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", show, *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for module in ("anyio", "asyncio", "redis", "hiredis", "structlog", "pool.jobs", "tomllib"):
        assert f"'{module}'" not in done.stderr


def test_a_parent_loads_nothing_of_what_its_children_do() -> None:
    """It is there once more for as long as the service runs."""
    show = "import sys, pool.ops.cli.run, pool.ops.cli.parent; print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", show], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for module in ("anyio", "asyncio", "redis", "hiredis", "structlog", "pool.jobs.handlers"):
        assert f"'{module}'" not in done.stdout


def test_other_commands_find_the_pool_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever else it says, and whether that is right."""
    monkeypatch.delenv("POOL_NAME", raising=False)
    monkeypatch.delenv("POOL_URL", raising=False)
    file = tmp_path / "pool.toml"
    file.write_text('pool = "p"\nurl = "redis://127.0.0.1:1"\ncapacity = 0\n', "utf-8")
    assert main(["status", "--config", str(file)]) == UNREACHABLE
    assert "127.0.0.1:1 refused" in capsys.readouterr().err
    file.write_text('pool = "p"\nurl = "127.0.0.1"\n', "utf-8")
    assert main(["status", "--config", str(file)]) == USAGE
    assert "line 2: the address has no scheme" in capsys.readouterr().err
    assert main(["status"]) == USAGE
    assert "give --pool, set POOL_NAME" in capsys.readouterr().err


def test_toml_of_every_option_is_toml() -> None:
    whole = "".join(as_toml(option, sample(option)) for option in OPTIONS.values())
    found: dict[str, Any] = tomllib.loads(whole)
    assert set(found) == set(OPTIONS)
