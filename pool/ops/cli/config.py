"""What `pool run` is told: by flags, by the environment, by a file, or by nobody.

    a field, such as lease_ttl_s --> --lease-ttl-s, POOL_LEASE_TTL_S, lease_ttl_s = ... in the file

The fields of `RunOptions` and of `Settings` are the one declaration: flags, variables, keys of the
file, help texts and the reference are made of them, and their validators judge every value, however
it was given.  The first of flag, variable and file counts, else the default.  Own code, because
what reads all three (pydantic-settings) wants models of its own: every setting a second time.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import attrs

from pool import checks
from pool.core.placement import CAPACITY_MAX, WEIGHT_MAX, WEIGHT_MIN
from pool.errors import ConfigError, again, shown
from pool.names import check_label, check_pool
from pool.redis.url import Url
from pool.settings import Settings, choice, count, number

PROCESSES_MAX: Final = 256
PATH_BYTES_MAX: Final = 4096  # of a name of a file
FILE_BYTES_MAX: Final = 1024 * 1024  # of the configuration
FILE_VARIABLE: Final = "POOL_CONFIG"
_WORDS: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)
# What it sets in each pod for a service of the name `pool`.
# Kubernetes' own for a service that is called `pool`, and those of `pool web`.
_OTHERS: Final = re.compile(r"POOL_(SERVICE_HOST|SERVICE_PORT.*|PORT(_.*)?|WEB_.*)")
_HOST: Final = re.compile(r"[A-Za-z0-9_.:%-]{1,253}")
PORT_MAX: Final = 65_535
_NEAR: Final = 0.75  # how alike two names are, of which one is a typing error

Check: TypeAlias = Callable[[Any], object]


# --- the declaration ------------------------------------------------------------------------


def _text(doc: str, check: Check, *, unit: str = "", variable: str = "") -> Any:
    """Some text; none by default."""

    def judge(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if type(value) is not str:
            raise checks.setting(attribute.name, value, "a text")
        if value:
            check(value)

    meta = {"doc": doc, "unit": unit or "text", "is": "text", "variable": variable}
    return attrs.field(default="", validator=judge, metadata=meta)


def _texts(doc: str, *, unit: str) -> Any:
    """Several texts: a list in the file, words in a variable."""

    def judge(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if type(value) is not tuple or not all(type(each) is str and each for each in value):
            raise checks.setting(attribute.name, value, f"a list of {unit}")

    meta = {"doc": doc, "unit": unit, "is": "texts"}
    return attrs.field(default=(), validator=judge, metadata=meta)


def _yes(doc: str) -> Any:
    def judge(_: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if type(value) is not bool:
            raise checks.setting(attribute.name, value, "true or false")

    meta = {"doc": doc, "unit": "true / false", "is": "flag"}
    return attrs.field(default=False, validator=judge, metadata=meta)


def _check_path(path: str) -> None:
    if "\0" in path or len(path.encode(errors="replace")) > PATH_BYTES_MAX:
        raise ConfigError(setting="path", problem=f"{shown(path)!r} cannot be the name of a file")


def check_host(host: str) -> None:
    """Refuse what cannot be a name or an address to listen on."""
    if not _HOST.fullmatch(host):
        raise ConfigError(setting="metrics_host", problem=f"{shown(host)!r} is no address")


@attrs.frozen(kw_only=True)
class RunOptions:
    """What `pool run` is told beside `Settings`."""

    handlers: tuple[str, ...] = _texts(
        "Where its Handlers are: a module, or module:attribute.", unit="modules"
    )
    pool: str = _text("The pool's name.", check_pool, unit="name", variable="POOL_NAME")
    url: str = _text(
        "Where Redis is.  In the environment or the file a password stays out of the process list.",
        Url.parse,
        unit="address",
    )
    capacity: int = count(100, "Jobs at once.", unit="jobs", low=1, high=CAPACITY_MAX)
    weight: float = number(
        1.0, "Its share of the keys, beside other workers.", low=WEIGHT_MIN, high=WEIGHT_MAX
    )
    label: str = _text("A name that outlives restarts: keys come back.", check_label)
    version_label: str = _text(
        "The version of your service, shown by `pool status`.",
        lambda text: check_label(text, "version_label"),
    )
    observers: tuple[str, ...] = _texts(
        "Functions that hear of every event, beside the log: module:attribute.", unit="functions"
    )
    loop: Literal["asyncio", "trio"] = choice("asyncio", "The event loop.", "asyncio", "trio")
    log_format: Literal["auto", "json", "console"] = choice(
        "auto",
        "Of log lines, if the application configures no structlog of its own; auto is json with "
        "--json.",
        "auto",
        "json",
        "console",
    )
    ready_file: str = _text(
        "A file that is there while jobs are taken, for whoever looks whether we are ready.",
        _check_path,
        unit="file",
    )
    metrics_port: int | None = count(
        None,
        "Answer `/metrics`, `/live`, `/ready` and `/progress` over HTTP on this port (extra "
        "`metrics`); 0: on any free one.  With `processes` the first of them is here, the others "
        "on the ports after it.",
        unit="port",
        low=0,
        high=PORT_MAX,
    )
    metrics_host: str = _text(
        "Where that listens; left out: 127.0.0.1, so that nobody from elsewhere can ask.",
        check_host,
        unit="address",
    )
    processes: int | None = count(
        None,
        "Have so many processes, each a worker of this capacity, under a parent that restarts "
        "them; SIGHUP replaces them one by one.  Without it this process is the worker.",
        unit="processes",
        low=1,
        high=PROCESSES_MAX,
    )
    reload: bool = _yes(
        "Replace the worker when a file of the working directory changes (extra `cli`)."
    )


Owner: TypeAlias = type[RunOptions] | type[Settings]
# What a program of its own does otherwise than a node that is embedded.
DEFAULTS: Final[Mapping[str, Any]] = {"on_overrun": "exit"}


@attrs.frozen
class Option:
    """One field, and what it is called where."""

    name: str
    owner: Owner
    default: Any
    meta: Mapping[str, Any]

    @property
    def flag(self) -> str:
        """What it is on the command line; the handlers are what stands there by itself."""
        return "" if self.name == "handlers" else f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """What it is in the environment."""
        return self.meta.get("variable") or f"POOL_{self.name.upper()}"

    @property
    def kind(self) -> str:
        """One of number, choice, text, texts, flag."""
        if "low" in self.meta:
            return "number"
        kind: str = self.meta.get("is", "choice")
        return kind

    @property
    def bounds(self) -> str:
        """What it may be, in words."""
        unit: str = self.meta["unit"]
        if self.kind != "number":
            return unit
        low, high = self.meta["low"], self.meta["high"]
        return f"{_as_number(low)} to {_as_number(high)} {unit}".strip()

    @property
    def metavar(self) -> str:
        """What stands for its value in the help."""
        match self.kind:
            case "number":
                return "SECONDS" if self.meta["unit"] == "s" else "N"
            case "choice":
                return f"{{{self.bounds.replace(' / ', ',')}}}"
            case _:
                return self.bounds.upper()

    def read(self, text: str) -> Any:
        """Return what a flag or a variable says; what it is not, the validator says."""
        match self.kind:
            case "number":
                return _number(text, is_whole=self.meta["whole"])
            case "flag":
                return _WORDS.get(text.lower(), text)
            case "texts":
                return tuple(text.replace(",", " ").split())
            case _:
                return text

    def judge(self, value: Any) -> Any:
        """Return the value as it may be used.

        Raises:
            ConfigError: It cannot be used.
        """
        return getattr(self.owner(**{self.name: value}), self.name)


def _number(text: str, *, is_whole: bool) -> Any:
    """Return a number as everybody writes it; what Python takes besides is no number here."""
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        return text if is_whole or "_" in text or not text.isascii() else float(text)
    except ValueError:
        return text


OPTIONS: Final = {
    field.name: Option(field.name, owner, DEFAULTS.get(field.name, field.default), field.metadata)
    for owner in (RunOptions, Settings)
    for field in attrs.fields(owner)
}


# --- the command line -----------------------------------------------------------------------


def add_to(command: argparse.ArgumentParser) -> None:
    """Add the flags."""
    command.add_argument(
        "handlers",
        nargs="*",
        metavar="MODULE[:NAME]",
        default=None,
        help="where its Handlers are; several are put together",
    )
    command.add_argument(
        "--config", metavar="FILE", help=f"a TOML file with settings (or set {FILE_VARIABLE})"
    )
    groups = {
        RunOptions: command.add_argument_group("options of the worker"),
        Settings: command.add_argument_group("settings of its node"),
    }
    command.add_argument("--child", help=argparse.SUPPRESS)  # said by its parent
    for option in OPTIONS.values():
        if option.flag:
            _add(groups[option.owner], option)


def _add(command: argparse._ActionsContainer, option: Option) -> None:
    says = f"{option.meta['doc']} {_ends(option)}".strip().replace("%", "%%")
    if option.kind == "flag":
        command.add_argument(
            option.flag, dest=option.name, action="store_const", const="true", help=says
        )
    elif option.kind == "texts":
        flag = option.flag.removesuffix("s")
        command.add_argument(flag, dest=option.name, action="append", metavar="NAME", help=says)
    else:
        command.add_argument(option.flag, dest=option.name, metavar=option.metavar, help=says)


def _ends(option: Option) -> str:
    """Return the bounds and the default, in brackets."""
    default = option.default
    words = [option.bounds] if option.kind == "number" else []
    if default not in ("", (), None, False):
        words.append(f"default: {_as_number(default) if option.kind == 'number' else default}")
    return f"({'; '.join(words)})" if words else ""


def _as_number(value: float) -> str:
    return f"{value:,}" if type(value) is int else f"{value:,.12g}"


# --- what was said --------------------------------------------------------------------------


@attrs.frozen
class Stated:
    """A value, and where it was given."""

    value: Any
    where: str


@attrs.frozen
class Overridden:
    """A value of the file in whose place another one counts."""

    setting: str
    where: str
    by: str  # the variable or the flag
    problem: str = ""  # what would be wrong with it


@attrs.define
class Configuration:
    """All that was said, judged: what is wrong with it is kept, so that a check can tell it all."""

    values: dict[str, Any] = attrs.field(factory=dict)
    problems: list[ConfigError] = attrs.field(factory=list)
    overridden: list[Overridden] = attrs.field(factory=list)  # values of the file

    def override(self, name: str, before: Stated, by: Stated) -> None:
        """Note a value that does not count; what is wrong with it is none of `pool run`'s."""
        problem = ""
        try:
            OPTIONS[name].judge(before.value)
        except ConfigError as error:
            problem = error.problem
        self.overridden.append(Overridden(name, before.where, by.where, problem))

    def take(self, name: str, said: Stated) -> None:
        """Take a value, or what is wrong with it."""
        try:
            self.values[name] = OPTIONS[name].judge(said.value)
        except ConfigError as error:
            problem = f"{said.where}: {error.problem}"
            self.problems.append(ConfigError(setting=name, problem=problem))

    def of(self, owner: Owner) -> dict[str, Any]:
        """Return the values of one class."""
        names = {field.name for field in attrs.fields(owner)}
        return {name: value for name, value in self.values.items() if name in names}

    @property
    def options(self) -> RunOptions:
        """What is no setting of the node."""
        return RunOptions(**self.of(RunOptions))

    @property
    def settings(self) -> Settings:
        """The node's settings; ConfigError if two do not go together."""
        return Settings(**self.of(Settings))

    def check(self, *needed: str) -> None:
        """Raise the first of what is wrong.

        Raises:
            ConfigError: Something is, or one of these was not given.
        """
        if self.problems:
            raise again(self.problems[0])
        for name in needed:
            self.given(name)

    def given(self, name: str) -> Any:
        """Return what was given.

        Raises:
            ConfigError: Nothing was.
        """
        if not self.values.get(name):
            option = OPTIONS[name]
            flag = option.flag or "MODULE"
            problem = f"give {flag}, set {option.variable}, or write {name} = ... in the file"
            raise ConfigError(setting=name, problem=problem)
        return self.values[name]


