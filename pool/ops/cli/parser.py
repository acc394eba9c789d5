"""The words of the command line: verbs, their options, and what is said of a mistyped one.

It imports nothing but Python's own, so that help and completion are there at once: but for the
options of `run` and `check`, which are the fields of the settings.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, TypeAlias

from pool.printable import plain
from pool.version import __version__

_BEHIND = "; what begins with - and is no option stands behind --"
_SECRET = re.compile(r"(?<=://)\S+")
_STATES = ("pending", "running", "waiting", "unassigned", "queued")
_WEB_PORT = 8080
_SECONDS_MAX = 365 * 86_400
CONFIRM_BY: Final = "give --token, as `pool plans show` tells it, or --anything"
_STANDINGS = ("live", "closed", "cordoned", "draining", "hung", "silent", "fenced", "gone")
_JSON = "in JSON: a list, an object for arguments by name, or one value"


def make(*, is_whole: bool = True) -> argparse.ArgumentParser:
    """Return the parser; one that is not whole has not the options of `run` and `check`."""
    parser = _Parser(
        prog="pool",
        description="A dedicated worker pool: jobs by key, one owner per key, state in Redis.",
        epilog="Exit codes: 0 all is well, 1 a finding, 2 usage, 3 the store cannot be reached, "
        "4 lanes are away: the rest is shown, 5 the pool is of another version.",
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
    dev.add_argument(
        "--web",
        type=int,
        nargs="?",
        const=_WEB_PORT,
        metavar="PORT",
        help=f"and `pool web` on this port, for the pool `dev` (default: {_WEB_PORT})",
    )

    web = _command(
        commands, "web", "serve a pool over HTTP: to operate it, and for workers that poll"
    )
    web.add_argument(
        "--host",
        type=_filled,
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where to listen (default: 127.0.0.1); one that other machines reach needs secrets",
    )
    web.add_argument("--port", type=int, default=_WEB_PORT, help=f"(default: {_WEB_PORT})")
    web.add_argument(
        "--secrets",
        type=_filled,
        metavar="FILE",
        help="a TOML file of secrets by role and name; or POOL_WEB_*",
    )
    for name, text in (
        ("--certfile", "the certificate"),
        ("--keyfile", "its key, if not in there"),
    ):
        web.add_argument(name, type=_filled, metavar="FILE", help=f"for TLS: {text}, in PEM")
    _add_web_limits(web)
    _add_pool(web)

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
    if is_whole:
        from pool.ops.cli.config import add_to

        for command in (run, check):
            add_to(command)

    _add_looking(commands)

    why = _command(commands, "why", "say why a key is as it is, and what helps")
    why.add_argument("key", metavar="KEY", help="a job's key")
    why.add_argument(
        "--id", type=_filled, help="this job of the key; left out: its live or last one"
    )
    _add_pool(why)

    doctor = _command(commands, "doctor", "say what is wrong with a pool, and what mends it")
    doctor.add_argument("--all", action="store_true", help="walk over all jobs, not over 20,000")
    doctor.add_argument(
        "--streams", action="store_true", help="look at streams and sinks, too: see acl --operator"
    )
    doctor.add_argument("--fix", action="store_true", help="say what this command could mend")
    doctor.add_argument("--yes", action="store_true", help="with --fix: and mend it")
    _add_pool(doctor)

    _add_acting(commands)
    _add_journal(commands)
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
    acl.add_argument(
        "--operator", action="store_true", help="as well what `maps`, `streams` and `purge` need"
    )

    explain = _command(
        commands,
        "explain",
        "say more about an error, an answer of the gateway, or a finding of doctor",
    )
    explain.add_argument(
        "error", metavar="CODE", help="as printed in brackets, the class, or a finding"
    )

    completion = _command(commands, "completion", "print what a shell needs to complete our words")
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="whose")
    return parser


def _add_web_limits(command: argparse.ArgumentParser) -> None:
    for name, kind, default, text in (
        ("--requests-per-s", float, 2000.0, "of each caller (default: 2,000)"),
        ("--connections-max", int, 4096, "at the same time (default: 4,096)"),
        ("--body-bytes-max", int, 8 * 1024 * 1024, "of a request (default: 8 MiB)"),
    ):
        command.add_argument(name, type=kind, default=default, metavar="N", help=text)


def _add_looking(commands: _Commands) -> None:
    _add_pool(_command(commands, "status", "show a pool at a glance, and what is wrong with it"))

    top = _command(commands, "top", "show a pool live; q or Ctrl-C ends it")
    _add_every(top)
    top.add_argument("--frames", type=int, metavar="N", help="end after so many looks")
    top.add_argument("--since", type=_filled, metavar="SPAN", help="not live: as `pool rates`")
    _add_pool(top)

    rates = _command(commands, "rates", "show what a pool did in the last hours, by handler")
    rates.add_argument(
        "--since", type=_filled, default="24h", metavar="SPAN", help="1m to 24h (default: 24h)"
    )
    _add_pool(rates)

    for name, text in (
        ("nodes", "show the nodes of a pool: where they are, and how they stand"),
        ("workers", "show the workers of a pool: what each has, and what it takes"),
    ):
        command = _command(commands, name, text, module="members")
        command.add_argument("--host", type=_filled, help="those there only")
        command.add_argument(
            "--standing", type=_filled, choices=_STANDINGS, help="those that stand so only"
        )
        if name == "workers":
            command.add_argument("--handler", type=_filled, help="those that have it only")
        _add_pool(command)

    jobs = _command(commands, "jobs", "show a page of live jobs")
    _add_filters(jobs)
    jobs.add_argument(
        "--page", type=int, default=500, help="records to look at, up to 2,000 (default: 500)"
    )
    jobs.add_argument("--cursor", default="", help="where the page before ended")
    jobs.add_argument("--all", action="store_true", help="all pages, one after another")
    jobs.add_argument("--watch", action="store_true", help="look again and again, until Ctrl-C")
    _add_every(jobs)
    jobs.add_argument("--frames", type=int, metavar="N", help="with --watch: end after so many")
    _add_pool(jobs)

    job = _command(commands, "job", "show all that is known of a job")
    job.add_argument("key", metavar="KEY", help="its key")
    job.add_argument("id", metavar="ID", nargs="?", help="its id; left out: the live or last one")
    _add_pool(job)

    for name, text in (
        ("maps", "show the replicated maps of a pool"),
        ("streams", "show the streams of a pool, and their sinks"),
    ):
        command = _command(commands, name, text, module="stores")
        command.add_argument("names", metavar="NAME", nargs="*", help="these; none: a page of all")
        command.add_argument("--cursor", default="", help="where the page before ended")
        _add_pool(command)

    config = _command(
        commands, "config", "show what holds for all of a pool, or change it", module="settings"
    )
    config.add_argument("--set", metavar="NAME=VALUE", type=_filled, help="lease_ttl_s=SECONDS")
    _add_pool(config)


def _add_acting(commands: _Commands) -> None:
    dispatch = _command(commands, "dispatch", "dispatch a job", module="acting")
    dispatch.add_argument("handler", metavar="HANDLER", help="the handler's name")
    dispatch.add_argument("key", metavar="KEY", help="the job's key")
    dispatch.add_argument("args", metavar="ARGS", nargs="?", help=f"its arguments, {_JSON}")
    dispatch.add_argument(
        "--delay", type=_seconds, default=0.0, metavar="SECONDS", help="not before"
    )
    dispatch.add_argument("--id", type=_filled, help="the job's id, by which a repeat is known")
    dispatch.add_argument(
        "--allow-unknown", action="store_true", help="also for a handler that nobody has had yet"
    )
    dispatch.add_argument(
        "--wait", type=_seconds, metavar="SECONDS", help="for its result, so long"
    )
    _add_pool(dispatch)

    notify = _command(commands, "notify", "send a message to a key's live job", module="acting")
    notify.add_argument("key", metavar="KEY", help="the job's key")
    notify.add_argument("payload", metavar="JSON", help="what to send")
    _add_pool(notify)

    stop = _command(commands, "stop", "stop a job, or all that match", module="acting")
    _add_one_or_all(stop)
    stop.add_argument("--cause", type=_filled, default="stopped", help="which its handler sees")
    stop.add_argument(
        "--timeout", type=_seconds, default=60.0, metavar="SECONDS", help="to wait (default: 60)"
    )
    _add_pool(stop)

    requeue = _command(
        commands,
        "requeue",
        "have a job that waits for its delay or retry begin now, or all that match",
        module="acting",
    )
    _add_one_or_all(requeue)
    _add_pool(requeue)

    purge = _command(commands, "purge", "delete a pool with all that is in it", module="purge")
    purge.add_argument("name", metavar="NAME", help="the pool's name once more")
    purge.add_argument("--yes", action="store_true", help="do it; without: say what would go")
    _add_pool(purge)


def _add_one_or_all(command: argparse.ArgumentParser) -> None:
    command.add_argument("key", metavar="KEY", nargs="?", help="the job's key")
    command.add_argument("id", metavar="ID", nargs="?", help="its id; left out: the live one")
    command.add_argument("--all", action="store_true", help="all that match, and not one")
    command.add_argument("--dry-run", action="store_true", help="only count them")
    command.add_argument("--yes", action="store_true", help="with --all: do it")
    command.add_argument(
        "--at-most", type=int, metavar="N", help="with --all: nothing, if more match"
    )
    _add_filters(command)


def _add_filters(command: argparse.ArgumentParser) -> None:
    command.add_argument("--handler", type=_filled, help="of this handler only")
    command.add_argument("--state", type=_filled, choices=_STATES, help="in this state only")
    command.add_argument("--owner", type=_filled, metavar="WORKER", help="that this worker has")
    command.add_argument("--prefix", type=_filled, help="whose key begins so")
    command.add_argument("--older-than", type=_seconds, metavar="SECONDS", help="accepted by then")


def _add_every(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--every",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="how often, from 0.2 on (default: 2)",
    )


def _add_journal(commands: _Commands) -> None:
    events = _command(commands, "events", "show what happened beside ordinary work: the journal")
    events.add_argument("-f", "--follow", action="store_true", help="wait for what comes")
    events.add_argument("--key", type=_filled, help="of this key only")
    events.add_argument("--handler", type=_filled, help="of jobs of this handler only")
    events.add_argument(
        "--since",
        type=_filled,
        default="1h",
        help="so long ago (90s, 15m, 6h, 2d), an ISO time, the position of an entry, or `all` "
        "(default: 1h)",
    )
    _add_pool(events)

    verb = _group(commands, "journal", "have the journal take all edges of some jobs for a while")
    follow = verb("follow", "take all edges of these, instead of those that were named before")
    follow.add_argument(
        "--handler", type=_filled, action="append", default=[], help="of its jobs; several may be"
    )
    follow.add_argument(
        "--key", type=_filled, action="append", default=[], help="of this key; several may be"
    )
    follow.add_argument(
        "--for", dest="span", type=_filled, default="15m", help="at most 24h (default: 15m)"
    )
    verb("show", "say of what it takes all edges, and for how long still")
    verb("stop", "take all edges of none any more")


def _add_parked(commands: _Commands) -> None:
    verb = _group(commands, "parked", "look through dead letters, mend, replay and discard them")

    def add_filters(command: argparse.ArgumentParser) -> None:
        for name, text in (
            ("--handler", "of jobs of this handler only"),
            ("--prefix", "whose key begins so"),
            ("--cause", "parked for this, such as failed, poison"),
        ):
            command.add_argument(name, type=_filled, help=text)
        command.add_argument(
            "--older-than", type=_seconds, metavar="SECONDS", help="parked by then"
        )
        command.add_argument(
            "--newer-than", type=_seconds, metavar="SECONDS", help="parked since then"
        )

    def add_job(command: argparse.ArgumentParser, *, or_all: bool = False) -> None:
        many = "?" if or_all else None
        command.add_argument("key", metavar="KEY", nargs=many, help="the job's key")
        command.add_argument("id", metavar="ID", nargs=many, help="the job's id")
        if or_all:
            command.add_argument("--all", action="store_true", help="all that match, and not one")
            command.add_argument("--dry-run", action="store_true", help="only count them")
            command.add_argument("--yes", action="store_true", help="with --all: do it")
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
                "--timeout",
                type=_seconds,
                default=120.0,
                metavar="SECONDS",
                help="to wait (default: 120)",
            )
        if name == "confirm":
            command.add_argument(
                "--token", type=_token, help="as `show` or `diff` tells it: just those stops"
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
        command = _command(commands, name, text, module="operate")
        for flag, of in (("--handler", "handler"), ("--key", "key")):
            command.add_argument(
                flag, type=_filled, action=_Once, help=f"the jobs of this {of} only"
            )
        if name == "pause":
            command.add_argument("--reason", type=_filled, help="for those who wonder")
            command.add_argument("--yes", action="store_true", help="yes, the whole pool")
        _add_pool(command)
    for name, text in (
        ("cordon", "have a node, or a worker, take no more jobs and keep those that it has"),
        ("uncordon", "have it take jobs again"),
        ("drain", "have it give up its jobs in order and leave, as SIGTERM does"),
    ):
        command = _command(commands, name, text, module="operate")
        command.add_argument("member", metavar="ID", help="of the node or worker: `pool status`")
        if name != "uncordon":
            command.add_argument("--reason", type=_filled, help="for those who wonder")
        command.add_argument(
            "--timeout", type=_seconds, default=10.0, metavar="SECONDS", help="(default: 10)"
        )
        _add_pool(command)


def _filled(text: str) -> str:
    """Return what was given: an unset variable of a script must not mean everything."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; leave the option out if that is meant")
    return text


