"""The command line: `pool demo | dev | run | check`, to look `status | why | doctor | parked |
batches | schedules | plans`, and `ttl | acl | explain`.

Exit codes: 0 all is well; 1 something was found (a broken promise, a pool in trouble); 2 the call
cannot work as written; 3 the store cannot be reached.  What a user can cause is one line on
standard error, and never shows a password.  A traceback comes before it only where the user's own
module failed while it was imported, and holds that module's lines alone.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, TypeAlias

from pool.errors import (
    AuthError,
    NoServer,
    PoolError,
    StoreUnavailable,
    UnsupportedServer,
    UsageError,
    again,
)
from pool.ops.cli.child import Leash
from pool.ops.cli.config import add_to, gather
from pool.ops.terminal import plain, write
from pool.redis.url import Url
from pool.version import __version__

OK, FINDING, USAGE, UNREACHABLE = 0, 1, 2, 3
_INTERRUPTED = 128 + 2  # as a shell says of a program that SIGINT ended

_BEHIND = "; what begins with - and is no option stands behind --"
_SECRET = re.compile(r"(?<=://)\S+")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        args = _parser().parse_args(argv)
        args.words = sys.argv[1:] if argv is None else argv  # for a parent, whose children get them
    except SystemExit as done:  # argparse has said everything
        return int(done.code or 0)
    try:
        _complete(args)
        if getattr(args, "child", None) is not None:
            args.leash = Leash.of(args.child)
        code: int = importlib.import_module(args.module).run(args)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # who read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (PoolError, BaseExceptionGroup) as error:
        if any(isinstance(leaf, KeyboardInterrupt) for leaf in _leaves(error)):
            return _INTERRUPTED
        cause = _cause(error)
        if cause is None:
            raise
        if isinstance(cause, UsageError) and "pool.ops.cli.loading" in sys.modules:
            write(sys.modules["pool.ops.cli.loading"].told(cause), sys.stderr)
        if (leash := getattr(args, "leash", None)) is not None:
            leash.tell("failed", child=leash.number, problem=str(cause))
        return _say(str(cause), _code(cause))
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="pool",
        description="A dedicated worker pool: jobs by key, one owner per key, state in Redis.",
        epilog="Exit codes: 0 all is well, 1 a finding, 2 usage, 3 the store cannot be reached.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"pool {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = _command(commands, "demo", "show on real input what the pool promises, and check it")
    demo.set_defaults(module="pool.demo.demo")

    dev = _command(commands, "dev", "run an embedded server until Ctrl-C, and print its address")
    dev.add_argument(
        "--dir", type=_filled, help="keep the data here; without it they end with the server"
    )
    dev.add_argument("--port", type=int, help="listen on this port of 127.0.0.1 too")

    run = _command(commands, "run", "run a worker; SIGTERM drains it, a second one ends it at once")
    run.usage = "pool run [--json] [OPTION ...] MODULE[:NAME] ..."
    run.epilog = (
        "Each option is also a variable and a key of the file: `--lease-ttl-s` is "
        "`POOL_LEASE_TTL_S` and `lease_ttl_s`; `--pool` is `POOL_NAME`, what stands by itself "
        "`POOL_HANDLERS`.  The flag counts before the variable, the variable before the file."
    )
    check = _command(commands, "check", "say what `pool run` would refuse; no server is asked")
    check.usage = "pool check [--json] [OPTION ...] MODULE[:NAME] ..."
    check.epilog = "It takes what `pool run` takes."
    for command in (run, check):
        add_to(command)

    status = _command(commands, "status", "show a pool's nodes, workers and jobs")
    _add_pool(status)

    why = _command(commands, "why", "say why a key is as it is, and what helps")
    why.add_argument("key", metavar="KEY", help="a job's key")
    why.add_argument(
        "--id", type=_filled, help="this job of the key; left out: its live or last one"
    )
    _add_pool(why)

    doctor = _command(commands, "doctor", "say what is wrong with a pool, and what mends it")
    doctor.add_argument("--all", action="store_true", help="walk over all jobs, not over 20,000")
    doctor.add_argument("--fix", action="store_true", help="say what this command could mend")
    doctor.add_argument("--yes", action="store_true", help="with --fix: and mend it")
    _add_pool(doctor)

    _add_parked(commands)
    _add_schedules(commands)
    _add_plans(commands)
    _add_batches(commands)

    _add_operating(commands)

    ttl = _command(commands, "ttl", "change the lease TTL of a pool while its nodes run")
    ttl.add_argument("seconds", type=float, metavar="SECONDS", help="from 1 to 3,600")
    _add_pool(ttl)

    acl = _command(commands, "acl", "print the access rules that a user needs to work on a pool")
    acl.add_argument("name", metavar="NAME", help="the pool's name")
    acl.add_argument("--db", type=int, default=0, help="the database of its address (default: 0)")

    explain = _command(commands, "explain", "say more about an error")
    explain.add_argument("error", metavar="CODE", help="as printed in brackets, or the class")
    return parser


def _add_parked(commands: _Commands) -> None:
    verb = _group(commands, "parked", "look through dead letters, mend, replay and discard them")

    def add_filters(command: argparse.ArgumentParser) -> None:
        for name, text in (
            ("--handler", "of jobs of this handler only"),
            ("--prefix", "whose key begins so"),
            ("--cause", "parked for this, such as failed, poison"),
        ):
            command.add_argument(name, type=_filled, help=text)
        command.add_argument("--older-than", type=float, metavar="SECONDS", help="parked by then")
        command.add_argument(
            "--newer-than", type=float, metavar="SECONDS", help="parked since then"
        )

    def add_job(command: argparse.ArgumentParser, *, or_all: bool = False) -> None:
        many = "?" if or_all else None
        command.add_argument("key", metavar="KEY", nargs=many, help="the job's key")
        command.add_argument("id", metavar="ID", nargs=many, help="the job's id")
        if or_all:
            command.add_argument("--all", action="store_true", help="all that match, and not one")
            command.add_argument("--dry-run", action="store_true", help="only count them")
            add_filters(command)

    listing = verb("list", "show a page of dead letters")
    add_filters(listing)
    listing.add_argument("--count", type=int, default=100, help="of a page (default: 100)")
    listing.add_argument("--cursor", default="", help="where the page before ended")
    add_job(verb("show", "show a dead letter, with its arguments and tracebacks"))
    replay = verb("replay", "make jobs of dead letters again")
    add_job(replay, or_all=True)
    replay.add_argument("--rate", type=float, metavar="PER_SECOND", help="with --all: no faster")
    edit = verb("edit", "give a dead letter other arguments, for when it is replayed")
    add_job(edit)
    edit.add_argument("--args", metavar="JSON", help="a list; left out: those there are stay")
    edit.add_argument("--kwargs", metavar="JSON", help="an object; left out: likewise")
    add_job(verb("discard", "throw dead letters away"), or_all=True)


def _add_schedules(commands: _Commands) -> None:
    text = "look through schedules, pause, resume, trigger and remove them"
    verb = _group(commands, "schedules", text)
    listing = verb("list", "show a page of schedules")
    listing.add_argument("--handler", type=_filled, help="of this handler only")
    listing.add_argument("--prefix", type=_filled, help="whose name begins so")
    listing.add_argument("--count", type=int, default=100, help="of a page, about (default: 100)")
    listing.add_argument("--cursor", type=_filled, help="where the page before ended")
    show = verb("show", "show a schedule, with its next times")
    show.add_argument("--next", type=int, default=5, help="how many times (default: 5)")
    others = (
        ("pause", "fire a schedule no more, until it is resumed"),
        ("resume", "fire a paused schedule again, from now on"),
        ("trigger", "make a job of a schedule now"),
        ("remove", "take a schedule away"),
    )
    for command in (show, *(verb(*each) for each in others)):
        command.add_argument("name", metavar="NAME", help="the schedule's name")


def _add_plans(commands: _Commands) -> None:
    verb = _group(commands, "plans", "look at plans, try them, and confirm what they hold")
    for name, text in (
        ("list", "show the plans of a pool"),
        ("show", "show a plan, and how its last turn went"),
        ("diff", "ask its producer, and say what would change; nothing is changed"),
        ("apply", "have the next turn taken now"),
        ("confirm", "let a plan stop what it has held"),
    ):
        command = verb(name, text)
        if name != "list":
            command.add_argument("name", metavar="NAME", help="the plan's name")
        if name in ("diff", "apply", "confirm"):
            command.add_argument(
                "--timeout", type=float, default=120.0, metavar="SECONDS", help="(default: 120)"
            )
        if name == "confirm":
            command.add_argument(
                "--token", type=_filled, help="as `show` or `diff` tells it: just those stops"
            )
            command.add_argument("--anything", action="store_true", help="whatever it stops now")


def _add_batches(commands: _Commands) -> None:
    verb = _group(commands, "batches", "look at batches, wait for them, cancel them")
    listing = verb("list", "show the newest batches")
    listing.add_argument("--newest", type=int, default=100, help="how many (default: 100)")
    show = verb("show", "show how a batch is")
    show.add_argument("id", metavar="ID", help="the batch's id")
    show.add_argument("--wait", action="store_true", help="until it has settled")
    cancel = verb("cancel", "have a batch take no more members, and stop those it has")
    cancel.add_argument("id", metavar="ID", help="the batch's id")
    cancel.add_argument("--cause", type=_filled, default="stopped", help="why")
    cancel.add_argument("--wait", action="store_true", help="until it has settled")


def _add_operating(commands: _Commands) -> None:
    for name, text in (
        ("pause", "accept jobs and give none to workers: of the pool, a handler or a key"),
        ("resume", "give them to workers again"),
    ):
        command = _command(commands, name, text)
        command.add_argument("--handler", type=_filled, help="the jobs of this handler only")
        command.add_argument("--key", type=_filled, help="the jobs of this key only")
        if name == "pause":
            command.add_argument("--reason", type=_filled, help="for those who wonder")
            command.add_argument("--yes", action="store_true", help="yes, the whole pool")
        command.set_defaults(module="pool.ops.cli.operate")
        _add_pool(command)
    for name, text in (
        ("cordon", "have a node, or a worker, take no more jobs and keep those that it has"),
        ("uncordon", "have it take jobs again"),
        ("drain", "have it give up its jobs in order and leave, as SIGTERM does"),
    ):
        command = _command(commands, name, text)
        command.add_argument("member", metavar="ID", help="of the node or worker: `pool status`")
        if name != "uncordon":
            command.add_argument("--reason", type=_filled, help="for those who wonder")
        command.add_argument(
            "--timeout", type=float, default=10.0, metavar="SECONDS", help="(default: 10)"
        )
        command.set_defaults(module="pool.ops.cli.operate")
        _add_pool(command)


def _filled(text: str) -> str:
    """Return what was given: an unset variable of a script must not mean everything."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; leave the option out if that is meant")
    return text


