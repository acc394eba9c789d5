"""What is wrong with the processes of a pool: by what nodes say of themselves, and the journal.

A node says with each renewal what ails it (`core/ailing.py`), so that is of the last one or two
minutes.  The journal tells what has happened, also of nodes that are no more: AGAIN times within
AGAIN_S is something that goes on.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final

from pool.core.ailing import Ails
from pool.core.journal import JournalEntry
from pool.events import ActorCrashed, LeaseLost
from pool.jobs.roster import WorkerEntry
from pool.ops.checkup import RECENT_MS, PoolFacts
from pool.ops.findings import AGAIN_S, Rule, Spot, id_of, lane_place, members_of, recent_of
from pool.ops.why import span

AGAIN: Final = 3
DRAIN_S: Final = 600.0  # longer than any `grace_s` by default

_OVER: Final = ("fenced", "gone", "silent")


def _ailing(facts: PoolFacts) -> dict[str, list[Ails]]:
    """Return what each node says, in each lane that it renews."""
    found = defaultdict[str, list[Ails]](list)
    for _, member in members_of(facts):
        if member.standing not in _OVER:
            found[id_of(member)].append(member.ails)
    return found


def _where(facts: PoolFacts, node: str) -> tuple[str, ...]:
    """Return a node, and where its process is, which its workers tell."""
    mine = [each for each in facts.workers.values() if each.node == node and each.host]
    return (node, *dict.fromkeys(f"pid {each.pid} on {each.host}" for each in mine))


def _ails(what: str, says: Callable[[str, int], str]) -> Callable[[PoolFacts], Iterator[Spot]]:
    def find(facts: PoolFacts) -> Iterator[Spot]:
        for node, told in _ailing(facts).items():
            most = max(getattr(each, what) for each in told)
            if most:
                count = most if what in ("down", "failed", "copies") else 1
                where = _where(facts, node)
                yield Spot(says=says(node, most), count=count, where=where, command="pool nodes")

    return find


def _missing(facts: PoolFacts) -> Iterator[Spot]:
    """Yield the parents of `pool run --processes` of whose children some take no part."""
    families = defaultdict[tuple[str, str], list[WorkerEntry]](list)
    for worker in facts.workers.values():
        if re.fullmatch(r"\d+/\d{1,4}", worker.siblings, re.ASCII):
            families[worker.host, worker.siblings].append(worker)
    for (host, siblings), mine in families.items():
        parent, _, kept = siblings.partition("/")
        there = len({worker.node for worker in mine})
        is_told = any(worker.is_settled for worker in mine)
        if is_told and there < int(kept) and not any(worker.is_draining for worker in mine):
            yield Spot(
                says=f"of {kept} processes of the parent {parent} on {host} {there} take part",
                count=int(kept) - there,
                where=tuple(f"pid {pid} on {host}" for pid in sorted({w.pid for w in mine})),
                command="pool nodes",
            )


def _again(
    edge: str, says: Callable[[str, int, str], str]
) -> Callable[[PoolFacts], Iterator[Spot]]:
    """Return what finds who has done that again and again."""

    def find(facts: PoolFacts) -> Iterator[Spot]:
        by_owner = defaultdict[str, list[JournalEntry]](list)
        for lane in facts.lanes:
            for entry in recent_of(lane, edge, AGAIN_S):
                by_owner[entry.owner].append(entry)
        for owner, entries in by_owner.items():
            if len(entries) >= AGAIN:
                yield Spot(
                    says=says(owner, len(entries), entries[0].detail),
                    count=len(entries),
                    where=_where(facts, owner),
                    command="pool events --since 15m",
                )

    return find


def _clock(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        steps = recent_of(lane, "clock", AGAIN_S)
        if lane.counters.get("behind") or steps:
            behind = "is behind what it said before" if lane.counters.get("behind") else "was set"
            yield Spot(
                says=f"the clock of the server of lane {lane.number} {behind}: the lane goes on by "
                "its own time",
                count=max(1, len(steps)),
                where=lane_place(lane),
                command="pool events --since 15m",
            )


def _older_s(detail: str) -> float:
    found = re.search(r"older_s=(\d+(?:\.\d+)?)", detail)
    return float(found[1]) if found else 0.0


def _older(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        told = recent_of(lane, "data.older", RECENT_MS / 1000)
        if told:  # each node tells what it alone had seen: the most is what is missing
            most = max(told, key=lambda entry: _older_s(entry.detail))
            yield Spot(
                says=f"the server of lane {lane.number} came back with older data: {most.detail}",
                count=len(told),
                where=lane_place(lane),
                command="pool events --since 1h",
            )


def _late_drain(facts: PoolFacts) -> Iterator[Spot]:
    now_ms = max((lane.now_ms for lane in facts.lanes), default=0)
    for cordon in facts.asked.cordons.values():
        mine = [each for each in facts.workers.values() if cordon.id in (each.id, each.node)]
        has = sum(
            member.running + member.pending
            for _, member in members_of(facts)
            if id_of(member) in {each.id for each in mine}
        )
        late_s = (now_ms - cordon.since_ms) / 1000
        if cordon.is_drain and has and late_s > DRAIN_S:
            yield Spot(
                says=f"{cordon.id} was told to drain {span(late_s)} ago, and has {has} jobs yet",
                count=has,
                oldest_s=late_s,
                where=tuple(f"{e.id} (pid {e.pid} on {e.host})" for e in mine),
                command=f"pool jobs --owner {mine[0].id}",
            )


NODE_RULES: Final = (
    Rule(
        "parts-down",
        "error",
        "what each node says with its renewals",
        "parts that crashed and do not run again yet",
        "Its log has the cause, `actor.crashed`. A node that cannot go on ends by itself; restart "
        "one that does not.",
        _ails(
            "down", lambda node, n: f"{n} parts of node {node} have crashed and do not run again"
        ),
    ),
    Rule(
        "parts-crash",
        "error",
        "`actor.crashed` in the journal",
        "3 of one node within 5 min",
        "It is begun anew each time, and something in its way stays: the journal and its log have "
        "the error. Restart that process if it does not end by itself.",
        _again(
            ActorCrashed.event,
            lambda owner, n, last: (
                f"parts of node {owner} crash again and again, {n} times within "
                f"{span(AGAIN_S)}: {last}"
            ),
        ),
    ),
    Rule(
        "leases-lost",
        "error",
        "`lease.lost` in the journal",
        "3 of one node within 5 min",
        "It cannot renew in time, so handlers that it runs are stopped each time. Its line, its "
        "CPU or the server is too slow for this TTL: mend that, or give the pool a longer one.",
        _again(
            LeaseLost.event,
            lambda owner, n, _: (
                f"node {owner} has lost its leases {n} times within "
                f"{span(AGAIN_S)}: handlers that it runs are stopped each time"
            ),
        ),
    ),
    Rule(
        "renewals-fail",
        "warning",
        "what each node says with its renewals",
        "3 that failed within a minute or two, and a fifth of all",
        "Its log has the reason, `store.troubled`. Look at its line and at the server; if all of "
        "half a TTL fail, its handlers are stopped.",
        _ails("failed", lambda node, n: f"{n} renewals of node {node} failed of late"),
    ),
    Rule(
        "loop-lag",
        "warning",
        "what each node says with its renewals",
        "its event loop is 250 ms late on average, for a minute",
        "Handlers compute or block on the loop, or the machine has too little processor: see the "
        "page about blocking, give it less `capacity`, or more machines.",
        _ails(
            "lag_ms",
            lambda node, n: f"the event loop of node {node} is late, by {n} ms on average",
        ),
    ),
    Rule(
        "loop-busy",
        "warning",
        "what each node says with its renewals",
        "at half of the looks within a minute or two its event loop was at work, for 2 ms more",
        "Its handlers use most of what one event loop can do, or the machine has too little "
        "processor: add workers, give it less `capacity`, or see the page about blocking.",
        _ails(
            "busy",
            lambda node, n: f"the event loop of node {node} was at work at {n} of 100 looks",
        ),
    ),
    Rule(
        "processes-missing",
        "warning",
        "what the processes of one parent say of themselves",
        "fewer are there than it keeps, three TTLs after one of them has opened",
        "Look at the children of that parent, `ps -o pid,stat --ppid PID`: one in state T was "
        "stopped, so `kill -CONT` it, or `kill -9` it: the parent starts another one. If none is "
        "missing there, its log says why one cannot join.",
        _missing,
    ),
    Rule(
        "collector-pauses",
        "note",
        "what each node with metrics says with its renewals",
        "a pause of Python's collector of 250 ms within a minute or two",
        "Too many objects live there: `pool.freeze_memory()` takes what stays out of its sight.",
        _ails(
            "pause_ms",
            lambda node, n: f"Python's collector held node {node} up for {n} ms at once",
        ),
    ),
    Rule(
        "copies-behind",
        "warning",
        "what each node says with its renewals",
        "copies of maps of which nothing was heard for a TTL, or that cannot be fetched",
        "Its log has the reason: `map.damaged` names a key with a foreign value, which is to be "
        "deleted; `maps.unreachable` and `map.not_fetched` name the server's answer.",
        _ails("copies", lambda node, n: f"{n} copies of maps at node {node} are behind"),
    ),
    Rule(
        "data-older",
        "warning",
        "the journal: a node had seen newer entries than a server has",
        "within the last hour",
        "A failover, or a restart with its disk, lost what was written last: dispatch that again.",
        _older,
    ),
    Rule(
        "clock-stepped",
        "note",
        "the journal, and each lane's time beside its server's clock",
        "it was set within 5 min, or is behind by over 1 s",
        "Leases and delays are safe. Have the servers' clocks kept by one daemon, which slews.",
        _clock,
    ),
    Rule(
        "drain-late",
        "warning",
        "drains that operators asked for, and what those workers have",
        "jobs yet, 10 min later",
        "Its handlers do not end: see which, and end that process if nothing helps; what it ran "
        "begins elsewhere.",
        _late_drain,
    ),
)
