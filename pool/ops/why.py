"""Why a key is as it is, in plain words, and the one command that helps next.

    facts (`keyfacts`) --the first row of CASES that holds--> what is the case --> words, command

Pure.  A row says of one state of one feature when it is the case; what comes first in the table
goes before what comes later.  A new kind of state is a row more here, and a test of it.

What would become of the job if its owner died now is decided by what decides it then
(`core/settlement.py`), with the settings that a node has by default.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from random import Random
from typing import Any, Final

import attrs

from pool.core.crash_marks import Deaths
from pool.core.followers import Followed, released
from pool.core.ids import number_or, process_of
from pool.core.journal import JournalEntry
from pool.core.options import Options
from pool.core.pauses import Cordon, Pause
from pool.core.placement import Candidates
from pool.core.plans import ids_of, plan_and_version, plan_key, plan_of
from pool.core.record import (
    NOT_IN_TIME,
    SUPERSEDED,
    Attempt,
    Progress,
    Record,
    begin_by_ms,
    left_by,
    more_of,
)
from pool.core.schedules import schedule_of
from pool.core.settlement import CancelJob, Death, Judgement, ParkJob, Wait, is_hold, recover
from pool.names import key_hash
from pool.ops.findings import command, option
from pool.ops.keyfacts import KeyFacts, KeyOwner
from pool.ops.rates import is_unusual
from pool.settings import Settings

VERSION: Final = 1  # of the JSON: raised when a field goes or means something else
_SUSPECT: Final = "a"  # flag: it is acknowledged before it begins, and begun alone if it has marks
_TOLD: Final = 3  # workers that are named as the next to get it


@attrs.frozen(kw_only=True)
class InLine:
    """A job in the line behind the live one of its key."""

    job_id: str
    handler: str = ""
    waited_s: float = 0.0


@attrs.frozen(kw_only=True)
class OwnerTold:
    """Who has the job; `standing` as of `KeyOwner`, `lease_s` is negative once it has ended."""

    worker: str
    node: str = ""
    host: str = ""
    pid: int = 0
    label: str = ""
    version: str = ""
    standing: str = ""
    lease_s: float | None = None


@attrs.frozen(kw_only=True)
class Why:
    """How a key is, and why.

    `case` names the row of the table (`docs/how-to/looking.md` lists them), `says` is that in
    words, `next` the command that helps, empty where nothing needs to be done.  `state` is as in
    `Status`, or `unknown`, `lost` or `unreadable`.  `since_s` is for how long it has been so,
    `wait_s` for how long it still waits, None where nobody can tell; both in seconds of pool time.
    `begin_within_s`, `run_within_s`, `progress_within_s` are what is left of its limits, None where
    it has none.  `position` in its queue counts from 1; 0 where it stands in none.  `marks` are
    the process that died last with it aboard, `crashes` the deaths that it is suspected of.
    `would_go_to` names workers, the best first, as the fleet is today.
    """

    v: int = VERSION
    pool: str
    key: str
    job_id: str = ""
    case: str
    state: str
    says: str
    next: str = ""
    handler: str = ""
    kind: str = ""
    since_s: float | None = None
    accepted_s: float | None = None
    wait_s: float | None = None
    begin_within_s: float | None = None
    run_within_s: float | None = None
    progress_within_s: float | None = None
    progress: str = ""
    owner: OwnerTold | None = None
    epoch: int = 0
    attempt: int = 0
    attempts_max: int = 0  # 0: without limit
    error: str = ""
    history: tuple[Attempt, ...] = ()
    life: tuple[JournalEntry, ...] = ()  # the latest that the journal has of the key
    crashes: float = 0.0
    marks: tuple[str, ...] = ()
    messages: int = 0
    position: int = 0
    of: int = 0
    line: tuple[InLine, ...] = ()
    line_length: int = 0
    followers: tuple[str, ...] = ()
    batch: str = ""  # the id of the one that it is a member of
    plan: str = ""  # the one that has started it, or that it keeps
    schedule: str = ""  # the one of which it was made
    if_owner_died: str = ""
    would_go_to: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@attrs.frozen
class Case:
    """One state of one feature: when it is the case, what is said of it, and what helps."""

    name: str
    holds: Callable[[KeyFacts], object]
    says: Callable[[KeyFacts], str]
    next: Callable[[KeyFacts], str] = lambda _: ""


def why(facts: KeyFacts) -> Why:
    """Say why a key is as it is."""
    case = next(each for each in CASES if each.holds(facts))
    common: dict[str, Any] = {
        "pool": facts.pool,
        "key": facts.key,
        "job_id": facts.job_id,
        "case": case.name,
        "says": case.says(facts),
        "next": case.next(facts),
        "history": facts.history,
        "life": facts.life,
        "unread": facts.unread,
        "plan": _plan(facts),
        "schedule": schedule_of(facts.job_id),
    }
    if facts.record is not None and not facts.is_lost:
        return _of_live(facts, facts.record, common)
    if facts.ended is not None:
        return _of_ended(facts, common)
    return Why(state=case.name, **common)


def pause_command(pause: Pause) -> str:
    """Name the command that pauses it, or completes that."""
    return _command("pause", pause) + (" --yes" if pause.what == "pool" else "")


def resume_command(pause: Pause) -> str:
    """Name the command that resumes it."""
    return _command("resume", pause)


def _command(verb: str, pause: Pause) -> str:
    named = "" if pause.what == "pool" else f" {option(pause.what, pause.name)}"
    return f"pool {verb}{named}"


def span(seconds: float) -> str:
    """Return a length of time as people say it."""
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(seconds, 0):.1f} s"


# --- what all have ----------------------------------------------------------------------------


def _of_live(facts: KeyFacts, record: Record, common: dict[str, Any]) -> Why:
    run, progress = _limits(facts, record)
    told = Progress.parse(more_of(record.more, "progress"))
    begin_by = begin_by_ms(record.more)
    return Why(
        state=record.state,
        handler=record.handler,
        kind=record.kind,
        since_s=_since_s(facts, record),
        accepted_s=_ago_s(facts, record.accepted / 1000),
        wait_s=_left_s(facts, _waits_until_ms(facts, record)),
        begin_within_s=_left_s(facts, begin_by),
        run_within_s=_left_s(facts, run),
        progress_within_s=_left_s(facts, progress),
        progress=_progress(told) if told is not None else "",
        owner=_owner(facts.owner) if facts.owner is not None else None,
        epoch=record.epoch,
        attempt=record.attempt,
        attempts_max=facts.options.attempts_max if facts.options else 0,
        error=record.error,
        crashes=float(record.marks.deaths),
        marks=(record.marks.last.process,) if record.marks.last is not None else (),
        messages=facts.messages if record.state != "queued" else 0,
        position=facts.position,
        of=facts.queue_length,
        line=tuple(_in_line(facts, *each) for each in facts.line),
        line_length=facts.line_length,
        followers=tuple(_follower(each) for each in facts.followers),
        batch=_batch(record.more),
        if_owner_died=_if_owner_died(facts, record),
        would_go_to=_would_go_to(facts),
        **common,
    )


def _of_ended(facts: KeyFacts, common: dict[str, Any]) -> Why:
    ended = facts.ended
    assert ended is not None
    return Why(
        state=ended.word,
        handler=more_of(ended.more, "handler"),
        since_s=_ago_s(facts, ended.ended_ms),
        accepted_s=_ago_s(facts, ended.accepted_ms) if ended.accepted_ms else None,
        owner=OwnerTold(worker=ended.owner) if ended.owner else None,
        epoch=ended.epoch,
        attempt=ended.attempt,
        error=ended.error if ended.word == "parked" else "",
        crashes=float(ended.crashes),
        followers=tuple(f"{job_id} of {key!r}" for key, job_id in released(ended.more)),
        batch=_batch(ended.more),
        line_length=facts.line_length,
        **common,
    )


def _plan(facts: KeyFacts) -> str:
    """Return the plan that has started a job, or that it keeps."""
    job, ended = facts.record, facts.ended
    more = job.more if job is not None else ended.more if ended is not None else ""
    handler = job.handler if job is not None else more_of(more, "handler")
    kept, _ = plan_and_version(handler)
    if kept and facts.key == plan_key(kept):
        return kept
    return next(filter(None, map(plan_of, ids_of(facts.job_id, more))), "")


def _batch(more: str) -> str:
    """Return the id of a member's batch, which stands behind its index, lane and nonce."""
    return more_of(more, "batch").split("/", 3)[-1]


