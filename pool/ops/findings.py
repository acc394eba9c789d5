"""Findings of `doctor`: what a rule is made of, and what its runbook section says.

What is told of each finding: why it is so, what to do, and how to see that it is over.

`runbook.md` has a section for each row of the table, of three paragraphs.  Links in it are as from
the root of the documents.

What a rule of `doctor` is made of, and what it finds.

`fix` names what mends it by the scripts that nodes run anyway: `recover` is what any node does, so
a client that joins for a while does it; `ttl` is the change of TTL, run again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final, Literal, TypeAlias

import attrs

from pool.core.ids import POLLER, WORKER
from pool.core.journal import JournalEntry
from pool.core.record import Record
from pool.names import QUEUED, key_of, split_pair
from pool.ops.checkup import LaneFacts, PoolFacts
from pool.ops.keyfacts import KeyOwner

_SECTION: Final = re.compile(
    r"^# (?P<name>\S+)\n\nWhy: (?P<why>.+?)\n\nDo: (?P<do>.+?)\n\nOver: (?P<over>.+?)\n(?=\n#|\Z)",
    re.MULTILINE | re.DOTALL,
)
_LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


@attrs.frozen(kw_only=True)
class FindingPage:
    """A finding's section; each is markdown, of one paragraph."""

    name: str
    why: str
    do: str
    over: str


@cache
def pages() -> dict[str, FindingPage]:
    """Return all sections by the names of their rules, in the order of the file."""
    text = (files("pool.ops") / "runbook.md").read_text("utf-8")
    return {found["name"]: FindingPage(**found.groupdict()) for found in _SECTION.finditer(text)}


def plain(text: str) -> str:
    """Return a paragraph without links, in one line."""
    return " ".join(_LINK.sub(r"\1", text).split())


def linked(text: str, root: str) -> str:
    """Return a paragraph whose links lead from a page that is `root` away from the others."""
    return _LINK.sub(lambda found: f"[{found[1]}]({root}{found[2]})", text)


# What waits for longer is a finding: so long a fleet may take to come up, or to be replaced.
PATIENCE_S: Final = 60.0
AGAIN_S: Final = 300.0  # what the journal has of the last five minutes goes on
KEYS_TOLD: Final = 5
WHERE_TOLD: Final = 5

Severity: TypeAlias = Literal["error", "warning", "note"]
Fix: TypeAlias = Literal["", "recover", "ttl"]
SEVERITIES: Final[Mapping[Severity, str]] = {
    "error": "work stands still, or may be lost",
    "warning": "work goes slowly, or will stand still",
    "note": "worth knowing; alone it is no reason for another exit code",
}
RECOVER: Final = "pool doctor --fix --yes"


@attrs.frozen(kw_only=True)
class Spot:
    """One place where a rule holds."""

    says: str
    count: int = 1
    oldest_s: float | None = None
    keys: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    command: str = ""


@attrs.frozen(kw_only=True)
class Finding:
    """What a rule has found, and what to do about it; `where` are workers, nodes, or lanes.

    `severity` is error (work stands still, or may be lost), warning (it will, or goes slowly) or
    note (worth knowing; alone it is no reason for another exit code).
    """

    rule: str
    severity: Severity
    says: str
    count: int
    oldest_s: float | None
    keys: tuple[str, ...]
    where: tuple[str, ...]
    advice: str
    command: str
    fix: Fix


@attrs.frozen
class Rule:
    """A row of the table."""

    name: str
    severity: Severity
    looks_at: str
    threshold: str
    advice: str
    find: Callable[[PoolFacts], Iterable[Spot]]
    fix: Fix = ""


# --- parts ------------------------------------------------------------------------------------


def lane_place(lane: LaneFacts) -> tuple[str, ...]:
    return (f"lane {lane.number}",)


def place_of(member: KeyOwner) -> str:
    info = member.info
    if info is None or not info.host:
        return member.name
    label = f"{info.label} " if info.label else ""
    return f"{label}{member.name} (pid {info.pid} on {info.host})"


def kill_command(member: KeyOwner) -> str:
    info = member.info
    if info is None or not info.pid:
        return "pool status"
    return f"ssh {shlex.quote(info.host)} kill -9 {info.pid}"


def command(words: str, *names: str, options: str = "") -> str:
    """Return a command of the command line; a name that begins like an option stands behind --."""
    if any(name.startswith("-") for name in names):
        return f"{words}{options} -- {shlex.join(names)}"
    return f"{words} {shlex.join(names)}{options}"


def option(name: str, value: str) -> str:
    """Return an option of a command; a value that begins like an option stands behind `=`."""
    between = "=" if value.startswith("-") else " "
    return f"--{name}{between}{shlex.quote(value)}"


def why_command(names: Sequence[str]) -> str:
    """Name the command that says more of the first of these."""
    if not names:
        return "pool status"
    first = names[0]
    if first[:1] != QUEUED:
        return command("pool why", first)
    key, job_id = split_pair(first[1:])
    return command("pool why", key, options=f" {option('id', job_id)}")


def ages_s(lane: LaneFacts, records: Iterable[Record]) -> float:
    return max((lane.now_ms - each.accepted / 1000 for each in records), default=0.0) / 1000


def members_of(facts: PoolFacts) -> Iterator[tuple[LaneFacts, KeyOwner]]:
    for lane in facts.lanes:
        for member in lane.members:
            yield lane, member


def is_worker(member: KeyOwner) -> bool:
    return member.name[:1] in (WORKER, POLLER)


def spot_of(lane: LaneFacts, found: Sequence[tuple[str, Record]], says: str) -> Iterator[Spot]:
    """Yield one spot for records of a lane, if there are any."""
    if found:
        names = [name for name, _ in found]
        yield Spot(
            says=f"{len(found)} {says}",
            count=len(found),
            oldest_s=ages_s(lane, (record for _, record in found)),
            keys=tuple(map(key_of, names)),
            where=lane_place(lane),
            command=why_command(names),
        )


def id_of(member: KeyOwner) -> str:
    return member.name.rpartition(".")[0]


def recent_of(lane: LaneFacts, edge: str, within_s: float) -> list[JournalEntry]:
    """Return the entries of a word, the newest first; their times are those of the server."""
    now_s = (lane.now_ms - lane.counters.get("offset", 0)) / 1000
    return [
        each for each in lane.recent if each.edge == edge and now_s - each.at.timestamp() < within_s
    ]