def _seconds(text: str) -> float:
    """Return a duration: refused here, before anything is sent, under the name that was typed."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.0 <= found <= _SECONDS_MAX:  # nor is it nan
        said = f"{plain(text)[:40]!r} is no number of seconds from 0 to {_SECONDS_MAX:,}"
        raise argparse.ArgumentTypeError(said)
    return found


def _token(text: str) -> str:
    if text:
        return text
    raise argparse.ArgumentTypeError(f"it is empty; {CONFIRM_BY}")


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


def _command(
    commands: _Commands, name: str, text: str, *, module: str = ""
) -> argparse.ArgumentParser:
    command = _parser_of(commands, name, text)
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(command=name, module=f"pool.ops.cli.{module or name}")
    return command


def _add_pool(command: argparse.ArgumentParser) -> None:
    command.add_argument("--pool", metavar="NAME", help="the pool's name (or set POOL_NAME)")
    command.add_argument("--url", help="where Redis is (or set POOL_URL, which hides a password)")
    command.add_argument("--config", metavar="FILE", help="a TOML file that says both")


# --- mistakes ------------------------------------------------------------------------


_MODULES = "; several modules stand side by side"
_WHAT = "; say what: --handler NAME or --key KEY, or neither for the whole pool"
# By command, what is said of words that it has no place for.
_STRAY: Final = {
    **dict.fromkeys(("run", "check", "dev"), _MODULES),
    **dict.fromkeys(("pause", "resume"), _WHAT),
    **dict.fromkeys(("cordon", "uncordon", "drain"), "; one node or worker at a time"),
}


class _Once(argparse.Action):
    """An option of which a second one would silently take the place of the first."""

    def __call__(self, *given: Any, **_: Any) -> None:
        _parser, namespace, text, *_flag = given
        if getattr(namespace, self.dest) is not None:
            raise argparse.ArgumentError(self, "one at a time: run it once for each")
        setattr(namespace, self.dest, text)


class _Parser(argparse.ArgumentParser):
    _given: Sequence[str] = ()

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # Until Python 3.12 what ends the options is taken out of each argument: a key called `--`,
        # which comes behind it, would be none.
        if arg_strings == ["--"] and action.nargs is None:
            return "--"
        return super()._get_values(action, arg_strings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = [each for each in args or () if isinstance(each, str)]
        return super().parse_known_args(args, namespace)

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
        command = next((each for each in self._given if not each.startswith("-")), "")
        if not word.startswith("-"):
            return _STRAY.get(command, "")
        flag = re.split(r"[= ]", word)[0]
        if not flag.startswith("--"):
            return _BEHIND
        chosen = self._chosen()
        flags = set(chosen._option_string_actions)
        begins = sorted(each for each in flags if each.startswith(flag))
        if not begins and flag in self._flags():
            return f"; `{chosen.prog.partition(' ')[2]}` has no such option"
        near = begins or difflib.get_close_matches(flag, flags, n=1)
        return f"; is it {near[0]}?" if near else ""

    def _chosen(self) -> argparse.ArgumentParser:
        """Return the parser of the command that was given, or of its verb."""
        found: argparse.ArgumentParser = self
        for word in self._given:
            for action in found._actions:
                if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                    found = action.choices[word]
                    break
        return found

    def _flags(self) -> set[str]:
        found = set(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                found.update(*(each._flags() for each in action.choices.values()))
        return found


_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"  # generic for type checkers only