def _owner(owner: KeyOwner) -> OwnerTold:
    info = owner.info
    return OwnerTold(
        worker=owner.name,
        node=info.node if info else "",
        host=info.host if info else "",
        pid=info.pid if info else 0,
        label=info.label if info else "",
        version=info.version if info else "",
        standing=owner.standing,
        lease_s=owner.lease_s,
    )


def _in_line(facts: KeyFacts, job_id: str, record: Record | None) -> InLine:
    if record is None:
        return InLine(job_id=job_id)
    waited_s = _ago_s(facts, record.accepted / 1000)
    return InLine(job_id=job_id, handler=record.handler, waited_s=waited_s)


def _follower(each: Followed) -> str:
    return f"{each.when} {each.handler} for {each.key!r}"


def _progress(told: Progress) -> str:
    of = f" of {told.total:g}" if told.total is not None else ""
    return f"{told.done:g}{of}{f' ({told.note})' if told.note else ''}"


def _ago_s(facts: KeyFacts, at_ms: float) -> float:
    return round(max(0.0, facts.now_ms - at_ms) / 1000, 3)


def _left_s(facts: KeyFacts, at_ms: float) -> float | None:
    return round((at_ms - facts.now_ms) / 1000, 3) if at_ms else None


def _since_s(facts: KeyFacts, record: Record) -> float:
    """For how long it has been as it is: an epoch is the microsecond of its grant, or its turn."""
    if record.state == "running" and record.since_ms:
        return _ago_s(facts, record.since_ms)
    return _ago_s(facts, max(record.epoch, record.accepted) / 1000)


