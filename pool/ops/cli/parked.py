"""`pool parked`: dead letters, as `node.parked` has them.

It joins the pool as a client for as long as it works, so that what it replays finds its workers.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import attrs

from pool.core.codec import read_json
from pool.errors import ConfigError, PayloadEncodingError
from pool.jobs.client.listing import Gaps
from pool.jobs.client.parked import DeadLetters, ManyReplayed, ParkedJob
from pool.jobs.node import Node
from pool.ops.cli.asking import VerbSaid, act, tell, written_in
from pool.ops.jsonable import DeadLetter

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class LettersTold:
    """A page of dead letters; `looked_at` of them were looked at for it, `cursor` leads on."""

    v: int = 1
    pool: str
    jobs: tuple[ParkedJob, ...]
    cursor: str
    looked_at: int
    unread: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class LetterTold:
    """One dead letter, with its history."""

    v: int = 1
    pool: str
    job: DeadLetter


@attrs.frozen(kw_only=True)
class LettersChanged:
    """How many dead letters were changed, replayed or discarded, or would be.

    Of those that were `refused` the first 100 reasons are told.  `job_id` is what one that was
    replayed is called now.
    """

    v: int = 1
    pool: str
    count: int
    refused: int = 0
    reasons: tuple[str, ...] = ()
    job_id: str = ""


@attrs.frozen
class _Edited:
    """New arguments; of those that are None the letter keeps its own."""

    args: Sequence[Any] | None
    kwargs: dict[str, Any] | None


def run(args: argparse.Namespace) -> int:
    """Carry out `pool parked`: 0, or 1 if some were refused."""
    named = (getattr(args, "key", None), getattr(args, "id", None))
    is_one, is_none = None not in named, named == (None, None)
    if args.verb in ("replay", "discard") and not (is_none if args.all else is_one):
        raise ConfigError(setting=args.verb, problem="give KEY and ID, or --all")
    if args.verb in ("replay", "discard") and not args.all and (words := _of_all(args)):
        problem = f"{' and '.join(words)} can only stand beside --all: KEY and ID name one letter"
        raise ConfigError(setting=args.verb, problem=problem)
    edited = _edited(args) if args.verb == "edit" else None
    said = act(args, partial(_run, args, edited))
    return tell(args, said.shape, said.lines, ok=said.is_done)


def _of_all(args: argparse.Namespace) -> list[str]:
    """Return the options given that say something of many letters."""
    names = ("dry_run", "handler", "prefix", "cause", "older_than", "newer_than", "rate", "yes")
    given = (name for name in names if getattr(args, name, None) not in (None, False))
    return [f"--{name.replace('_', '-')}" for name in given]


def _edited(args: argparse.Namespace) -> _Edited:
    """Return what takes the place of what is there."""
    if args.args is None and args.kwargs is None:
        problem = "give --args, --kwargs or both: what you leave out stays as it is"
        raise ConfigError(setting=args.verb, problem=problem)
    return _Edited(_json("args", args.args, list), _json("kwargs", args.kwargs, dict))


def _json(name: str, text: str | None, kind: type[T]) -> T | None:
    if text is None:
        return None
    try:
        value = read_json(text)
    except PayloadEncodingError as error:
        raise ConfigError(setting=name, problem=f"not JSON: {error.problem}") from None
    if type(value) is not kind:
        must = "a list" if kind is list else "an object"
        raise ConfigError(setting=name, problem=f"must be {must}, in JSON")
    return value


async def _edit(parked: DeadLetters, args: argparse.Namespace, edited: _Edited) -> None:
    """Give the letter what was given, and let it keep the rest."""
    given, named = edited.args, edited.kwargs
    if given is None or named is None:
        letter = await parked.show(args.key, args.id)
        if letter.args is None or letter.kwargs is None:
            problem = "those there are cannot be read, so that none can be kept: give both"
            raise ConfigError(setting="args" if given is None else "kwargs", problem=problem)
        given = letter.args if given is None else given
        named = letter.kwargs if named is None else named
    await parked.edit(args.key, args.id, *given, **named)


async def _run(args: argparse.Namespace, edited: _Edited | None, node: Node) -> VerbSaid:
    parked, pool = node.parked, args.pool
    changed = partial(LettersChanged, pool=pool)
    wanted: dict[str, Any] = {}
    if hasattr(args, "prefix"):
        wanted = {
            "handler": args.handler or "",
            "prefix": args.prefix or "",
            "cause": args.cause or "",
            "older_than_s": args.older_than,
            "newer_than_s": args.newer_than,
        }
    match args.verb:
        case "list":
            page = await parked.list(**wanted, cursor=args.cursor, count=args.count, gaps=Gaps())
            lines = list(map(_line, page.jobs))
            lines.append(f"{len(page.jobs)} letters; looked at {page.looked_at}")
            if page.cursor:
                lines.append(f"the page ended after looking through {page.looked_at} letters")
                lines.append(f"there may be more: go on with --cursor {shlex.quote(page.cursor)}")
            told = LettersTold(pool=pool, **attrs.asdict(page, recurse=False))
            return VerbSaid(told, lines)
        case "show":
            job = DeadLetter.of(await parked.show(args.key, args.id))
            return VerbSaid(LetterTold(pool=pool, job=job), _lines(job))
        case "edit":
            assert edited is not None, "it was read before"
            await _edit(parked, args, edited)
            return VerbSaid(changed(count=1), ["its arguments are these from now on"])
        case "replay" | "discard" if args.all and not (args.yes or args.dry_run):
            count = await parked.count(**wanted)
            problem = f"{count} letters match: say --yes to {args.verb} them"
            raise ConfigError(setting="yes", problem=problem)
        case "replay" if args.all:
            many = await parked.replay_all(**wanted, rate=args.rate, dry_run=args.dry_run)
            return _many(pool, many, is_dry=args.dry_run)
        case "replay":
            ref = await parked.replay(args.key, args.id)
            told_id = f"it is job {ref.job_id} now"
            return VerbSaid(changed(count=1, job_id=ref.job_id), [told_id])
        case "discard" if args.all:
            count = await parked.discard_all(**wanted, dry_run=args.dry_run)
            word = "would be discarded" if args.dry_run else "discarded"
            return VerbSaid(changed(count=count), [f"{count} letters {word}"])
    await parked.discard(args.key, args.id)
    return VerbSaid(changed(count=1), ["1 letter discarded"])


def _many(pool: str, many: ManyReplayed, *, is_dry: bool) -> VerbSaid:
    word = "would be replayed" if is_dry else "replayed"
    lines = [f"{many.count} letters {word}, {many.refused} refused"]
    lines += [f"! {reason}" for reason in many.reasons]
    reasons = tuple(map(str, many.reasons))
    told = LettersChanged(pool=pool, count=many.count, refused=many.refused, reasons=reasons)
    return VerbSaid(told, lines, not many.refused)


def _line(job: ParkedJob) -> str:
    when = datetime.fromtimestamp(job.parked_ms / 1000, UTC).isoformat(timespec="seconds")
    return f"{when}  {job.key!r} {job.job_id}  {job.handler}  {job.cause}: {job.error}"


def _lines(job: DeadLetter) -> list[str]:
    lines = [_line(job), f"arguments  {job.args!r} {job.kwargs!r}{written_in(job.encoding)}"]
    if job.args is None:
        made = f"the codec {job.codec!r}, which is not here" if job.codec else "nobody we know"
        lines[1] = f"arguments  {job.payload_bytes} bytes that cannot be read, made by {made}"
    if job.version > 1:
        lines[1] += f"  (version {job.version})"
    if job.replay_of:
        lines.append(f"made from the letter of job {job.replay_of}")
    for each in job.history:
        when = datetime.fromtimestamp(each.at_ms / 1000, UTC).isoformat(timespec="seconds")
        lines.append(f"attempt {each.number}  {when}  {each.owner}  {each.type}: {each.message}")
        lines += [f"    {line}" for line in each.traceback.splitlines()]
    return lines