def gather(args: argparse.Namespace, environ: Mapping[str, str]) -> Configuration:
    """Return what flags, variables and the file say, in this order."""
    found = Configuration(dict(DEFAULTS))
    said: dict[str, Stated] = {}
    try:
        said |= _from_file(args.config or environ.get(FILE_VARIABLE, ""), found.problems)
    except ConfigError as error:
        found.problems.append(error)
    in_file = dict(said)
    said |= _from_variables(environ, found.problems)
    said |= _from_flags(args)
    for name, before in in_file.items():
        if said[name] is not before:
            found.override(name, before, said[name])
    for name, each in said.items():
        found.take(name, each)
    if not found.problems:
        try:
            found.settings  # noqa: B018 - what two of them say together
            _check_ports(found.options)
        except ConfigError as error:
            found.problems.append(error)
    return found


def _check_ports(options: RunOptions) -> None:
    """Refuse a port that the last of several processes cannot have."""
    last = (options.metrics_port or 0) + (options.processes or 1) - 1
    if options.metrics_port and last > PORT_MAX:
        problem = f"{options.processes} processes would need ports up to {last:,}"
        raise ConfigError(setting="metrics_port", problem=problem)


def _from_flags(args: argparse.Namespace) -> Iterator[tuple[str, Stated]]:
    for option in OPTIONS.values():
        given = getattr(args, option.name, None)
        if isinstance(given, list):
            if given:
                yield option.name, Stated(tuple(given), option.flag or "MODULE")
        elif given is not None:
            yield option.name, Stated(option.read(given), option.flag)