def _waits_until_ms(facts: KeyFacts, record: Record) -> int:
    if record.state == "waiting":
        return record.since_ms
    return facts.pending_ms if record.state == "pending" else 0


def _limits(facts: KeyFacts, record: Record) -> tuple[float, float]:
    """Return by when a run must have ended, and have made progress; 0: whenever."""
    options = facts.options
    if record.state != "running" or options is None or not record.since_ms:
        return 0, 0
    told = Progress.parse(more_of(record.more, "progress"))
    moved_ms = max(record.since_ms, told.at_ms if told is not None else 0)
    run, progress = options.timeout_s, options.progress_timeout_s
    return (
        record.since_ms + 1000 * run if run is not None else 0,
        moved_ms + 1000 * progress if progress is not None else 0,
    )


def _if_owner_died(facts: KeyFacts, record: Record) -> str:
    """Say what would become of it, by what decides that then."""
    owner = facts.owner
    if owner is None:
        return ""
    usual, ttl_s = Settings(), facts.ttl_ms / 1000
    epoch, _, key = facts.trial.partition("|")
    epoch, _, bits = epoch.partition(".")
    is_culprit = key == facts.key and epoch == str(record.epoch)
    alive_ms = facts.now_ms if owner.lease_s is None else facts.now_ms + owner.lease_s * 1000
    decision = recover(
        record,
        facts.options or Options(),
        Random(0),
        judgement=Judgement(
            crash_window_s=usual.crash_window_s,
            crashes_max=usual.crashes_max,
            hold_s=ttl_s,
            deaths=Deaths({process_of(owner.name.rpartition(".")[0]): facts.now_ms}),
        ),
        death=Death(
            identity=owner.name,
            alive_ms=round(min(alive_ms - facts.ttl_ms, facts.now_ms)),
            culprit=record.epoch if is_culprit else 0,
            bits=number_or(0, bits),
        ),
        now_ms=facts.now_ms,
    )
    match decision:
        case CancelJob(cause=cause):
            return f"it would end as cancelled ({cause}), and not run again"
        case ParkJob(cause=cause):
            return f"it would become a dead letter ({cause})"
        case Wait(delay_s=delay_s) if is_hold(decision):
            held = f"it would be held for {span(delay_s)}, and parked as poison"
            return f"{held} unless that process comes back"
        case Wait(attempt=attempt):
            return f"attempt {attempt} would begin elsewhere after a delay"
    alone = "" if decision.marks == record.marks else f", suspected of {decision.marks.deaths}"
    within = f"at most {span(ttl_s + 1)} after its last renewal"
    return f"attempt {record.attempt} would begin again elsewhere {within}{alone}"


