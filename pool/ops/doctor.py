"""What is wrong with a pool: every place where work can pile up or stop is a row of one table.

    facts (`checkup`) --each row of RULES--> spots --> findings, the worst first

Pure.  A rule says what it looks at, from when on that is a finding, how bad it is, and what to do;
of each spot it names how many, for how long, some keys, and where.  A new kind of state is a row
more, and a page in `runbook.md`.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Final, get_args

import attrs

from pool.core.crash_marks import ROUNDS_MAX
from pool.core.pauses import Pause, What
from pool.core.record import Progress, Record, left_by, more_of
from pool.errors import ConfigError
from pool.names import Names, check_schedule, key_of, lane_of, split_pair
from pool.ops.checkup import LaneFacts, Late, PoolFacts, Queue
from pool.ops.doctor_nodes import NODE_RULES
from pool.ops.doctor_server import SERVER_RULES, refuses_writes
from pool.ops.doctor_streams import STREAM_RULES
from pool.ops.findings import (
    AGAIN_S,
    KEYS_TOLD,
    PATIENCE_S,
    RECOVER,
    WHERE_TOLD,
    Finding,
    Rule,
    Severity,
    Spot,
    ages_s,
    command,
    id_of,
    is_worker,
    kill_command,
    lane_place,
    members_of,
    place_of,
    recent_of,
    spot_of,
    why_command,
)
from pool.ops.rates import is_unusual
from pool.ops.why import pause_command, resume_command, span
from pool.settings import Settings

VERSION: Final = 1  # of the JSON: raised when a field goes or means something else
ATTEMPTS: Final = 3  # of one job, from which on it fails in a loop
SUSPECTED: Final = 2  # deaths of workers
OVERLAPS: Final = 3  # times in a row that a schedule made no job
INBOX: Final = 100  # messages of one job that are not handled
RESULTS_BYTES: Final = round(0.8 * Settings().results_bytes_max)
EXTRA: Final = "pip install 'keyed-pool[schedules]'"
QUEUED_S: Final = 600.0  # behind the live job of a key


def examine(facts: PoolFacts) -> list[Finding]:
    """Return what is wrong, the worst first; what is alike stands together."""
    found = [
        Finding(
            rule=rule.name,
            severity=rule.severity,
            says=spot.says,
            count=spot.count,
            oldest_s=None if spot.oldest_s is None else round(spot.oldest_s, 3),
            keys=spot.keys[:KEYS_TOLD],
            where=spot.where[:WHERE_TOLD],
            advice=rule.advice,
            command=spot.command or (RECOVER if rule.fix == "recover" else ""),
            fix=rule.fix,
        )
        for rule in RULES
        for spot in rule.find(facts)
    ]
    return sorted(found, key=lambda each: get_args(Severity).index(each.severity))


# --- data -------------------------------------------------------------------------------------


def _lost(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        if lane.is_lost and (facts.workers or lane.jobs):
            yield Spot(
                says=f"lane {lane.number} has no data, or not those of this pool",
                where=lane_place(lane),
                command="redis-cli INFO persistence",
            )


def _unread(facts: PoolFacts) -> Iterator[Spot]:
    for trouble in (*facts.unread, *(each for lane in facts.lanes for each in lane.unread)):
        name = trouble.partition(": ")[0]
        is_key = name.startswith("pool:")
        command = f"redis-cli TYPE {shlex.quote(name)}" if is_key else "redis-cli PING"
        yield Spot(says=f"cannot be read: {trouble}", command=command)


def _away(facts: PoolFacts) -> Iterator[Spot]:
    for number, problem in sorted(facts.away.items()):
        yield Spot(
            says=f"lane {number} does not answer: {problem}",
            where=(f"lane {number}",),
            command="redis-cli CLUSTER NODES" if _is_of_cluster(facts) else "redis-cli PING",
        )


def _is_of_cluster(facts: PoolFacts) -> bool:
    return any(server.cluster for server in facts.servers)


def _unreadable(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        if lane.unreadable:
            count = len(lane.unreadable)
            yield Spot(says=f"{count} records cannot be read", count=count, keys=lane.unreadable)


def _astray(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        if lane.astray:
            count = len(lane.astray)
            yield Spot(
                says=f"{count} jobs stand where no index leads to them",
                count=count,
                keys=tuple(map(key_of, lane.astray)),
                where=lane_place(lane),
            )


def _ttl(facts: PoolFacts) -> Iterator[Spot]:
    apart = [lane for lane in facts.lanes if not lane.is_lost and lane.ttl_ms != facts.pool_ttl_ms]
    if apart:
        ttl_s = facts.pool_ttl_ms / 1000
        yield Spot(
            says=f"{len(apart)} lanes do not go by the pool's TTL, {ttl_s:g} s",
            count=len(apart),
            where=tuple(f"lane {lane.number}" for lane in apart),
            command=f"pool ttl {ttl_s:g}",
        )


# --- members ----------------------------------------------------------------------------------


def _unreaped(facts: PoolFacts) -> Iterator[Spot]:
    if any(map(refuses_writes, facts.servers)):
        return  # who could not renew is not dead for that, and nobody can be fenced
    for lane in facts.lanes:
        slack_s = lane.slack_ms / 1000
        late = [
            each
            for each in lane.members
            if not each.claim and each.lease_s is not None and each.lease_s < -slack_s
        ]
        if late and not lane.is_held:
            owned = sum(each.running + each.pending for each in late)
            yield Spot(
                says=f"{len(late)} leases have ended and nobody fenced who had them; they own "
                f"{owned} jobs",
                count=len(late),
                oldest_s=max(-(each.lease_s or 0.0) for each in late),
                where=tuple(map(place_of, late)),
            )


def _claims(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        if lane.late_claims:
            yield Spot(
                says=f"{len(lane.late_claims)} dead members are fenced, and nobody goes on to take "
                "over what they own",
                count=len(lane.late_claims),
                oldest_s=max(late_ms for _, late_ms in lane.late_claims) / 1000,
                where=tuple(name for name, _ in lane.late_claims),
            )


def _hung(facts: PoolFacts) -> Iterator[Spot]:
    for _, member in members_of(facts):
        if member.standing == "hung" and is_worker(member):
            yield Spot(
                says=f"the event loop of {place_of(member)} hangs: of its {member.running} running "
                "jobs none moves, and it takes no others",
                count=member.running,
                where=(place_of(member),),
                command=kill_command(member),
            )


def _nobody(facts: PoolFacts) -> Iterator[Spot]:
    if facts.jobs and not any(lane.members for lane in facts.lanes):
        yield Spot(
            says=f"no node is here, and {facts.jobs} jobs are",
            count=facts.jobs,
            command="pool run MODULE",
        )


def _handing_over(facts: PoolFacts) -> Iterator[Spot]:
    for _, member in members_of(facts):
        if member.standing == "draining" and member.running:
            yield Spot(
                says=f"{place_of(member)} leaves, and has {member.running} jobs yet",
                count=member.running,
                where=(place_of(member),),
            )


# --- what operators have asked for ---------------------------------------------------------------


def is_paused(lane: LaneFacts, queue: Queue) -> bool:
    """Say whether all that is seen of a queue waits because that is asked for."""
    if lane.pauses.is_all or queue.handler in lane.pauses.handlers:
        return True
    return bool(queue.keys) and set(queue.keys) <= set(lane.pauses.keys)


def _paused(facts: PoolFacts) -> Iterator[Spot]:
    for pause in facts.asked.pauses.values():
        queues = [
            (lane, queue)
            for lane in facts.lanes
            if lane.pauses.has(pause)
            for queue in lane.queues
            if pause.what == "pool"
            or queue.handler == pause.handler
            or (pause.what == "key" and pause.name in queue.keys)
        ]
        if queues:
            count = 1 if pause.what == "key" else sum(queue.count for _, queue in queues)
            waited_s = max((lane.now_ms - queue.oldest_ms) / 1000 for lane, queue in queues)
            keys = [key for _, queue in queues for key in queue.keys]
            why = f": {pause.reason}" if pause.reason else ""
            yield Spot(
                says=f"{pause} is paused, by {pause.by}{why}; {count} jobs wait, the oldest for "
                f"{span(waited_s)}",
                count=count,
                oldest_s=waited_s,
                keys=(pause.name,) if pause.what == "key" else tuple(keys),
                where=tuple(dict.fromkeys(f"lane {lane.number}" for lane, _ in queues)),
                command=resume_command(pause),
            )
        elif pause.what == "pool" and any(lane.pauses.is_all for lane in facts.lanes):
            why = f": {pause.reason}" if pause.reason else ""
            yield Spot(
                says=f"{pause} is paused, by {pause.by}{why}; no job waits yet",
                where=tuple(f"lane {lane.number}" for lane in facts.lanes if lane.pauses.is_all),
                command=resume_command(pause),
            )


def _half_paused(facts: PoolFacts) -> Iterator[Spot]:
    """Compare what was asked for with what the lanes go by."""
    asked = {(each.what, each.name): each for each in facts.asked.pauses.values()}
    lanes = [lane for lane in facts.lanes if not lane.is_lost]
    stands: dict[tuple[What, str], list[int]] = defaultdict(list)
    for lane in lanes:
        found: list[tuple[What, str]] = [("pool", "-")] if lane.pauses.is_all else []
        found += [("handler", name) for name in lane.pauses.handlers]
        found += [("key", name) for name in lane.pauses.keys]
        for each in found:
            stands[each].append(lane.number)
    for what in (*asked, *(each for each in stands if each not in asked)):
        pause, has = asked.get(what), stands.get(what, [])
        meant = [lane.number for lane in lanes]
        if what[0] == "key":
            meant = [lane for lane in meant if lane == lane_of(what[1], len(facts.lanes))]
        missing = [number for number in meant if number not in has]
        if pause is not None and not pause.is_over and not missing:
            continue
        made = pause or Pause.of(*what)
        is_over = pause is None or pause.is_over
        yield Spot(
            says=f"{made} is paused in {len(has)} of {len(meant)} lanes: "
            + ("a resume did not reach the others" if is_over else "the pause did not reach all"),
            count=max(1, len(has) if is_over else len(missing)),
            where=tuple(f"lane {number}" for number in (has if is_over else missing)),
            command=resume_command(made) if is_over else pause_command(made),
        )


def _cordoned(facts: PoolFacts) -> Iterator[Spot]:
    for cordon in facts.asked.cordons.values():
        mine = [w for w in facts.workers.values() if cordon.id in (w.id, w.node)]
        is_heard = all(each.is_cordoned or each.is_draining for each in mine)
        how = "was told to drain" if cordon.is_drain else "is cordoned"
        heard = "" if is_heard else ", and has not said that it heard so"
        why = f": {cordon.reason}" if cordon.reason else ""
        yield Spot(
            says=f"{cordon.id} {how}{heard if mine else ', and is no more'}, by {cordon.by}{why}",
            count=max(1, len(mine)),
            where=tuple(each.id for each in mine),
            command="pool status" if cordon.is_drain else f"pool uncordon {cordon.id}",
        )


def _cordoned_off(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        for queue in lane.queues:
            able = [w for w in facts.workers.values() if queue.handler in w.handlers]
            cordon = facts.asked.cordon_of_all((each.id, each.node) for each in able)
            if cordon is None or is_paused(lane, queue):
                continue
            why = f": {cordon.reason}" if cordon.reason else ""
            waited_s = (lane.now_ms - queue.oldest_ms) / 1000
            yield Spot(
                says=f"{queue.count} jobs wait for the handler {queue.handler!r}, and all "
                f"{len(able)} workers that have it are cordoned, by {cordon.by}{why}",
                count=queue.count,
                oldest_s=waited_s,
                keys=queue.keys,
                where=lane_place(lane),
                command="pool run MODULE" if cordon.is_drain else f"pool uncordon {cordon.id}",
            )


# --- what waits for a worker ------------------------------------------------------------------


def can_run_now(facts: PoolFacts, lane: LaneFacts, queue: Queue) -> bool:
    """Say whether another worker would start jobs of a queue: neither paused nor unknown.

    A pool without any worker, such as one that was scaled to zero, counts all handlers as known.
    """
    is_known = bool(workers_for(facts, queue.handler)) or not facts.workers
    return is_known and not is_paused(lane, queue)


def workers_for(facts: PoolFacts, handler: str) -> list[str]:
    """Return the ids of those who know a handler and do not leave."""
    return [
        each.id
        for each in facts.workers.values()
        if handler in each.handlers and not each.is_draining
    ]


def _unknown(facts: PoolFacts) -> Iterator[Spot]:
    """Their queues cannot be listed: who they are is known as far as the records were walked."""
    for lane in facts.lanes:
        left = lane.unqueued
        if left > 0:
            found = [
                (name, record)
                for name, record in lane.records
                if record.state == "unassigned" and record.handler not in lane.handlers
            ]
            handlers = sorted({record.handler for _, record in found})[:KEYS_TOLD]
            named = f" ({', '.join(handlers)})" if handlers else ""
            yield Spot(
                says=f"{left} jobs wait for handlers that no node has ever registered{named}",
                count=left,
                oldest_s=ages_s(lane, (record for _, record in found)) if found else None,
                keys=tuple(name for name, _ in found),
                where=lane_place(lane),
                command="pool run MODULE",
            )


def _unassigned(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        for queue in lane.queues:
            if not workers_for(facts, queue.handler) and not is_paused(lane, queue):
                waited_s = (lane.now_ms - queue.oldest_ms) / 1000
                yield Spot(
                    says=f"{queue.count} jobs wait for the handler {queue.handler!r}, which no "
                    f"worker has; the oldest for {span(waited_s)}",
                    count=queue.count,
                    oldest_s=waited_s,
                    keys=queue.keys,
                    where=lane_place(lane),
                    command=f"pool run MODULE  # one whose handlers have {queue.handler!r}",
                )


def _backlog(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        standing = {id_of(member): member for member in lane.members}
        for queue in lane.queues:
            ids = workers_for(facts, queue.handler)
            closed = facts.asked.cordon_of_all((each, facts.workers[each].node) for each in ids)
            if is_paused(lane, queue) or closed is not None:  # which are findings of their own
                continue
            waited_s = (lane.now_ms - queue.oldest_ms) / 1000
            if not ids or waited_s <= max(PATIENCE_S, 6 * lane.slack_ms / 1000):
                continue
            able = [standing[each] for each in ids if each in standing]
            live = [each for each in able if each.standing == "live"]
            slots = sum(each.takes or 0 for each in live)
            yield Spot(
                says=f"{queue.count} jobs wait for the handler {queue.handler!r}, the oldest for "
                f"{span(waited_s)}: of {len(ids)} workers that have it {len(live)} take jobs, "
                f"{slots} at once",
                count=queue.count,
                oldest_s=waited_s,
                keys=queue.keys,
                where=tuple(f"{place_of(each)}: {each.standing}" for each in able),
                command="pool run MODULE  # further workers" if live else why_command(queue.keys),
            )


def _late_starts(standings: tuple[str, ...]) -> Callable[[PoolFacts], Iterator[Spot]]:
    """Return what finds starts that are late by how their owners stand."""

    def find(facts: PoolFacts) -> Iterator[Spot]:
        for lane in facts.lanes:
            standing = {each.name: each for each in lane.members}
            found: dict[str, list[str]] = defaultdict(list)
            for key in lane.late_starts.keys:
                owner = lane.starts[key].owner if key in lane.starts else ""
                if (standing[owner].standing if owner in standing else "gone") in standings:
                    found[owner].append(key)
            for owner, keys in found.items():
                member = standing.get(owner)
                word = member.standing if member is not None else "gone"
                oldest_s = lane.late_starts.oldest_ms / 1000
                yield Spot(
                    says=f"{len(keys)} jobs or more were given to {owner or 'nobody'}, which is "
                    f"{word}, and not begun in time, by up to {span(oldest_s)}",
                    count=len(keys),
                    oldest_s=oldest_s,
                    keys=tuple(keys),
                    where=(place_of(member),) if member is not None else (owner,),
                    command=kill_command(member)
                    if member is not None and word == "hung"
                    else why_command(keys)
                    if word in ("live", "closed", "cordoned", "draining")
                    else "",
                )

    return find


# --- what waits for a time --------------------------------------------------------------------


def _late(
    of: Callable[[LaneFacts], Late], what: str, key: Callable[[str], str] = str
) -> Callable[[PoolFacts], Iterator[Spot]]:
    def find(facts: PoolFacts) -> Iterator[Spot]:
        for lane in facts.lanes:
            late = of(lane)
            if late.count:
                yield Spot(
                    says=f"{late.count} {what}, by up to {span(late.oldest_ms / 1000)}",
                    count=late.count,
                    oldest_s=late.oldest_ms / 1000,
                    keys=tuple(map(key, late.keys)),
                    where=lane_place(lane),
                )

    return find


def _channel(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        if lane.late_out:
            to = ", ".join(map(str, sorted(lane.late_out)))
            count = max(1, lane.counters.get("outgoing", 0))
            yield Spot(
                says=f"{count} messages of lane {lane.number} (followers, say) are not carried to "
                f"lanes {to}",
                count=count,
                oldest_s=max(lane.late_out.values()) / 1000,
                where=lane_place(lane),
            )


def _late_schedules(facts: PoolFacts) -> Iterator[Spot]:
    """Whoever mends this by being a node here must be able to read them, too."""
    late = {key for lane in facts.lanes for key in lane.late_schedules.keys if key in lane.crons}
    find = _late(attrgetter("late_schedules"), "schedules are due and nobody fired them")
    for spot in find(facts):
        lacks = not facts.has_cron and bool(late.intersection(spot.keys))
        yield attrs.evolve(spot, command=EXTRA) if lacks else spot


def _removes_schedule(facts: PoolFacts, lane: LaneFacts, name: str) -> str:
    """Return what takes a schedule away, also one whose name none of ours can have."""
    try:
        check_schedule(name)
    except ConfigError:
        names = Names(facts.pool, lane.number)
        return f"redis-cli HDEL {shlex.quote(names.schedules)} {shlex.quote(name)}"
    return command("pool schedules remove", name)


def _unreadable_schedules(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        names = lane.unreadable_schedules
        if names:
            yield Spot(
                says=f"{len(names)} schedules cannot be read, and fire no more",
                count=len(names),
                keys=names,
                where=lane_place(lane),
                command=_removes_schedule(facts, lane, names[0]),
            )


def _missed(facts: PoolFacts) -> Iterator[Spot]:
    told = {each.name for each in facts.overlaps if each.times >= OVERLAPS}
    missed = {
        name: count
        for lane in facts.lanes
        for name, count in lane.missed.items()
        if name not in told
    }
    if missed:
        names = sorted(missed, key=lambda name: -missed[name])
        yield Spot(
            says=f"{len(names)} schedules have had times without a job since they were made, "
            f"the most {missed[names[0]]}",
            count=len(names),
            keys=tuple(names),
            command=command("pool schedules show", names[0]),
        )


def _held_plans(facts: PoolFacts) -> Iterator[Spot]:
    for plan in facts.plans:
        if plan.turn.held:
            yield Spot(
                says=f"plan {plan.name} would stop {plan.turn.held} of its jobs: until that is "
                "confirmed it changes nothing",
                count=plan.turn.held,
                keys=plan.turn.held_keys,
                command=command("pool plans show", plan.name),
            )


def _lacking(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        if lane.lacking:
            ids = sorted(lane.lacking, key=lambda each: -lane.lacking[each])
            yield Spot(
                says=f"{len(ids)} batches under way lack members that are not there and never will "
                f"be, the most {lane.lacking[ids[0]]}",
                count=len(ids),
                keys=tuple(ids),
                where=lane_place(lane),
                command=command("pool batches show", ids[0]),
            )


def _failing_plans(facts: PoolFacts) -> Iterator[Spot]:
    for plan in facts.plans:
        if plan.turn.problem:
            yield Spot(
                says=f"plan {plan.name}: {plan.turn.problem}",
                command=command("pool plans show", plan.name),
            )


def _retries(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        found = [
            each
            for each in lane.records
            if each[1].state == "waiting" and each[1].attempt > 1 and each[1].attempt <= ATTEMPTS
        ]
        yield from spot_of(lane, found, "jobs wait for their next attempt")


def _failing(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        by_handler: dict[str, list[tuple[str, Record]]] = defaultdict(list)
        for name, record in lane.records:
            if record.attempt > ATTEMPTS:
                by_handler[record.handler].append((name, record))
        for handler, found in by_handler.items():
            most = max(record.attempt for _, record in found)
            last = next((record.error for _, record in reversed(found) if record.error), "")
            words = f"jobs of {handler!r} fail again and again, at attempt {most}"
            lately = sum(each.handler == handler for each in recent_of(lane, "retried", AGAIN_S))
            words += f", {lately} failures within {span(AGAIN_S)}" if lately else ""
            yield from spot_of(lane, found, f"{words}: {last}" if last else words)


def _left_by_all(facts: PoolFacts) -> Iterator[Spot]:
    able = dict[str, set[str]]()
    for worker in facts.workers.values():
        for handler in () if worker.is_draining else worker.handlers:
            able.setdefault(handler, set()).add(worker.id)
    for lane in facts.lanes:
        found = [
            (name, record)
            for name, record in lane.records
            if record.state == "waiting"
            and (left := set(left_by(record.more)))
            and able.get(record.handler, left) <= left
        ]
        yield from spot_of(lane, found, "jobs have arguments that none of their workers can read")


# --- what runs --------------------------------------------------------------------------------


def _past_limit(lane: LaneFacts, record: Record, *, is_progress: bool) -> bool:
    options = lane.handlers.get(record.handler)
    if record.state != "running" or options is None or not record.since_ms:
        return False
    since_ms, limit_s = record.since_ms, options.timeout_s
    if is_progress:
        told = Progress.parse(more_of(record.more, "progress"))
        since_ms = max(since_ms, told.at_ms if told is not None else 0)
        limit_s = options.progress_timeout_s
    return limit_s is not None and since_ms + 1000 * limit_s < lane.now_ms - lane.slack_ms


def _too_long(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        found = [x for x in lane.records if _past_limit(lane, x[1], is_progress=False)]
        yield from spot_of(lane, found, "jobs run longer than their timeout_s, and do not end")


def _unusual(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        by_handler: dict[str, list[tuple[str, Record]]] = defaultdict(list)
        for name, record in lane.records:
            is_limited = _past_limit(lane, record, is_progress=False)
            if is_unusual(record, facts.usual, lane.now_ms) and not is_limited:
                by_handler[record.handler].append((name, record))
        for handler, found in by_handler.items():
            ran_s = (lane.now_ms - min(record.since_ms for _, record in found)) / 1000
            usual_s = facts.usual.get(handler)
            than = (
                "and nothing says how long is usual"
                if usual_s is None
                else f"and 99 of 100 take {span(usual_s)} at most"
            )
            yield from spot_of(
                lane, found, f"jobs of {handler!r} run, one for {span(ran_s)}, {than}"
            )


def _overlapped(facts: PoolFacts) -> Iterator[Spot]:
    found = [each for each in facts.overlaps if each.times >= OVERLAPS]
    for each in sorted(found, key=lambda each: -each.times):
        yield Spot(
            says=f"schedule {each.name!r} has made no job {each.times} times in a row: the one of "
            f"its key has run for {span(each.ran_s)}",
            oldest_s=each.ran_s,
            keys=(each.key,),
            command=why_command((each.key,)),
        )


def _no_progress(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        found = [x for x in lane.records if _past_limit(lane, x[1], is_progress=True)]
        yield from spot_of(lane, found, "jobs have made no progress for longer than they may")


def _stopping(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        standing = {each.name: each for each in lane.members}
        by_owner: dict[str, list[tuple[str, Record]]] = defaultdict(list)
        for name, record in lane.records:
            if record.intent and record.owner:
                by_owner[record.owner].append((name, record))
        for owner, found in by_owner.items():
            place = place_of(standing[owner]) if owner in standing else owner
            says = f"jobs were told to end, and have not: {place} has them"
            for spot in spot_of(lane, found, says):
                yield attrs.evolve(spot, where=(place,))


def _suspects(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        found = [each for each in lane.records if each[1].marks.deaths >= SUSPECTED]
        tired = [each for each in found if each[1].marks.rounds >= ROUNDS_MAX]
        others = [each for each in found if each not in tired]
        yield from spot_of(lane, others, f"jobs were aboard at {SUSPECTED} crashes or more")
        says = f"jobs were held or started by a coin in {ROUNDS_MAX} rounds, and nothing is proved"
        yield from spot_of(lane, tired, says)


def _queued(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        found = [
            each
            for each in lane.records
            if each[1].state == "queued" and ages_s(lane, [each[1]]) > QUEUED_S
        ]
        yield from spot_of(lane, found, f"jobs have stood behind their key's for {span(QUEUED_S)}")


def _inboxes(facts: PoolFacts) -> Iterator[Spot]:
    for lane in facts.lanes:
        full = {key: count for key, count in lane.inboxes.items() if count >= INBOX}
        if full:
            keys = sorted(full, key=lambda key: -full[key])
            yield Spot(
                says=f"{len(full)} jobs have {INBOX} messages or more that are not handled, "
                f"the most {full[keys[0]]}",
                count=len(full),
                keys=tuple(keys),
                where=lane_place(lane),
                command=why_command(keys),
            )


def _results(facts: PoolFacts) -> Iterator[Spot]:
    kept = sum(lane.kept for lane in facts.lanes)
    kept_bytes = sum(lane.counters.get("results", 0) for lane in facts.lanes)
    if kept_bytes >= RESULTS_BYTES:
        yield Spot(
            says=f"outcomes of {kept_bytes / 2**20:.0f} MiB are kept, in {kept} parts: beyond "
            "results_bytes_max none is kept longer than retry_window_s",
            count=kept,
            command="pool rates",
        )


def _parked(facts: PoolFacts) -> Iterator[Spot]:
    total = sum(lane.parked for lane in facts.lanes)
    if total:
        recently = sum(lane.parked_recently for lane in facts.lanes)
        last = [split_pair(job)[0] for lane in facts.lanes for job in lane.parked_last]
        yield Spot(
            says=f"{total} dead letters, {recently} of them of the last hour",
            count=total,
            keys=tuple(dict.fromkeys(last)),
            command="pool parked list",
        )


# --- the table --------------------------------------------------------------------------------

RULES: Final = (
    Rule(
        "data-lost",
        "error",
        "the generation in each lane",
        "it is not the pool's",
        "Find out what the server lost (a restart without a file, a FLUSHALL, a failover). Nodes "
        "that are there join anew by themselves; dispatch again what is missing.",
        _lost,
    ),
    Rule(
        "cannot-be-read",
        "error",
        "each key that is looked at",
        "it is of another type",
        "WRONGTYPE: somebody else writes under the pool's names; give the pool a user of its own "
        "(`pool acl`), and delete that key. Else the server says what it lacks: delete nothing.",
        _unread,
    ),
    Rule(
        "lane-away",
        "error",
        "each lane",
        "it does not answer",
        "Nothing is damaged; the other lanes go on. Bring its server back, or have a replica take "
        "over. TRYAGAIN: a slot is being moved, see cluster-slot-open.",
        _away,
    ),
    Rule(
        "unreadable-records",
        "error",
        "records, walked over",
        "one that cannot be parsed, twice",
        "Nodes park such a record as malformed on their next walk.",
        _unreadable,
        "recover",
    ),
    Rule(
        "astray",
        "error",
        "records beside the indexes in which they should stand",
        "one that an index lacks, twice",
        "Nodes put it back on their next walk. If more come, somebody deletes keys by hand.",
        _astray,
        "recover",
    ),
    Rule(
        "ttl-apart",
        "warning",
        "the TTL of each lane beside the pool's",
        "they differ",
        "A change of TTL did not reach all lanes: run it again.",
        _ttl,
        "ttl",
    ),
    Rule(
        "nobody-here",
        "error",
        "members",
        "none, and there are jobs",
        "Start a worker. What waits is taken up by the first that joins.",
        _nobody,
    ),
    Rule(
        "dead-not-reaped",
        "error",
        "leases",
        "over for longer than a TTL of lease time, not fenced, and the lane holds nobody",
        "A node that can reach this lane takes over; if nodes are there, look at their logs for "
        "`actor.crashed` and `store.troubled`.",
        _unreaped,
        "recover",
    ),
    Rule(
        "claim-held",
        "error",
        "the cleanup map",
        "a fenced member whose reaper is late by more than a TTL",
        "Who took over has died, or cannot go on. Any node that joins succeeds it.",
        _claims,
        "recover",
    ),
    Rule(
        "loop-hangs",
        "error",
        "what each worker says with its renewals",
        "its event loop hangs",
        "A handler blocks the loop (the log has its stack, `loop.hung`). If it does not end, end "
        "that process: what it ran begins elsewhere. Then move the blocking call into "
        "`job.run_blocking()`.",
        _hung,
    ),
    *NODE_RULES,
    Rule(
        "paused",
        "warning",
        "pauses, and the queues behind them",
        "jobs wait that are paused, or the whole pool is paused",
        "Somebody has paused this: what is behind it waits until it is resumed.",
        _paused,
    ),
    Rule(
        "half-paused",
        "warning",
        "pauses beside what each lane goes by",
        "they differ",
        "A lane was not reached, or lost its data: run it again, or resume.",
        _half_paused,
    ),
    Rule(
        "cordoned",
        "note",
        "cordons and drains",
        "there is one",
        "It takes no jobs. Uncordon it when it shall; a drain ends with its node.",
        _cordoned,
    ),
    Rule(
        "cordoned-off",
        "warning",
        "the queue of each handler beside cordons",
        "jobs wait, and each worker that has their handler is cordoned",
        "Nobody is left to do them: uncordon one, or start another.",
        _cordoned_off,
    ),
    Rule(
        "no-such-handler",
        "error",
        "the number of unassigned jobs beside the queues of registered handlers",
        "more than these hold",
        "A name was mistyped, or its worker was never started: start one that has it, or stop "
        "these jobs.",
        _unknown,
    ),
    Rule(
        "no-worker",
        "error",
        "the queue of each handler, and the map of workers",
        "jobs, and no worker that has the handler and does not leave",
        "Start a worker that has it.",
        _unassigned,
    ),
    Rule(
        "nobody-reads",
        "error",
        "jobs that were left to others, and the map of workers",
        "each worker that has the handler has left the job",
        "A newer version of the handler, or another codec, has dispatched them: start a worker of "
        "that program.",
        _left_by_all,
    ),
    Rule(
        "backlog",
        "warning",
        "the queue of each handler",
        "its head has waited for over 60 s, and six TTLs",
        "There are too few free slots: add workers or capacity, or find out why those that are "
        "there take nothing.",
        _backlog,
    ),
    Rule(
        "start-late",
        "warning",
        "starts that were not acknowledged",
        "late by more than a TTL, at a worker that lives",
        "Its loop is late, or its line is slow: look at that process.",
        _late_starts(("live", "closed", "cordoned", "draining")),
    ),
    Rule(
        "start-at-hung",
        "error",
        "starts that were not acknowledged",
        "late by more than a TTL, at a worker that hangs",
        "Nodes take them back by themselves; end that process if it does not come back.",
        _late_starts(("hung",)),
    ),
    Rule(
        "start-at-dead",
        "error",
        "starts that were not acknowledged",
        "late by more than a TTL, at a worker that is dead or unknown",
        "Nobody sweeps: a node that joins does.",
        _late_starts(("silent", "fenced", "gone")),
        "recover",
    ),
    Rule(
        "due-late",
        "error",
        "deadlines: delays, retries, limits",
        "late by more than a TTL",
        "Nobody sweeps: a node that joins does.",
        _late(
            attrgetter("late_due"),
            "delays, retries or limits are over and nobody swept for them",
            key_of,
        ),
        "recover",
    ),
    Rule(
        "not-carried",
        "error",
        "messages between lanes: followers",
        "late by more than a TTL",
        "Nobody sweeps that lane, or the other one is away: a node that reaches both carries them.",
        _channel,
        "recover",
    ),
    Rule(
        "batch-late",
        "error",
        "deadlines of batches",
        "late by more than a TTL",
        "Nobody sweeps: a node that joins does. `pool batches` shows how far each is.",
        _late(
            attrgetter("late_batches"),
            "batches wait for somebody to seal them, to look for members that were lost, or to "
            "forget them",
        ),
        "recover",
    ),
    Rule(
        "batch-lacks",
        "warning",
        "the 20 newest batches of each lane",
        "members missing, and it has not ended",
        "These jobs are lost, with their lane's data or with who was to dispatch them: the batch "
        "counts them as missing. Dispatch what they were for again, or cancel the batch.",
        _lacking,
    ),
    Rule(
        "schedule-late",
        "error",
        "the times of schedules",
        "due for longer than a TTL and two seconds",
        "Nobody sweeps, or no node can read them (a cron expression needs the extra `schedules`): "
        "a node that joins with it fires them.",
        _late_schedules,
        "recover",
    ),
    Rule(
        "schedule-unreadable",
        "error",
        "schedules, 1,000 of each lane",
        "one that cannot be parsed",
        "Somebody else has written there. Make it again, or remove it.",
        _unreadable_schedules,
    ),
    Rule(
        "plan-held",
        "warning",
        "the last turn of each plan",
        "it would stop more than the plan may",
        "Find out why its list has shrunk. If that is meant, confirm it, by the command that is "
        "shown there.",
        _held_plans,
    ),
    Rule(
        "plan-failing",
        "warning",
        "the last turn of each plan",
        "it had a problem",
        "What runs goes on, and nothing changes: mend its producer, or what it asks.",
        _failing_plans,
    ),
    Rule(
        "too-long",
        "error",
        "running jobs whose handler has a timeout_s",
        "over it by more than a TTL",
        "The handler does not end when it is cancelled, or its process is frozen.",
        _too_long,
    ),
    Rule(
        "runs-long",
        "warning",
        "running finite jobs, beside the runs of their handler in the pool's figures",
        "over 60 s, and ten times what 99 of 100 take; without figures (no process has a metrics "
        "port, or under 20 runs): over a day, and no progress within the last hour",
        "Find out what it waits for, and stop it if it hangs. `timeout_s` of its handler ends such "
        "a run by itself.",
        _unusual,
    ),
    Rule(
        "schedule-overlaps",
        "warning",
        "schedules that leave a time out while a job of their key runs, 64 of them",
        "three times in a row",
        "The job hangs, or takes longer than the schedule allows: see why, stop it, or give its "
        "handler a `timeout_s`.",
        _overlapped,
    ),
    Rule(
        "no-progress",
        "error",
        "running jobs whose handler has a progress_timeout_s",
        "over it by more than a TTL",
        "The handler does not end when it is cancelled, or its process is frozen.",
        _no_progress,
    ),
    Rule(
        "stopping",
        "warning",
        "running jobs that were told to end",
        "any",
        "Look once more: a handler may take a quarter of the TTL. One that swallows cancellation "
        "ends with its process only.",
        _stopping,
    ),
    Rule(
        "failing",
        "warning",
        "jobs by attempt",
        "beyond the third",
        "Read its last traceback, mend the handler, or stop the job.",
        _failing,
    ),
    Rule(
        "suspects",
        "warning",
        "crash marks",
        "two deaths or more with the job aboard; most of them are by chance",
        "Workers died while they ran these: look at how, in their logs and the system's (out of "
        "memory?). A job is parked as poison when chance is ruled out.",
        _suspects,
    ),
    Rule(
        "queued-long",
        "warning",
        "jobs behind the live one of their key",
        "for longer than 10 min",
        "The live job of that key does not end: see why.",
        _queued,
    ),
    Rule(
        "inbox",
        "warning",
        "unhandled messages of a job",
        "100 or more",
        "Its handler does not read them, or does not keep up.",
        _inboxes,
    ),
    Rule(
        "parked",
        "warning",
        "dead letters",
        "any",
        "Look at them; replay or discard each. They go by themselves after `parked_ttl_s`.",
        _parked,
    ),
    Rule(
        "results-kept",
        "note",
        "the bytes of outcomes that lanes remember",
        "over 80 % of results_bytes_max as it is by default",
        "Results that nobody fetches fill the server: return None, give the handler a shorter "
        "`retention_s`, or set `results_bytes_max`.",
        _results,
    ),
    *STREAM_RULES,
    Rule(
        "retrying",
        "note",
        "jobs that wait for their second or third attempt",
        "any",
        "Nothing needs to be done, unless they become more.",
        _retries,
    ),
    Rule(
        "schedule-missed",
        "note",
        "how many times each schedule has missed, or left to the job before, 1,000 of each lane",
        "any since it was made",
        "Missed: no node was there then, or the clock was put on; `misfire` says what becomes of "
        "such times. Overlapped: its key had a job yet, and `if_exists` keeps that.",
        _missed,
    ),
    Rule(
        "handing-over",
        "note",
        "workers that leave",
        "they have running jobs yet",
        "Nothing needs to be done: it lasts `grace_s` at most.",
        _handing_over,
    ),
    *SERVER_RULES,
)
