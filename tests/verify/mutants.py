"""Bugs planted on purpose, one at a time, to see that the simulation finds each of them.

    python -m tests.verify.mutants [NAME ...]        (make mutants: all, and docs/mutants.md)

A mutant is a text substitution in the library that must apply exactly once.  The tool copies the
tree, plants one, and plays seeds in the copy until an invariant is violated; the same seed must be
clean without it.  500 seeds at most: the configuration that showed it last time, what was found
before, then by the faults that a mutant needs.  An error that only ends a process does not count:
an invariant must fire.

The tool pins the configuration that shows a mutant in `mutants.txt`: what a seed draws changes with
each new kind of fault.  What one configuration plays may change, too.  So a mutant whose window can
be reached on purpose rather names a test that does.

What no simulated world can show (a thread that stands still, a whole process that ends, the bytes
of a connection) names the tests that must fail by it, and pass without it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import attrs

from tests.verify.batch_mutants import BATCH_MUTANTS
from tests.verify.cli_mutants import CLI_MUTANTS
from tests.verify.doctor_mutants import DOCTOR_MUTANTS
from tests.verify.edge_mutants import EDGE_MUTANTS
from tests.verify.exit_mutants import EXIT_MUTANTS
from tests.verify.journal_mutants import JOURNAL_MUTANTS
from tests.verify.log_mutants import LOG_MUTANTS
from tests.verify.loss_mutants import LOSS_MUTANTS
from tests.verify.metric_mutants import METRIC_MUTANTS
from tests.verify.operator_mutants import OPERATOR_MUTANTS
from tests.verify.pause_mutants import PAUSE_MUTANTS
from tests.verify.plan_mutants import PLAN_MUTANTS
from tests.verify.primary_mutants import PRIMARY_MUTANTS
from tests.verify.remote_mutants import REMOTE_MUTANTS
from tests.verify.schedule_mutants import SCHEDULE_MUTANTS
from tests.verify.sync_mutants import SYNC_MUTANTS
from tests.verify.value_mutants import VALUE_MUTANTS
from tests.verify.web_mutants import WEB_MUTANTS

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "mutants.md"
PINS: Final = Path(__file__).parent / "mutants.txt"
SEEDS: Final = 500
_TESTS_FAILED: Final = 1  # pytest's exit code
_ON_BOTH: Final = {"POOL_TEST_LOOPS": "both"}  # a bug may show on one of them alone
_PATIENCE: Final = 5.0  # times as long as its tests take without it, and ...
_STARTS_S: Final = 30.0
_SCHEDULES: Final = "tests/redis/test_schedule_scripts.py::"
_CHANNEL: Final = "tests/redis/test_channel_scripts.py::"
_REPLICA: Final = "tests/maps/test_replica.py::"
_BATCHES: Final = "tests/redis/test_batch_scripts.py::"
_CAMPAIGN: Final = "tests/verify/test_campaigns.py::test_a_mixed_campaign_is_clean"
_FOUND: Final = "tests/verify/sim/test_found.py::"
_CRASHES: Final = f"{_FOUND}test_a_crash_after_a_step_loses_nothing"  # [SCENE]
_HANGS: Final = f"{_FOUND}test_while_a_loop_hangs_only_what_has_not_begun_starts_elsewhere"
_ONE_AT_A_TIME: Final = threading.Lock()  # a world owns trio's dice, and the Lua interpreter
_LEFT_BEHIND: Final = (
    *("__pycache__", ".*_cache", ".git", ".venv", ".peers", ".hypothesis", "build", "dist"),
)


@attrs.frozen(kw_only=True)
class Mutant:
    """One planted bug."""

    name: str
    breaks: str
    path: str
    old: str
    new: str
    # Faults or shapes, or `bursts` and `workers`, without which it can hardly show; their seeds
    # come first.
    needs: tuple[str, ...] = ()
    by: tuple[str, ...] = ()  # the tests that must fail, if it is not for the simulation
    is_named: bool = False  # one of the eleven that every such campaign must kill


MUTANTS: Final = (
    *(
        Mutant(**each)
        for each in (
            *METRIC_MUTANTS,
            *PLAN_MUTANTS,
            *SCHEDULE_MUTANTS,
            *PAUSE_MUTANTS,
            *DOCTOR_MUTANTS,
        )
    ),
    *(Mutant(**each) for each in (*JOURNAL_MUTANTS, *CLI_MUTANTS, *BATCH_MUTANTS, *REMOTE_MUTANTS)),
    *(Mutant(**each) for each in WEB_MUTANTS),
    *(
        Mutant(**each)
        for each in (
            *SYNC_MUTANTS,
            *PRIMARY_MUTANTS,
            *LOG_MUTANTS,
            *LOSS_MUTANTS,
            *EDGE_MUTANTS,
            *EXIT_MUTANTS,
            *OPERATOR_MUTANTS,
            *VALUE_MUTANTS,
        )
    ),
    Mutant(
        name="no fence at settle",
        is_named=True,
        breaks="a settlement is accepted from a worker that does not own the key",
        path="pool/redis/lua/advance.lua",
        old="if r[OWNER] ~= source or r[EPOCH] ~= epoch then",
        new="if false then",
        needs=("pause",),
    ),
    Mutant(
        name="ack before effect",
        is_named=True,
        breaks="a job is settled when its handler begins (an acknowledgement here only says that "
        "it begins, so settling early is the nearest thing)",
        path="pool/jobs/worker/worker.py",
        old="        if run.has_old_limit:\n            self._limit_anew(run)",
        new="        self._box(run).send(self._settlement._done(run, None), None)",
    ),
    Mutant(
        name="lock without expiry",
        is_named=True,
        breaks="a sweeper that died keeps its lock for ever",
        path="pool/redis/lua/sweep.lua",
        old="if held_by and held_by ~= holder and tonumber(held_until) > now and "
        "tonumber(held_until) <= now + lock_ms then",
        new="if held_by and held_by ~= holder then",
        needs=("crash",),
    ),
    Mutant(
        name="due behind the lock",
        breaks="who comes for what it put there finds nothing while another one sweeps",
        path="pool/redis/lua/sweep.lua",
        old="local since = is_ours and '-inf' or through",
        new="local since = is_ours and '-inf' or text_of(now + 1)",
        by=(
            "tests/jobs/test_sweeper.py::test_a_delay_is_over_in_time_while_another_node_sweeps",
            "tests/verify/sim/test_sim.py::test_what_is_due_begins_in_time_where_nothing_goes_wrong",
        ),
    ),
    Mutant(
        name="unlock without token check",
        is_named=True,
        breaks="a reaper whose claim was taken over goes on under it",
        path="pool/redis/lua/reap.lua",
        old="if redis.call('HGET', cleanup, identity) ~= claim then",
        new="if not redis.call('HGET', cleanup, identity) then",
        needs=("crash", "lossy-requests", "lossy-replies", "partition"),
    ),
    Mutant(
        name="retry without request id",
        is_named=True,
        breaks="a dispatch that is sent again is another job",
        path="pool/jobs/client/dispatcher.py",
        old="            lane.again.append(pending)",
        new="            pending.item.id = self.context.ids.next()\n"
        "            lane.again.append(pending)",
        needs=("lossy-replies",),
    ),
    Mutant(
        name="epoch not raised",
        is_named=True,
        breaks="the next owner of a key has the epoch of the last one",
        path="pool/redis/lua/lib/place.lua",
        old="  r[STATE], r[OWNER], r[EPOCH], r[SINCE] = 'P', target.name, stamp(), ''",
        new="  r[STATE], r[OWNER], r[EPOCH], r[SINCE] = 'P', target.name, "
        "first and stamp() or r[EPOCH], ''",
        needs=("crash",),
    ),
    Mutant(
        name="renewal that revives the fenced",
        is_named=True,
        breaks="a renewal does not look whether it comes too late",
        path="pool/redis/lua/renew.lua",
        old="  if redis.call('HEXISTS', cleanup, name) == 1 or not "
        "redis.call('ZSCORE', keepalive, name) then",
        new="  if false then",
        needs=("pause",),
    ),
    Mutant(
        name="delete-then-set lock",
        is_named=True,
        breaks="a claim that has run out is deleted, and set by whoever comes next (there is no "
        "next: what nobody claims has no lease that could end)",
        path="pool/redis/lua/fence.lua",
        old="    if had == 'done' then",
        new="    if had then",
        needs=("crash", "crash-at-call"),
    ),
    Mutant(
        name="registration removed before work",
        is_named=True,
        breaks="a dead owner counts as reaped before its keys are moved",
        path="pool/redis/lua/reap.lua",
        old="redis.call('ZADD', keepalive, lease_now + reap_ms, identity)",
        new="redis.call('ZADD', keepalive, lease_now + reap_ms, identity) "
        "redis.call('HSET', cleanup, identity, 'done')",
        by=(f"{_CRASHES}[reap]",),
    ),
    Mutant(
        name="a shorter TTL paces at once",
        breaks="pool time waits for renewals as often as nobody has heard yet that they must come",
        path="pool/redis/lua/lib/lane.lua",
        old="whole(lane_had[9] or lane_had[7])",
        new="whole(lane_had[7])",
        by=("tests/verify/sim/test_ttl.py",),
    ),
    Mutant(
        name="trimming by length",
        is_named=True,
        breaks="a worker's stream of starts keeps its last three entries",
        path="pool/redis/lua/lib/place.lua",
        old="  local refusal = redis.pcall('XADD', unpack(words)).err",
        new="  table.insert(words, 2, 'MAXLEN')\n  table.insert(words, 3, '3')\n"
        "  local refusal = redis.pcall('XADD', unpack(words)).err",
    ),
    Mutant(
        name="grant before stop",
        is_named=True,
        breaks="a service is released before its handler has ended",
        path="pool/jobs/worker/worker.py",
        old='        if effect in ("end", "lose"):\n            if run.scope is not None:\n'
        "                run.scope.cancel()",
        new='        if effect in ("end", "lose"):\n            if run.scope is not None:\n'
        "                run.scope.cancel()\n"
        '            if event == "release":\n                self._conclude(run, CANCELLED)',
        needs=("leave",),
    ),
    Mutant(
        name="no guard at settle",
        breaks="a fenced worker may still settle what was not moved yet",
        path="pool/redis/lua/advance.lua",
        old="if guard == 'own' and (fence or not registered) then",
        new="if guard == 'own' and not source then",
        needs=("pause",),
    ),
    Mutant(
        name="claim without expiry",
        breaks="a reaper that died holds up its successor for a day (a claim for longer than any "
        "lease may be is cut to one: that masks what is for ever)",
        path="pool/redis/lua/fence.lua",
        old="  redis.call('ZADD', keepalive, lease_now + reap_ms, name)",
        new="  redis.call('ZADD', keepalive, lease_now + 86400000, name)",
        needs=("crash-in-reap",),
    ),
    Mutant(
        name="a silence takes from every lease",
        breaks="one outage longer than the lease evicts the whole fleet (G-06)",
        path="pool/redis/lua/lib/silence.lua",
        old="math.max(0, math.min(gap, reach_ms, gap - tried))",
        new="gap",
        by=("tests/redis/test_lease_scripts.py",),
    ),
    Mutant(
        name="a silence counts for more than its own gap",
        breaks="who was cut off alone holds up the lease clock for all: takeover has no bound",
        path="pool/redis/lua/lib/silence.lua",
        old="math.max(seen, now - first_ms)",
        new="(now - first_ms)",
        by=("tests/redis/test_lease_scripts.py",),
    ),
    Mutant(
        name="each silence grants a whole TTL",
        breaks="the dead get a new lease at each silence: takeover never ends (K2)",
        path="pool/redis/lua/lib/silence.lua",
        old="  lease = lease + passed\n",
        new="  lease = gap > ttl_ms / 2 and lease - ttl_ms or lease + passed\n",
        by=("tests/redis/test_lease_scripts.py::test_silences_add_up_and_end",),
    ),
    Mutant(
        name="only the longest silence is given back",
        breaks="silences do not add up: the living are evicted in the second one",
        path="pool/redis/lua/lib/silence.lua",
        old="  local passed = math.max(0, math.min(gap, reach_ms, gap - tried))",
        new="  local most = whole(redis.call('HGET', lane, 'most'))\n"
        "  redis.call('HSET', lane, 'most', text_of(math.max(most, tried)))\n"
        "  local passed = math.max(0, math.min(gap, gap - math.max(0, tried - most)))",
        by=("tests/redis/test_lease_scripts.py::test_silences_add_up_and_end",),
    ),
    Mutant(
        name="the running gap is missing in the fence",
        breaks="what ends in a gap is taken over only behind the next renewal",
        path="pool/redis/lua/lib/lease.lua",
        old="lease + math.min(math.max(0, now - seen), reach_ms)",
        new="lease",
        by=("tests/redis/test_lease_scripts.py",),
    ),
    Mutant(
        name="a fence behind a silence counts all of it",
        breaks="the first script after a silence evicts the fleet",
        path="pool/redis/lua/lib/lease.lua",
        old="lease + math.min(math.max(0, now - seen), reach_ms)",
        new="lease + math.max(0, now - seen)",
        by=("tests/redis/test_lease_scripts.py",),
    ),
    Mutant(
        name="every renewal holds everybody",
        breaks="nobody is ever taken over",
        path="pool/redis/lua/lib/silence.lua",
        old="(run and run ~= redis.call('HGET', lane, 'run'))",
        new="run",
        by=("tests/redis/test_lease_scripts.py",),
    ),
    Mutant(
        name="another server holds nobody",
        breaks="a failover that loses renewals overlaps by its lag (K10, G-03)",
        path="pool/redis/lua/lib/silence.lua",
        old="(run and run ~= redis.call('HGET', lane, 'run'))",
        new="false",
        by=("tests/redis/test_lease_scripts.py",),
    ),
    Mutant(
        name="lease time is pool time again when the clock is set",
        breaks="all the time that silences had given back is lost: the living are evicted",
        path="pool/redis/lua/lib/silence.lua",
        old="  go_on(0, passed, lease + window_ms + 1, latest)",
        new="  go_on(0, now - lease, lease + window_ms + 1, latest)",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="a lease of while nobody vouches is of the last time that was vouched for",
        breaks="who was renewed just before a step is settled is fenced early (G-03)",
        path="pool/redis/lua/renew.lua",
        old="is_vouched and lease or lease > 0 and lease + window_ms or now",
        new="lease > 0 and lease or now",
        by=("tests/redis/test_clock_scripts.py", "tests/verify/sim/test_lease_clock.py"),
    ),
    Mutant(
        name="a renewal says nothing of the silence before it",
        breaks="a silence costs the living a third of their leases",
        path="pool/jobs/fleet/keepalive.py",
        old="tried_ms=tried.ago_ms(now_s, state.lease.ttl_s) if tried else (0, 0),",
        new="tried_ms=(0, 0),",
        by=("tests/jobs/test_keepalive.py",),
    ),
    Mutant(
        name="no fence of its own",
        breaks="a node that cannot renew goes on",
        path="pool/core/lease.py",
        old="        return self.asked_s + self.timing.ttl_s - self.timing.margin_s",
        new="        return self.asked_s + 10 * self.ttl_s",
        needs=("partition",),
    ),
    Mutant(
        name="start without a lease",
        breaks="a worker does not look at its lease before it starts a job",
        path="pool/jobs/worker/executor.py",
        old="        return lease.is_good(self.context.io.clock()) and "
        "not self.box_of(run).is_fenced",
        new="        return lease is not None",
        by=(
            (
                "tests/jobs/test_keepalive.py::"
                "test_what_was_to_start_behind_a_handler_that_outlasted_the_lease_does_not"
            ),
        ),
    ),
    Mutant(
        name="a lost run settles",
        breaks="what was lost while its handler ended is settled, by an epoch that is another's",
        path="pool/core/run.py",
        old='(gone, why, "forget") if is_lost else (settling, why, "settle")',
        new='(settling, why, "settle")',
        by=("tests/core/test_run.py",),
    ),
    Mutant(
        name="the last order stands",
        breaks="a job that was told to stop is released, and runs again elsewhere",
        path="pool/core/run.py",
        old='            case "running" if is_free:',
        new='            case "running" if not is_lost:',
        by=("tests/core/test_run.py",),
    ),
    Mutant(
        name="a stranger's cancellation is taken for ours",
        breaks="a handler that cancels itself ends its slot, and its worker with it",
        path="pool/jobs/run.py",
        old="open within it.\n        if is_cancellation(error) and is_asked_for():",
        new="open within it.\n        if is_cancellation(error):",
    ),
    Mutant(
        name="only errors are failed attempts",
        breaks="SystemExit and its like end the worker's actor instead of the attempt",
        path="pool/jobs/run.py",
        old="    if isinstance(ending, _Threw):",
        new="    if isinstance(ending, _Threw) and not isinstance(ending.error, Exception):\n"
        "        raise ending.error\n"
        "    if isinstance(ending, _Threw):",
    ),
    Mutant(
        name="a quiet end is a stop",
        breaks="an actor that ended without being asked is taken for one that was stopped",
        path="pool/runtime/actor.py",
        old="            if crash is None and not is_asked:",
        new="            if crash is None and not is_asked and False:",
        by=(
            "tests/runtime/test_supervisor.py::test_an_actor_that_returns_without_being_asked_has_crashed",
        ),
    ),
    Mutant(
        name="the living are reaped",
        breaks="a lease counts as ended when half of it is left",
        path="pool/redis/lua/fence.lua",
        old="redis.call('ZRANGEBYSCORE', keepalive, '-inf', lease_now, 'WITHSCORES',",
        new="redis.call('ZRANGEBYSCORE', keepalive, '-inf', lease_now + ttl_ms / 2, 'WITHSCORES',",
        needs=("crash",),
    ),
    Mutant(
        name="a late renewal counts",
        breaks="what an older renewal says of a worker is written over what a newer one said",
        path="pool/redis/lua/renew.lua",
        old="(said == '0' or whole(by) > seq and whole(by) - seq < LATE_MAX) then",
        new="said == '0' then",
        by=(
            "tests/redis/test_lease_scripts.py::test_a_late_renewal_neither_opens_nor_closes_anybody",
        ),
    ),
    Mutant(
        name="once hung, for ever closed",
        breaks="a worker whose loop hung takes no keys any more",
        path="pool/redis/lua/renew.lua",
        old="(said == '0' or whole(by) > seq and whole(by) - seq < LATE_MAX) then",
        new="string.find(had, '|-|', 1, true) then",
        needs=("hang",),
    ),
    Mutant(
        name="deleted signals stay away",
        breaks="signals that an operator deleted are never made again: their worker hears nothing",
        path="pool/redis/lua/renew.lua",
        old="    if there < identity_count then",
        new="    if there < 0 then",
        by=(
            (
                "tests/jobs/test_keepalive.py::"
                "test_a_worker_whose_signals_were_deleted_hears_what_it_was_told_meanwhile"
            ),
        ),
    ),
    Mutant(
        name="what was taken back begins",
        breaks="behind a loop that hung, starts begin before they are acknowledged",
        path="pool/runtime/hang.py",
        old="        return epoch > self.sure and self.shut <= self.opened",
        new="        return True",
        by=(_HANGS,),
    ),
    Mutant(
        name="what has begun is taken back",
        breaks="the thread says that the loop hangs, and does not acknowledge what has begun",
        path="pool/jobs/fleet/keepalive.py",
        old="known = await self._acknowledge(sent, body_io) if sent.is_hung else set()",
        new="known = {state.number for state in sent.plan.states} if sent.is_hung else set()",
        by=(_HANGS,),
    ),
    Mutant(
        name="observers run in the thread that renews",
        breaks="an observer of `loop.hung` that blocks ends the leases of its node",
        path="pool/redis/io/system.py",
        old="        self._aside.write(fn)",
        new="        fn()",
        by=(
            (
                "tests/jobs/test_keepalive.py::"
                "test_nothing_that_an_observer_of_a_hang_does_stops_renewals"
            ),
        ),
    ),
    Mutant(
        name="what repeats is logged each time",
        breaks="10,000 jobs that fail alike are 10,000 lines",
        path="pool/redis/io/hush.py",
        old="        if known is not None:\n            self._known.pop",
        new="        if False:\n            self._known.pop",
        by=("tests/redis/test_hush.py",),
    ),
    Mutant(
        name="numbers make another trouble",
        breaks="each identity that is fenced is a line: `worker.fenced` again and again is a flood",
        path="pool/runtime/observers.py",
        old='_NUMBERS.sub("#", value)',
        new="value",
        by=("tests/runtime/test_floods.py",),
    ),
    Mutant(
        name="any number of different troubles of a kind",
        breaks="1,000 handlers that fail are 1,000 lines",
        path="pool/redis/io/hush.py",
        old="if known is None and self._is_full(kind):",
        new="if False:",
        by=("tests/runtime/test_floods.py",),
    ),
    Mutant(
        name="each node that leaves begins the counts anew",
        breaks="a program that opens a node for each request writes two lines for each",
        path="pool/redis/io/hush.py",
        old="if self._ended_at is None or now - self._ended_at >= REST_S:",
        new="if True:",
        by=("tests/runtime/test_floods.py",),
    ),
    Mutant(
        name="an outage that is there again reads as over",
        breaks="the last line of a minute is `maps.reachable`, and nobody reaches them",
        path="pool/redis/io/hush.py",
        old="            self._known.pop(key, None)  # it",
        new="            # it",
        by=("tests/runtime/test_floods.py",),
    ),
    Mutant(
        name="what was lost is recovered at once, however often",
        breaks="a server that evicts is asked 3,000 times a second by an idle node",
        path="pool/core/retry.py",
        old="self._relapses + 1 if now - self._until < RELAPSE_S else 0",
        new="0",
        by=(
            (
                "tests/jobs/test_membership.py::"
                "test_data_that_are_lost_again_and_again_are_recovered_ever_more_slowly"
            ),
        ),
    ),
    Mutant(
        name="a reader that is cut connects again at once, however often",
        breaks="a network that cuts connections all the time is flooded by each idle node",
        path="pool/core/retry.py",
        old="return max(0.0, due_s - now_s)",
        new="return 0.0",
        by=("tests/verify/test_floods.py",),
    ),
    Mutant(
        name="each lost connection costs a pause",
        breaks="a proxy that ends idle connections now and then makes each of them a second late",
        path="pool/core/retry.py",
        old="now_s - RECONNECTS_MAX * RECONNECT_CAP_S",
        new="now_s + RECONNECT_CAP_S",
        by=("tests/core/test_retry.py",),
    ),
    Mutant(
        name="pauses before a reader connects add up, also those that it did not wait for",
        breaks="a worker that joins several lanes while a server is away reads that one 10 s late",
        path="pool/core/retry.py",
        old="        due_s = min(due_s, now_s + RECONNECT_CAP_S)\n",
        new="",
        by=("tests/core/test_retry.py",),
    ),
    Mutant(
        name="a disk that is full is a memory limit",
        breaks="MISCONF reads: raise maxmemory",
        path="pool/redis/errors.py",
        old="CANNOT_SAVE: _cannot_save,",
        new="CANNOT_SAVE: _full,",
        by=("tests/redis/test_error_words.py",),
    ),
    Mutant(
        name="a server that cannot save sends what is no reply",
        breaks="each read of such a server cuts its connection, and says nothing of the disk",
        path="pool/redis/io/body.py",
        old="isinstance(reply, StoreUnavailable) and CANNOT_SAVE in reply.problem",
        new="False",
        by=("tests/redis/test_error_words.py",),
    ),
    Mutant(
        name="a dispatch that was refused until its time was up does not say why",
        breaks="it reads as if calls before it had taken too long",
        path="pool/jobs/client/dispatcher.py",
        old="pending.failure or StoreUnavailable(",
        new="StoreUnavailable(",
        by=("tests/redis/test_error_words.py",),
    ),
    Mutant(
        name="a disk that is full has the hint of a network",
        breaks="it reads: check the server and the network",
        path="pool/errors.py",
        old='if "MISCONF" in self.problem:',
        new="if False:",
        by=("tests/redis/test_error_words.py",),
    ),
    Mutant(
        name="lines of a program without a configuration go to its output",
        breaks="they mix with what it prints, in local time",
        path="pool/redis/log.py",
        old="if structlog.is_configured():",
        new="if True:",
        by=("tests/ops/test_logs.py",),
    ),
    Mutant(
        name="lines of a program go past its own configuration",
        breaks="what somebody has configured for structlog counts for nothing",
        path="pool/redis/log.py",
        old="if structlog.is_configured():",
        new="if False:",
        by=("tests/ops/test_logs.py",),
    ),
    Mutant(
        name="lines of an application's own handler come twice",
        breaks="each line that an application logs with a handler of its own is doubled",
        path="pool/ops/logs.py",
        old="not _is_written(record.name, handler)",
        new="True",
        by=("tests/ops/test_logs.py",),
    ),
    Mutant(
        name="a warning is no JSON",
        breaks="who reads JSON lines meets text",
        path="pool/ops/logs.py",
        old="if is_json and warnings.",
        new="if False and warnings.",
        by=("tests/ops/test_logs.py",),
    ),
    Mutant(
        name="the audit ends at a foreign key",
        breaks="it raises, and says nothing of all other lanes",
        path="pool/testing/audit.py",
        old="        if foreign:\n            continue",
        new="        if False:\n            continue",
        by=("tests/ops/test_logs.py::test_an_audit_names_a_key_that_somebody_else_wrote",),
    ),
    Mutant(
        name="a minute without handlers is a table",
        breaks="`pool rates` prints an empty table without a word",
        path="pool/ops/cli/rates.py",
        old="not any(minute.handlers for minute in minutes)",
        new="not minutes",
        by=("tests/ops/test_logs.py",),
    ),
    Mutant(
        name="a refused batch is sent again at once",
        breaks="what the server refuses for good is sent ten times a second, by each worker",
        path="pool/jobs/worker/outbox.py",
        old="self._refusals = 0 if is_away else self._refusals + 1",
        new="self._refusals = 0",
        by=("tests/runtime/test_outages.py",),
    ),
    Mutant(
        name="what was thrown into a handler is kept",
        breaks="each timed out attempt is a cycle that holds the handler's locals",
        path="pool/jobs/run.py",
        old="                value = None  # an error",
        new="                pass  # an error",
        by=("tests/jobs/test_lean.py",),
    ),
    Mutant(
        name="links lead where they lead",
        breaks="the log of an embedded server overwrites somebody's file",
        path="pool/redis/embedded/premises.py",
        old="_check_owned(path, path.lstat())",
        new="_check_owned(path, path.stat())",
        by=("tests/redis/test_server.py",),
    ),
    Mutant(
        name="the address is kept as it was given",
        breaks="whoever dumps the attributes of a node tells its password",
        path="pool/jobs/node.py",
        old="        self._given_url = Url.parse(url)",
        new="        self._given_url, self._text = Url.parse(url), url",
        by=("tests/security/test_secrets.py",),
    ),
    Mutant(
        name="who has left is still listed",
        breaks="a pool that all have left is in trouble for whoever looks",
        path="pool/ops/members.py",
        old=' if each.claim != "done")',
        new=")",
        by=("tests/ops/test_cli.py::test_who_has_left_is_gone_at_once_and_a_pool_at_rest_is_well",),
    ),
    Mutant(
        name="an outage is told at each try",
        breaks="10 s of outage are more than a thousand lines",
        path="pool/runtime/outages.py",
        old="        if now_s < self.next_s:",
        new="        if False:",
        by=("tests/runtime/test_outages.py",),
    ),
    Mutant(
        name="starts wait behind a hung loop",
        breaks="the sweeper reminds a worker whose loop hangs, as one that lives",
        path="pool/jobs/fleet/sweeper.py",
        old='each.owner in ("gone", "hung")',
        new='each.owner == "gone"',
        by=(_HANGS,),
    ),
    Mutant(
        name="what waits for its slot has begun",
        breaks="behind a hung loop starts are acknowledged whose handlers were not called yet",
        path="pool/jobs/worker/worker.py",
        old="run.lane == lane and run.is_called and not",
        new="run.lane == lane and run.began_s and not",
        by=(_HANGS,),
    ),
    Mutant(
        name="a lost acknowledgement stays lost",
        breaks="what runs, and is pending after a loss of data, is not acknowledged again",
        path="pool/jobs/worker/reconcile.py",
        old="            if run.is_acknowledged:\n",
        new="            if False:\n",
        by=(
            "tests/jobs/test_keepalive.py::test_an_acknowledgement_that_the_server_lost_is_sent_again",
        ),
    ),
    Mutant(
        name="the fenced stay open",
        breaks="a fenced worker is still granted keys",
        path="pool/redis/lua/fence.lua",
        old="    redis.call('HDEL', open, id)",
        new="    redis.call('HLEN', open)",
        needs=("crash",),
    ),
    Mutant(
        name="unseen starts are innocent",
        breaks="a job that kills its worker before its start is acknowledged is not begun alone",
        path="pool/core/settlement.py",
        old='is_culprit or record.state == "pending" or outlived_ms',
        new="is_culprit or outlived_ms",
        by=("tests/core/test_job.py::test_what_may_have_begun_unseen_is_begun_alone_next",),
    ),
    Mutant(
        name="nobody is the culprit",
        breaks="a death in the trial of a suspect is like any other",
        path="pool/redis/lua/fence.lua",
        old="r[EPOCH] == epoch and epoch .. bits or '0'",
        new="r[EPOCH] == epoch and '0' or '0'",
        by=(
            "tests/redis/test_marks_scripts.py::test_a_claim_tells_until_when_its_worker_lived_and_who_was_begun_last",
        ),
    ),
    Mutant(
        name="neighbours are held",
        breaks="beside a culprit others are held and parked, too",
        path="pool/core/settlement.py",
        old="    is_culprit = record.epoch == death.culprit",
        new="    is_culprit = death.culprit > 0",
        by=("tests/core/test_job.py::test_a_death_in_a_trial_is_evidence_against_that_job_alone",),
    ),
    Mutant(
        name="who is proved to kill is never held",
        breaks="a job goes on to end processes, whatever speaks against it",
        path="pool/core/settlement.py",
        old="    if is_guilty:",
        new="    if is_guilty and not letters:",
        by=("tests/core/test_job.py::test_what_is_proved_is_held_for_a_ttl_and_then_parked",),
    ),
    Mutant(
        name="a tie is a proof",
        breaks="of two jobs that are suspected alike one is given up, or both",
        path="pool/core/evidence.py",
        old="> max(rival, TENTHS",
        new="> max(0, TENTHS",
        by=(
            "tests/jobs/test_reaper.py::test_a_job_is_held_only_if_no_other_one_aboard_has_as_much_evidence",
        ),
    ),
    Mutant(
        name="the strongest is its own rival",
        breaks="no job is given up at all, or one beside a stronger one",
        path="pool/core/settlement.py",
        old="return self.second if key == self.key else self.most",
        new="return self.most if key == self.key else self.second",
        by=("tests/core/test_evidence.py::test_the_lineup_knows_the_strongest_other_job",),
    ),
    Mutant(
        name="a silent round is no evidence",
        breaks="what is held gains nothing, so half of the rounds are lost",
        path="pool/core/evidence.py",
        old="    if coin.is_held and not has_died and",
        new="    if coin.is_held and has_died and",
        by=(
            "tests/core/test_evidence.py::test_a_coin_tells_a_late_killer_where_one_process_only_may_take_it",
        ),
    ),
    Mutant(
        name="the coin has one side",
        breaks="in a crash loop all suspects of a death are held",
        path="pool/core/settlement.py",
        old="    is_held = dice.random() < 0.5",
        new="    is_held = dice.random() < 1.5",
        by=(
            "tests/jobs/test_reaper.py::test_in_a_crash_loop_of_one_process_a_coin_holds_half_of_the_suspects",
        ),
    ),
    Mutant(
        name="running in a silent round costs nothing",
        breaks="an innocent job gains by each death from outside in its rounds, and never loses",
        path="pool/core/evidence.py",
        old="    if not coin.is_held and has_died:",
        new="    if not coin.is_held:",
        by=(
            "tests/core/test_evidence.py::test_a_round_is_worth_nothing_on_average_whatever_dies_in_it",
        ),
    ),
    Mutant(
        name="the first death counts",
        breaks="the death that chose a job is taken for evidence against it",
        path="pool/core/evidence.py",
        old="    is_first = not marks.deaths",
        new="    is_first = False",
        by=("tests/core/test_evidence.py::test_the_first_death_only_starts_the_record",),
    ),
    Mutant(
        name="workers die one by one",
        breaks="a process with four workers dies four times in each shard",
        path="pool/redis/lua/fence.lua",
        old="  local process = string.sub(id, 2, 11)",
        new="  local process = string.sub(id, 2)",
        by=("tests/redis/test_marks_scripts.py::test_a_process_dies_once_with_all_its_workers",),
    ),
    Mutant(
        name="dealt over all that there are",
        breaks="processes that cannot take a job count as places where it could be",
        path="pool/jobs/fleet/scatter.py",
        old="count), workers",
        new="len(self.context.roster.workers)), workers",
        by=(
            "tests/jobs/test_reaper.py::test_who_stood_together_is_dealt_out_to_different_processes",
        ),
    ),
    Mutant(
        name="dealt by rank",
        breaks="what kills a process of some rank always meets the same jobs",
        path="pool/jobs/fleet/scatter.py",
        old="            dice.shuffle(processes)",
        new="            processes.sort()",
        by=("tests/jobs/test_reaper.py::test_each_process_is_dealt_a_job_as_often",),
    ),
    Mutant(
        name="clients are deaths",
        breaks="a hundred scripts that are killed acquit each killer",
        path="pool/redis/lua/fence.lua",
        old="  if id and open_n == n then\n    if drains == '' then",
        new="  if id and (open_n or n) == n then\n    if drains ~= '|' then",
        by=("tests/redis/test_marks_scripts.py::test_clients_are_no_deaths",),
    ),
    Mutant(
        name="drains are deaths",
        breaks="deployments with too short a grace are evidence against services",
        path="pool/redis/lua/fence.lua",
        old="    if drains == '' then",
        new="    if drains then",
        by=(
            "tests/redis/test_marks_scripts.py::test_a_worker_that_said_that_it_drains_is_no_death",
        ),
    ),
    Mutant(
        name="a successor notes a death again",
        breaks="who came back is a death after all when its reaper dies",
        path="pool/redis/lua/fence.lua",
        old="  if id and open_n == n then\n    if drains == '' then",
        new="  if id and (had or open_n == n) then\n    if had or drains == '' then",
        by=("tests/redis/test_marks_scripts.py::test_a_successor_counts_no_death_again",),
    ),
    Mutant(
        name="a death counts at each look",
        breaks="deaths elsewhere count again at each death of the job's process",
        path="pool/core/evidence.py",
        old="deaths.events(marks.seen_ms, before_ms)",
        new="deaths.events(0, before_ms)",
        by=(
            "tests/core/test_evidence.py::test_deaths_elsewhere_count_once_and_leave_fewer_to_be_aboard",
        ),
    ),
    Mutant(
        name="a host dies eight times",
        breaks="processes that died together are as many events",
        path="pool/core/evidence.py",
        old="    died, seen_ms = deaths.together(last.at_ms)",
        new="    died, seen_ms = 1, deaths.together(last.at_ms)[1]",
        by=(
            "tests/core/test_evidence.py::test_what_died_together_is_one_event_also_if_that_was_known_late",
        ),
    ),
    Mutant(
        name="moved, and still by dice",
        breaks="a job that was moved since it was dealt is suspected as if it had not been",
        path="pool/core/evidence.py",
        old="max(by_coin, marks.dealt) if marks.place == process and not is_first else by_coin,",
        new="max(by_coin, marks.dealt) if not is_first else by_coin,",
        by=("tests/core/test_evidence.py::test_the_second_death_aboard_counts_by_the_dice_alone",),
    ),
    Mutant(
        name="a trial costs nothing",
        breaks="each suspect gains by the deaths in its trial, and loses nothing by the others",
        path="pool/core/evidence.py",
        old="-LIVED_TENTHS * last.is_tried",
        new="0",
        by=("tests/core/test_evidence.py::test_a_trial_is_a_bet",),
    ),
    Mutant(
        name="young processes try at once",
        breaks="what is killed half a second after its start always dies in the same trial",
        path="pool/jobs/trials.py",
        old="self.dice.random() if is_young else 0.0",
        new="0.0",
        by=(
            "tests/jobs/test_trials.py::test_a_young_process_begins_its_suspects_at_a_random_time",
        ),
    ),
    Mutant(
        name="who came back stays dead",
        breaks="the last death of a record counts though its process lives",
        path="pool/core/evidence.py",
        old="    if (last.process, last.at_ms) not in deaths.known:",
        new='    if last.process == "":',
        by=("tests/core/test_evidence.py::test_who_comes_back_is_taken_out",),
    ),
    Mutant(
        name="evidence is against the key",
        breaks="the next job of a key inherits what its predecessor is suspected of",
        path="pool/redis/lua/dispatch.lua",
        old="  local r = new_record(its_kind, id, handler)\n  if not take_more(",
        new="  local r = new_record(its_kind, id, handler)\n"
        "  r[MARKS] = live[MARKS]\n  if not take_more(",
        by=(
            "tests/redis/test_marks_scripts.py::test_a_new_job_of_the_key_is_suspected_of_nothing",
        ),
    ),
    Mutant(
        name="who stood together stays together",
        breaks="the suspects of a death go to the same place, each time",
        path="pool/jobs/fleet/scatter.py",
        old="        self._turns[handler] = turn + 1",
        new="        self._turns[handler] = turn = 0",
        by=(
            "tests/jobs/test_reaper.py::test_who_stood_together_is_dealt_out_to_different_processes",
        ),
    ),
    Mutant(
        name="the thawed count as dead",
        breaks="who comes back from a freeze does not say so: its jobs keep their marks",
        path="pool/jobs/fleet/membership.py",
        old="        if former:",
        new="        if former and state is None:",
        needs=("freeze-all", "poison"),
    ),
    Mutant(
        name="leaving with keys",
        breaks="a worker may unregister while it owns something",
        path="pool/redis/lua/leave.lua",
        old="  elseif keys > 0 then",
        new="  elseif keys < 0 then",
        needs=("leave",),
    ),
    Mutant(
        name="outcome forgotten by dispatch",
        breaks="a dispatch repeated after its job has ended makes it run again",
        path="pool/redis/lua/dispatch.lua",
        old="elseif has_ended and redis.call('EXISTS', result) == 1 then",
        new="elseif has_ended and redis.call('EXISTS', result) == 2 then",
        needs=("lossy-replies",),
    ),
    Mutant(
        name="new data deny what was done with the lost ones",
        breaks="a dispatch that had no answer before a loss of data is said to be refused after it",
        path="pool/jobs/client/dispatcher.py",
        old="is_refused = isinstance(answer, PoolError)",
        new="is_refused = isinstance(answer, Accepted)",
        by=("tests/jobs/test_unsure.py",),
    ),
    Mutant(
        name="payload lost by a retry",
        breaks="a job that waits for its next attempt keeps no payload",
        path="pool/redis/lua/advance.lua",
        old="    if payload then\n      later('HSET', payloads, key, payload)\n    end\n"
        "    later('HSET', jobs, key, pack(r))\n    later('ZADD', due",
        new="    later('HSET', jobs, key, pack(r))\n    later('ZADD', due",
    ),
    Mutant(
        name="retry at once",
        breaks="the wait before the next attempt is left out",
        path="pool/redis/lua/advance.lua",
        old="    local at = text_of(x == '0' and at_once or now + tonumber(x))",
        new="    local at = text_of(now)",
    ),
    Mutant(
        name="delay left out",
        breaks="a delayed job starts at once",
        path="pool/redis/lua/dispatch.lua",
        old="    later('ZADD', due, more ~= '' and due_of(r, r[SINCE]) or r[SINCE], 'k:' .. key)",
        new="    later('ZADD', due, now, 'k:' .. key)",
    ),
    Mutant(
        name="attempts without end",
        breaks="a job that fails is tried for ever",
        path="pool/core/settlement.py",
        old="    if options.attempts_max and attempt >= options.attempts_max:",
        new="    if options.attempts_max and attempt >= 2 * options.attempts_max:",
    ),
    Mutant(
        name="due jobs are not promoted",
        breaks="the sweeper looks after those with an owner only",
        path="pool/jobs/fleet/sweeper.py",
        old='            if each.owner == "none" or is_stranded or is_late:',
        new="            if is_stranded or is_late:",
    ),
    Mutant(
        name="nobody walks over the records",
        breaks="what an index has lost is never found",
        path="pool/jobs/fleet/sweeper.py",
        old="            self.spawn(walker.run, state.number)",
        new="            assert walker is not None",
        needs=("lost-index",),
    ),
    Mutant(
        name="seen astray, and left there",
        breaks="the walk finds records that no index leads to, and does nothing about them",
        path="pool/core/walk.py",
        old='    found: list[WalkStep] = ["restore"] if is_missing else []',
        new="    found: list[WalkStep] = []",
        needs=("lost-index",),
    ),
    Mutant(
        name="the walk takes what lives",
        breaks="a running key that its owner's set lacks is taken from an owner that lives",
        path="pool/core/walk.py",
        old='    if owner == "done" or (record.state == "unassigned" and is_missing):',
        new='    if owner == "done" or is_missing:',
        by=("tests/jobs/test_walk.py::test_an_index_that_was_deleted_is_made_again",),
    ),
    Mutant(
        name="an error in place of an answer costs a whole rest",
        breaks="what the walk could not look up for once is looked for two TTLs later (G-05)",
        path="pool/jobs/fleet/walker.py",
        old="return min(pause_s, ttl_s) if is_new else pause_s",
        new="return pause_s",
        by=("tests/jobs/test_walk.py::test_an_error_in_place_of_an_answer_costs_one_lease",),
    ),
    Mutant(
        name="cancelled for want of an index entry",
        breaks="a worker stops what runs here and its set of keys lacks, whatever the record says",
        path="pool/jobs/worker/worker.py",
        old="        if not theirs.strays:\n            return theirs",
        new="        if theirs:\n            return theirs",
        by=(
            "tests/jobs/test_walk.py::test_a_worker_asks_before_it_cancels_what_no_index_has_as_its_own",
        ),
    ),
    Mutant(
        name="a trial ends with who gives it up",
        breaks="a suspect released in order kills its next owner unseen, before it is acknowledged",
        path="pool/redis/lua/advance.lua",
        old="local on_trial = was == 'R' and r[MARKS] ~= ''",
        new="local on_trial = false and ''",
        by=(
            "tests/redis/test_marks_scripts.py::test_who_is_given_up_while_on_trial_is_tried_by_the_next",
        ),
    ),
    Mutant(
        name="a page speaks for all others",
        breaks="what a page of a reconciliation does not name is taken for what is not ours",
        path="pool/jobs/worker/worker.py",
        old="reconciliation = self._mend(number, lane.box, theirs, known)",
        new="reconciliation = self._mend(number, lane.box, theirs, [*runs.values()])",
        by=("tests/jobs/test_pages.py::test_a_worker_compares_what_it_owns_page_by_page",),
    ),
    Mutant(
        name="an audit ends with its first page",
        breaks="a worker that owns more than a page never asks what the others say (E3)",
        path="pool/jobs/worker/reconcile.py",
        old="        return not (self.at or self.after or self.asked or self.mine)",
        new="        return True",
        by=("tests/jobs/test_pages.py::test_a_worker_compares_what_it_owns_page_by_page",),
    ),
    Mutant(
        name="who waits for its retry is done",
        breaks="a job that nobody owns any more can end by what its former owner sends: G-01",
        path="pool/core/lifecycle.py",
        old='    ("waiting", CANCEL): ("cancelled",),',
        new='    ("waiting", DONE): ("done",),\n    ("waiting", CANCEL): ("cancelled",),',
        by=("tests/core/test_job.py::test_of_what_nobody_owns_nothing_is_heard",),
    ),
    Mutant(
        name="an inbox of one page",
        breaks="what stands in an inbox behind its first page is not read (E3)",
        path="pool/jobs/job.py",
        old="self._is_behind = self._is_behind or page.has_more",
        new="pass",
        needs=("pages",),
    ),
    Mutant(
        name="a place is taken for good",
        breaks="who has reaped as many as it may at once fences nobody any more (D6)",
        path="pool/jobs/fleet/reaper.py",
        old="        self._busy[lane] -= 1",
        new="        self._busy[lane] += 0",
        by=("tests/jobs/test_pages.py::test_those_who_own_something_are_reaped_a_few_at_a_time",),
    ),
    Mutant(
        name="who owns keys is forgotten",
        breaks="a dead worker is forgotten together with those that own nothing",
        path="pool/redis/lua/forget.lua",
        old="elseif not is_fit or redis.call('EXISTS', KEYS[k]) == 1 or",
        new="elseif not is_fit or",
        by=(
            "tests/redis/test_lease_scripts.py::test_those_who_own_nothing_are_forgotten_together",
        ),
    ),
    Mutant(
        name="the dead keep their places",
        breaks="sixteen waiters that died keep others from hearing of a job's end (D6)",
        path="pool/redis/lua/look.lua",
        old="claim == 0",
        new="claim == 0 or true",
        by=(
            "tests/redis/test_talk_scripts.py::test_the_dead_give_up_their_places_among_the_waiters",
        ),
    ),
    Mutant(
        name="pages while others are under way",
        breaks="a page is compared although what changes it is on its way out (E3)",
        path="pool/jobs/worker/worker.py",
        old="lane.box.hold(partial(self.spawn, self._compare, number, lane, audit))",
        new="self.spawn(self._compare, number, lane, audit)",
        by=(
            "tests/jobs/test_pages.py::test_no_page_is_compared_while_what_changes_it_is_under_way",
        ),
    ),
    Mutant(
        name="newer than what the server says is ours",
        breaks="a server that went back leaves the handlers of what it lost running for ever (B4)",
        path="pool/jobs/worker/reconcile.py",
        old="        is_lost = runs.get(run.key) is run and not is_theirs and not run.is_lost",
        new="        is_lost = False",
        by=(
            "tests/jobs/test_walk.py::test_what_a_server_that_went_back_has_lost_ends_without_traffic",
        ),
    ),
    Mutant(
        name="a wait forgotten with its index",
        breaks="what waited in an index that was lost is due at once",
        path="pool/redis/lua/restore.lua",
        old="      at = due_of(r, r[SINCE] ~= '' and r[SINCE] or now)",
        new="      at = now",
        by=("tests/jobs/test_walk.py::test_an_index_that_was_deleted_is_made_again",),
    ),
    Mutant(
        name="pull without counting",
        breaks="the lane counts keys as unassigned that a worker has taken",
        path="pool/redis/lua/pull.lua",
        old="  tally('unassigned', -#keys)\n",
        new="",
    ),
    Mutant(
        name="owned for ever",
        breaks="a worker that has given a key up is still listed as its owner",
        path="pool/redis/lua/lib/finish.lua",
        old="    later('SREM', source_owned, key)\n",
        new="",
        by=(f"{_CRASHES}[leave]",),
    ),
    Mutant(
        name="two runs of a key in one process",
        breaks="a key that comes back is started while its former handler still ends",
        path="pool/jobs/worker/executor.py",
        old="        if busy is not None and busy is not run:",
        new="        if busy is not None and not busy.key:",
        by=(
            "tests/jobs/test_workers.py::test_a_key_outlives_its_removed_worker_together_with_a_handler_that_does_not_end",
        ),
    ),
    Mutant(
        name="a lost signal is no gap",
        breaks="messages behind one whose signal was lost are handled before it",
        path="pool/jobs/job.py",
        old="        is_next = number_in(message) > last and before in (0, last)",
        new="        is_next = number_in(message) > last",
        by=(
            "tests/jobs/test_object_form.py::test_what_comes_behind_a_message_whose_signal_was_lost_waits_for_it",
        ),
    ),
    Mutant(
        name="handled means all",
        breaks="what was handled takes the messages behind it along",
        path="pool/redis/lua/advance.lua",
        old="    if not entry or (gone >= most and string.find(entry, '^%d+|')) then",
        new="    if not entry then",
    ),
    Mutant(
        name="a resumed job reads no inbox",
        breaks="messages that came while its handler was stopped are not read (found by seed 18)",
        path="pool/jobs/worker/worker.py",
        old='if run.is_acknowledged or "i" in start.flags:',
        new='if "i" in start.flags:',
        by=(
            "tests/jobs/test_services.py::test_what_came_while_a_service_ended_for_its_lease_is_handled_when_it_goes_on",
        ),
    ),
    Mutant(
        name="an older grant is nobody's",
        breaks="after lost data a grant older than the last settlement is left (found by seed 122)",
        path="pool/jobs/worker/reconcile.py",
        old="        else:  # the server went back",
        new="        elif not memory.latest.get(start.key):  # the server went back",
        by=(
            "tests/jobs/test_keepalive.py::test_a_start_of_before_what_was_settled_last_is_begun_anew_by_who_has_it",
        ),
    ),
    Mutant(
        name="one lane's loss is every lane's",
        breaks="when one lane has lost its data, all identities rise in all lanes",
        path="pool/jobs/fleet/membership.py",
        old="        self._joined = {each for each in self._joined if each[0] != number}\n"
        "        for name in self._missing(state):\n"
        "            self._raise(state, name)\n",
        new="        self._joined.clear()\n"
        "        for each in context.lanes:\n"
        "            for name in self._missing(each):\n"
        "                self._raise(each, name)\n"
        "            self._settle_soon(each.number)\n",
        by=(
            "tests/jobs/test_islands.py::test_the_control_keys_lost_with_one_lane_are_that_lanes_loss",
        ),
    ),
    Mutant(
        name="lease of a lane not joined",
        breaks="a lease that never was ends: who joins that lane late starts nothing there",
        path="pool/jobs/fleet/keepalive.py",
        old="        return [state for state in self.context.lanes if state.lane.generation]",
        new="        return list(self.context.lanes)",
        by=("tests/jobs/test_islands.py::test_nodes_and_workers_join_without_a_lane_that_hangs",),
    ),
    Mutant(
        name="lane joined anew as it was",
        breaks="a lane that lost its data has the same generation again: nobody is told",
        path="pool/redis/lua/join.lua",
        old="  had = generation .. '.' .. time[1] .. string.format('%06d', tonumber(time[2]))",
        new="  had = generation .. '.1'",
        by=("tests/jobs/test_islands.py::test_a_lane_that_lost_its_data_is_joined_anew_by_itself",),
    ),
    Mutant(
        name="full server that nobody joins",
        breaks="who would drain a full server cannot join it",
        path="pool/redis/lua/join.lua",
        old="redis.call('ZREM', keepalive, '\\n') -- on a full server too: who joins it drains it",
        new="",
        by=("tests/jobs/test_full_server.py::test_a_worker_joins_a_full_server_and_drains_it",),
    ),
    Mutant(
        name="full server that nobody is announced on",
        breaks="the pool's own map is refused like any other: nobody comes, or goes in peace",
        path="pool/redis/lua/lib/rmap.lua",
        old="  if kind ~= 'grow' or name == 'workers' then",
        new="  if kind ~= 'grow' then",
        by=("tests/jobs/test_full_server.py::test_a_worker_joins_a_full_server_and_drains_it",),
    ),
    Mutant(
        name="map whose stamps are what the writer drew alone",
        breaks="a call done in two histories makes one position of them, and a copy mixes them",
        path="pool/redis/lua/lib/rmap.lua",
        old="string.sub(redis.sha1hex(stamp .. nonce), 1, 16)",
        new="nonce",
        by=("tests/redis/test_rmap_scripts.py::test_a_stamp_names_a_whole_history",),
    ),
    Mutant(
        name="map whose lost write is taken for reached",
        breaks="who waits for a write that a failover lost hears that it is there, by its number",
        path="pool/maps/deltas.py",
        old="return self.proves(at) if is_told else at.revision",
        new="return at.revision",
        by=(
            "tests/maps/test_forks.py::test_a_history_of_equal_numbers_is_not_taken_for_ours",
            "tests/maps/test_deltas.py",
        ),
    ),
    Mutant(
        name="copy that passed is not asked for its stamp",
        breaks="who waits for a position is released by the same number of another history",
        path="pool/maps/replica.py",
        old="        return at.revision == 0 or self._passed.get(at.revision) == at.stamp",
        new="        return at.revision == 0 or at.revision in self._passed",
        by=("tests/maps/test_forks.py::test_a_history_of_equal_numbers_is_not_taken_for_ours",),
    ),
    Mutant(
        name="a life whose numbers go on",
        breaks="what a cap took of a stream's new life is neither read nor told",
        path="pool/streams/reader.py",
        old="is_another = cursor.is_of_another(facts) or cursor.is_apart_from(facts)",
        new="is_another = cursor.is_apart_from(facts)",
        by=("tests/streams/test_reader.py::test_what_a_cap_took_of_a_streams_new_life_is_told",),
    ),
    Mutant(
        name="what is on its way is unknown",
        breaks="an event that was read and not buffered is given to a second one as well",
        path="pool/streams/sink_hands.py",
        old="        known |= self._coming(source)\n",
        new="",
        by=("tests/streams/test_sink.py::test_what_is_on_its_way_to_the_program_is_not_unknown",),
    ),
    Mutant(
        name="a suspect that is noted is unknown",
        breaks="a suspect is given to a second one while it is handed out",
        path="pool/streams/sink_hands.py",
        old="            known.add(trial.event.id)  # it is being noted",
        new="            pass  # it is being noted",
        by=("tests/streams/test_sink.py::test_a_suspect_that_is_being_noted_is_not_unknown",),
    ),
    Mutant(
        name="log that skips a lost write is taken for one that forgot it",
        breaks="where a map has ended and lives again, a lost write is said to be there",
        path="pool/redis/lua/rmap_find.lua",
        old="'-', 'COUNT', 1)[1]) and '0' or false",
        new="'-', 'COUNT', 1)[2]) and '0' or false",
        by=(
            "tests/maps/test_forks.py::test_a_lost_write_is_told_where_the_numbers_were_skipped",
            "tests/redis/test_rmap_scripts.py::test_a_position_is_found_in_the_log_or_known_to_be_lost",
        ),
    ),
    Mutant(
        name="map that began behind a lost write is taken for one that forgot it",
        breaks="where the control keys were lost and put back, a lost write is said to be there",
        path="pool/redis/lua/rmap_find.lua",
        old="  local began = before == '0' and floor and",
        new="  local began = before == '' and floor and",
        by=(
            "tests/maps/test_replica.py::test_a_write_is_lost_where_its_map_has_begun_anew_in_the_same_generation",
            "tests/redis/test_rmap_scripts.py::test_what_is_below_where_its_map_began_is_lost_unless_one_has_ended_above_it",
        ),
    ),
    Mutant(
        name="copy behind the log that answers by its number",
        breaks="who waits behind a fork is released by a copy that is along what was lost",
        path="pool/maps/replica.py",
        old="        is_ours_there = found.history.proves(found.ours)\n",
        new="        is_ours_there = found.history.has(found.ours)\n",
        by=(
            "tests/maps/test_replica.py::test_a_copy_that_the_log_does_not_reach_back_to_answers_nobody",
        ),
    ),
    Mutant(
        name="map that ends by the server's clock",
        breaks="a clock that is set an hour on ends every map that has an end",
        path="pool/redis/lua/rmap_probe.lua",
        old="  if expected_ms > now or (expected_ms > 0 and now - expected_ms > STEP_MS) then",
        new="  if clock ~= now then now = clock end\n  if false then",
        by=(
            "tests/redis/test_rmap_scripts.py::test_no_step_of_the_clock_and_no_time_without_anybody_ends_a_map",
        ),
    ),
    Mutant(
        name="ended maps that are handed to everybody",
        breaks="each of a thousand processes ends each map that has ended",
        path="pool/redis/lua/rmap_probe.lua",
        old="    redis.call('ZADD', due, whole(now + late_ms), name)",
        new="",
        by=(
            "tests/redis/test_rmap_scripts.py::test_each_ended_map_is_handed_to_one_and_to_another_if_he_dies",
        ),
    ),
    Mutant(
        name="one page of ended maps in a period",
        breaks="with many maps a copy hears of its end many periods late",
        path="pool/maps/follower.py",
        old="            ended_count = len(reply.ended)",
        new="            ended_count = 0",
        by=("tests/maps/test_outages.py::test_one_process_ends_all_that_have_ended_in_one_period",),
    ),
    Mutant(
        name="map that begins below where one has ended",
        breaks="with the clock behind, a reader waits at an id that does not come",
        path="pool/redis/lua/lib/rmap.lua",
        old="  return math.max(revision, logged, floor(), micros - 1)",
        new="  return math.max(revision, logged, micros - 1)",
        by=("tests/redis/test_rmap_scripts.py::test_no_map_begins_below_where_one_has_ended",),
    ),
    Mutant(
        name="map whose log is bounded by count alone",
        breaks="a map of 4 MiB that is rewritten holds gigabytes of log",
        path="pool/redis/lua/lib/rmap.lua",
        old="math.floor(LOG_BYTES / (#text + 100))",
        new="LOG_DELTAS",
        by=("tests/redis/test_rmap_scripts.py::test_the_log_is_bounded_in_bytes",),
    ),
    Mutant(
        name="map whose broken log stops its neighbours",
        breaks="a foreign value under one map's log fails every read of its process",
        path="pool/maps/follower.py",
        old="                    reading.is_off = message.damaged == reading.stream",
        new="                    reading.is_off = False",
        by=(
            "tests/maps/test_outages.py::test_a_foreign_value_fails_its_own_map_alone_and_is_named",
        ),
    ),
    Mutant(
        name="copy that is not counted",
        breaks="items that another hand has deleted stay in every copy",
        path="pool/maps/deltas.py",
        old="        if counts in ((-1, -1), self.state.counts):",
        new="        if True:",
        by=(
            "tests/maps/test_outages.py::test_what_an_operator_deletes_of_a_map_is_gone_from_its_copies_too",
            "tests/maps/test_deltas.py",
        ),
    ),
    Mutant(
        name="map whose pages never get smaller",
        breaks="over a line that breaks, a page that no connection can carry is asked for for ever",
        path="pool/maps/commands.py",
        old="                self._bytes_max = max(self._bytes_max // 2, PAGE_BYTES_MIN)\n",
        new="",
        by=(
            "tests/maps/test_slow_lines.py::test_a_line_that_breaks_again_and_again_carries_a_map",
        ),
    ),
    Mutant(
        name="map whose page is repeated at its size",
        breaks="a line that breaks carries the same large page again for a whole call's time",
        path="pool/maps/commands.py",
        old="paged = await stored._call(pipeline, call, repeatable=False)",
        new="paged = await stored._call(pipeline, call, repeatable=True)",
        by=(
            "tests/maps/test_slow_lines.py::test_a_line_that_breaks_again_and_again_carries_a_map",
        ),
    ),
    Mutant(
        name="map that is begun again from nothing",
        breaks="a line that is lost while a map opens costs all pages that had come (G2)",
        path="pool/maps/commands.py",
        old="                self._bytes_max = max(self._bytes_max // 2, PAGE_BYTES_MIN)\n",
        new="                self._bytes_max = max(self._bytes_max // 2, PAGE_BYTES_MIN)\n"
        "                self._begin_anew()\n",
        by=("tests/maps/test_slow_lines.py::test_a_line_cut_in_the_middle_costs_one_page",),
    ),
    Mutant(
        name="map whose pages are of two revisions",
        breaks="what was written between two pages is in none of them",
        path="pool/maps/deltas.py",
        old="            self._change(delta.edits)\n",
        new="",
        by=("tests/maps/test_slow_lines.py::test_what_is_written_while_a_map_opens_is_in_it",),
    ),
    Mutant(
        name="map whose pages hold up the node's calls",
        breaks="while a map opens, each call of the node waits behind a page of it (G2)",
        path="pool/maps/replica.py",
        old="                    if pages.is_begun and pipeline is self.pipeline:",
        new="                    if False:",
        by=("tests/maps/test_slow_lines.py::test_other_calls_of_the_node_go_on_while_a_map_opens",),
    ),
    Mutant(
        name="end that is found in one place alone",
        breaks="a map whose place among the ends was deleted never ends for who has it open",
        path="pool/redis/lua/rmap_probe.lua",
        old="        redis.call('ZADD', due, 'NX', whole(ends), name)\n",
        new="",
        by=(
            "tests/maps/test_outages.py::test_a_map_ends_though_its_place_among_the_ends_was_deleted",
            "tests/redis/test_rmap_scripts.py::test_what_lacks_where_ends_are_found_is_put_back",
        ),
    ),
    Mutant(
        name="foreign value among the ends that fails writes",
        breaks="a foreign value at a key that all maps share refuses writes, and ends stop",
        path="pool/redis/lua/lib/rmap.lua",
        old="    redis.pcall('ZADD', due, whole(ends), name)\n",
        new="    redis.call('ZADD', due, whole(ends), name)\n",
        by=(
            "tests/redis/test_rmap_scripts.py::test_foreign_data_under_the_shared_keys_stop_only_ends",
        ),
    ),
    Mutant(
        name="foreign value that all maps share, told to nobody",
        breaks="ends stop, and no event says why",
        path="pool/maps/follower.py",
        old="            for key in sorted(answer.damaged - self._damaged):\n",
        new="            for key in ():\n",
        by=(
            "tests/maps/test_outages.py::test_a_foreign_value_that_all_maps_share_is_named_and_ends_go_on_behind_it",
        ),
    ),
    Mutant(
        name="page that reads the latest change",
        breaks="each page of a list that grew by large appends costs the server the latest of them",
        path="pool/redis/lua/rmap_page.lua",
        old="if not from or redis.call('XRANGE', log,",
        new="if true or redis.call('XRANGE', log,",
        by=(
            "tests/redis/test_rmap_scripts.py::test_a_page_reads_nothing_of_the_log_that_it_does_not_bring",
        ),
    ),
    Mutant(
        name="map that stays open when its node is closed",
        breaks="who watches a map of a node that was closed waits for ever",
        path="pool/maps/replica.py",
        old="                watching.end()\n",
        new="                pass\n",
        by=("tests/maps/test_map.py::test_a_map_that_outlives_its_node_is_closed_with_it",),
    ),
    Mutant(
        name="watch without a bound in bytes",
        breaks="a watch that nobody reads holds 4,096 changes of a long list: hundreds of MiB (G5)",
        path="pool/maps/watch.py",
        old="        is_heavy = self._bytes > WATCH_BYTES_MAX and held > 1\n",
        new="        is_heavy = False\n",
        by=("tests/maps/test_map.py::test_a_watch_that_is_not_read_is_bounded_in_bytes",),
    ),
    Mutant(
        name="update that brings back what was there",
        breaks="256 former values, 16 MiB of them, come on the connection of the node's calls",
        path="pool/redis/lua/rmap_write.lua",
        old="op ~= 'put' and now",
        new="now",
        by=("tests/redis/test_rmap_scripts.py::test_no_answer_is_larger_than_one_value",),
    ),
    Mutant(
        name="reads by count instead of bytes",
        breaks="of large events as many are read at once as of small ones",
        path="pool/redis/reads.py",
        old="        return max(1, min(wanted, self.most, fit))",
        new="        return max(1, min(wanted, self.most))",
        by=(
            "tests/streams/test_slow_lines.py::test_a_buffer_is_bounded_in_bytes",
            "tests/streams/test_stream.py::test_a_snapshot_holds_a_page_and_no_more",
        ),
    ),
    Mutant(
        name="read that stays as large when it fails",
        breaks="over a line that breaks, the same read is asked for for ever (G2)",
        path="pool/redis/reads.py",
        old="        self.most = max(1, self.of(wanted, streams) // 2)",
        new="        pass",
        by=(
            "tests/streams/test_slow_lines.py::test_a_line_that_breaks_carries_what_is_small_enough",
        ),
    ),
    Mutant(
        name="full server that forgets what it took",
        breaks="a repeated dispatch is refused by a full server though the first try was accepted",
        path="pool/jobs/client/dispatcher.py",
        old="        if isinstance(reply, StorageFull) and not admitted.only_answered:",
        new="        if False:",
        by=("tests/jobs/test_full_server.py",),
    ),
    Mutant(
        name="down when its last handler has ended",
        breaks="a crashed worker is well, and given keys, for as long as a handler of its goes on",
        path="pool/runtime/supervisor.py",
        old="        actor.on_crash = fall\n",
        new="",
        by=(
            "tests/jobs/test_leaving.py::test_a_worker_is_down_from_its_crash_on_however_long_its_handlers_take",
        ),
    ),
    Mutant(
        name="who fails to join stays",
        breaks="a worker whose joining was cancelled is announced, open, and renewed by nobody",
        path="pool/jobs/wiring.py",
        old="                        self._begin_giving_up(worker, 0.0)\n",
        new="                        pass\n",
        by=("tests/jobs/test_leaving.py::test_a_worker_whose_joining_is_cancelled_is_not_there",),
    ),
    Mutant(
        name="judged at the lease's end alone",
        breaks="a handler that was told to end only after a freeze lives on beside the next owner",
        path="pool/jobs/wiring.py",
        old="        if lane not in self._judging:\n",
        new="        if False:\n",
        by=(
            "tests/process/test_overrun.py::test_a_process_lives_beside_the_next_owner_only_if_its_handlers_end",
        ),
    ),
    Mutant(
        name="who was found to overrun is found again",
        breaks="a process that is about to end is told so by each look",
        path="pool/jobs/wiring.py",
        old="        new = [run for run in runs if not run.has_overrun]\n",
        new="        new = list(runs)\n",
        by=("tests/jobs/test_leaving.py::test_an_overrun_ends_the_process_once",),
    ),
    Mutant(
        name="judged by the lease of the node",
        breaks="a handler of a removed worker lives on beside the next owner while leaving waits",
        path="pool/jobs/wiring.py",
        old="        going.owns, judged = len(worker.runs), self._judge_abandoned(worker)\n"
        "        with anyio.move_on_after(call_s):\n"
        "            going.owns = await self.membership.give_up(worker)\n",
        new="        going.owns = len(worker.runs)\n"
        "        with anyio.move_on_after(call_s):\n"
        "            going.owns = await self.membership.give_up(worker)\n"
        "        judged = self._judge_abandoned(worker)\n",
        by=(
            "tests/jobs/test_leaving.py::test_a_handler_that_outlives_the_lease_of_its_removed_worker_is_an_overrun",
        ),
    ),
    Mutant(
        name="an entry is taken out at once or never",
        breaks="a worker that has left is listed for ten TTLs where the store failed just then",
        path="pool/jobs/fleet/announcer.py",
        old="if self._left or any(",
        new="if any(",
        by=(
            "tests/jobs/test_leaving.py::test_an_entry_that_could_not_be_taken_out_is_taken_out_later",
        ),
    ),
    Mutant(
        name="who could not say that it drains is unknown",
        breaks="likewise where the store failed when it began to drain",
        path="pool/jobs/fleet/announcer.py",
        old='                await self._tried("close", self.write(worker))  # else it is due\n',
        new="                self._known.discard(worker.id)\n"
        '                await self._tried("close", self.write(worker))\n',
        by=(
            "tests/jobs/test_leaving.py::test_an_entry_that_could_not_be_taken_out_is_taken_out_later",
        ),
    ),
    Mutant(
        name="a node leaves its workers' entries",
        breaks="likewise where it was the last worker of a node that leaves",
        path="pool/jobs/fleet/membership.py",
        old="            leaving.start_soon(self.announcer.withdraw)",
        new="            if who is not None:\n"
        "                leaving.start_soon(self.announcer.withdraw)",
        by=(
            "tests/jobs/test_leaving.py::test_an_entry_that_could_not_be_taken_out_is_taken_out_later",
        ),
    ),
    Mutant(
        name="arguments have an order of names",
        breaks="a producer that names them in another order has its jobs begin anew each turn",
        path="pool/core/codec.py",
        old="        kwargs = dict(sorted(kwargs.items()))",
        new="        pass",
        by=(
            "tests/core/test_codec.py::test_the_order_in_which_arguments_are_named_makes_no_others",
        ),
    ),
    Mutant(
        name="what only looked was carried out",
        breaks="a stop of which nothing was written says that it may have been carried out",
        path="pool/errors.py",
        old="problem=error.problem.removeprefix(_TRIED)",
        new="problem=error.problem",
        by=(
            "tests/jobs/test_unsure.py::test_what_only_looked_is_not_said_to_have_been_carried_out",
        ),
    ),
    Mutant(
        name="any other shutdown is a new one",
        breaks="old data that come back drain the whole fleet",
        path="pool/jobs/wiring.py",
        old="        if stamp > self._shutdown_seen:",
        new="        if stamp and stamp != self._shutdown_seen:",
        by=(
            "tests/jobs/test_leaving.py::test_a_shutdown_of_before_is_not_obeyed_when_old_data_come_back",
        ),
    ),
    Mutant(
        name="a part that fell stays down",
        breaks="an actor that crashed is not run again, and its node goes on (13.1)",
        path="pool/runtime/supervisor.py",
        old="            if pause_s is None:\n                return\n            try:",
        new="            if pause_s is not None:\n                return\n            try:",
        by=(
            "tests/runtime/test_supervisor.py::test_whatever_a_part_raises_restarts_it_and_the_node_goes_on",
        ),
    ),
    Mutant(
        name="what is gone from `open` is not said again",
        breaks="a renewal says what a worker takes only where it stands already (13.3)",
        path="pool/redis/lua/renew.lua",
        old="    elseif says[at] then",
        new="    elseif says[at] and had then",
        by=(
            "tests/jobs/test_keepalive.py::test_what_an_operator_deletes_is_there_again_two_periods_later",
        ),
    ),
    Mutant(
        name="one lane's look holds up the others'",
        breaks="while a lane is looked after, no other one is (13.5)",
        path="pool/runtime/timers.py",
        old="                if lane in self._looking:",
        new="                if self._looking:",
        by=("tests/runtime/test_timers.py",),
    ),
    Mutant(
        name="the last try's error is told",
        breaks="a dispatch of which an earlier try may have arrived is said to be not done (13.9)",
        path="pool/jobs/client/dispatcher.py",
        old="        self.resolve(unsure(error) if self.maybe_done else attrs.evolve(error))",
        new="        self.resolve(attrs.evolve(error))",
        by=("tests/jobs/test_unsure.py::test_a_dispatch_tells_the_union_of_its_tries",),
    ),
    Mutant(
        name="lost data deny what was done before",
        breaks="a message that was handled is said to be refused once its server has lost its data "
        "(13.9)",
        path="pool/errors.py",
        old="        return attrs.evolve(error, maybe_done=True)\n    if not",
        new="        return attrs.evolve(error)\n    if not",
        by=("tests/jobs/test_unsure.py::test_a_server_without_its_data_denies_no_earlier_try",),
    ),
    Mutant(
        name="a try without time hides what the server said",
        breaks="a refusal (NOREPLICAS, BUSY) is told as calls that took too long",
        path="pool/redis/pipeline.py",
        old="if said is None or error.problem != LATE:",
        new="if True:",
        by=("tests/redis/test_pipeline.py::test_a_try_without_time_hides_no_refusal",),
    ),
    Mutant(
        name="what a link repeats is refused by a server without its data",
        breaks="of what a link repeats, an error but those of three kinds denies the tries before "
        "it (13.9)",
        path="pool/redis/pipeline.py",
        old="            except (StoreError, NotRunning) as error:  # of this try alone",
        new="            except StoreFault as error:",
        by=(
            "tests/jobs/test_unsure.py::test_what_a_link_repeats_is_not_said_to_be_refused",
            "tests/jobs/test_unsure.py::test_a_server_without_its_data_denies_no_earlier_try",
        ),
    ),
    Mutant(
        name="a stop whose end nobody tells is over",
        breaks="whoever waits for the end of what was stopped hears of a loss that it has come",
        path="pool/jobs/client/ref.py",
        old="        case StoreLost() as lost:\n            raise unsure(lost)",
        new="        case StoreLost():\n            pass",
        by=("tests/jobs/test_unsure.py::test_a_stop_whose_end_nobody_tells_may_be_done",),
    ),
    Mutant(
        name="a second death has what the first one left",
        breaks="one that kills after a while outlives a trial that is cut short, and the next "
        "suspect looks guilty (13.8)",
        path="pool/jobs/trials.py",
        old="not wave.waiting or now_s > wave.since_s + WAVE_S:",
        new="not wave.waiting or now_s > wave.since_s + 2 * TRIALS_S:",
        by=("tests/jobs/test_trials.py::test_a_second_death_has_a_time_of_its_own",),
    ),
    Mutant(
        name="each suspect has the same share of the time",
        breaks="where there is not enough time for all, the most suspected have no more of it than "
        "the others (13.8)",
        path="pool/jobs/trials.py",
        old="        for_s = should * each_s",
        new="        for_s = min(should * TRIAL_S, each_s)",
        by=("tests/jobs/test_trials.py::test_the_most_suspected_keep_more_where_time_is_short",),
    ),
    Mutant(
        name="a trial begins with the launch",
        breaks="a process that stands still before it calls the handler has no trial left, and the "
        "next suspect looks guilty (13.8)",
        path="pool/jobs/worker/executor.py",
        old="        self.on_launch(run)\n",
        new="        if run.start.marks.deaths:\n"
        "            self._try(run)\n"
        "        self.on_launch(run)\n",
        by=("tests/jobs/test_workers.py::test_a_trial_begins_when_the_handler_is_called",),
    ),
    Mutant(
        name="suspects come as they have asked",
        breaks="those of a later death take the time of the earlier one's (13.8)",
        path="pool/jobs/trials.py",
        old="            for fn in sorted(waiting, key=waiting.__getitem__):",
        new="            for fn in waiting:",
        by=(
            "tests/jobs/test_trials.py::test_the_earliest_death_comes_first_and_the_most_suspected_last",
        ),
    ),
    Mutant(
        name="one reply silences its batch",
        breaks="whoever raises at his answer keeps all behind him from theirs (A6)",
        path="pool/redis/pipeline.py",
        old="            except Exception as error:  # noqa: BLE001 - told, whatever it is",
        new="            except OSError as error:",
        by=(
            "tests/runtime/test_bodies.py::test_who_raises_at_his_reply_keeps_nobody_else_from_theirs",
        ),
    ),
    Mutant(
        name="the number of statuses is not checked",
        breaks="a reply with too few statuses is taken for one, and its reader falls over it (A3)",
        path="pool/redis/scripts.py",
        old="        if self.parts is not None and not is_text and len(reply) != self.parts:",
        new="        if False:",
        by=("tests/redis/test_scripts.py::test_a_reply_with_too_few_or_too_many_statuses_is_none",),
    ),
    Mutant(
        name="a name that no socket takes is a crash",
        breaks="one sentinel that names a place that cannot be ends every node (A3)",
        path="pool/redis/connection.py",
        old="        except Exception as error:  # noqa: BLE001 - a name that was told us",
        new="        except OSError as error:  # a name that was told us",
        by=("tests/redis/test_pipeline.py::test_a_place_that_no_socket_takes_cannot_be_reached",),
    ),
    Mutant(
        name="a line that moves is a dead one",
        breaks="who waits behind what takes long is given up, however fast that gets on (E2)",
        path="pool/redis/pipeline.py",
        old="        if call.deadline_s <= now_s and (moved_s := self.moved_s()) > call.asked_s:",
        new="        if False and (moved_s := self.moved_s()) > call.asked_s:",
        by=(
            "tests/redis/test_slow_lines.py::test_calls_that_last_longer_than_their_time_out_are_only_slow",
        ),
    ),
    Mutant(
        name="an exchange has one deadline",
        breaks="a reply that takes longer than its time-out is lost, and asked for again (E2, G2)",
        path="pool/redis/connection.py",
        old="        self._until_s = self._clock() + timeout_s if until_s is None else until_s",
        new="        self._until_s = self._clock() + timeout_s",
        by=(
            "tests/redis/test_slow_lines.py::test_replies_that_last_longer_than_their_time_out_are_only_slow",
        ),
    ),
    Mutant(
        name="all that is large is asked for at once",
        breaks="what a line carries in no call's time fails, and is asked for again, for ever",
        path="pool/redis/reads.py",
        old="        is_light = (self._count + 1) * self._expected <= READ_BYTES_MAX",
        new="        is_light = True",
        by=(
            "tests/jobs/test_slow_lines.py::test_a_worker_behind_a_slow_line_fetches_each_payload_once",
        ),
    ),
    Mutant(
        name="all outcomes are told at once",
        breaks="who waits for large results over a slow line gets none, and asks for all again",
        path="pool/redis/lua/look.lua",
        old="  elseif bytes > bytes_max then",
        new="  elseif bytes > bytes_max and false then",
        by=("tests/redis/test_talk_scripts.py::test_a_look_tells_outcomes_up_to_so_many_bytes",),
    ),
    Mutant(
        name="what drips has no end",
        breaks="a server that sends a byte now and then is waited for without end",
        path="pool/redis/connection.py",
        old="        left_s = min(self._timeout_s, self._until_s - now_s)",
        new="        left_s = self._timeout_s",
        by=("tests/redis/test_slow_lines.py::test_a_line_that_only_drips_has_an_end",),
    ),
    Mutant(
        name="what the system takes is progress",
        breaks="each try on a dead line keeps those alive who wait for it",
        path="pool/redis/io/task.py",
        old="                if has_waited:",
        new="                if True:",
        by=(
            "tests/redis/test_slow_lines.py::test_what_the_system_takes_of_a_dead_line_is_no_progress",
        ),
    ),
    Mutant(
        name="what waits is bounded by number",
        breaks="a burst of large calls fills the memory of its node (E2)",
        path="pool/redis/pipeline.py",
        old="self._aside_bytes + call.size > WAITING_BYTES_MAX:",
        new="False:",
        by=("tests/redis/test_slow_lines.py::test_what_is_too_much_to_wait_is_refused_at_once",),
    ),
    Mutant(
        name="the first end goes alone",
        breaks="of many that end at once all but one wait for a round trip more",
        path="pool/jobs/worker/worker.py",
        old="        if self._executor.called and not box.is_flying:",
        new="        if False:",
        by=(
            "tests/jobs/test_room.py::test_what_ends_in_one_turn_of_the_loop_goes_out_as_one_batch",
        ),
    ),
    Mutant(
        name="a pull overtakes what frees its slots",
        breaks="behind each large batch a worker is told that it has no free slot, and waits",
        path="pool/redis/pipeline.py",
        old="        return command.script.behind or command.script, command.args",
        new="        return command.script, command.args",
        by=(
            "tests/redis/test_room.py::test_a_pull_does_not_overtake_the_ends_that_free_its_slots",
        ),
    ),
    Mutant(
        name="what left as a whole did not leave",
        breaks="what had left of a pipeline when it was cut is said to be not done (13.9)",
        path="pool/redis/io/body.py",
        old="        if sent_bytes < 0:\n            return i\n",
        new="        if sent_bytes < 0:\n            return 0\n",
        by=("tests/redis/test_slow_lines.py::test_of_a_command_that_left_in_part_nothing_is_done",),
    ),
    Mutant(
        name="who was refused waits while others move",
        breaks="what is tried again and again has no deadline as long as the line moves (I32)",
        path="pool/jobs/client/dispatcher.py",
        old="        if self.failure is None:",
        new="        if True:",
        by=(
            "tests/jobs/test_unsure.py::test_what_was_tried_gets_no_more_time_because_others_move",
        ),
    ),
    Mutant(
        name="a late answer is a line that moves",
        breaks="a request to a key that moves outlasts its time, as its own loop was late",
        path="pool/jobs/client/requests.py",
        old="min(self.moved_s() + self.op_timeout_s, self.until_s)",
        new="min(self.clock() + self.op_timeout_s, self.until_s)",
        by=(
            "tests/jobs/test_dispatch.py::test_all_tries_to_reach_a_key_that_moves_share_one_deadline",
            "tests/jobs/test_unsure.py::test_a_late_answer_gives_a_request_time_from_when_the_line_moved",
        ),
    ),
    Mutant(
        name="a call that moves on has no end",
        breaks="what is asked for over a slow line may be sent again when nobody knows it any more",
        path="pool/redis/pipeline.py",
        old="min(moved_s + self._op_timeout_s, call.until_s))",
        new="moved_s + self._op_timeout_s)",
        by=("tests/redis/test_slow_lines.py::test_what_did_not_leave_in_time_is_not_done",),
    ),
    Mutant(
        name="the first address has all the time",
        breaks="a host whose first address drops packets is never reached",
        path="pool/redis/connection.py",
        old="_left_s(deadline_s, clock) / (len(addresses) - i + 1)",
        new="_left_s(deadline_s, clock)",
        by=(
            "tests/redis/test_pipeline.py::test_an_address_that_drops_packets_leaves_time_for_the_others",
        ),
    ),
    Mutant(
        name="a loop that hung gives up what was answered",
        breaks="calls whose replies came while a handler blocked the loop fail, maybe done (A5)",
        path="pool/redis/pipeline.py",
        old="        if self.is_put_off or not self.is_sent or now_s < self.deadline_s + _LATE_S:",
        new="        if now_s >= self.deadline_s:",
        by=("tests/redis/test_task.py::test_a_reply_that_came_while_the_loop_hung_is_in_time",),
    ),
    Mutant(
        name="the many found the pool",
        breaks="who opens nothing anew joins another pool though a lane knows his (B4)",
        path="pool/runtime/pool_config.py",
        old="    pool = own if own in named else Counter",
        new="    pool = Counter",
        by=(
            "tests/jobs/test_islands.py::test_a_lane_that_has_our_pool_outweighs_two_that_have_another",
        ),
    ),
    Mutant(
        name="a silent lane knows nothing",
        breaks="control keys lost while a lane hangs found another pool beside it (B4)",
        path="pool/runtime/pool_config.py",
        old="        if (silent or refused) and lanes_of_pool(own):",
        new="        if refused and lanes_of_pool(own):",
        by=("tests/jobs/test_islands.py::test_a_lane_that_is_silent_to_who_asks_it_may_know",),
    ),
    Mutant(
        name="what comes unasked is somebody's",
        breaks="a connection that spoke while nobody asked is used for the next call (C4)",
        path="pool/redis/connection.py",
        old="        return self._poll is None or not self._poll.poll(0)",
        new="        return True",
        by=("tests/redis/test_bad_replies.py::test_what_is_said_unasked_answers_nobody",),
    ),
    Mutant(
        name="what cannot be read is raised",
        breaks="a reply that its reader cannot read is no fault of the call but a crash (A3)",
        path="pool/redis/io/body.py",
        old="    except Exception as error:  # noqa: BLE001\n        name",
        new="    except AssertionError as error:\n        name",
        by=("tests/redis/test_bad_replies.py::test_a_strange_reply_is_its_calls_alone",),
    ),
    Mutant(
        name="an unreadable answer says not done",
        breaks="a dispatch whose reply cannot be read is told as surely not done (13.9)",
        path="pool/errors.py",
        old="    maybe_done: bool = True  # such an answer",
        new="    maybe_done: bool = False  # such an answer",
        by=("tests/redis/test_bad_replies.py::test_a_strange_reply_is_its_calls_alone",),
    ),
    Mutant(
        name="a body that returned is not missed",
        breaks="a connection's body that ends without an error is not run again (13.1)",
        path="pool/redis/io/task.py",
        old="            if _is_closing(body_io):\n                return\n"
        "            body_io.connection.close()",
        new='            if _is_closing(body_io) or "returned" in str(crash):\n'
        "                return\n            body_io.connection.close()",
        by=("tests/runtime/test_bodies.py::test_a_part_that_crashes_is_told_and_goes_on",),
    ),
    Mutant(
        name="a stranger ends a body's pause",
        breaks="a body that is cancelled between two lives is gone, and nobody told (13.1)",
        path="pool/redis/io/task.py",
        old="            await unmoved(partial(body_io.pause, sum(filter(None, told))))",
        new="            await body_io.pause(sum(filter(None, told)))",
        by=("tests/runtime/test_bodies.py::test_a_stranger_who_never_rests_kills_no_body",),
    ),
    Mutant(
        name="a body that never began is not missed",
        breaks="one that is cancelled before its first step neither ends nor begins (13.1)",
        path="pool/redis/io/task.py",
        old="            if not self._has_begun:",
        new="            if self._is_struck:",
        by=(
            "tests/redis/test_task.py::test_a_body_that_a_stranger_cancels_before_its_first_step_is_told",
        ),
    ),
    Mutant(
        name="what nobody reads is told for ever",
        breaks="the end of an idle connection, or stray bytes on it, keep the event loop turning",
        path="pool/redis/io/loops.py",
        old="        if self._waiter.done():\n            self.close()",
        new="        if self._waiter.done():",
        by=("tests/redis/test_readable.py::test_what_arrives_for_nobody_is_told_once_and_kept",),
    ),
    Mutant(
        name="a closed socket is watched",
        breaks="the next connection has its number and hears nothing",
        path="pool/redis/io/task.py",
        old="            self._readable.close()",
        new="            pass",
        by=(
            "tests/redis/test_readable.py::test_a_stranger_who_cancels_a_wait_for_replies_ends_the_connection_alone",
        ),
    ),
    Mutant(
        name="what was read is late all the same",
        breaks="a loop that hung loses a connection whose reply came in time (6)",
        path="pool/redis/io/task.py",
        old="        self._deadline_s = _NEVER  # in time",
        new="        pass  # in time",
        by=("tests/redis/test_task.py::test_a_reply_that_came_while_the_loop_hung_is_in_time",),
    ),
    Mutant(
        name="bodies outlive their task scope",
        breaks="a node that ended without leaving renews its leases for ever (13.1)",
        path="pool/runtime/supervisor.py",
        old="        for body in list(self._bodies):",
        new="        for body in ():",
        by=("tests/runtime/test_bodies.py::test_a_body_ends_with_whoever_cares_for_it",),
    ),
    Mutant(
        name="a stranger ends the task scope",
        breaks="one cancelled task of its own ends the node's block (13.1)",
        path="pool/runtime/task_scope.py",
        old="                if is_asked_for():\n                    raise",
        new="                if self._after_opener:\n                    raise",
        by=(
            "tests/runtime/test_task_scope.py::test_a_strangers_cancellation_of_the_house_ends_nothing",
        ),
    ),
    Mutant(
        name="who opened a task scope waits for it",
        breaks="a node that is cancelled while it is entered never ends (13.2)",
        path="pool/runtime/task_scope.py",
        old="            task_scope._closed.set()\n            await outer",
        new="            await outer",
        by=(
            "tests/jobs/test_entering.py::test_who_is_cancelled_while_entering_ends_at_every_step",
        ),
    ),
    Mutant(
        name="who raises at his answer silences the others",
        breaks="what one caller makes of his reply ends the connection of all (13.1)",
        path="pool/redis/io/task.py",
        old="        except Exception as error:  # noqa: BLE001 - told, whatever it is\n",
        new="        except OSError as error:\n",
        by=(
            "tests/runtime/test_bodies.py::test_who_raises_at_his_reply_keeps_nobody_else_from_theirs",
        ),
    ),
    Mutant(
        name="a node opens that cannot renew",
        breaks="opening does not wait for an answered renewal (A9)",
        path="pool/jobs/wiring.py",
        old="        if silent >= {s.number for s in self.context.lanes if s.lane.generation}:",
        new="        if silent and not self.context.lanes:",
        by=(
            "tests/jobs/test_keepalive.py::test_a_node_whose_renewals_fail_does_not_open_though_its_calls_are_answered",
        ),
    ),
    Mutant(
        name="a frozen process has a hung loop",
        breaks="a thread that stood still itself takes the loop for hung (A8)",
        path="pool/runtime/hang.py",
        old="        if now_s - due_s > FROZEN_S:",
        new="        if now_s < 0:",
        by=("tests/runtime/test_pulse.py",),
    ),
    Mutant(
        name="who keeps the interpreter stood still",
        breaks="a job that costs each node its lease is never found: nobody killed anybody (13.8)",
        path="pool/jobs/fleet/membership.py",
        old="if not self.has_held(state):",
        new="if True:",
        by=(
            (
                "tests/process/test_poison.py::"
                "test_a_job_that_keeps_the_interpreter_is_parked_like_one_that_kills"
            ),
        ),
    ),
    Mutant(
        name="a lease joined anew forgets who was stopped",
        breaks="who was told to stop with the one before is never told to go on: G-05",
        path="pool/jobs/fleet/membership.py",
        old="term=told.ttl.term, phase=state.lease.phase",
        new='term=told.ttl.term, phase="held"',
        by=(
            (
                "tests/jobs/test_membership.py::"
                "test_who_was_stopped_with_the_lease_before_goes_on_with_the_next"
            ),
        ),
    ),
    Mutant(
        name="who joins anew renews all",
        breaks="a node that joins without its worker believes that the worker's lease is new: G-03",
        path="pool/jobs/fleet/membership.py",
        old="if is_new and not has_others:",
        new="if is_new:",
        by=("tests/jobs/test_membership.py::test_who_joins_anew_renews_nobody_else",),
    ),
    Mutant(
        name="who reads no log stops the node",
        breaks="a line is waited for until it is written (A7)",
        path="pool/redis/io/scribe.py",
        old="if self.patience_s and not self.is_late and not told.is_over.wait(self.patience_s):",
        new="if not told.is_over.wait():",
        by=("tests/redis/test_scribe.py",),
    ),
    Mutant(
        name="a fall of the TTL counts at once",
        breaks="a lane grants the shorter TTL to those who have not heard of it (13.4)",
        path="pool/redis/lua/renew.lua",
        old="    if term == term_now then",
        new="    if true then",
        by=("tests/redis/test_lease_scripts.py",),
    ),
    Mutant(
        name="a worker joins with less than its node believes in",
        breaks="while the TTL falls, a worker's lease ends before its node stops it (13.4)",
        path="pool/redis/lua/join.lua",
        old="  ends = math.max(ends, tonumber(redis.call('ZSCORE', keepalive, node) or '0'))",
        new="  ends = math.max(ends, 0)",
        by=("tests/redis/test_lease_scripts.py",),
    ),
    Mutant(
        name="the server's clock is believed",
        breaks="a step of an hour fires every delay, or holds it up for an hour (13.10)",
        path="pool/redis/lua/lib/lane.lua",
        old="now_us = is_off and seen * 1000 or math.max(seen * 1000, "
        "math.min(raw_us, (seen + 2 * period_ms) * 1000))",
        new="now_us = raw_us",
        needs=("clock-forward",),
    ),
    Mutant(
        name="a step is never taken back",
        breaks="pool time stands still for ever (13.10)",
        path="pool/redis/lua/lib/clock.lua",
        old="local is_measured = off_ms ~= 0",
        new="local is_measured = false",
        needs=("clock-back",),
    ),
    Mutant(
        name="answers end by the server's clock",
        breaks="an hour forward, and every outcome is forgotten (13.10)",
        path="pool/redis/lua/lib/keep.lua",
        old="local NOBODY_MS = 86400000",
        new="local NOBODY_MS = 0",
        needs=("clock-forward",),
    ),
    Mutant(
        name="whoever asks ends what is remembered",
        breaks="an outcome is forgotten before its time",
        path="pool/redis/lua/expire.lua",
        old="if until_ms and tonumber(until_ms) <= now then",
        new="if until_ms then",
        by=("tests/redis/test_clock_scripts.py::test_an_answer_is_remembered_in_pool_time",),
    ),
    Mutant(
        name="one claim sets the clock",
        breaks="a node whose own clock is off moves everybody's deadlines (13.10)",
        path="pool/redis/lua/lib/clock.lua",
        old="apart >= 0.9 * period_ms",
        new="apart >= 0",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="who was cut off sets the clock back",
        breaks="what was stored since waits for an hour (13.10)",
        path="pool/redis/lua/lib/clock.lua",
        old=" and not is_late\n",
        new="\n",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="what a witness claimed dies with it",
        breaks="who comes after it believes the clock, and every outcome is forgotten (13.10)",
        path="pool/redis/lua/lib/clock.lua",
        old="kind == 'n' and tonumber(left)",
        new="kind == 'x' and tonumber(left)",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="a clock that was surely off is believed when it passes what was vouched for",
        breaks="a retry waits for as long as the step that a dead witness claimed (13.10)",
        path="pool/redis/lua/lib/lane.lua",
        old="local is_off = off_since and",
        new="local is_off = false and off_since and",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="a clock that was surely off is set right by the lesser time",
        breaks="a retry waits for as long as the step that a dead witness claimed (13.10)",
        path="pool/redis/lua/lib/clock.lua",
        old="now < seen or is_off)",
        new="now < seen)",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="what a witness stored dies with it",
        breaks="who comes after it goes on from before that, and a retry waits (13.10)",
        path="pool/redis/lua/lib/expected.lua",
        old="reached = math.max(reached, now)",
        new="reached = seen",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="all that was set right goes on top",
        breaks="who counts a step in takes it off twice when it hears late: a retry waits (13.10)",
        path="pool/redis/lua/lib/expected.lua",
        old="if now < from or (meant >= from and meant < now) then",
        new="if true then",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="who has not heard knows it better",
        breaks="of two steps that were settled at once it takes off what it wants (13.10)",
        path="pool/redis/lua/lib/expected.lua",
        old="now = math.min(now, seen + tonumber(age_ms))",
        new="now = now",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="a newcomer takes all that was set right",
        breaks="who counts a step in claims it a second time, and alone sets it so (13.10)",
        path="pool/core/pooltime.py",
        old="if expected_ms < from_ms or from_ms <= meant_ms < expected_ms:",
        new="if True:",
        by=("tests/core/test_pooltime.py",),
    ),
    Mutant(
        name="the dead renew while pool time stands",
        breaks="who died before anybody came is taken over two periods too late (G-06)",
        path="pool/redis/lua/lib/clock.lua",
        old="for _, name in ipairs(kind == 'n' and",
        new="for _, name in ipairs(false and",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="silence is a contradiction",
        breaks="who stood still after a step is no witness of it (13.10)",
        path="pool/core/pooltime.py",
        old="min(now_s - self.off_at_s, period_s)",
        new="(now_s - self.off_at_s)",
        by=("tests/core/test_pooltime.py",),
    ),
    Mutant(
        name="who is contradicted goes on saying so",
        breaks="two that came to a clock before and behind a step stop it for ever (13.10)",
        path="pool/core/pooltime.py",
        old="if off_s > CONTRADICTED * period_s:",
        new="if not is_astray and off_s > CONTRADICTED * period_s:",
        by=("tests/core/test_pooltime.py",),
    ),
    Mutant(
        name="who came behind a step contradicts who measured it",
        breaks="pool time stands for seven periods (13.10)",
        path="pool/redis/lua/lib/clock.lua",
        old="by ~= 0 and 1 or 0",
        new="0",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="a garbled reply is a payload",
        breaks="a job is parked for one reply of another shape (G-01)",
        path="pool/jobs/worker/executor.py",
        old='is_read = "p" not in start.flags or (payload and is_call(payload))',
        new="is_read = True",
        by=("tests/jobs/test_stored_input.py",),
    ),
    Mutant(
        name="who leaves has heard of everything",
        breaks="what was granted as a worker left waits for its lease, or for the next node (13.5)",
        path="pool/jobs/worker/worker.py",
        old="                if self._grace_ends_s == math.inf:",
        new="                if False:",
        by=(
            (
                "tests/jobs/test_leaving.py::"
                "test_what_was_granted_and_not_heard_of_is_given_back_before_a_worker_leaves"
            ),
        ),
    ),
    Mutant(
        name="who has come since learns of no witness",
        breaks="of two steps the first is taken off twice: a retry waits for as long (13.10)",
        path="pool/redis/lua/lib/clock.lua",
        old="had_kind == 'w' and not is_old and had_by or nil",
        new="nil",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="nobody confirms a witness",
        breaks="pool time stands for four periods more when a witness is gone (13.10)",
        path="pool/redis/lua/lib/clock.lua",
        old="(by == 0 or math.abs(by - had_by) > slack)",
        new="true",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="what was told is measured once more",
        breaks="a step is taken off twice by who was told of it (13.10)",
        path="pool/redis/lua/lib/clock.lua",
        old="if tonumber(left) and math.abs(by - left) <= slack then",
        new="if false then",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="an old claim is still believed",
        breaks="who has come since takes one of two steps for the whole (13.10)",
        path="pool/redis/lua/lib/clock.lua",
        old="had_kind == 'w' and not is_old and had_by or nil",
        new="had_kind == 'w' and had_by or nil",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="who measured a step and left is forgotten",
        breaks="pool time goes back behind what was stored by its claim: a retry waits (13.10)",
        path="pool/redis/lua/lib/clock.lua",
        old="if by == 0 and had_by ~= 0 and left == '' and raw < seen then",
        new="if false then",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="whoever measured a step is believed when it is gone",
        breaks="the clock was set right meanwhile, and pool time goes on from before that (13.10)",
        path="pool/redis/lua/lib/clock.lua",
        old="left == '' and raw < seen then",
        new="left == '' then",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="what is stored forgets who measured a step and left",
        breaks="until somebody else claims something, delays count from where time stood (13.10)",
        path="pool/redis/lua/lib/expected.lua",
        old="kind == 'w' or left == '' and raw_us < seen * 1000",
        new="kind == 'w'",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="what is stored goes by any claim of who is gone",
        breaks="the clock was set right meanwhile, and delays count from before that (13.10)",
        path="pool/redis/lua/lib/expected.lua",
        old="left == '' and raw_us < seen * 1000",
        new="left == ''",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="what a witness claims is heard by nobody",
        breaks="of two steps the first is taken off twice: a retry waits for as long (13.10)",
        path="pool/core/pooltime.py",
        old="if witnessed_ms and not self.since_ms:",
        new="if False:",
        by=("tests/core/test_pooltime.py",),
    ),
    Mutant(
        name="nobody vouches for a lane that is made",
        breaks="a step before its first renewal is believed: what it remembers ends early (13.10)",
        path="pool/redis/lua/join.lua",
        old="redis.call('HSET', lane, 'seen', text_of(now)) -- the first witness of its clock",
        new="",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="a lease of while pool time stood tells how long its owner lived",
        breaks="what kills at once behind a step of the clock ends one process more (G-06)",
        path="pool/redis/lua/lib/silence.lua",
        old="go_on(0, passed, lease + window_ms + 1, latest)",
        new="go_on(0, passed)",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="a late answer is a step",
        breaks="a slow network sets the clock (13.10)",
        path="pool/core/pooltime.py",
        old="1000 * (CLOCK_S + (trip_s + self.trip_s) / 2)",
        new="1000 * CLOCK_S",
        by=("tests/core/test_pooltime.py",),
    ),
    Mutant(
        name="whoever fences believes the server's clock",
        breaks="a step of the clock ends leases (13.10)",
        path="pool/redis/lua/fence.lua",
        old="if is_astray or (latest_ms > 0 and now > latest_ms) then",
        new="if false then",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="who is suspected while time stands is forgotten",
        breaks="a worker that is gone stands in `open` until the next pass of the walk (G-05)",
        path="pool/redis/lua/fence.lua",
        old="for i = 7, #ARGV do",
        new="for i = is_astray and #ARGV + 1 or 7, #ARGV do",
        by=("tests/redis/test_clock_scripts.py",),
    ),
    Mutant(
        name="who waits for a result waits for nobody",
        breaks="an actor that ends for good leaves those who wait for results (13.2)",
        path="pool/jobs/client/waiters.py",
        old="        for job in list(self._waiting):\n"
        '            self.on_ended(job, NotRunning(state="closed"))',
        new="",
        by=("tests/jobs/test_every_call_returns.py",),
    ),
    Mutant(
        name="a slot goes on inside an open scope",
        breaks="what a handler left open is around whoever runs there next",
        path="pool/jobs/worker/executor.py",
        old="if run.scope is not None:",
        new="if False:",
        by=(
            (
                "tests/jobs/test_open_scopes.py::"
                "test_a_scope_left_open_is_a_failed_attempt_of_its_job_alone"
            ),
        ),
    ),
    Mutant(
        name="deadlines come before answers",
        breaks="a loop that hung gives up the lease that its thread has renewed",
        path="pool/jobs/fleet/keepalive.py",
        old="for answer in list(self._newest.values()):",
        new="for answer in ():",
        by=(
            (
                "tests/jobs/test_keepalive.py::"
                "test_a_hang_longer_than_the_ttl_makes_nothing_begin_again"
            ),
        ),
    ),
    Mutant(
        name="who ends its own process in order leaves no mark",
        breaks="one job ends a process after the other, for ever",
        path="pool/jobs/worker/settlement.py",
        old="if run.is_marked and run.job is not None:",
        new="if False:",
        by=(
            (
                "tests/ops/test_cli.py::"
                "test_a_job_that_tells_its_own_process_to_end_is_parked_after_so_many"
            ),
        ),
    ),
    Mutant(
        name="a destroyed group begins at its oldest event",
        breaks="all that a sink has acknowledged is given again (C6)",
        path="pool/redis/lua/sink_join.lua",
        old="  local is_same = was[3] == (is[1] or '') and comes_to(was[1])",
        new="  local is_same = false",
        by=("tests/streams/test_sink.py::test_a_group_that_was_destroyed_goes_on_from_its_cursor",),
    ),
    Mutant(
        name="what a consumer was given counts as delivered",
        breaks="events are parked that no program has ever seen (G1)",
        path="pool/redis/lua/lib/group.lua",
        old="  return math.floor(tonumber(deliveries) / 1000)",
        new="  return math.floor((tonumber(deliveries) + 999) / 1000)",
        by=(
            "tests/streams/test_sink.py::test_a_stale_consumer_is_cleaned_without_losing_what_it_held",
        ),
    ),
    Mutant(
        name="what is given back unseen counts as delivered",
        breaks="a slow program's events are parked, unseen (G1)",
        path="pool/redis/lua/sink_release.lua",
        old="RELEASED, times * 1000 +",
        new="RELEASED, (times + 1) * 1000 +",
        by=("tests/streams/test_sink.py::test_what_waits_in_a_buffer_is_not_delivered",),
    ),
    Mutant(
        name="what waits too long in a buffer stays there",
        breaks="events wait behind a slow program while others have room (G1)",
        path="pool/streams/sink_hands.py",
        old="            self._calls.release(self._buffer.drop(lambda item: item.got_s > since_s))",
        new="            pass",
        by=("tests/streams/test_sink.py::test_what_waits_in_a_buffer_is_not_delivered",),
    ),
    Mutant(
        name="suspects come all at once",
        breaks="one event that kills takes innocent ones with it, each time (G1)",
        path="pool/redis/lua/sink_take.lua",
        old="take(DOUBTFUL, 1)",
        new="take(DOUBTFUL, count)",
        by=("tests/streams/test_sink.py::test_suspects_come_one_at_a_time",),
    ),
    Mutant(
        name="a suspect is taken for any event when it is read again",
        breaks="it is handed out beside another one, and not noted before (G1)",
        path="pool/streams/sink.py",
        old="        if any(source.is_taking for source, _ in batch.told):",
        new="        if False:",
        by=(
            "tests/streams/test_sink.py::test_a_suspect_that_is_read_before_it_is_said_to_be_one_waits_for_that",
        ),
    ),
    Mutant(
        name="what the dead held is given to anybody, at once",
        breaks="one event that kills takes innocent ones with it, each time (G1)",
        path="pool/redis/lua/sink_mend.lua",
        old="elseif put(events, meta, each[1], DOUBTFUL, each[4]) then",
        new="elseif put(events, meta, each[1], RELEASED, each[4]) then",
        by=("tests/streams/test_sink.py::test_suspects_come_one_at_a_time",),
    ),
    Mutant(
        name="a suspect is noted after it was handed out",
        breaks="an event that kills at once is never counted, and kills for ever (G1)",
        path="pool/streams/sink_hands.py",
        old="        if item.is_doubtful and not await self._noted(item):",
        new="        if False:",
        by=("tests/streams/test_processes.py::test_an_event_that_kills_is_parked_alone",),
    ),
    Mutant(
        name="a suspect that lives holds up all the others",
        breaks="what a dead consumer held waits for the slowest of its handlers",
        path="pool/streams/sink_hands.py",
        old="            self.loop.later(self._trial_s(item), partial(self._end_trial, item))",
        new="            pass",
        by=(
            "tests/streams/test_sink.py::test_suspects_that_live_for_a_moment_do_not_hold_up_the_others",
        ),
    ),
    Mutant(
        name="notes of a hand-out add up",
        breaks="a note that is sent twice parks an event too early",
        path="pool/redis/lua/sink_hand.lua",
        old="math.max(handed(mine[4]), tonumber(ARGV[i + 1]))",
        new="handed(mine[4]) + tonumber(ARGV[i + 1])",
        by=("tests/redis/test_stream_scripts.py::test_a_delivery_is_a_hand_out_and_nothing_else",),
    ),
    Mutant(
        name="what a lost answer brought is forgotten",
        breaks="an event waits under its consumer's name until that one ends",
        path="pool/streams/sink.py",
        old="                    self._hands.look_for_unknown(source)\n",
        new="                    pass\n",
        by=("tests/streams/test_sink.py::test_what_an_answer_that_was_lost_gave_us_is_given_back",),
    ),
    Mutant(
        name="what a late read gives is not looked for",
        breaks="an event waits under its consumer's name until that one ends (I46)",
        path="pool/streams/sink.py",
        old="if source.is_doubted or now_s - source.looked_s >= LOOK_RENEWALS * renew_s:",
        new="if source.is_doubted:",
        by=(
            "tests/streams/test_sink.py::test_what_a_read_gives_us_long_after_its_connection_broke_is_found",
        ),
    ),
    Mutant(
        name="what a slow read may still bring is given back",
        breaks="an event is in two hands at once, of which each may have room (I48)",
        path="pool/streams/sink_hands.py",
        old="gone = unknown & source.unknown if is_over else frozenset()",
        new="gone = unknown & source.unknown",
        by=("tests/streams/test_sink.py::test_what_a_read_may_still_bring_is_not_given_back",),
    ),
    Mutant(
        name="sinks of one name share their leases on all streams",
        breaks="whoever reads one stream judges who reads another (G10)",
        path="pool/names.py",
        old='        return f"{self.prefix}sink-leases:{_of(stream, name)}"',
        new='        return f"{self.prefix}sink-leases:{name}"',
        by=(
            "tests/streams/test_sink.py::test_sinks_of_one_name_on_different_streams_leave_each_other_alone",
        ),
    ),
    Mutant(
        name="a sink's time is the server's",
        breaks="a step of the clock ends all leases of its consumers (D5)",
        path="pool/redis/lua/lib/sink.lua",
        old="((passed < 0 or passed > ttl_ms / 2) and math.floor(ttl_ms / 5) or passed)",
        new="passed",
        by=(
            "tests/redis/test_stream_scripts.py::test_a_sinks_time_is_the_time_in_which_somebody_renews",
        ),
    ),
    Mutant(
        name="an id of its caller's makes no event one and the same",
        breaks="a try whose answer was lost is added a second time",
        path="pool/redis/lua/stream_add_once.lua",
        old="if was and is_known then",
        new="if false then",
        by=(
            "tests/streams/test_stream.py::test_an_event_with_an_id_of_its_callers_is_added_once",
            "tests/streams/test_stream.py::test_a_try_whose_answer_was_lost_is_no_second_event",
        ),
    ),
    Mutant(
        name="a foreign value is set aside by nobody",
        breaks="one foreign value stops all streams of a reader (G8)",
        path="pool/streams/reader.py",
        old="                self._aside[stream] = cursors.pop(stream)",
        new="                self._aside[stream] = cursors[stream]",
        by=("tests/streams/test_reader.py::test_a_foreign_key_fails_its_own_stream_alone",),
    ),
    Mutant(
        name="an end that was asked for looks like a loss",
        breaks="a planned end of a stream is told as an error (G9)",
        path="pool/redis/lua/lib/ends.lua",
        old="  local planned, time = has_ended(meta) and '1' or '', redis.call('TIME')",
        new="  local planned, time = '', redis.call('TIME')",
        by=("tests/streams/test_stream.py::test_a_planned_end_is_told_as_one",),
    ),
    Mutant(
        name="what a cap takes while there is no group is nobody's loss",
        breaks="events are lost to a sink, and it is told to nobody (G6)",
        path="pool/redis/lua/sink_join.lua",
        old="  if first > behind + 1 and",
        new="  if false and",
        by=("tests/streams/test_sink.py::test_what_a_cap_took_while_there_was_no_group_is_told",),
    ),
    Mutant(
        name="a stream that is added again is another one",
        breaks="what is in a handler's hands is handed out again (G6)",
        path="pool/streams/sink.py",
        old="        return self._left.get(stored.events) or Source(",
        new="        return Source(",
        by=(
            "tests/streams/test_sink.py::test_a_stream_that_is_added_again_gives_nothing_that_is_in_hand",
        ),
    ),
    Mutant(
        name="acknowledgements that travel together share their answer",
        breaks="who acknowledges what others have done is told that it was first",
        path="pool/streams/sink_acks.py",
        old="told[at] and nth == 0",
        new="bool(told)",
        by=(
            "tests/streams/test_sink.py::test_acknowledgements_that_wait_together_travel_together",
        ),
    ),
    Mutant(
        name="a stream's new life is taken for its last one",
        breaks="what a cap took of it is told to no reader",
        path="pool/streams/reader.py",
        old='        return self.born is not None and facts.born not in (b"", self.born)',
        new="        return False",
        by=("tests/streams/test_reader.py::test_what_a_cap_took_of_a_streams_new_life_is_told",),
    ),
    Mutant(
        name="a reader takes events before it knows their life",
        breaks="their life is the one that the next probe finds: what a cap took of it is not told",
        path="pool/streams/reader.py",
        old="        if self._asking:",
        new="        if False:",
        by=(
            "tests/streams/test_reader.py::test_a_reader_that_was_there_before_its_stream_knows_the_streams_life",
        ),
    ),
    Mutant(
        name="a life of which somebody could not say anything is known",
        breaks="what stood beside a stream to come has its reader give events twice",
        path="pool/streams/reader.py",
        old="            if cursor.born is None and is_told:",
        new="            if cursor.born is None and facts.exists is not False:",
        by=(
            "tests/streams/test_reader.py::test_what_stands_beside_a_stream_to_come_says_nothing_of_its_life",
        ),
    ),
    Mutant(
        name="a life of which nobody can say anything is not known",
        breaks="a reader that may not ask about a stream asks for ever, and reads nothing of it",
        path="pool/streams/reader.py",
        old="            if cursor.born is None and is_told:",
        new="            if cursor.born is None and facts.exists:",
        by=(
            "tests/streams/test_reader.py::test_a_reader_that_is_told_nothing_of_a_streams_life_reads_it",
        ),
    ),
    Mutant(
        name="the first event of a life is of the one that is there now",
        breaks="it has ended while that was on its way: the next one goes on behind it, untold",
        path="pool/streams/reader.py",
        old="                if self._tailer.follows(cursor) and cursor.is_of_another(facts):",
        new="                if number_of(dict(batch.told)[cursor][0][1]) == 1:\n"
        "                    cursor.born = facts.born\n"
        "                elif self._tailer.follows(cursor) and cursor.is_of_another(facts):",
        by=(
            "tests/streams/test_reader.py::test_a_life_that_ended_while_its_first_event_was_under_way_is_not_the_next_one",
        ),
    ),
    Mutant(
        name="who has read nothing is apart from whatever there is",
        breaks="a reader that waits for a time to come is sent back to the stream's beginning",
        path="pool/streams/reader.py",
        old="        if not self.number or facts.number is None",
        new="        if self.number is None or facts.number is None",
        by=(
            "tests/streams/test_reader.py::test_a_reader_that_waits_for_a_time_to_come_is_not_sent_back",
        ),
    ),
    Mutant(
        name="a stream that was made by hand has no life",
        breaks="a snapshot of it ends as if it were whole, though it was made anew meanwhile",
        path="pool/streams/snapshot.py",
        old='        if facts.born not in (b"", was.born):',
        new="        if was.born and facts.born and facts.born != was.born:",
        by=(
            "tests/streams/test_stream.py::test_a_snapshot_of_a_stream_that_was_made_by_hand_says_so_too",
        ),
    ),
    Mutant(
        name="a snapshot has no end",
        breaks="what was added since is in it, for ever if need be",
        path="pool/streams/snapshot.py",
        old='f"({self._after}", self.position, "COUNT"',
        new='f"({self._after}", "+", "COUNT"',
        by=("tests/streams/test_stream.py::test_a_snapshot_is_all_events_at_one_position",),
    ),
    Mutant(
        name="an id is remembered for as long as the first try asked",
        breaks="an event is added twice within the time that somebody asked for",
        path="pool/redis/lua/stream_add_once.lua",
        old="  redis.pcall('ZADD', ends_of, 'GT', now + window_ms, once_id)\n",
        new="",
        by=(
            "tests/streams/test_stream.py::test_an_id_is_remembered_for_the_longest_time_that_anybody_asked_for",
        ),
    ),
    Mutant(
        name="a stream's place is not asked for",
        breaks="a stream of another server is read from ours, where it is another one",
        path="pool/streams/buffer.py",
        old=" or stream._session.url.place != session.url.place:",
        new=":",
        by=("tests/streams/test_reader.py::test_a_stream_of_another_server_or_pool_is_refused",),
    ),
    Mutant(
        name="who waits does not hear that the connection was closed",
        breaks="a program that iterates over a reader or a sink waits for ever",
        path="pool/runtime/stream_tailer.py",
        old="            on_end=self.on_end,\n",
        new="",
        by=("tests/streams/test_reader.py::test_who_waits_hears_that_the_connection_was_closed",),
    ),
    Mutant(
        name="a suspect is given no more time for having been in hand before",
        breaks="what ends its program after a while takes innocents along, until they are parked",
        path="pool/streams/sink_hands.py",
        old="        times = min(item.event.deliveries - 1, 16)",
        new="        times = 0",
        by=(
            "tests/streams/test_sink.py::test_a_suspect_that_was_in_hand_before_is_alone_for_longer",
        ),
    ),
    Mutant(
        name="what was counted for a group is counted for the next one",
        breaks="more events are told as missed than there ever were",
        path="pool/redis/lua/sink_join.lua",
        old="math.max(0, first - 1 - behind - counted)",
        new="first - 1 - behind",
        by=(
            "tests/streams/test_sink.py::test_what_a_cap_took_is_told_once_though_its_group_is_destroyed",
        ),
    ),
    Mutant(
        name="a snapshot asks for its position alone",
        breaks="of a stream that was lost and has grown since it ends as if it were whole",
        path="pool/streams/snapshot.py",
        old=" or facts.added < was.added:\n            return True\n",
        new=":\n            return True\n        if facts.exists:\n            return False\n",
        by=("tests/streams/test_stream.py::test_a_snapshot_of_a_stream_that_was_lost_says_so",),
    ),
    Mutant(
        name="what was told of a stream's last life counts for this one",
        breaks="a sink misses events, or parks them, and nobody is told (G6)",
        path="pool/redis/lua/sink_mend.lua",
        old="  by = of_life == born and by or 0",
        new="  by = by or 0",
        by=(
            "tests/redis/test_stream_scripts.py::test_what_a_cap_took_is_counted_until_it_was_told",
        ),
    ),
    Mutant(
        name="mass parking is told like any other",
        breaks="a broken handler looks like a few bad events (G1)",
        path="pool/streams/sink_told.py",
        old="        if many > PARKED_FEW and",
        new="        if False and",
        by=("tests/streams/test_sink.py::test_mass_parking_is_told_loudly_and_once",),
    ),
    Mutant(
        name="nobody looks at the number behind a list",
        breaks="a list that stands between a call and its own reply is given to that call (C4)",
        path="pool/redis/io/body.py",
        old="        if reply[-1] == number:",
        new="        if reply[-1:]:",
        by=(
            "tests/redis/test_bad_replies.py::test_a_reply_between_a_call_and_its_own_answers_nobody",
        ),
    ),
    Mutant(
        name="nobody looks at the number beside what is told",
        breaks="a number that stands between a call and its own reply is given to that call (C4)",
        path="pool/redis/io/body.py",
        old="        if len(reply) == 2 and reply[0] == number:",
        new="        if len(reply) == 2:",
        by=(
            "tests/redis/test_bad_replies.py::test_a_reply_between_a_call_and_its_own_answers_nobody",
        ),
    ),
    Mutant(
        name="plain append that does not look at the limit",
        breaks="a map grows without bound by appends of one value each",
        path="pool/redis/lua/lib/list_plain.lua",
        old="      if count < tonumber(items_max) then",
        new="      if true then",
        by=("tests/redis/test_rmap_scripts.py",),
    ),
    Mutant(
        name="plain append onto a string",
        breaks="a key holds a string and a list at once, and copies drift",
        path="pool/redis/lua/lib/list_plain.lua",
        old="#stamp <= 16 and not had[2] then",
        new="#stamp <= 16 then",
        by=("tests/redis/test_rmap_scripts.py",),
    ),
    Mutant(
        name="what was missed before is forgotten",
        breaks="where a pending event was lost, what caps took of the group is counted anew",
        path="pool/redis/lua/lib/group.lua",
        old="local rest = string.match(had, '^%d+(|%d+|%d+)$') or ''",
        new="local rest = ''",
        by=(
            "tests/redis/test_stream_scripts.py::test_what_a_cap_took_is_counted_until_it_was_told",
        ),
    ),
    Mutant(
        name="nobody looks at a reply's number",
        breaks="a reply that stands between a call and its own is given to that call (C4)",
        path="pool/redis/io/body.py",
        old="        return text if said == number else _ANOTHERS",
        new="        return text",
        by=(
            "tests/redis/test_bad_replies.py::test_a_reply_between_a_call_and_its_own_answers_nobody",
        ),
    ),
    Mutant(
        name="the limit of a run before stands",
        breaks="a job that goes on after an outage is timed out by what its former run left (C3)",
        path="pool/redis/lua/advance.lua",
        old="    if intent == 't' and y == '1' then",
        new="    if false then",
        by=("tests/jobs/test_limits.py::test_the_limit_of_a_run_before_strikes_nobody",),
    ),
    Mutant(
        name="a message is for whichever job the key has",
        breaks="the repeat of one whose answer was lost reaches the next job of its key (13.9)",
        path="pool/redis/lua/notify.lua",
        old="elseif r[OWNER] ~= owner or (id ~= '' and r[ID] ~= id) then",
        new="elseif r[OWNER] ~= owner then",
        by=(
            "tests/jobs/test_unsure.py::test_a_message_without_an_answer_is_for_the_job_that_it_found",
        ),
    ),
    Mutant(
        name="who cannot know says that it was lost",
        breaks="what ended so long ago that its outcome is forgotten is told as lost",
        path="pool/jobs/context.py",
        old="        return for_s < known_s / 2",
        new="        return True",
        by=("tests/jobs/test_lost.py::test_what_ended_long_ago_has_ended_or_was_lost",),
    ),
    Mutant(
        name="a short delay is none",
        breaks="a delay below half a millisecond finds no target, as if nobody had room",
        path="pool/redis/commands/admission.py",
        old="math.ceil(item.delay_s * 1000)",
        new="round(item.delay_s * 1000)",
        by=("tests/jobs/test_bad_input.py::test_a_delay_is_never_none_however_short",),
    ),
    Mutant(
        name="each lane takes what the pool may",
        breaks="several lanes accept several times queued_jobs_max",
        path="pool/settings.py",
        old="return self.queued_jobs_max // (self.lanes or 1)",
        new="return self.queued_jobs_max",
        by=("tests/jobs/test_bad_input.py::test_several_lanes_accept_no_more_than_one",),
    ),
    Mutant(
        name="a forked child uses the portal of its parent",
        breaks="the client's thread is not there: its calls wait for ever, or are refused",
        path="pool/jobs/sync/portal.py",
        old="        return self._forks == LINEAGE.forks",
        new="        return True",
        by=("tests/jobs/test_sync.py::test_a_forked_child_has_a_node_of_its_own",),
    ),
    Mutant(
        name="a lock goes along to a forked child",
        breaks="what another thread held when the process was copied is never free",
        path="pool/jobs/sync/portal.py",
        old="self._locks.setdefault(LINEAGE.forks, threading.Lock())",
        new="self._locks.setdefault(0, threading.Lock())",
        by=("tests/jobs/test_sync.py::test_a_lock_that_a_thread_held_at_the_fork_holds_nobody_up",),
    ),
    Mutant(
        name="a call that its loop never began is not answered",
        breaks="who called just when the client was closed waits for ever",
        path="pool/jobs/sync/portal.py",
        old="            call.leave_open()\n",
        new="            pass\n",
        by=("tests/jobs/test_sync.py::test_a_call_that_its_loop_never_began_is_answered",),
    ),
    Mutant(
        name="a client that failed is not opened again",
        breaks="a program whose node ended once can dispatch no more",
        path="pool/jobs/sync/portal.py",
        old="if portal is None or portal.is_over or not portal.is_here",
        new="if portal is None or not portal.is_here",
        by=("tests/jobs/test_sync.py::test_a_node_that_has_failed_is_replaced_by_the_next_call",),
    ),
    Mutant(
        name="a call on the client's own loop waits",
        breaks="an observer that calls the client stops it for ever",
        path="pool/jobs/sync/portal.py",
        old="if threading.get_ident() == self._thread.ident:\n            raise",
        new="if not self:\n            raise",
        by=("tests/jobs/test_sync.py::test_calls_work_where_a_loop_runs",),
    ),
    Mutant(
        name="a call is made without its caller's context",
        breaks="a handler in a thread waits for its own job, and is not told so",
        path="pool/jobs/sync/portal.py",
        old="            if not self._loop.post(self._begin, call):",
        new=(
            "            import contextvars\n"
            "            if not contextvars.Context().run(self._loop.post, self._begin, call):"
        ),
        by=("tests/jobs/test_sync.py::test_a_waiting_handler_in_a_thread_is_known_to_wait",),
    ),
    Mutant(
        name="who names no number of lanes goes by one",
        breaks="a node that joins a pool of several lanes takes the whole pool's share in each",
        path="pool/runtime/pool_config.py",
        old="        return attrs.evolve(session.settings, lanes=lanes)",
        new="        return session.settings",
        by=("tests/jobs/test_bad_input.py::test_several_lanes_accept_no_more_than_one",),
    ),
    Mutant(
        name="a time limit is looked at when the stop is sent",
        breaks="a call that is refused has ended a job",
        path="pool/jobs/node.py",
        old='        checks.text("cause", cause)\n        timeout_s = checks.seconds(',
        new='        checks.text("cause", cause)\n        (lambda *_, **__: 0)(',
        by=(
            "tests/jobs/test_every_argument.py::test_what_an_argument_cannot_be_is_refused_unsent",
        ),
    ),
    Mutant(
        name="what was given is asked how it looks",
        breaks="an error is raised by the repr of what it is about, or waits for it",
        path="pool/errors.py",
        old='        text = repr(value) if type(value) in _PLAIN else f"<{name_of(type(value))}>"',
        new="        text = repr(value)",
        by=("tests/jobs/test_bad_input.py::test_the_text_of_an_error_never_fails",),
    ),
    Mutant(
        name="room beyond the slots",
        breaks="a worker takes 256 keys more than it has slots for, and they wait there (13.7)",
        path="pool/jobs/worker/worker.py",
        old="        return min(self.capacity, max(0, self.capacity - taken))",
        new="        return self.capacity + 256",
        needs=("crowd",),
    ),
    Mutant(
        name="a pull of more than there are slots",
        breaks="one worker takes the backlog of all (13.7)",
        path="pool/redis/lua/pull.lua",
        old="math.min(keys_max, target.room + ahead)",
        new="keys_max",
        by=(
            "tests/redis/test_room.py::test_a_pull_brings_what_there_are_slots_for_and_what_is_held_ahead",
        ),
    ),
    Mutant(
        name="who comes overtakes",
        breaks="a free slot goes to who comes while others wait for one (13.7)",
        path="pool/redis/lua/lib/place.lua",
        old="  if target and (is_ahead or not queues[unassigned]) then",
        new="  if target then",
        by=("tests/redis/test_room.py::test_who_comes_joins_the_queue_whose_head_gets_the_slot",),
    ),
    Mutant(
        name="surplus stays",
        breaks="what waits in a worker for a slot stays there, whoever has one free (13.7)",
        path="pool/jobs/worker/executor.py",
        old="        until_s = now_s - (HELD_S if is_moving else 0.0)",
        new="        until_s = -1.0",
        needs=("crowd",),
    ),
    Mutant(
        name="suspects are no surplus",
        breaks="the others wait behind one that stays, whoever has a slot free (13.7)",
        path="pool/jobs/worker/executor.py",
        old="if self._suspects and not self._is_trial(now_s) and",
        new="if False and",
        by=("tests/jobs/test_workers.py::test_suspects_that_wait_for_a_slot_go_where_one_is_free",),
    ),
    Mutant(
        name="slots are kept for a lane that hangs",
        breaks="what a pull may bring is kept free for as long as it takes (13.5)",
        path="pool/jobs/worker/worker.py",
        old="COMING_S: Final = 0.1 ",
        new="COMING_S: Final = 99.0 ",
        by=("tests/jobs/test_room.py::test_a_lane_that_hangs_keeps_no_slot_from_the_others",),
    ),
    Mutant(
        name="all acknowledgements go with the next batch",
        breaks="most short jobs are acknowledged just before they end, under load",
        path="pool/jobs/worker/outbox.py",
        old="            if due_s > until_s:",
        new="            if False:",
        by=("tests/jobs/test_room.py::test_who_ends_soon_is_not_acknowledged",),
    ),
    Mutant(
        name="a failed start is told to nobody",
        breaks="who waits for a start waits for the attempt after it (D8)",
        path="pool/redis/lua/advance.lua",
        old="    return was == 'P' and r[WAITERS] ~= '' and 'OK ' .. r[WAITERS] or 'OK'",
        new="    return 'OK'",
        by=("tests/jobs/test_room.py::test_a_start_that_failed_is_told",),
    ),
    Mutant(
        name="sink frees what is in hand",
        breaks="whoever cleans takes from consumers whose lease stands",
        path="pool/redis/lua/sink_mend.lua",
        old="tonumber(redis.call('ZSCORE', leases, name) or '0') <= now",
        new="name ~= consumer",
        needs=("sinks",),
    ),
    Mutant(
        name="given is handed out",
        breaks="what waits in a consumer's buffer counts as handed out",
        path="pool/redis/lua/lib/group.lua",
        old="  return math.floor(tonumber(deliveries) / 1000)",
        new="  return math.ceil(tonumber(deliveries) / 1000)",
        needs=("sinks",),
    ),
    Mutant(
        name="reader that waits behind a stream that went back",
        breaks="a reader does not see by its probes that a stream began anew",
        path="pool/streams/reader.py",
        old="            if cursor.is_ahead_of(facts) or is_another:",
        new="            if False:",
        needs=("sinks", "fork-behind"),
    ),
    Mutant(
        name="reader that takes another event for its own",
        breaks="behind a fork with the clock behind, ids and numbers come again: one is never read",
        path="pool/streams/reader.py",
        old="is_another = cursor.is_of_another(facts) or cursor.is_apart_from(facts)",
        new="is_another = cursor.is_of_another(facts)",
        by=(
            "tests/streams/test_reader.py::test_a_stream_that_went_back_and_came_as_far_again_is_read_anew",
        ),
    ),
    Mutant(
        name="delta that is applied twice",
        breaks="what was appended to a list stands in each copy twice",
        path="pool/maps/deltas.py",
        old="        changes += _revised(items, delta)",
        new="        changes += _revised(items, delta) and _revised(items, delta)",
        needs=("maps",),
    ),
    Mutant(
        name="write that is there before it is here",
        breaks="who waits for a write is answered when the server has it",
        path="pool/maps/map.py",
        old="            await self.wait_for(written.at)\n",
        new="            pass\n",
        needs=("maps",),
    ),
    Mutant(
        name="write of a generation to come that is told as lost",
        breaks="a copy that has not heard of a loss says lost for what was written behind it",
        path="pool/maps/replica.py",
        old="            is_there = True\n",
        new="            is_there = False\n",
        needs=("maps", "wipe"),
    ),
    Mutant(
        name="loss that is told late, and takes what was written since",
        breaks="who waits is told lost for what stands: the pool was put back before",
        path="pool/maps/replica.py",
        old="            self.on_lost(error)\n            self._seek()",
        new="            self.on_lost(error)\n            self._fail(error)",
        by=(_REPLICA + "test_a_loss_that_is_told_late_takes_nothing_that_was_written_since",),
    ),
    Mutant(
        name="wait for a newer generation that never rests",
        breaks="until a copy follows what it is told of, it asks for it again with each answer",
        path="pool/maps/replica.py",
        old=" == self.follower.generation and not self._is_lost:",
        new=" == self.follower.generation:",
        by=(_REPLICA + "test_a_wait_for_a_newer_generation_asks_when_a_loss_is_told_and_no_more",),
    ),
    Mutant(
        name="wait for what a lost generation had, for ever",
        breaks="of a generation that is not followed the server is not asked",
        path="pool/maps/replica.py",
        old="        for generation, asked in doubtful.items():\n            self._sought",
        new="        for generation, asked in ():\n            self._sought",
        by=(_REPLICA + "test_what_is_of_a_generation_that_the_server_does_not_hold_is_lost",),
    ),
    Mutant(
        name="write that a copy of a lost history has",
        breaks="a copy as far along what the server has lost answers for a write behind the fork",
        path="pool/maps/replica.py",
        old="found.ours.revision if is_ours_there and self._has_passed(found.ours) else -1",
        new="self.revision",
        by=("tests/maps/test_forks.py::test_who_waits_for_a_write_behind_a_fork_has_it",),
    ),
    Mutant(
        name="watch that hears nothing of a copy that began anew",
        breaks="a watcher takes what it is told next for the next change",
        path="pool/maps/replica.py",
        old="self.emit(self._resynced(effect))\n                self._notify(effect)",
        new="self.emit(self._resynced(effect))",
        needs=("maps",),
    ),
    Mutant(
        name="a parked job's id is forgotten with its outcome",
        breaks="an idempotency key answers as long as its job's letter is there",
        path="pool/redis/lua/dispatch.lua",
        old="  elseif digest and redis.call('HEXISTS', letters, pair_of(id, key)) == 1 then",
        new="  elseif false then",
        by=("tests/jobs/test_identity.py",),
    ),
    Mutant(
        name="a known id answers for whatever is asked",
        breaks="another handler or other arguments under a known id are a conflict",
        path="pool/redis/lua/dispatch.lua",
        old="  if digest and (its_handler ~= handler or its_digest ~= digest) then",
        new="  if false then",
        by=("tests/jobs/test_identity.py",),
    ),
    Mutant(
        name="an id is known for its retention only",
        breaks="an idempotency key is known for its window, whatever else is asked",
        path="pool/redis/lua/lib/finish.lua",
        old="  return text_of(math.max(asked, known))",
        new="  return text_of(asked)",
        by=("tests/jobs/test_identity.py",),
    ),
    Mutant(
        name="results are kept without a bound",
        breaks="outcomes are kept long within results_bytes_max only",
        path="pool/redis/lua/lib/finish.lua",
        old="+ #text > results_max then",
        new="+ #text > math.huge then",
        by=("tests/jobs/test_parked.py",),
    ),
    Mutant(
        name="a note that was replaced takes its successor along",
        breaks="what a letter became is known for as long as letters are kept",
        path="pool/redis/lua/expire.lua",
        old="      if type(length) ~= 'number' or length == size then",
        new="      if true then",
        by=("tests/redis/test_letter_scripts.py",),
    ),
    Mutant(
        name="a replay that is repeated finds nothing",
        breaks="a replay repeated after an unknown outcome returns the job it made",
        path="pool/redis/lua/replay.lua",
        old="  return made and table.concat(",
        new="  return false and table.concat(",
        by=("tests/redis/test_letter_scripts.py",),
    ),
    Mutant(
        name="a replayed letter stays",
        breaks="a replay repeated after an unknown outcome makes one job",
        path="pool/redis/lua/replay.lua",
        old="redis.call('ZREM', parked, pair)\nredis.call('HDEL', letters, pair)",
        new="redis.call('ZREM', parked, '')",
        by=("tests/redis/test_letter_scripts.py",),
    ),
    Mutant(
        name="all failed attempts of a job are kept",
        breaks="what is kept of a job's attempts has a bound",
        path="pool/redis/lua/lib/finish.lua",
        old="  for _ = ATTEMPTS_MAX, tabs do",
        new="  for _ = 1, 0 do",
        by=("tests/redis/test_letter_scripts.py",),
    ),
    Mutant(
        name="dead letters have an age and no number",
        breaks="parked_max is enforced",
        path="pool/redis/lua/expire.lua",
        old="  if over <= 0 and tonumber",
        new="  if tonumber",
        by=("tests/jobs/test_parked.py",),
    ),
    Mutant(
        name="who waits for a job hears of its namesake",
        breaks="an id is its key's own: two keys may have the same",
        path="pool/jobs/worker/worker.py",
        old="            job = pair(edge.key, edge.id)",
        new='            job = pair("a", edge.id)',
        by=("tests/jobs/test_identity.py",),
    ),
    Mutant(
        name="nobody's turn",
        breaks="a job ends, and the next one of its key is not given its turn",
        path="pool/redis/lua/lib/finish.lua",
        old="  if has(r, 'n') and promote(key) then",
        new="  if false then",
        needs=("lines",),
    ),
    Mutant(
        name="a turn without a deadline",
        breaks="the next one of a key has its turn, and nobody comes for it",
        path="pool/redis/lua/lib/queue.lua",
        old="      later('ZADD', due, due_of(r, at), 'k:' .. key)",
        new="",
        needs=("lines",),
    ),
    Mutant(
        name="the last comes first",
        breaks="who comes goes to the head of the line",
        path="pool/redis/lua/lib/queue.lua",
        old="  ids[#ids + 1] = r[ID]",
        new="  table.insert(ids, 1, r[ID])",
        needs=("lines",),
    ),
    Mutant(
        name="the newest waits with the others",
        breaks="who replaces or coalesces joins the line, as who queues does",
        path="pool/redis/lua/dispatch.lua",
        old="  if is_alone_there then",
        new="  if false then",
        needs=("lines",),
    ),
    Mutant(
        name="replaced without a stop",
        breaks="the live job goes on, and is tried again, though another one replaced it",
        path="pool/redis/lua/lib/queue.lua",
        old="  if not is_to_stop or string.sub(live[INTENT], 1, 1) == 's' then",
        new="  if true then",
        needs=("lines",),
    ),
    Mutant(
        name="queued twice",
        breaks="a dispatch that is sent again is not looked for in the line",
        path="pool/redis/lua/dispatch.lua",
        old="    local mine = parse(redis.call('HGET', jobs, queued_name(key, id)))",
        new="    local mine",
        by=("tests/jobs/test_policies.py::test_a_repeat_is_recognised_in_the_line",),
    ),
    Mutant(
        name="displaced for ever",
        breaks="whose place another one took is in no index, and nobody ends it",
        path="pool/redis/lua/lib/queue.lua",
        old="    later('ZADD', due, text_of(at_once), 'k:' .. name)",
        new="",
        by=("tests/jobs/test_policies.py::test_the_newest_takes_the_place_of_all_that_wait",),
    ),
    Mutant(
        name="a line that nobody mends",
        breaks="the walk passes by who is queued and in no line",
        path="pool/redis/lua/requeue.lua",
        old="    if r[INTENT] == '' and not is_in then",
        new="    if false then",
        by=(
            "tests/jobs/test_walk.py::test_who_is_queued_has_its_turn_whatever_was_deleted_by_hand",
        ),
    ),
    Mutant(
        name="a stop without its reason",
        breaks="a handler that is stopped cannot see why",
        path="pool/jobs/worker/worker.py",
        old='                run.job._stop_cause = cause or "stopped"',
        new="                pass",
        by=("tests/jobs/test_listing.py::test_a_handler_sees_why_it_is_stopped_and_may_clean_up",),
    ),
    Mutant(
        name="a pool that is gone is empty",
        breaks="after a loss of data a node counts no jobs, in the place of an error",
        path="pool/jobs/client/listing.py",
        old="        if not told or (generation and told != generation):",
        new="        if generation and told != generation:",
        by=("tests/jobs/test_after_a_loss.py::test_a_pool_that_is_gone_is_not_an_empty_one",),
    ),
    Mutant(
        name="a page without an end",
        breaks="a page goes on until it has found something",
        path="pool/jobs/client/listing.py",
        old="        while lane < len(context.lanes) and looked < size:",
        new="        while lane < len(context.lanes) and (looked < size or not found):",
        by=("tests/jobs/test_listing.py::test_a_page_looks_at_no_more_though_it_finds_nothing",),
    ),
    Mutant(
        name="steps left behind",
        breaks="the next attempt does not fetch what the steps of the one before had returned",
        path="pool/jobs/worker/executor.py",
        old='_FETCHED: Final = frozenset("pbs")',
        new='_FETCHED: Final = frozenset("pb")',
        needs=("keeps",),
    ),
    Mutant(
        name="a step's key for each attempt",
        breaks="step.key is another one for each owner, so that no provider knows it again",
        path="pool/jobs/keeper.py",
        old="parts = (self.pool, self.key, self.origin or self.id, name)",
        new="parts = (self.pool, self.key, self.origin or self.id, name, str(self.epoch))",
        needs=("keeps",),
    ),
    Mutant(
        name="saved, and heard again",
        breaks="a save leaves its messages in the inbox, so that a crash has them applied twice",
        path="pool/redis/lua/advance.lua",
        old="  local gone = upto(inbox, y)\n",
        new="  local gone = 0\n",
        needs=("keeps", "crash"),
    ),
    Mutant(
        name="removed before it is saved",
        breaks="a message that was passed is removed at once, while the state of before waits",
        path="pool/jobs/keeper.py",
        old="        if self._stored == self._number:\n            return False",
        new="        if self._stored <= self._number:\n            return False",
        by=("tests/jobs/test_keeping.py::test_a_full_server_refuses_a_state_and_loses_nothing",),
    ),
    Mutant(
        name="the last result stands",
        breaks="a step's result is stored over the one that somebody has been told already",
        path="pool/redis/lua/lib/steps.lua",
        old="      return stands == result and 'OK' or 'STANDS ' .. stands",
        new="      steps = ''\\n      break",
        by=("tests/redis/test_steps_scripts.py::test_the_first_result_of_a_step_stands",),
    ),
    Mutant(
        name="an older state put back",
        breaks="a late copy of a save puts the state of before back, without the messages since",
        path="pool/redis/lua/advance.lua",
        old="if by == r[EPOCH] and whole(number) > tonumber(z) then",
        new="if false then",
        by=("tests/redis/test_steps_scripts.py::test_a_late_copy_of_a_save_puts_nothing_back",),
    ),
    Mutant(
        name="parked without its steps",
        breaks="a dead letter has forgotten what its steps have done",
        path="pool/redis/lua/lib/finish.lua",
        old="    if word == 'parked' then\n      park_steps",
        new="    if word == 'lost' then\n      park_steps",
        by=("tests/jobs/test_keeping.py::test_a_parked_job_keeps_its_steps",),
    ),
    Mutant(
        name="a leaked slot is used again",
        breaks="the slot of a plain handler that goes on in its thread counts as free",
        path="pool/jobs/worker/worker.py",
        old="            self._zombies.add(run)\n            name, why",
        new="            name, why",
        by=(
            "tests/jobs/test_leaks.py::test_one_that_was_timed_out_is_left_behind_and_its_job_goes_on_elsewhere",
        ),
    ),
    Mutant(
        name="no progress needed",
        breaks="a handler that tells nothing for too long goes on",
        path="pool/jobs/run.py",
        old="        if progress_s is not None:\n            ends_s = min",
        new="        if progress_s is None:\n            ends_s = min",
        by=("tests/jobs/test_keeping.py::test_who_tells_nothing_for_too_long_is_ended",),
    ),
    Mutant(
        name="steps under way do not count",
        breaks="as many steps as there are tasks are stored, whatever the limit",
        path="pool/jobs/keeper.py",
        old="len(self.results) + len(self._under_way) >=",
        new="len(self.results) >=",
        by=("tests/jobs/test_keeping.py::test_limits_hold_for_steps_at_once",),
    ),
    Mutant(
        name="a replay pays anew",
        breaks="the steps of a replayed letter have other keys, so that the provider charges again",
        path="pool/jobs/keeper.py",
        old="self.origin or self.id, name",
        new="self.id, name",
        by=(
            (
                "tests/jobs/test_keeping.py"
                "::test_a_replayed_job_has_the_keys_of_its_steps_unless_its_arguments_are_others"
            ),
        ),
    ),
    Mutant(
        name="who was told to end goes round for ever",
        breaks="a thread that asks for a step after a stop holds its slot, its key and a processor",
        path="pool/jobs/keeper.py",
        old="anyio.current_effective_deadline() == -math.inf:",
        new="anyio.current_effective_deadline() == math.nan:",
        by=(
            (
                "tests/jobs/test_leaks.py"
                "::test_one_that_asks_for_a_step_too_late_ends_and_its_slot_is_free"
            ),
        ),
    ),
    Mutant(
        name="another one for the same id",
        breaks="who names a job by an id that it was not given is answered, whatever he asks for",
        path="pool/redis/lua/dispatch.lua",
        old="its_digest ~= digest) then",
        new="(its_digest and its_digest ~= digest)) then",
        by=("tests/jobs/test_identity.py::test_an_id_that_was_not_given_is_nobodys_to_ask_for",),
    ),
    Mutant(
        name="begun too late",
        breaks="a worker is told to begin a job whose time to begin is over",
        path="pool/redis/lua/advance.lua",
        old="  local by = begin_by(r)\n  if by and by <= now then\n    return false",
        new="  local by = begin_by(r)\n  if by and by < 0 then\n    return false",
        needs=("in-time",),
    ),
    Mutant(
        name="expired though it has begun",
        breaks="a job that has begun in time expires between its attempts",
        path="pool/redis/lua/advance.lua",
        old="string.gsub(',' .. r[MORE], '(,[sx]%d+)/%d+', '%1'), 2)\n    if",
        new="string.gsub(',' .. r[MORE], '(,[s]%d+)/%d+', '%1'), 2)\n    if",
        needs=("in-time",),
    ),
    Mutant(
        name="taken back too early",
        breaks="who sweeps may take any job that must begin in time from a worker that lives",
        path="pool/redis/lua/advance.lua",
        old="local by = late and late <= now and late or",
        new="local by = late and now or",
        by=(
            (
                "tests/redis/test_lapse_scripts.py"
                "::test_who_comes_too_early_takes_nothing_from_a_worker_that_lives"
            ),
        ),
    ),
    Mutant(
        name="late, and left there",
        breaks="what was given to a worker that stands still waits until that one's lease ends",
        path="pool/redis/lua/advance.lua",
        old="local late = has(r, 'a') and begin_by(r)",
        new="local late = nil",
        by=("tests/redis/test_lapse_scripts.py::test_what_is_too_late_is_ended_wherever_it_waits",),
    ),
    Mutant(
        name="a queued job expires when its turn has come",
        breaks="nobody comes for a job that is queued and must begin by some time",
        path="pool/redis/lua/lib/queue.lua",
        old="  if ends then\n    flag(r, 'd', true)",
        new="  if false then\n    flag(r, 'd', true)",
        by=("tests/redis/test_lapse_scripts.py::test_it_stands_in_due_by_the_first_of_its_ends",),
    ),
    Mutant(
        name="replayed too late",
        breaks="a replay has expired when its first one had",
        path="pool/redis/lua/lib/wait.lua",
        old="  rest = string.gsub(rest, ',x(%d+)', function(ms)",
        new="  rest = string.gsub(more, ',x(%d+)', function(ms)",
        by=("tests/redis/test_lapse_scripts.py::test_a_replay_may_take_as_long_as_its_first_one",),
    ),
    Mutant(
        name="each worker has as long",
        breaks="a job that no worker begins may wait for ever, from one to the next",
        path="pool/redis/lua/lib/wait.lua",
        old="  if ms and not string.find(ms, '/', 1, true) then",
        new="  ms = ms and string.match(ms, '^%d+')\n  if ms then",
        by=(
            (
                "tests/redis/test_lapse_scripts.py"
                "::test_its_wait_for_a_worker_goes_on_from_one_to_the_next"
            ),
        ),
    ),
    Mutant(
        name="attached to anything",
        breaks="who attaches is given a job of other arguments as his own",
        path="pool/redis/lua/dispatch.lua",
        old="    local same = policy == 'b' or is_same(key, live, handler, payload)",
        new="    local same = true",
        by=(
            (
                "tests/jobs/test_policies.py"
                "::test_attaching_with_other_arguments_is_refused_unless_asked"
            ),
        ),
    ),
    Mutant(
        name="all of them run",
        breaks="coalesce keeps those in the line whose place the newest was to take",
        path="pool/redis/lua/dispatch.lua",
        old="  local is_alone_there = policy ~= 'q'",
        new="  local is_alone_there = policy == 'r'",
        by=("tests/jobs/test_policies.py::test_the_newest_takes_the_place_of_all_that_wait",),
    ),
    Mutant(
        name="waits told to nobody",
        breaks="handlers on two nodes that wait for each other are never told so",
        path="pool/jobs/wiring.py",
        old='if fields.get("t") == b"waits":',
        new='if fields.get("t") == b"wait":',
        by=("tests/jobs/test_in_a_handler.py",),
    ),
    Mutant(
        name="waits not passed on",
        breaks="circles of more than two handlers that wait for each other are never found",
        path="pool/jobs/client/waiters.py",
        old="                self._pass_on(attrs.evolve(wait, job=waiting.job), lane, owner)",
        new="                pass",
        by=("tests/jobs/test_in_a_handler.py",),
    ),
    Mutant(
        name="dependencies left open",
        breaks="what an attempt depends on is not closed when it fails or is cancelled",
        path="pool/jobs/closing.py",
        old="        await close(raised)",
        new="        if raised is None:\n            await close(raised)",
        by=("tests/jobs/test_resources.py",),
    ),
    Mutant(
        name="closing not shielded",
        breaks="what is closed behind a cancelled handler cannot await",
        path="pool/jobs/shields.py",
        old="    scope.shield = True",
        new="    scope.shield = False",
        by=("tests/jobs/test_resources.py",),
    ),
    Mutant(
        name="a group of its own survives",
        breaks="what a function has put into another process group outlives its process",
        path="pool/jobs/process.py",
        old="while found := {*_session(started.pid)} - killed:",
        new="while found := set[int]():",
        by=("tests/jobs/test_blocking.py::test_what_a_function_left_behind_ends_with_its_process",),
    ),
    Mutant(
        name="woken for nothing",
        breaks="whoever is woken and finds nothing to read fails",
        path="pool/jobs/process.py",
        old="        except BlockingIOError:\n            continue",
        new="        except InterruptedError:\n            continue",
        by=("tests/jobs/test_blocking.py::test_who_is_woken_for_nothing_waits_again",),
    ),
    Mutant(
        name="closed while it is watched",
        breaks="what is left of a socket wakes whoever waits for the next of its number",
        path="pool/redis/io/loops.py",
        old="            trio.lowlevel.notify_closing(found)",
        new="            str(trio)",
        by=("tests/jobs/test_blocking.py::test_what_was_waited_for_is_let_go_before_it_is_closed",),
    ),
    Mutant(
        name="one quota stops all",
        breaks="what middleware raises for one call is raised in place of all answers",
        path="pool/jobs/client/dispatch.py",
        old="                answers[place] = failed\n",
        new="                raise failed\n",
        by=("tests/jobs/test_composition.py",),
    ),
    Mutant(
        name="what stands for a value is the value",
        breaks="a handler that is called directly gets what stands for a dependency",
        path="pool/jobs/depends.py",
        old="    for each, wanted in plan.gives.items():\n        if each not in given",
        new="    for each, wanted in plan.gives.items():\n        if each in given",
        by=("tests/jobs/test_refused.py",),
    ),
    Mutant(
        name="overrides of nothing",
        breaks="what nothing depends on is overridden, and no test sees that",
        path="pool/jobs/handlers.py",
        old="plan is not None and plan.has(dependency)",
        new="plan is not None or plan is None",
        by=("tests/jobs/test_refused.py",),
    ),
    Mutant(
        name="anything as bytes",
        breaks="the codec bytes carries results that are none",
        path="pool/jobs/typed/contract.py",
        old="    if value is not None and type(value) is not bytes:",
        new="    if value is NotImplemented:",
        by=("tests/jobs/test_refused.py",),
    ),
    Mutant(
        name="a zone lost on the way",
        breaks="a time whose zone has no offset without a day arrives without any",
        path="pool/jobs/typed/values.py",
        old="    if value.tzinfo is not None and value.utcoffset() is None:",
        new="    if value.tzinfo is NotImplemented:",
        by=("tests/jobs/test_refused.py",),
    ),
    Mutant(
        name="secrets arrive masked",
        breaks="what a pydantic model loses on its way is not compared",
        path="pool/jobs/typed/foreign.py",
        old="            back = from_wire(wire)\n            check(value, back)\n",
        new="            back = from_wire(wire)\n",
        by=("tests/jobs/test_proof.py",),
    ),
    Mutant(
        name="strict models never arrive",
        breaks="a strict model is read as Python's own types, not as JSON",
        path="pool/jobs/typed/foreign.py",
        old="adapter.validate_json(as_json(value), ",
        new="adapter.validate_python(value, ",
        by=("tests/jobs/test_proof.py",),
    ),
    Mutant(
        name="aliases one way",
        breaks="a model is written by alias, if it says so, and read by name",
        path="pool/jobs/typed/foreign.py",
        old='mode="json", by_alias=False, ',
        new='mode="json", ',
        by=("tests/jobs/test_proof.py",),
    ),
    Mutant(
        name="MessagePack drops fields",
        breaks="arguments by the codec msgspec arrive as their base class",
        path="pool/jobs/typed/msgpack.py",
        old="            if is_compared or _is_astray(given, look.has_sets):",
        new="            if not name:",
        by=("tests/jobs/test_proof.py",),
    ),
    Mutant(
        name="MessagePack drops fields of results",
        breaks="results by the codec msgspec arrive as their base class",
        path="pool/jobs/typed/msgpack.py",
        old="        if is_compared or _is_astray(value, self.typed.has_sets):",
        new="        if not data:",
        by=("tests/jobs/test_proof.py",),
    ),
    Mutant(
        name="no annotation is one",
        breaks="results of a handler that says nothing of them are parked by the codec msgspec",
        path="pool/jobs/typed/msgpack.py",
        old="    return Any if isinstance(hint, str) or hint in NOTHING else hint",
        new="    return Any if isinstance(hint, str) else hint",
        by=("tests/jobs/test_proof.py",),
    ),
    Mutant(
        name="private attributes forgotten",
        breaks="what a model has beside its fields is not compared",
        path="pool/jobs/typed/proof.py",
        old='("__pydantic_extra__", "__pydantic_private__")',
        new='("__pydantic_extra__",)',
        by=("tests/jobs/test_proof.py",),
    ),
    Mutant(
        name="registered and never sent",
        breaks="the codec msgspec registers what nothing can be dispatched for",
        path="pool/jobs/typed/msgpack.py",
        old='    return _Look(names[0] if names else "", ',
        new='    return _Look("", ',
        by=("tests/jobs/test_proof.py",),
    ),
    Mutant(
        name="a commit cut short",
        breaks="what closes behind a handler that succeeded is cancelled after the stop budget",
        path="pool/jobs/shields.py",
        old="            scope.shield = False",
        new="            scope.cancel()",
        by=("tests/jobs/test_closing.py",),
    ),
    Mutant(
        name="a commit that nothing cuts",
        breaks="what closes behind a handler is never cancelled, whoever has it stopped",
        path="pool/jobs/shields.py",
        old="            scope.shield = False",
        new="            scope.shield = True",
        by=("tests/jobs/test_closing.py::test_a_commit_that_is_cut_is_no_success",),
    ),
    Mutant(
        name="one commit's shield ends with another's",
        breaks="what closes is cut before its stop budget is over",
        path="pool/jobs/shields.py",
        old="self._ends_s.items() if ends_s <= now_s]",
        new="self._ends_s.items() if ends_s >= 0.0]",
        by=("tests/jobs/test_closing.py::test_one_timer_takes_off_all_shields",),
    ),
    Mutant(
        name="only the first shield ends",
        breaks="what closes is never cut, if another had begun to close before it",
        path="pool/jobs/shields.py",
        old="        if self._ends_s:\n",
        new="        if len(self._ends_s) == 1:\n",
        by=("tests/jobs/test_closing.py::test_one_timer_takes_off_all_shields",),
    ),
    Mutant(
        name="shields as long as they were",
        breaks="what closes is shielded for the stop budget of before",
        path="pool/jobs/shields.py",
        old="if not now_s < self._looks_s <= ends_s:",
        new="if not now_s < self._looks_s:",
        by=("tests/jobs/test_closing.py::test_a_shield_that_ends_before_the_others",),
    ),
    Mutant(
        name="a lifespan cut in silence",
        breaks="nobody hears of a lifespan whose end took longer than it may",
        path="pool/jobs/lifespans.py",
        old="                self._tell(f",
        new="                str(f",
        by=("tests/jobs/test_closing.py",),
    ),
    Mutant(
        name="another error than the lifespan's",
        breaks="a lifespan that ends the program at its start raises something else",
        path="pool/jobs/lifespans.py",
        old="held.error = RuntimeError(told(error)) if is_strangers else error\n",
        new="held.error = RuntimeError(told(error))\n",
        by=("tests/jobs/test_closing.py",),
    ),
    Mutant(
        name="middleware inside out",
        breaks="what was added first is not the outermost",
        path="pool/jobs/around.py",
        old="    for each in reversed(around):\n        call =",
        new="    for each in around:\n        call =",
        by=("tests/jobs/test_composition.py",),
    ),
    Mutant(
        name="a hook that harms",
        breaks="what a hook raises ends its worker",
        path="pool/jobs/around.py",
        old=" and is_asked_for():\n                raise\n            emit(",
        new=":\n                raise\n            raise\n            emit(",
        by=("tests/jobs/test_composition.py",),
    ),
    Mutant(
        name="log lines of threads bare",
        breaks="plain handlers run outside their job's context",
        path="pool/jobs/run.py",
        old="call = partial(context.run, handler.fn, job, *args, **kwargs)",
        new="call = partial(handler.fn, job, *args, **kwargs)",
        by=("tests/jobs/test_in_a_handler.py",),
    ),
    Mutant(
        name="followers of a call that failed",
        breaks="messages that a lane may never have had count as carried out",
        path="pool/jobs/fleet/carrier.py",
        old="            if done is None:\n                return",
        new="            done = done or Stirred()",
        by=("tests/jobs/test_followers.py::test_what_its_lane_did_not_take_is_carried_once_more",),
    ),
    Mutant(
        name="followers that nobody knows",
        breaks="which messages there are is not written by the step that writes them",
        path="pool/redis/lua/lib/channel.lua",
        old="  later('HSET', payloads, '\\r' .. to, out_head(out))",
        new="",
        needs=("chains",),
    ),
    Mutant(
        name="followers of either end",
        breaks="who follows otherwise follows what is done as well",
        path="pool/redis/lua/lib/channel.lua",
        old="    if (when == 't') == (word == 'done') then",
        new="    if when == 'o' or word == 'done' then",
        needs=("chains",),
    ),
    Mutant(
        name="followers that stay",
        breaks="what was released is there to be released again",
        path="pool/redis/lua/lib/channel.lua",
        old="  if has_text and (word ~= 'parked' or #names > 0) then",
        new="  if false then",
        needs=("chains",),
    ),
    Mutant(
        name="followers told nothing",
        breaks="the result does not go along",
        path="pool/redis/lua/lib/channel.lua",
        old="  return before .. value .. behind",
        new="  return before .. 'null' .. behind",
        needs=("chains",),
    ),
    Mutant(
        name="schedule fired by whoever comes",
        breaks="a change of a schedule does not ask whether it stands as it was seen",
        path="pool/redis/lua/schedule.lua",
        old="  if stands ~= seen then",
        new="  if false then",
        by=(_SCHEDULES + "test_only_what_was_seen_is_changed_and_a_repeat_is_one",),
    ),
    Mutant(
        name="schedule fired once more by a repeat",
        breaks="a call that comes again is not told from another one's",
        path="pool/redis/lua/schedule.lua",
        old="    return is_repeat and 'OK' or 'CHANGED'",
        new="    return is_repeat and 'OK' or 'CHANGED', is_repeat",
        by=(_SCHEDULES + "test_only_what_was_seen_is_changed_and_a_repeat_is_one",),
    ),
    Mutant(
        name="schedule that nobody comes for again",
        breaks="when somebody has to come next is not put into `due`",
        path="pool/redis/lua/schedule.lua",
        old="  redis.call('ZADD', due, text_of(now + wait_ms), 's:')",
        new="",
        needs=("schedules",),
    ),
    Mutant(
        name="schedule by pool time",
        breaks="schedules go by pool time, which takes back that a clock was set",
        path="pool/redis/lua/schedule.lua",
        old="local wall, page, size = now - offset, {}, 0",
        new="local wall, page, size = now, {}, 0",
        by=(_SCHEDULES + "test_schedules_go_by_the_servers_own_clock",),
    ),
    Mutant(
        name="schedule that passes a time",
        breaks="after a firing the next time but one comes next",
        path="pool/core/schedules.py",
        old="        cursor.pass_to(cursor.next_ms + 1)",
        new="        cursor.pass_to(cursor.next_ms + 1001)",
        needs=("schedules",),
    ),
    Mutant(
        name="schedule that is late for nothing",
        breaks="what was in time counts as missed",
        path="pool/core/schedules.py",
        old="ON_TIME_S: Final = 10.0",
        new="ON_TIME_S: Final = -1.0",
        by=("tests/core/test_schedules.py::test_who_comes_in_time_fires_each",),
    ),
    Mutant(
        name="firings with one id",
        breaks="the id of a firing's job has its time only: two schedules of a key make one job",
        path="pool/core/schedules.py",
        old='    return f"{name}@{told_time(at_ms)}"',
        new='    return f"@{told_time(at_ms)}"',
        needs=("schedules",),
    ),
    Mutant(
        name="firings with the same followers",
        breaks="the followers of all firings have the same ids",
        path="pool/core/followers.py",
        old="        parts[1] = new_id.encode()",
        new="",
        by=("tests/core/test_schedules.py::test_each_firing_has_followers_of_its_own",),
    ),
    Mutant(
        name="firing while the last one runs",
        breaks="a firing of a policy that leaves it out stands in line",
        path="pool/redis/lua/incoming.lua",
        old="    if not is_alone_there and (policy ~= 'q' or #ids >= whole(line_max)) then",
        new="    if not is_alone_there and policy == 'q' and #ids >= whole(line_max) then",
        by=("tests/jobs/test_schedules.py::test_the_policy_of_the_key_decides_what_overlaps",),
    ),
    Mutant(
        name="schedule that its index has lost",
        breaks="the walk does not compare schedules with their index",
        path="pool/jobs/fleet/scheduler.py",
        old="            if score is None and head is not None and not head.is_paused:",
        new="            if False:",
        by=("tests/jobs/test_schedules.py::test_a_lost_index_is_found_by_the_walk",),
    ),
    Mutant(
        name="tick for everybody",
        breaks="whoever asks for a tick has it, though somebody had it",
        path="pool/redis/lua/tick.lua",
        old="elseif at < latest and token ~= '' then",
        new="elseif at <= latest and token ~= '' then",
        by=(_SCHEDULES + "test_a_tick_is_one_callers",),
    ),
    Mutant(
        name="who follows otherwise never does",
        breaks="of a failed job those follow who were to if it is done",
        path="pool/redis/lua/lib/channel.lua",
        old="    if (when == 't') == (word == 'done') then",
        new="    if when == 't' then",
        by=(_CAMPAIGN,),  # real processes show it, too
    ),
    Mutant(
        name="who has failed counts as succeeded",
        breaks="a batch is done though too few of its members are",
        path="pool/redis/lua/lib/channel.lua",
        old="    tell_batch(member, word == 'done' and 's' or word == 'parked' and 'f' or 'c')",
        new="    tell_batch(member, word == 'cancelled' and 'c' or 's')",
        by=(_CAMPAIGN,),
    ),
    Mutant(
        name="a firing counts and says nothing",
        breaks="the first job of each firing is counted, and there is none",
        path="pool/redis/lua/schedule.lua",
        old="  for a = at, at + 2 * messages - 2, 2 do",
        new="  for a = at + 2, at + 2 * messages - 2, 2 do",
        by=(_CAMPAIGN,),
    ),
    Mutant(
        name="message carried out twice",
        breaks="a lane goes by no name of a message: whatever comes is carried out",
        path="pool/redis/lua/incoming.lua",
        old="if not first then\n  return 'APART ' .. stands\nend",
        new="first = 5",
        by=(_CHANNEL + "test_a_repeat_or_a_late_copy_does_nothing",),
    ),
    Mutant(
        name="message forgotten by its number",
        breaks="what a lane forgets is not looked at: after a failover it is another message",
        path="pool/redis/lua/outgoing.lua",
        old="1, 16) == last then",
        new="1, 16) ~= '' then",
        by=(_CHANNEL + "test_another_message_in_the_place_of_one_that_was_lost_is_carried_over",),
    ),
    Mutant(
        name="channel begun anew by anybody",
        breaks="who was told long ago where a lane stands has the other one go on from there",
        path="pool/redis/lua/outgoing.lua",
        old="if anew ~= '' and root == out.root and not is_here then",
        new="if anew ~= '' and not is_here then",
        by=(_CHANNEL + "test_lost_data_begin_the_pair_anew",),
    ),
    Mutant(
        name="channel begun anew by who was overtaken",
        breaks="of two that carry at once, the one behind takes it for a loss of data",
        path="pool/redis/lua/outgoing.lua",
        old="if anew ~= '' and root == out.root and not is_here then",
        new="if anew ~= '' and root == out.root then",
        by=(_CHANNEL + "test_who_is_overtaken_by_another_one_takes_no_data_for_lost",),
    ),
    Mutant(
        name="messages that nobody comes for",
        breaks="who is told of messages takes them out of `due`: if he dies nobody carries them",
        path="pool/redis/lua/outgoing.lua",
        old="  redis.call('ZADD', due, now + hold_ms, 'o:' .. to)",
        new="  redis.call('ZREM', due, 'o:' .. to)",
        by=(_CHANNEL + "test_what_follows_is_released_as_its_predecessor_ends",),
    ),
    Mutant(
        name="member that tells nobody",
        breaks="the step that ends a member of a batch writes nothing to it",
        path="pool/redis/lua/lib/finish.lua",
        old="',[bf]')",
        new="',[f]')",
        by=(_BATCHES + "test_the_step_that_ends_a_member_writes_to_the_batch",),
    ),
    Mutant(
        name="member counted twice",
        breaks="a batch does not look whether a member has ended: repeats and late words count",
        path="pool/redis/lua/lib/settle.lua",
        old=" or string.sub(words, at, at) ~= '.' then",
        new=" then",
        by=(_BATCHES + "test_members_stand_in_chunks",),
    ),
    Mutant(
        name="batch settled before it is sealed",
        breaks="a batch whose first members have ended settles, and what comes is not counted",
        path="pool/redis/lua/lib/settle.lua",
        old="      if (b.state == 's' or b.state == 'x') and ended_of(b)",
        new="      if not is_settled(b) and ended_of(b)",
        by=(_BATCHES + "test_so_many_must_succeed",),
    ),
    Mutant(
        name="member of a batch of before",
        breaks="a late end counts in another batch of that id",
        path="pool/redis/lua/incoming.lua",
        old="    if b and b.nonce == nonce then -- else",
        new="    if b then -- else",
        by=(_BATCHES + "test_a_late_end_of_a_batch_of_before_counts_nothing",),
    ),
    Mutant(
        name="missing, and runs",
        breaks="what is counted as missing is not refused when it comes after all",
        path="pool/redis/lua/muster.lua",
        old="      remember(result, pair, 'refused\\nENDED' .. grown, text_of(missing_ms))",
        new="",
        by=(_BATCHES + "test_each_member_says_how_it_is",),
    ),
    Mutant(
        name="missing for what is left of a refusal",
        breaks="who is told that a member is missing is told so though it may begin in a moment",
        path="pool/redis/lua/muster.lua",
        old=" or word == 'refused' then",
        new=" then",
        by=(_BATCHES + "test_each_who_is_told_that_one_is_missing_is_told_so_for_as_long",),
    ),
    Mutant(
        name="refusal that its own past ends",
        breaks="a refusal that was told again ends when it would have ended before that",
        path="pool/redis/lua/muster.lua",
        old="outcome and #outcome - 12 or 0",
        new="0",
        by=(_BATCHES + "test_each_who_is_told_that_one_is_missing_is_told_so_for_as_long",),
    ),
    Mutant(
        name="batch without a maker",
        breaks="one that its maker has left is never sealed",
        path="pool/redis/lua/batch_tend.lua",
        old="elseif ends and ends > now then",
        new="elseif ends then",
        by=(_BATCHES + "test_one_that_its_maker_has_left_is_sealed",),
    ),
    Mutant(
        name="members in whatever order",
        breaks="who adds other members in the place of those that are there gets these",
        path="pool/redis/lua/batch_add.lua",
        old="      if word ~= ARGV[a] then",
        new="      if false then",
        by=(_BATCHES + "test_who_comes_again_adds_the_same_and_nothing_twice",),
    ),
    Mutant(
        name="pages of members nobody turns",
        breaks="who looks after a batch and dies leaves the rest to the next look, a minute later",
        path="pool/redis/lua/batch_tend.lua",
        old="follows < 0 and b.state ~= 'x' and check_ms",
        new="b.state ~= 'x' and check_ms",
        by=(_BATCHES + "test_a_page_after_another_is_told",),
    ),
    Mutant(
        name="known types are known for good",
        breaks="once a call was right, one with other types is sent, for the worker to find",
        path="pool/jobs/typed/contract.py",
        old="            if kinds in self.flat:",
        new="            if self.flat:",
        by=("tests/jobs/test_contract.py",),
    ),
    Mutant(
        name="a later version is taken as our own",
        breaks="an old worker runs a job of a new program, with arguments that mean something else",
        path="pool/jobs/typed/contract.py",
        old="        if version > self.encoding.version:",
        new="        if version > self.encoding.version + 1:",
        by=("tests/jobs/test_contract.py",),
    ),
    Mutant(
        name="left to others at the cost of an attempt",
        breaks="while a fleet is deployed, old workers use up the attempts of new jobs",
        path="pool/jobs/settlement.py",
        old='Wait(delay_s, start.attempt, error, "l",',
        new='Wait(delay_s, start.attempt + 1, error, "l",',
        by=("tests/jobs/test_types.py::test_while_a_fleet_is_deployed_no_job_is_lost",),
    ),
    Mutant(
        name="subclasses as their base",
        breaks="what a subclass adds is lost on the way, and nobody is told",
        path="pool/jobs/typed/containers.py",
        old="-> dict[str, Any]:\n        if type(value) is not kind:",
        new="-> dict[str, Any]:\n        if not isinstance(value, kind):",
        by=("tests/jobs/test_shapes.py::test_what_is_not_of_the_type_is_not_sent",),
    ),
    Mutant(
        name="sets in whatever order",
        breaks="equal arguments are other bytes in another process: a repeat is a conflict",
        path="pool/jobs/typed/canonical.py",
        old="    return sorted(wires, key=_rank)",
        new="    return wires",
        by=("tests/jobs/test_shapes.py::test_equal_sets_are_equal_bytes",),
    ),
    Mutant(
        name="an edited letter forgets its version",
        breaks="what an operator has mended is upcast once more, and is parked again",
        path="pool/jobs/client/job_client.py",
        old="        return head(version=version) + encode_call(args, kwargs)",
        new="        return encode_call(args, kwargs)",
        by=(
            "tests/jobs/test_types.py::test_a_letter_keeps_its_version_when_it_is_edited_elsewhere",
        ),
    ),
    Mutant(
        name="threads of async handlers unwatched",
        breaks="a handler whose thread goes on is never left behind",
        path="pool/jobs/worker/worker.py",
        old="            if not run.may_leak:\n                self._watch_threads(run)",
        new="            if not run.may_leak:\n                run.may_leak = False",
        by=("tests/jobs/test_blocking.py",),
    ),
    Mutant(
        name="leaked without a thread",
        breaks="a handler that only takes its time is taken for one that cannot be ended",
        path="pool/jobs/worker/worker.py",
        old="        if run.handler._is_async and not (run.blocking",
        new="        if run.handler._is_async and (run.blocking",
        by=("tests/jobs/test_blocking.py",),
    ),
    Mutant(
        name="generators left open",
        breaks="a generator that stands at a yield is not closed when its job is told to end",
        path="pool/jobs/forms.py",
        old="        await values.aclose()",
        new="        await anyio.lowlevel.checkpoint()",
        by=("tests/jobs/test_forms.py",),
    ),
    Mutant(
        name="a plain generator never hears",
        breaks="a plain generator goes on when its job was told to end",
        path="pool/jobs/forms.py",
        old="    anyio.from_thread.check_cancelled()\n    anyio.from_thread.run_sync",
        new="    anyio.from_thread.run_sync",
        by=("tests/jobs/test_forms.py",),
    ),
    Mutant(
        name="one object for all attempts",
        breaks="what an attempt left in its object meets the next one",
        path="pool/jobs/forms.py",
        old="        return given(**mine)\n\n    return make, own",
        new="        made.extend([] if made else [given(**mine)])\n        return made[0]\n\n"
        "    made: list[Any] = []\n    return make, own",
        by=("tests/jobs/test_forms.py",),
    ),
    Mutant(
        name="stopped though it never started",
        breaks="an object is stopped whose start raised",
        path="pool/jobs/forms.py",
        old="        is_started = False",
        new="        is_started = True",
        by=("tests/jobs/test_object_form.py",),
    ),
    Mutant(
        name="a scope where closing begins",
        breaks="a task group that is open across a yield cannot be left",
        path="pool/jobs/closing.py",
        old="        await close(raised)",
        new="        with anyio.CancelScope():\n            await close(raised)",
        by=("tests/jobs/test_forms.py",),
    ),
    Mutant(
        name="orphans of our own",
        breaks="the process of a function outlives ours",
        path="pool/jobs/child.py",
        old="    fcntl.fcntl(line, fcntl.F_SETFL, flags | os.O_ASYNC)",
        new="    fcntl.fcntl(line, fcntl.F_SETFL, flags)",
        by=("tests/jobs/test_blocking.py",),
    ),
    Mutant(
        name="a copy holds the line",
        breaks="a forked copy of ours keeps the process of a function alive",
        path="pool/jobs/process.py",
        old="    for line in list(_LINES):",
        new="    for line in list(_LINES)[:0]:",
        by=("tests/jobs/test_blocking.py",),
    ),
    Mutant(
        name="a thread waits for its own place",
        breaks="a function in a thread that calls another one waits for ever",
        path="pool/jobs/blocking.py",
        old="(anyio.CapacityLimiter(1) if is_within else self.limiter)",
        new="self.limiter",
        by=("tests/jobs/test_blocking.py",),
    ),
    Mutant(
        name="a program runs itself again",
        breaks="the process of a function becomes a second worker",
        path="pool/jobs/child.py",
        old="        process.current_process()._inheriting = True",
        new="        process.current_process()._inheriting = False",
        by=("tests/jobs/test_blocking.py",),
    ),
    Mutant(
        name="an old one stays beside its successor",
        breaks="a reload doubles the processes of each place",
        path="pool/ops/processes.py",
        old="        effects: list[Effect] = [self._drain(each) for each in older]",
        new="        effects: list[Effect] = [self._drain(each) for each in older[:0]]",
        by=("tests/ops/test_processes.py",),
    ),
    Mutant(
        name="a reload does not wait for who drains",
        breaks="a reload has as many processes more as there are places",
        path="pool/ops/processes.py",
        old='        if self._in_state("leaving"):\n            return  # one more',
        new="        if not self.children:\n            return  # one more",
        by=("tests/ops/test_processes.py",),
    ),
    Mutant(
        name="a second reload waits for who hangs",
        breaks="what hangs while it is imported cannot be mended by a reload",
        path="pool/ops/processes.py",
        old='        late = self._in_state("starting")',
        new="        late: list[Child] = []",
        by=("tests/ops/test_processes.py",),
    ),
    Mutant(
        name="who has worked for long has failed as often as before",
        breaks="a process that dies once a day comes back half a minute later",
        path="pool/ops/processes.py",
        old="        failures = 0 if is_healthy else self._failures.get(number, 0)",
        new="        failures = self._failures.get(number, 0)",
        by=("tests/ops/test_processes.py",),
    ),
    Mutant(
        name="what is broken in a reload is not told",
        breaks="a reload whose successors fail goes on for ever",
        path="pool/ops/processes.py",
        old='        if self.is_reloading and child.state == "starting":',
        new='        if self.is_reloading and child.state == "ready":',
        by=("tests/ops/test_processes.py",),
    ),
    Mutant(
        name="who opens a client can be interrupted while it does",
        breaks="a time limit that raises in between leaves a node and a thread, also after close()",
        path="pool/jobs/sync/portal.py",
        old="        _thread.start_new_thread(self._open, (told,))",
        new="        self._open(told)",
        by=("tests/jobs/test_interrupted.py",),
    ),
    Mutant(
        name="what ends a program ends the client's loop",
        breaks="sys.exit() in a called function leaves the node, and its caller hears of a close",
        path="pool/jobs/sync/portal.py",
        old="        except BaseException as error:  # noqa: BLE001 - as above",
        new="        except Exception as error:  # noqa: BLE001 - as above",
        by=(
            "tests/jobs/test_sync.py::test_what_a_function_raises_is_its_callers_and_the_node_stays",
        ),
    ),
    Mutant(
        name="what is left out of an edit is emptied",
        breaks="--args alone wipes the arguments that have names",
        path="pool/ops/cli/parked.py",
        old="        named = letter.kwargs if named is None else named",
        new="        named = named or {}",
        by=("tests/ops/test_cli.py::test_dead_letters_are_listed_mended_replayed_and_discarded",),
    ),
    Mutant(
        name="an unset variable means all letters",
        breaks="discard --all --prefix '$UNSET' throws all of them away",
        path="pool/ops/cli/parser.py",
        old="    if not text:\n        raise argparse.Arg",
        new="    if text is None:\n        raise argparse.Arg",
        by=(
            "tests/ops/test_cli.py::test_what_bounds_a_command_is_not_widened_by_an_unset_variable",
        ),
    ),
    Mutant(
        name="whatever lies where a ready file is to be is removed",
        breaks="a slip of the hand deletes somebody's file, or a device",
        path="pool/ops/cli/readiness.py",
        old="    if text and not _LINE.fullmatch(text):",
        new="    if not text.isascii():",
        by=("tests/ops/test_run.py::test_what_is_no_ready_file_is_not_touched",),
    ),
    Mutant(
        name="who leaves removes its successor's ready file",
        breaks="in a deploy that overlaps the new worker is never seen to be ready",
        path="pool/ops/cli/readiness.py",
        old="        if _held(path) == str(os.getpid()):",
        new="        if _held(path) is not None:",
        by=("tests/ops/test_run.py::test_a_ready_file_of_a_successor_stays",),
    ),
    Mutant(
        name="a server writes over somebody's log",
        breaks="`pool dev --dir .` truncates a server.log that it has not written",
        path="pool/redis/embedded/server.py",
        old="            if (directory / name).exists():",
        new="            if not directory.exists():",
        by=(
            "tests/redis/test_server.py::test_a_directory_that_holds_somebodys_log_or_data_is_refused",
        ),
    ),
    Mutant(
        name="one that cannot begin ends all",
        breaks="a file half written, read by one child, takes down those that work",
        path="pool/ops/processes.py",
        old="not self.has_worked and not self.waits",
        new="not self.was_ready and not self.waits",
        by=("tests/ops/test_processes.py",),
    ),
    Mutant(
        name="who could not begin is forgotten",
        breaks="its place stays empty for ever, beside others that work",
        path="pool/ops/processes.py",
        old="        for each in refused:",
        new="        for each in refused[:0]:",
        by=("tests/ops/test_processes.py",),
    ),
    Mutant(
        name="who stands still is waited for",
        breaks="a stopped child keeps its parent from ending, and a reload from going on",
        path="pool/ops/processes.py",
        old="            if child.kill_s <= now_s:",
        new="            if child.kill_s < now_s - 3600:",
        by=("tests/ops/test_processes.py",),
    ),
    Mutant(
        name="a variable counts before a flag",
        breaks="an operator cannot say otherwise for once",
        path="pool/ops/cli/config.py",
        old="    said |= _from_flags(args)",
        new="    said = {**dict(_from_flags(args)), **said}",
        by=("tests/ops/test_config.py",),
    ),
    Mutant(
        name="a mistyped variable is somebody else's",
        breaks="a setting that is not taken is not told",
        path="pool/ops/cli/config.py",
        old='            near = _nearest(variable.removeprefix("POOL_"), [v[5:] for v in known])',
        new='            near = ""',
        by=("tests/ops/test_config.py",),
    ),
    Mutant(
        name="the last of two modules has the name",
        breaks="a handler of one module runs the jobs of another's",
        path="pool/ops/cli/loading.py",
        old="            if owner != reference:",
        new="            if not owner:",
        by=("tests/ops/test_check.py",),
    ),
    Mutant(
        name="a child that loads hears nothing",
        breaks="a process that hangs in an import outlives its parent",
        path="pool/ops/cli/child.py",
        old="        if self._is_loading:",
        new="        if not self._is_loading:",
        by=("tests/ops/test_run.py::test_a_child_that_hangs_in_an_import_ends_with_its_parent",),
    ),
    Mutant(
        name="a signal to all is a second one for a child",
        breaks="whoever signals a whole group ends its jobs at once",
        path="pool/ops/cli/worker.py",
        old="signal.SIG_DFL if leash is None else signal.SIG_IGN)",
        new="signal.SIG_DFL)",
        by=("tests/ops/test_run.py::test_all_drain_when_the_parent_is_told_and_also_when_all_are",),
    ),
    Mutant(
        name="who drains is still ready",
        breaks="a probe finds a worker ready that takes no jobs",
        path="pool/ops/cli/readiness.py",
        old='            _remove(self.file)\n        self._notify(f"STOPPING',
        new='            pass\n        self._notify(f"STOPPING',
        by=("tests/ops/test_run.py::test_who_started_it_hears_when_it_is_ready_and_leaves",),
    ),
    Mutant(
        name="no headroom is asked for",
        breaks="a recursion without end is interrupted between two steps of ours",
        path="pool/jobs/node.py",
        old="        check_headroom()\n        if self._forks",
        new="        if self._forks",
        by=("tests/jobs/test_deep_stacks.py::test_from_a_stack_with_no_room_nothing_is_begun",),
    ),
    Mutant(
        name="no headroom for what a handler stores",
        breaks="a recursion of a handler is interrupted between two steps of ours",
        path="pool/jobs/worker/worker.py",
        old="                check_here=self.context.pipeline.check_caller,",
        new="                check_here=self.context.pipeline.check_loop,",
        by=("tests/jobs/test_deep_stacks.py::test_so_it_is_in_a_handler",),
    ),
    Mutant(
        name="done before it is woken",
        breaks="a task whose wake-up failed sleeps for ever",
        path="pool/redis/io/loops.py",
        old="            self._wake_soon()\n            self.set_result(reply)",
        new="            self.set_result(reply)\n            self._wake_soon()",
        by=("tests/jobs/test_deep_stacks.py::test_an_unwoken_pipeline_says_so_and_goes_on",),
    ),
    Mutant(
        name="taken before it is rescheduled",
        breaks="a task of trio's whose wake-up failed sleeps for ever",
        path="pool/redis/io/loops.py",
        old="            self._lowlevel.reschedule(self._task)\n"
        "        self._reply, self._is_taken, self._task = reply, True, None",
        new="            task, self._reply, self._is_taken = self._task, reply, True\n"
        "            self._task = None\n"
        "            self._lowlevel.reschedule(task)\n"
        "        self._reply, self._is_taken, self._task = reply, True, None",
        by=("tests/jobs/test_deep_stacks.py::test_an_unwoken_pipeline_says_so_and_goes_on",),
    ),
    Mutant(
        name="no longer idle before it is woken",
        breaks="a pipeline that nobody woke is taken for one that works",
        path="pool/redis/pipeline.py",
        old="            self._running_body.wake()\n            self._is_idle = False  #",
        new="            self._is_idle = False\n            self._running_body.wake()  #",
        by=("tests/jobs/test_deep_stacks.py::test_an_unwoken_pipeline_says_so_and_goes_on",),
    ),
    Mutant(
        name="nobody looks who was not woken",
        breaks="an actor that was told and not woken stays asleep until somebody tells it more",
        path="pool/jobs/wiring.py",
        old="        self._supervisor.look()\n",
        new="",
        by=("tests/jobs/test_deep_stacks.py::test_an_unwoken_part_is_down_and_begins_again",),
    ),
    Mutant(
        name="stages without end",
        breaks="a chain that goes on and on is asked for as long as it goes on",
        path="pool/jobs/client/ref.py",
        old="if not asked or len(stages) >= STAGES_MAX:",
        new="if not asked:",
        by=("tests/jobs/test_followers.py::test_stages_of_a_chain_as_long_as_can_be_are_told",),
    ),
    Mutant(
        name="what ends its caller ends with it",
        breaks="a job that shuts the pool down is stopped, and nobody drains",
        path="pool/jobs/node.py",
        old='return await self._outlive("shutdown_pool", self._end_all)',
        new="return await self._end_all()",
        by=("tests/jobs/test_listing.py::test_a_job_that_ends_all_is_one_of_them_and_it_goes_on",),
    ),
    Mutant(
        name="stopping all ends with its caller",
        breaks="a job that stops all, itself included, leaves others as they are",
        path="pool/jobs/node.py",
        old='return await (self._outlive("stop_all", work) if RUNNING.get() else work())',
        new="return await work()",
        by=("tests/jobs/test_listing.py::test_a_job_that_ends_all_is_one_of_them_and_it_goes_on",),
    ),
    Mutant(
        name="only handlers that are registered",
        breaks="jobs that no worker takes are not among those that are unassigned",
        path="pool/jobs/client/shelves.py",
        old='(*queues, ("jobs", "")) if await self._has_others(names, queues) else queues',
        new="queues",
        by=("tests/jobs/test_listing.py::test_what_nobody_takes_is_listed_and_counted",),
    ),
    Mutant(
        name="nothing is found where all is lost",
        breaks="right after a loss all are said to be stopped, while their handlers run",
        path="pool/jobs/client/listing.py",
        old="        if not told or (generation and told != generation):",
        new="        if False:",
        by=("tests/jobs/test_after_a_loss.py::test_who_waits_for_what_the_server_forgot_is_told",),
    ),
    Mutant(
        name="stopped because it is unknown",
        breaks="of a job that was lost, or never was, it is said that it has ended",
        path="pool/jobs/client/ref.py",
        old="        except NoSuchJob:\n            found, _ = await self._look()\n",
        new="        except NoSuchJob:\n            found = None\n",
        by=("tests/jobs/test_listing.py::test_who_stops_what_never_was_is_told",),
    ),
    Mutant(
        name="a name is another follower than its function",
        breaks="who repeats a dispatch and names what follows otherwise is refused",
        path="pool/jobs/followers.py",
        old="known._options.kind if known and self.has_kinds else None",
        new="known._options.kind if known else None",
        by=(
            "tests/jobs/test_followers.py::test_a_follower_is_the_same_by_its_name_and_its_function",
        ),
    ),
)


# --- in the copy --------------------------------------------------------------------------------


def _hunt(needs: Sequence[str], seeds: int, after: int, pin: str) -> int:
    """Play seeds until an invariant fires; print which, as JSON.  The first so many were played."""
    from tests.verify.sim.campaign import regressions
    from tests.verify.sim.config import Config
    from tests.verify.sim.run import play

    wanted = set(needs)

    def price(seed: int) -> tuple[int, float]:
        config = Config.of(seed)
        has = {*config.faults}
        has |= {"bursts"} if config.bursts else set()
        has |= {"workers"} if config.workers > 1 else set()
        has |= {*config.shapes}
        return len(wanted - has), len(config.faults) * 3 + config.jobs * 0.1 + 20 / config.ttl_s

    began_s, tried = time.perf_counter(), after
    pinned = [Config.parse(pin)] if pin else []
    drawn = [Config.of(seed) for seed in sorted(range(seeds), key=price)]
    for config in (*pinned, *regressions(), *drawn)[after:]:
        tried += 1
        outcome = play(config)
        broken = [name for name in outcome.broken if name != "failure"]
        if broken:
            took_s = time.perf_counter() - began_s
            found = {"seed": config.seed, "broken": broken, "tried": tried}
            found |= {"took_s": round(took_s, 1), "config": config.text()}
            sys.stdout.write(json.dumps(found))
            return 0
    sys.stdout.write(json.dumps({"tried": tried}))
    return 0


# --- the tool -----------------------------------------------------------------------------------


def planted(mutant: Mutant) -> str:
    """Return the text of its file with the bug in it."""
    text = (ROOT / mutant.path).read_text("utf-8")
    count = text.count(mutant.old)
    assert count == 1, f"{mutant.name}: applies {count} times to {mutant.path}"
    return text.replace(mutant.old, mutant.new)


def copy_tree(target: Path) -> None:
    """Copy the tree without what tools and tests leave behind."""
    ignored = shutil.ignore_patterns(*_LEFT_BEHIND)
    shutil.copytree(ROOT, target, ignore=ignored, dirs_exist_ok=True)


def _run(mutant: Mutant, seeds: int, pin: str, clean_s: Mapping[str, float]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="pool-mutant-") as directory:
        copy = Path(directory)
        copy_tree(copy)
        (copy / mutant.path).write_text(planted(mutant), "utf-8")
        if mutant.by:
            return _tested(mutant, copy, clean_s)
        found: dict[str, Any] = {"tried": 0}
        while True:  # what is bad without it too says nothing of it
            options = ("--seeds", str(seeds), "--after", str(found["tried"]), "--pin", pin)
            hunt = ("--hunt", ",".join(mutant.needs), *options)
            done = started(copy, "tests.verify.mutants", *hunt)
            if done.returncode:
                return {"error": done.stderr[-500:]}
            found = json.loads(done.stdout)
            if "seed" not in found or _is_control_clean(found["config"]):
                return found | {"control": True}
            sys.stderr.write(f"bad without {mutant.name!r}, too: {found['config']}\n")


def started(
    tree: Path,
    module: str,
    *args: str,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a module of a tree; with its time it ends, and whatever it has started in its session."""
    command = [sys.executable, "-m", module, *args]
    environment = {**os.environ, "PYTHONPATH": str(tree), **(env or {})}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with subprocess.Popen(
            command, cwd=tree, env=environment, stdout=out, stderr=err, start_new_session=True
        ) as process:
            try:
                code = process.wait(timeout_s)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        texts = [file.read() for file in (out, err) if file.seek(0) == 0]
    return subprocess.CompletedProcess(command, code, *texts)