def _would_go_to(facts: KeyFacts) -> tuple[str, ...]:
    """Return who is the next to get it, its present owner left out unless that is the first."""
    have = facts.owner.name if facts.owner is not None else ""
    able = [each for each in facts.ranked if each.standing == "live"]
    names = [each.name for each in able if each.name != have or each is able[0]]
    return tuple(names[:_TOLD])


# --- what is the case -------------------------------------------------------------------------


def _in(state: str, *standings: str, also: Callable[[KeyFacts], object] | None = None) -> Any:
    """Return what holds for records in a state whose owner stands so."""

    def holds(facts: KeyFacts) -> bool:
        record, owner = facts.record, facts.owner
        return bool(
            record is not None
            and record.state == state
            and (not standings or (owner is not None and owner.standing in standings))
            and (also is None or also(facts))
        )

    return holds


def _has_ended(word: str, cause: str = "") -> Callable[[KeyFacts], bool]:
    return lambda facts: (
        facts.ended is not None and facts.ended.word == word and facts.ended.cause.startswith(cause)
    )


def _record(facts: KeyFacts) -> Record:
    assert facts.record is not None
    return facts.record


def _name(facts: KeyFacts) -> str:
    """Name the owner as people find it."""
    owner = facts.owner
    if owner is None:
        return "nobody"
    info = owner.info
    if info is None or not info.host:
        return owner.name
    label = f"{info.label} " if info.label else ""
    return f"{label}{owner.name} (pid {info.pid} on {info.host})"


def _has_marks(facts: KeyFacts) -> bool:
    return _record(facts).marks.deaths > 0


def _is_stopping(facts: KeyFacts) -> bool:
    return _record(facts).intent.startswith("s")


def _is_tossed(facts: KeyFacts) -> bool:
    record = _record(facts)
    coin = record.marks.round
    return coin is not None and coin.is_held and record.since_ms > facts.now_ms


def _is_suspect(facts: KeyFacts) -> bool:
    return _has_marks(facts) and _SUSPECT in _record(facts).flags


def _is_overdue(facts: KeyFacts) -> bool:
    until_ms = _waits_until_ms(facts, _record(facts))
    return 0 < until_ms < facts.now_ms - facts.slack_ms


def _is_due(facts: KeyFacts) -> bool:
    return 0 < _record(facts).since_ms <= facts.now_ms


def _is_beyond(which: int) -> Callable[[KeyFacts], bool]:
    """Say whether a limit is over, and by more than who enforces it may take."""
    return lambda facts: 0 < _limits(facts, _record(facts))[which] < facts.now_ms


def _is_unusual(facts: KeyFacts) -> bool:
    record = _record(facts)
    usual = {} if facts.usual_s is None else {record.handler: facts.usual_s}
    return is_unusual(record, usual, facts.now_ms)