def _from_variables(
    environ: Mapping[str, str], problems: list[ConfigError]
) -> Iterator[tuple[str, Stated]]:
    """Yield what is set.  Others' variables may begin so: only what is nearly ours is wrong."""
    known = {option.variable: option for option in OPTIONS.values()}
    for variable, text in environ.items():
        if variable in known and text:
            option = known[variable]
            yield option.name, Stated(option.read(text), variable)
        elif _OTHERS.fullmatch(variable):
            continue
        elif variable.startswith("POOL_") and variable not in (*known, FILE_VARIABLE):
            near = _nearest(variable.removeprefix("POOL_"), [v[5:] for v in known])
            if near:
                problem = f"{variable}: there is no such variable; is it POOL_{near}?"
                problems.append(ConfigError(setting=variable, problem=problem))


def _from_file(name: str, problems: list[ConfigError]) -> Iterator[tuple[str, Stated]]:
    if not name:
        return
    import tomllib

    text = _read(Path(name))
    try:
        keys = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _unusable(name, f"{error}") from None
    for key, value in keys.items():
        where = f"{name}, line {_line_of(key, text)}"
        if key in OPTIONS:
            yield key, Stated(tuple(value) if isinstance(value, list) else value, where)
        else:
            problem = f"{where}: there is no setting {shown(key)!r}{_instead(key, value)}"
            problems.append(ConfigError(setting=shown(key), problem=problem))