def _tested(mutant: Mutant, copy: Path, clean_s: Mapping[str, float]) -> dict[str, Any]:
    """Run its tests with the bug; without it only those that were not clean before, or are new."""
    began_s, options = time.perf_counter(), ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    if all(test.endswith("]") for test in mutant.by):
        options += ["-m", "not languages"]  # it is named, so it may be a long one
    without, took_s = 0, sum(clean_s.get(test, 0.0) for test in mutant.by)
    if not all(test in clean_s for test in mutant.by):
        without = started(ROOT, "pytest", *options, *mutant.by, env=_ON_BOTH).returncode
        took_s = time.perf_counter() - began_s
    try:
        by_then_s = _PATIENCE * took_s + _STARTS_S
        with_it = started(
            copy, "pytest", *options, *mutant.by, env=_ON_BOTH, timeout_s=by_then_s
        ).returncode
    except subprocess.TimeoutExpired:
        with_it = _TESTS_FAILED  # whoever waits for ever stops the tests as well
    took_s = round(time.perf_counter() - began_s, 1)
    found: dict[str, Any] = {"seed": "-", "tried": "-", "took_s": took_s, "control": not without}
    if with_it == _TESTS_FAILED:
        found["broken"] = [f"`{test.rpartition('/')[2]}`" for test in mutant.by]
    if without:
        found["error"] = "its tests fail without it, too"
    return found