def _is_retry(facts: KeyFacts) -> bool:
    record = _record(facts)
    return bool(record.error or record.attempt > 1 or record.requeues or facts.history)


def _knows(facts: KeyFacts) -> int:
    """Count the workers that know the handler and are not leaving."""
    handler = _record(facts).handler
    return sum(handler in each.handlers and not each.is_draining for each in facts.workers)


def _moves_to(facts: KeyFacts) -> str:
    """Return whom a service is handed to, as it has a better place; empty: nobody."""
    record, owner = _record(facts), facts.owner
    if record.kind != "service" or owner is None or owner.info is None:
        return ""
    if record.marks.deaths or owner.info.is_cordoned or owner.info.is_draining:
        return ""  # it stays for `crash_window_s`; who is cordoned keeps what it has
    places = Candidates(info.candidate for info in facts.workers)
    best = places.first(key_hash(facts.key), record.handler)
    named = [each for each in facts.ranked if each.name.rpartition(".")[0] == best]
    is_open = bool(named) and named[0].standing == "live" and named[0].room > 0
    return named[0].name if is_open and named[0].name != owner.name else ""


def _why(facts: KeyFacts, key: str = "") -> str:
    return command("pool why", key or facts.key)


def _kill(facts: KeyFacts) -> str:
    info = facts.owner.info if facts.owner is not None else None
    return (
        f"ssh {shlex.quote(info.host)} kill -9 {info.pid}" if info and info.pid else "pool status"
    )


def _letter(verb: str) -> Callable[[KeyFacts], str]:
    return lambda facts: command(f"pool parked {verb}", facts.key, facts.job_id)


def _run_handler(facts: KeyFacts) -> str:
    return f"pool run MODULE  # one whose handlers have {_record(facts).handler!r}"


def _attempt(facts: KeyFacts) -> str:
    record, options = _record(facts), facts.options
    of = f" of {options.attempts_max}" if options is not None and options.attempts_max else ""
    return f"attempt {record.attempt}{of}"


def _last_error(facts: KeyFacts) -> str:
    for each in reversed(facts.history):
        return f"{each.type}: {each.message}" if each.message else each.type
    return _record(facts).error or "nothing is known of how"


def _for(facts: KeyFacts) -> str:
    return f"for {span(_since_s(facts, _record(facts)))}"


def _says_retry(facts: KeyFacts) -> str:
    until = span((_record(facts).since_ms - facts.now_ms) / 1000)
    before = f"the one before failed with {_last_error(facts)}"
    return f"it waits {until} more for {_attempt(facts)}; {before}"


def _says_ended(facts: KeyFacts) -> str:
    ended = facts.ended
    assert ended is not None
    ago = span(_ago_s(facts, ended.ended_ms))
    cause = f" ({ended.cause})" if ended.cause else ""
    by = f", by {ended.owner} in attempt {ended.attempt}" if ended.owner else ""
    return f"job {facts.job_id} ended {ago} ago: {ended.word}{cause}{by}"


def _says_parked(facts: KeyFacts) -> str:
    ended = facts.ended
    assert ended is not None
    anew = more_of(ended.more, "replayed")
    told = f"{_says_ended(facts)}; {ended.error}" if ended.error else _says_ended(facts)
    return f"{told}; it was replayed as job {anew}" if anew else f"{told}; it is a dead letter now"


def _says_unknown(facts: KeyFacts) -> str:
    of = f"job {facts.job_id} of {facts.key!r}" if facts.job_id else repr(facts.key)
    looked = f"; looked at the newest {facts.looked} of {facts.of} outcomes"
    told = looked if facts.looked < facts.of else ""
    never = "it was never dispatched here, ended longer ago than is remembered, or was lost"
    live = f"; the key's live job is {facts.live_id}" if facts.live_id else ""
    return f"nothing is known of {of}: {never}{told}{live}"


