"""Bugs planted in what looks for trouble, and in what keeps a pause, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_NODES: Final = "tests/ops/test_doctor_nodes.py::"
_DOCTOR: Final = "tests/ops/test_doctor.py::"
_AILING: Final = "tests/core/test_ailing.py::"
_PAUSES: Final = "tests/jobs/test_pauses.py::"
_SITUATION: Final = "tests/ops/test_situations.py::test_a_situation_is_told_by_exactly_its_findings"

_REFUSED: Final = (
    "tests/ops/test_situations.py::"
    "test_refused_calls_of_the_pools_users_alone_are_reported_and_age_out"
)
_CHECK: Final = "tests/ops/test_check.py::"
_CUT: Final = "tests/jobs/test_undeliverable.py::"
_WEB: Final = "tests/web/test_control.py::"
_PROTOCOL: Final = "tests/ops/test_protocol.py::"
_EVICTION: Final = "tests/ops/test_eviction.py::"

DOCTOR_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "what the server cannot deliver is fetched for ever",
        "breaks": "a job stays pending, and connections are cut as long as it is there",
        "path": "pool/jobs/worker/executor.py",
        "old": "if run.cuts < CUTS_MAX:",
        "new": "if run.cuts < 10_000:",
        "by": (_CUT + "test_a_job_that_cannot_be_fetched_is_parked_and_cuts_few_connections",),
    },
    {
        "name": "a request without Host is answered",
        "breaks": "two servers in a row may disagree about whom a request is for",
        "path": "pool/ops/web/server.py",
        "old": 'if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):',
        "new": "if hosts > 1:",
        "by": ("tests/web/test_edge.py::test_a_request_names_its_host_once",),
    },
    {
        "name": "a check says nothing of values that do not count",
        "breaks": "somebody changes the file, and wonders why nothing happens",
        "path": "pool/ops/cli/config.py",
        "old": "found.override(name, before, said[name])",
        "new": "continue",
        "by": (_CHECK + "test_values_of_the_file_that_do_not_count_are_named_and_judged",),
    },
    {
        "name": "a queue behind cordons is a backlog as well",
        "breaks": "one cordon is reported twice, and once as too few workers",
        "path": "pool/ops/doctor.py",
        "old": "if is_paused(lane, queue) or closed is not None:",
        "new": "if is_paused(lane, queue):",
        "by": (_SITUATION,),
    },
    {
        "name": "a loop that is always at work is well",
        "breaks": "nobody is told of a worker whose loop has no time left",
        "path": "pool/jobs/fleet/keepalive.py",
        "old": "self._busy.add(float(lag_s > BUSY_S), now_s)",
        "new": "self._busy.add(0.0, now_s)",
        "by": (_NODES + "test_a_loop_that_is_busy_most_of_the_time_is_told_of",),
    },
    {
        "name": "who cannot renew is dead",
        "breaks": "workers that live are said to be dead while the server refuses all writes",
        "path": "pool/ops/doctor.py",
        "old": "    if any(map(refuses_writes, facts.servers)):",
        "new": "    if False:",
        "by": ("tests/ops/test_situations.py::test_who_cannot_write_is_not_said_to_be_dead",),
    },
    {
        "name": "two numbers of two moments",
        "breaks": "jobs that come and go while somebody looks are said to have no handler",
        "path": "pool/ops/inspect.py",
        "old": "    if unassigned <= sum(counts):\n        return 0\n",
        "new": "    return max(0, unassigned - sum(counts))\n",
        "by": ("tests/ops/test_doctor.py::test_jobs_that_come_and_go_have_a_handler",),
    },
    {
        "name": "a hung job without timeout_s is plain",
        "breaks": "nobody is told of a job that has hung for days",
        "path": "pool/ops/checkup.py",
        "old": "and not is_unusual(record, self._usual, self._now_ms)",
        "new": "and record is not None",
        "by": (_SITUATION,),
    },
    {
        "name": "a schedule that never makes a job again is not looked at",
        "breaks": "its times are left out for ever behind one job that hangs",
        "path": "pool/ops/checkup.py",
        "old": "left_out.append(stored)",
        "new": "pass",
        "by": (_SITUATION,),
    },
    {
        "name": "a command line does not compare protocol numbers",
        "breaks": "it reads and writes a pool whose layout it does not know, and says it is done",
        "path": "pool/ops/inspect.py",
        "old": "check_protocol(pool, number_or(-1, protocol))",
        "new": "number_or(-1, protocol)",
        "by": (_PROTOCOL + "test_each_verb_refuses_a_pool_of_another_number",),
    },
    {
        "name": "a gateway does not compare protocol numbers",
        "breaks": "one that is left over operates a pool whose layout it does not know",
        "path": "pool/ops/web/app.py",
        "old": "await self._gateway.check_protocol()",
        "new": "pass",
        "by": (_WEB + "test_a_pool_of_another_protocol_number_is_neither_shown_nor_changed",),
    },
    {
        "name": "operators are refused on a server that evicts",
        "breaks": "nobody can stop or pause anything while jobs may be evicted",
        "path": "pool/ops/cli/asking.py",
        "old": "node = Node(pool, url.credentials.text, observers=(), _is_operator=is_operator)",
        "new": "node = Node(pool, url.credentials.text, observers=(), _is_operator=False)",
        "by": (_EVICTION + "test_looking_and_operating_go_on_and_new_work_is_refused",),
    },
    {
        "name": "a changed policy is reported with each look",
        "breaks": "each node writes an error a minute for as long as the policy stays",
        "path": "pool/runtime/eviction.py",
        "old": 'if policy not in ("", KEEPS_ALL, before):',
        "new": 'if policy not in ("", KEEPS_ALL):',
        "by": (_EVICTION + "test_open_nodes_report_a_changed_policy_once_and_go_on",),
    },
    {
        "name": "a node opens on a server that evicts",
        "breaks": "jobs are accepted by a server that throws them away",
        "path": "pool/runtime/eviction.py",
        "old": 'if policy not in ("", KEEPS_ALL):',
        "new": 'if policy in ("never",):',
        "by": (_EVICTION + "test_whoever_opens_the_pool_to_write_is_refused",),
    },
    {
        "name": "a paused handler scales the fleet up",
        "breaks": "an autoscaler starts workers for jobs that none may start",
        "path": "pool/ops/doctor.py",
        "old": "return is_known and not is_paused(lane, queue)",
        "new": "return is_known",
        "by": (_SITUATION,),
    },
    {
        "name": "a handler that nobody has scales the fleet up",
        "breaks": "an autoscaler starts workers, and none of them has the handler",
        "path": "pool/ops/doctor.py",
        "old": "is_known = bool(workers_for(facts, queue.handler)) or not facts.workers",
        "new": "is_known = True",
        "by": (_SITUATION,),
    },
    {
        "name": "a paused pool without jobs is not reported",
        "breaks": "the pause is forgotten until the next job waits",
        "path": "pool/ops/doctor.py",
        "old": 'elif pause.what == "pool" and any(lane.pauses.is_all for lane in facts.lanes):',
        "new": "elif not facts.lanes:",
        "by": (_SITUATION,),
    },
    {
        "name": "dead letters that are none",
        "breaks": "each pool has a finding about them: a false alarm that tests of one rule miss",
        "path": "pool/ops/doctor.py",
        "old": "    if total:\n        recently",
        "new": "    if total >= 0:\n        recently",
        "by": (_SITUATION,),
    },
    {
        "name": "a second attempt is a failure again and again",
        "breaks": "one retry raises an alarm",
        "path": "pool/ops/doctor.py",
        "old": "ATTEMPTS: Final = 3 ",
        "new": "ATTEMPTS: Final = 1 ",
        "by": (_SITUATION,),
    },
    {
        "name": "a wrong password is a missing right",
        "breaks": "one typing error of any client is reported in every pool until a restart",
        "path": "pool/ops/refusals.py",
        "old": 'REASONS: Final = frozenset({"command", "key", "channel"})',
        "new": 'REASONS: Final = frozenset({"command", "key", "channel", "auth"})',
        "by": (_REFUSED,),
    },
    {
        "name": "a refused call of another pool's user is this pool's",
        "breaks": "whoever tries a command anywhere is reported in every pool of the server",
        "path": "pool/ops/refusals.py",
        "old": 'return bool(mine) and (mine != [_ANY] or _OURS in entry["client-info"])',
        "new": "return bool(keys)",
        "by": (_REFUSED,),
    },
    {
        "name": "a lane made anew grants what is paused",
        "breaks": "a lane that lost its data has forgotten that an operator paused it",
        "path": "pool/jobs/fleet/membership.py",
        "old": "paused=self._paused_in(state),",
        "new": 'paused="",',
        "by": (_PAUSES + "test_a_lane_that_lost_its_data_is_paused_from_its_first_moment",),
    },
    {
        "name": "a lane made anew forgets which keys are paused",
        "breaks": "it says that so many are, and not which",
        "path": "pool/redis/lua/join.lua",
        "old": "redis.call('HSET', lane, 'paused ' .. key, '1')",
        "new": "redis.call('HGET', lane, 'paused ' .. key)",
        "by": (_PAUSES + "test_a_lane_that_lost_its_data_is_paused_from_its_first_moment",),
    },
    {
        "name": "a pool made anew is not paused",
        "breaks": "what operators asked for goes with the data, and those who asked do not know",
        "path": "pool/jobs/fleet/membership.py",
        "old": "await self.announcer.write_asked(made.generation)",
        "new": "pass",
        "by": (_PAUSES + "test_a_pool_that_was_lost_as_a_whole_stays_paused_and_cordoned",),
    },
    {
        "name": "renewals that fail ail nobody",
        "breaks": "a node that can hardly renew says that it is well",
        "path": "pool/jobs/fleet/keepalive.py",
        "old": "self._renewals.add(float(isinstance(reply, PoolError)), now_s)",
        "new": "self._renewals.add(0.0, now_s)",
        "by": (_NODES + "test_renewals_that_fail_now_and_then_are_told_of",),
    },
    {
        "name": "a copy that cannot go on is well",
        "breaks": "a process goes on with a map as it was, and nobody is told",
        "path": "pool/maps/replica.py",
        "old": "return self._is_failing",
        "new": "return False",
        "by": (
            _NODES + "test_a_copy_that_cannot_go_on_is_told_of_and_mended_by_deleting_what_is_in"
            "_its_way",
        ),
    },
    {
        "name": "a copy of which nothing is heard is well",
        "breaks": "a server of maps that hangs is no trouble of those that copy them",
        "path": "pool/maps/follower.py",
        "old": "if each.heard_s < since_s}",
        "new": "if False}",
        "by": (_NODES + "test_a_copy_of_which_nothing_is_heard_is_behind",),
    },
    {
        "name": "a node ails for ever",
        "breaks": "what was over long ago is said with each renewal",
        "path": "pool/core/ailing.py",
        "old": "if age_s >= 2 * SPAN_S:",
        "new": "if False:",
        "by": (_AILING + "test_numbers_are_kept_for_one_to_two_spans",),
    },
    {
        "name": "a crash of long ago is one of now",
        "breaks": "what is over is a finding for as long as the journal has it",
        "path": "pool/ops/findings.py",
        "old": "if each.edge == edge and now_s - each.at.timestamp() < within_s",
        "new": "if each.edge == edge",
        "by": (_DOCTOR + "test_up_to_its_threshold_nothing_is_found",),
    },
    {
        "name": "a batch that has ended lacks members",
        "breaks": "it is a finding for as long as it is remembered",
        "path": "pool/ops/checkup.py",
        "old": "if looked is not None and looked.head.missing and not looked.head.is_settled:",
        "new": "if looked is not None and looked.head.missing:",
        "by": (_NODES + "test_a_batch_under_way_that_lacks_members_is_told_of",),
    },
    {
        "name": "what one worker has left is unreadable to all",
        "breaks": "a job that another worker is about to begin is told as one that nobody can read",
        "path": "pool/ops/doctor.py",
        "old": "and able.get(record.handler, left) <= left",
        "new": "and left",
        "by": (
            "tests/jobs/test_types.py::test_what_nobody_can_read_is_a_finding_until_somebody_can",
        ),
    },
    {
        "name": "a process that stands still is not missed",
        "breaks": "one of two processes is frozen, and nothing tells of it",
        "path": "pool/ops/doctor_nodes.py",
        "old": "        if is_told and there < int(kept)",
        "new": "        if is_told and there < 0",
        "by": (_DOCTOR + "test_each_row_finds_its_trouble_and_names_what_mends_it",),
    },
    {
        "name": "processes that have just begun are missed",
        "breaks": "while a parent starts its children, the doctor says that some are missing",
        "path": "pool/ops/doctor_nodes.py",
        "old": "        if is_told and there",
        "new": "        if there",
        "by": (_DOCTOR + "test_processes_that_are_there_or_leave_are_not_missing",),
    },
    {
        "name": "who has just come is dead",
        "breaks": "right after an absence of all nodes the lease of a new one shows as ended",
        "path": "pool/ops/checkup.py",
        "old": "            if is_patient and lane.has_new_leases:",
        "new": "            if False:",
        "by": (_SITUATION + "[asyncio-schedule that missed times]",),
    },
)
