"""`pool dispatch | notify | stop | requeue`: what an operator does to jobs.

one   KEY [ID]            done at once: it is named
many  --all, filters      counted and shown; then --yes does it, to no more than were counted
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import attrs

from pool.core.codec import read_json
from pool.errors import ConfigError, InvalidOption, PayloadEncodingError, shown
from pool.jobs.client.listing import JobFilter
from pool.jobs.node import Node
from pool.names import check_handler, check_job_id, check_key
from pool.ops import admin
from pool.ops.admin import Dispatched, JobsChanged, Notified
from pool.ops.cli.asking import act, tell, written_in
from pool.ops.cli.jobs import wanted_of
from pool.ops.findings import command
from pool.ops.terminal import progress, write

_DONE = {"stop": "stopped", "requeue": "requeued"}


def run(args: argparse.Namespace) -> int:
    """Carry out it: 0, or 1 if some of many could not be stopped or requeued."""
    match args.command:
        case "dispatch":
            return _dispatch(args)
        case "notify":
            check_key(args.key)
            payload = _json("JSON", args.payload)
            sent = act(args, lambda node: admin.notify(node, args.key, payload), is_operator=False)
            return tell(args, sent, _notified(sent))
    if args.all == (args.key is not None):
        raise ConfigError(setting=args.command, problem="give KEY, or --all")
    return _many(args) if args.all else _one(args)


def _dispatch(args: argparse.Namespace) -> int:
    check_handler(args.handler)
    check_key(args.key)
    given, named = _call(args.args)

    async def do(node: Node) -> Dispatched:
        return await admin.dispatch(
            node,
            args.handler,
            args.key,
            given,
            named,
            delay_s=args.delay,
            job_id=args.id,
            allow_unknown=args.allow_unknown,
            wait_s=args.wait,
        )

    done = act(args, do, is_operator=False)
    return tell(args, done, _dispatched(done), ok=done.state != "going on")


def _call(text: str | None) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments that a text means, by position and by name."""
    value = [] if text is None else _json("ARGS", text)
    if isinstance(value, dict):
        return [], value
    return (value if isinstance(value, list) else [value]), {}


def _json(name: str, text: str) -> Any:
    try:
        return read_json(text)
    except PayloadEncodingError as error:
        problem = f"not JSON: {error.problem}; a text stands in double quotes, inside single ones"
        raise InvalidOption(option=name, value=shown(text), problem=problem) from None


# --- one, or many -----------------------------------------------------------------------------


def _one(args: argparse.Namespace) -> int:
    given = [name for name in ("yes", "dry_run", "at_most") if getattr(args, name)]
    given += [name for name in _FILTERS if getattr(args, name) is not None]
    if given:
        words = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        problem = f"{words} can only stand beside --all: KEY names one job"
        raise ConfigError(setting=args.command, problem=problem)
    check_key(args.key)
    if args.id is not None:
        check_job_id(args.id)

    async def do(node: Node) -> JobsChanged:
        if args.command == "requeue":
            return await admin.requeue(node, args.key, args.id)
        return await admin.stop(node, args.key, args.id, cause=args.cause, timeout_s=args.timeout)

    done = act(args, do)
    return tell(args, done, _changed(done))


_FILTERS = ("handler", "state", "owner", "prefix", "older_than")


def _many(args: argparse.Namespace) -> int:
    wanted = wanted_of(args)
    if args.command == "requeue":
        if args.state not in (None, "waiting"):
            problem = f"only what waits for its time can be requeued, and not what is {args.state}"
            raise ConfigError(setting="state", problem=problem)
        wanted = attrs.evolve(wanted, state="waiting")
    done = act(args, lambda node: _counted(args, node, wanted))
    return tell(args, done, _changed(done), ok=done.is_complete)


async def _counted(args: argparse.Namespace, node: Node, wanted: JobFilter) -> JobsChanged:
    """Count, and if that is confirmed do it."""
    with progress("looked at", 0, is_told=not args.json) as bar:
        counted = await admin.count(node, args.command, wanted, on_progress=bar.at)
    if args.dry_run:
        return counted
    if args.at_most is not None and counted.found > args.at_most:
        problem = f"{counted.found} jobs match, more than {args.at_most}: nothing was done"
        raise ConfigError(setting="at_most", problem=problem)
    if not args.yes:
        some = f", such as {counted.keys[0]!r}" if counted.keys else ""
        problem = f"{counted.found} jobs match{some}: say --yes to {args.command} them"
        raise ConfigError(setting="yes", problem=problem)
    if not args.json:
        write([f"{counted.found} jobs match"])
    with progress(_DONE[args.command], counted.found, is_told=not args.json) as bar:
        if args.command == "requeue":
            return await admin.requeue_all(node, wanted, counted, on_progress=bar.at)
        return await admin.stop_all(
            node,
            wanted,
            counted,
            cause=args.cause,
            timeout_s=args.timeout,
            on_progress=bar.at,
        )


# --- as text ----------------------------------------------------------------------------------


def _dispatched(done: Dispatched) -> Iterator[str]:
    yield f"{done.key} is job {done.job_id} of {done.handler}: {done.state}"
    if done.result_problem:
        yield f"! its result is not shown: {done.result_problem}"
    elif done.state == "done":
        yield f"result  {done.result!r}{written_in(done.encoding)}"
    if done.state == "going on":
        yield f"! it has not ended in time: {command('pool why', done.key)}"


def _notified(done: Notified) -> Iterator[str]:
    yield f"{done.key} was sent 1 message"


def _changed(done: JobsChanged) -> Iterator[str]:
    if done.is_dry:
        yield f"{done.found} jobs would be {_DONE[done.action]}"
    else:
        yield f"{done.done} of {done.found} jobs {_DONE[done.action]}"
    if done.keys:
        more = f" and {done.found - len(done.keys)} more" if done.found > len(done.keys) else ""
        yield f"  {', '.join(done.keys)}{more}"
    for problem in done.problems:
        yield f"! {problem}"