def _pause(facts: KeyFacts) -> Pause:
    assert facts.paused is not None
    return facts.paused


def _says_paused(facts: KeyFacts) -> str:
    pause = _pause(facts)
    by = f" by {pause.by}" if pause.by else ""
    why = f": {pause.reason}" if pause.reason else ""
    return f"{pause} is paused{by}{why}; it has waited {_for(facts)}, and goes on when that is over"


def _cordon(facts: KeyFacts) -> Cordon:
    assert facts.cordoned is not None
    return facts.cordoned


def _says_cordoned(facts: KeyFacts) -> str:
    cordon = _cordon(facts)
    by = f", by {cordon.by}" if cordon.by else ""
    why = f": {cordon.reason}" if cordon.reason else ""
    knows = sum(_record(facts).handler in each.handlers for each in facts.workers)
    who = f"the {knows} workers that know the handler {_record(facts).handler!r}"
    are = "drain" if cordon.is_drain else "are cordoned"
    return f"its workers {are}{by}{why}; {who} take nothing, and it has waited {_for(facts)}"


def _says_full(facts: KeyFacts) -> str:
    at = f"it is number {facts.position} of {facts.queue_length}" if facts.position else "it is new"
    able = [each for each in facts.ranked if each.standing == "live"]
    name = repr(_record(facts).handler)
    if any(each.room for each in able):
        return f"a worker has a free slot for {name}, and will pull it: {at} in the queue"
    taken = f"all slots for {name} are taken (first for this key is {able[0].name})"
    return f"{taken}: {at} in the queue, {_for(facts)}"


_GONE: Final = ("fenced", "gone")
_SILENT: Final = "has not renewed its lease: the next node that can write to this lane takes over"