def _clean_s(mutants: Sequence[Mutant], jobs: int) -> dict[str, float]:
    """Run the tests of all of them without any bug; return of those that pass how long they take.

    Once for all: many bugs have the same tests, and each of these would be run with each.
    """
    tests = sorted({test for mutant in mutants for test in mutant.by})
    with tempfile.TemporaryDirectory(prefix="pool-mutant-") as directory:
        report = Path(directory) / "report.xml"
        options = (
            *("-q", "-p", "no:cacheprovider", "-n", str(jobs), "--dist", "worksteal"),
            *("-o", "junit_family=xunit1"),  # the newer one refuses tests with properties
        )
        started(ROOT, "pytest", *options, f"--junitxml={report}", *tests, env=_ON_BOTH)
        cases = list(ElementTree.parse(report).iter("testcase"))  # noqa: S314 - our own file
    clean: dict[str, float] = {}
    for test in tests:
        path, _, name = test.partition("::")
        module = path.removesuffix(".py").replace("/", ".")
        its = [
            case
            for case in cases
            if case.attrib["classname"] == module
            and (not name or case.attrib["name"].partition("[")[0] == name.partition("[")[0])
        ]
        bad = [
            case
            for case in its
            if case.find("failure") is not None or case.find("error") is not None
        ]
        if its and not bad:
            clean[test] = sum(float(case.attrib["time"]) for case in its)
    return clean