def _group(
    commands: _Commands, name: str, text: str
) -> Callable[[str, str], argparse.ArgumentParser]:
    """Add a command that has verbs; return what adds a verb, by its name and what it does."""
    verbs = _parser_of(commands, name, text).add_subparsers(required=True, metavar="VERB")

    def verb(verb: str, text: str) -> argparse.ArgumentParser:
        command = _command(verbs, verb, text)
        command.set_defaults(module=f"pool.ops.cli.{name}", verb=verb)
        _add_pool(command)
        return command

    return verb


def _parser_of(commands: _Commands, name: str, text: str) -> _Parser:
    description = f"{text[0].upper()}{text[1:]}."
    return commands.add_parser(name, help=text, description=description, allow_abbrev=False)


def _command(commands: _Commands, name: str, text: str) -> argparse.ArgumentParser:
    command = _parser_of(commands, name, text)
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(command=name, module=f"pool.ops.cli.{name}")
    return command


def _add_pool(command: argparse.ArgumentParser) -> None:
    command.add_argument("--pool", metavar="NAME", help="the pool's name (or set POOL_NAME)")
    command.add_argument("--url", help="where Redis is (or set POOL_URL, which hides a password)")
    command.add_argument("--config", metavar="FILE", help="a TOML file that says both")


def _complete(args: argparse.Namespace) -> None:
    """Fill in where the pool is; `run` and `check` do that themselves."""
    if "handlers" in args or "url" not in args:
        return
    said = gather(args, os.environ)
    for problem in said.problems:
        if problem.setting in ("pool", "url", "config"):
            raise again(problem)
    for name in ("pool", "url"):
        setattr(args, name, said.given(name))
    args.url = Url.parse(args.url)  # which whoever shows the arguments may show