CASES: Final = (
    Case(
        "lost",
        lambda facts: facts.is_lost,
        lambda _: (
            "the server has none of the data that this key's lane had, or none was ever there: "
            "what was accepted for it is lost"
        ),
        lambda _: "pool status",
    ),
    Case(
        "unreadable",
        lambda facts: facts.is_unreadable,
        lambda facts: "; ".join(
            facts.unread or ("its record cannot be read: the next walk parks it as malformed",)
        ),
        lambda _: "pool doctor",
    ),
    # --- it has ended ---
    Case("parked", _has_ended("parked"), _says_parked, _letter("show")),
    Case(
        "expired",
        _has_ended("cancelled", NOT_IN_TIME),
        lambda facts: f"{_says_ended(facts)}: no worker had begun it by then",
        lambda _: "pool status",
    ),
    Case("superseded", _has_ended("cancelled", SUPERSEDED), _says_ended),
    Case("cancelled", _has_ended("cancelled"), _says_ended),
    Case("done", _has_ended("done"), _says_ended),
    Case("unknown", lambda facts: facts.record is None, _says_unknown),
    # --- it stands behind another one ---
    Case(
        "ending",
        _in("queued", also=lambda facts: _record(facts).intent),
        lambda _: "it was taken out of the line, by a stop or by another one, and is being ended",
    ),
    Case(
        "queued",
        _in("queued"),
        lambda facts: (
            f"it is number {facts.position} of {facts.queue_length} behind job {facts.live_id} "
            f"of its key, {_for(facts)}"
        ),
        _why,
    ),
    # --- it waits for a time ---
    Case(
        "held",
        _in("waiting", also=lambda facts: "h" in _record(facts).flags),
        lambda facts: (
            f"it is suspected of {_record(facts).marks.deaths} worker crashes and held for "
            f"{span((_record(facts).since_ms - facts.now_ms) / 1000)} more; then it is parked as "
            "poison, unless one of these processes comes back"
        ),
    ),
    Case(
        "tossed",
        _in("waiting", also=_is_tossed),
        lambda facts: (
            f"it is suspected of {_record(facts).marks.deaths} worker crashes in a crash loop, and "
            f"a coin holds it for {span((_record(facts).since_ms - facts.now_ms) / 1000)} more: if "
            "nothing crashes until then, that is evidence against it"
        ),
    ),
    Case(
        "overdue",
        _in("waiting", also=_is_overdue),
        lambda facts: (
            f"it has been due for {span(_ago_s(facts, _record(facts).since_ms))}, and nobody has "
            "come for it: no node sweeps"
        ),
        lambda _: "pool doctor",
    ),
    Case("due", _in("waiting", also=_is_due), lambda _: "it is due, and about to be given away"),
    Case("retry", _in("waiting", also=_is_retry), _says_retry),
    Case(
        "delayed",
        _in("waiting"),
        lambda facts: (
            f"its delay lasts {span((_record(facts).since_ms - facts.now_ms) / 1000)} more"
        ),
    ),
    # --- it waits for a worker ---
    Case(
        "paused",
        _in("unassigned", also=lambda facts: facts.paused),
        _says_paused,
        lambda facts: resume_command(_pause(facts)),
    ),
    Case(
        "unregistered",
        _in("unassigned", also=lambda facts: facts.options is None),
        lambda facts: (
            f"no node has ever registered the handler {_record(facts).handler!r}; it has waited "
            f"{_for(facts)}"
        ),
        _run_handler,
    ),
    Case(
        "nobody",
        _in("unassigned", also=lambda facts: not _knows(facts)),
        lambda facts: (
            f"no worker knows the handler {_record(facts).handler!r}; it has waited {_for(facts)}"
        ),
        _run_handler,
    ),
    Case(
        "cordoned",
        _in("unassigned", also=lambda facts: facts.cordoned is not None),
        _says_cordoned,
        lambda facts: (
            "pool status" if _cordon(facts).is_drain else f"pool uncordon {_cordon(facts).id}"
        ),
    ),
    Case(
        "closed",
        _in("unassigned", also=lambda facts: all(x.standing != "live" for x in facts.ranked)),
        lambda facts: (
            f"{_knows(facts)} workers know the handler {_record(facts).handler!r}, and those that "
            f"are first for this key take nothing: "
            + ", ".join(f"{each.name} is {each.standing}" for each in facts.ranked[:_TOLD])
        ),
        lambda _: "pool doctor",
    ),
    Case(
        "unread",
        _in("unassigned", also=lambda facts: bool(left_by(_record(facts).more))),
        lambda facts: (
            f"{len(left_by(_record(facts).more))} workers could not read it, and no other one that "
            f"knows {_record(facts).handler!r} has a free slot ({_record(facts).error})"
        ),
        lambda _: "pool status",
    ),
    Case("full", _in("unassigned"), _says_full, lambda _: "pool status"),
    # --- a worker was given it, and has not begun it ---
    Case(
        "stopping",
        _in("pending", also=_is_stopping),
        lambda facts: f"it was asked to stop, and {_name(facts)} ends it without beginning it",
    ),
    Case(
        "owner-dead",
        _in("pending", *_GONE),
        lambda facts: f"{_name(facts)} was given it and is dead: it is being taken over",
    ),
    Case(
        "owner-silent",
        _in("pending", "silent"),
        lambda facts: f"{_name(facts)} was given it, and {_SILENT}",
        lambda _: "pool doctor",
    ),
    Case(
        "owner-hung",
        _in("pending", "hung"),
        lambda facts: (
            f"{_name(facts)} was given it, and its event loop hangs; what it has not begun by then "
            f"another one gets in {span((facts.pending_ms - facts.now_ms) / 1000)}"
        ),
        _kill,
    ),
    Case(
        "suspect",
        _in("pending", also=_is_suspect),
        lambda facts: (
            f"{_name(facts)} was given it, and has waited {_for(facts)}: it is suspected of "
            f"{_record(facts).marks.deaths} worker crashes, and begun alone"
        ),
    ),
    Case(
        "owner-closed",
        _in("pending", "closed", "cordoned", "draining"),
        lambda facts: (
            f"{_name(facts)} was given it and takes nothing more: it gives back what it does not "
            "begin"
        ),
    ),
    Case(
        "unacknowledged",
        _in("pending", also=_is_overdue),
        lambda facts: (
            f"{_name(facts)} was given it and should have begun it "
            f"{span(_ago_s(facts, _waits_until_ms(facts, _record(facts))))} ago: it is alive, and "
            "has not said that it did"
        ),
        lambda _: "pool status",
    ),
    Case(
        "pending",
        _in("pending"),
        lambda facts: (
            f"{_name(facts)} was given it, and has not acknowledged it {_for(facts)}; "
            f"{facts.owner.pending if facts.owner else 0} such starts are on their way there"
        ),
    ),
    # --- it runs ---
    Case(
        "owner-dead",
        _in("running", *_GONE),
        lambda facts: f"{_name(facts)} ran it and is dead: it is being taken over",
    ),
    Case(
        "owner-silent",
        _in("running", "silent"),
        lambda facts: f"{_name(facts)} ran it, and {_SILENT}",
        lambda _: "pool doctor",
    ),
    Case(
        "owner-hung",
        _in("running", "hung"),
        lambda facts: f"{_name(facts)} runs it, and its event loop hangs: nothing moves there",
        _kill,
    ),
    Case(
        "stopping",
        _in("running", also=_is_stopping),
        lambda facts: (
            f"it was asked to stop ({_record(facts).intent[1:]}), and its handler has not "
            f"returned; {_name(facts)} has run it {_for(facts)}"
        ),
        _kill,
    ),
    Case(
        "timed-out",
        _in("running", also=lambda facts: _record(facts).intent.startswith("t")),
        lambda facts: f"its time is over, and its handler has not returned; {_name(facts)} runs it",
        _kill,
    ),
    Case(
        "too-long",
        _in("running", also=_is_beyond(0)),
        lambda facts: (
            f"it has run {_for(facts)}, longer than its timeout_s; {_name(facts)} is ending it"
        ),
    ),
    Case(
        "no-progress",
        _in("running", also=_is_beyond(1)),
        lambda facts: (
            f"it has made no progress for longer than its progress_timeout_s; {_name(facts)} is "
            "ending it"
        ),
    ),
    Case(
        "hand-off",
        _in("running", "draining"),
        lambda facts: (
            f"{_name(facts)} leaves, and "
            + (
                "hands it over"
                if _record(facts).kind == "service"
                else "lets it end within its grace"
            )
        ),
    ),
    Case(
        "moving",
        _in("running", also=_moves_to),
        lambda facts: (
            f"{_name(facts)} has run it {_for(facts)}, and is to hand it over to "
            f"{_moves_to(facts)}, which is first for this key"
        ),
    ),
    Case(
        "suspect",
        _in("running", also=_has_marks),
        lambda facts: (
            f"{_name(facts)} has run {_attempt(facts)} {_for(facts)}; it is suspected of "
            f"{_record(facts).marks.deaths} worker crashes"
        ),
    ),
    Case(
        "runs-long",
        _in("running", also=_is_unusual),
        lambda facts: (
            f"{_name(facts)} has run {_attempt(facts)} {_for(facts)}, "
            + (
                "and nothing says how long its handler usually takes"
                if facts.usual_s is None
                else f"and 99 of 100 runs of its handler take {span(facts.usual_s)} at most"
            )
        ),
        lambda facts: command("pool stop", facts.key),
    ),
    Case(
        "running",
        _in("running"),
        lambda facts: f"{_name(facts)} has run {_attempt(facts)} {_for(facts)}",
    ),
    # What no row above knows, of a version to come.
    Case("unnamed", lambda _: True, lambda facts: f"it is {_record(facts).state}"),
)