def _is_control_clean(config: str) -> bool:
    from tests.verify.sim.config import Config
    from tests.verify.sim.run import play

    with _ONE_AT_A_TIME:
        return play(Config.parse(config)).ok


def _is_killed(found: dict[str, Any]) -> bool:
    return bool(found.get("broken")) and bool(found.get("control"))


def _row(mutant: Mutant, found: dict[str, Any]) -> str:
    if _is_killed(found):
        verdict = f"{', '.join(found['broken'])} | {found['seed']} | {found['tried']}"
    else:
        verdict = f"**survived** {found.get('error', '')} | - | {found.get('tried', 0)}"
    star = " *" if mutant.is_named else ""
    return f"| {mutant.name}{star} | {mutant.breaks} | `{mutant.path}` | {verdict} |"


def pins() -> dict[str, str]:
    """Return the configuration that showed each mutant last, by the mutant's name."""
    lines = PINS.read_text("utf-8").splitlines()
    return {name[2:]: text for name, text in zip(lines[::2], lines[1::2], strict=True)}


def _pin(found: Mapping[str, str]) -> None:
    """Keep what showed mutants now; forget those that are gone, or name tests."""
    known = {**pins(), **found}
    names = [mutant.name for mutant in MUTANTS if not mutant.by and mutant.name in known]
    PINS.write_text("".join(f"# {name}\n{known[name]}\n" for name in names), "utf-8")