def _instead(key: str, value: object) -> str:
    if isinstance(value, dict):
        return ", and no tables: all settings stand side by side"
    near = _nearest(key, list(OPTIONS))
    return f"; is it {near}?" if near else ""


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
        if len(text) > FILE_BYTES_MAX:
            raise _unusable(str(path), f"it has more than {FILE_BYTES_MAX:,} bytes")
        return text.decode("utf-8-sig")  # as Windows' editors write it
    except UnicodeDecodeError as error:
        raise _unusable(str(path), f"byte {error.start} is no UTF-8") from None
    except (OSError, ValueError) as error:
        raise _unusable(str(path), getattr(error, "strerror", None) or str(error)) from None


def _unusable(name: str, problem: str) -> ConfigError:
    return ConfigError(setting="config", problem=f"{shown(name)}: {problem}")


def _line_of(key: str, text: str) -> int:
    """Return where a key of the file stands: its parser does not say it."""
    quoted = rf"""["']?{re.escape(key)}["']?"""
    found = re.search(rf"^[ \t]*\[*[ \t]*{quoted}[ \t]*[=.\]]", text, re.MULTILINE)
    return text.count("\n", 0, found.start() if found else 0) + 1


def _nearest(name: str, names: list[str]) -> str:
    [near, *_] = [*difflib.get_close_matches(name, names, n=1, cutoff=_NEAR), ""]
    return near