# --- what went wrong ------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # A mistyped option makes an address a stray argument, which argparse would repeat whole.
        super().error(plain(_SECRET.sub("***", message) + self._meant(message)))

    def _meant(self, message: str) -> str:
        """Return which option is spelled like the first that is unknown."""
        if re.search(r"required: .*(KEY|ID)", message):
            return _BEHIND
        unknown, _, word = message.partition("unrecognized arguments: ")
        if unknown or not word:
            return ""
        if not word.startswith("-"):
            return "; several modules stand side by side"
        flag = re.split(r"[= ]", word)[0]
        if not flag.startswith("--"):
            return _BEHIND
        begins = sorted(each for each in self._flags() if each.startswith(flag))
        near = begins or difflib.get_close_matches(flag, self._flags(), n=1)
        return f"; is it {near[0]}?" if near else ""

    def _flags(self) -> set[str]:
        found = set(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                found.update(*(each._flags() for each in action.choices.values()))
        return found


_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"  # generic for type checkers only


def _cause(error: BaseException) -> PoolError | None:
    """Return the error of ours that is behind it, if there is nothing else."""
    leaves = list(_leaves(error))
    ours = [leaf for leaf in leaves if isinstance(leaf, PoolError)]
    return ours[0] if len(ours) == len(leaves) else None


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _code(error: PoolError) -> int:
    match error:
        case UsageError():
            return USAGE
        case StoreUnavailable() | AuthError() | UnsupportedServer() | NoServer():
            return UNREACHABLE
        case _:
            return FINDING


def _say(text: str, code: int) -> int:
    write([f"pool: {' '.join(text.split())}"], sys.stderr)
    return code