_HEAD: Final = """# Planted bugs

What a verifier is worth is shown by what it catches.  Each of these bugs was planted alone, and the
simulation (`make sim`) was run until an invariant fired; the same seed without the bug is clean
(`tests/verify/mutants.txt` has its configuration, for `python -m tests.verify.sim --config`).
Those with a star are the classical ones that every such campaign must kill; those that no simulated
world can show name the tests that failed by them.  `make mutants` runs all of them and writes this
page.

| planted bug | what it breaks | where | killed by | seed | seeds tried |
|---|---|---|---|---|---|
"""


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.verify.mutants", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--hunt", help=argparse.SUPPRESS)
    parser.add_argument("--after", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--pin", default="", help=argparse.SUPPRESS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    if given.hunt is not None:
        needs = [need for need in given.hunt.split(",") if need]
        return _hunt(needs, given.seeds, given.after, given.pin)
    chosen = [m for m in MUTANTS if not given.names or m.name in given.names]
    for mutant in chosen:
        planted(mutant)
    pinned, rows, alive = pins(), list[str](), 0
    # Without a test to name pytest would run all that there are.
    has_tests = len(chosen) > 1 and any(mutant.by for mutant in chosen)
    clean_s = _clean_s(chosen, given.jobs) if has_tests else {}
    with ThreadPoolExecutor(given.jobs) as workers:
        results = workers.map(
            lambda m: _run(m, given.seeds, pinned.get(m.name, ""), clean_s), chosen
        )
        for mutant, found in zip(chosen, results, strict=True):
            rows.append(_row(mutant, found))
            alive += not _is_killed(found)
            if _is_killed(found) and "config" in found:
                _pin({mutant.name: found["config"]})
            sys.stdout.write(f"{rows[-1]}  {found.get('took_s', '')}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - alive} of {len(chosen)} mutants killed\n")
    if not given.names:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(_HEAD + "\n".join(rows) + "\n", "utf-8")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
