"""Bugs planted in what operators are shown and told, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_WORDS: Final = (
    "tests/redis/test_error_words.py::test_a_script_passes_on_every_word_but_that_of_a_wrong_type"
)
_BACKLOG: Final = "tests/jobs/test_others_backlog.py::"
_AWAY: Final = "tests/ops/test_lanes_away.py::"
_READER: Final = "tests/streams/test_reader.py::"
_TTL: Final = "tests/jobs/test_ttl.py::"
_SERVICE: Final = "tests/jobs/test_dispatch.py::test_a_key_that_a_service_has_is_not_waited_for"
_MADE: Final = "tests/testing/test_jobs.py::"
_SCHEDULES: Final = (
    "tests/ops/test_check.py::test_schedules_of_the_code_are_checked_as_pool_run_does"
)
_LOST: Final = "tests/jobs/test_lost.py::"
_UNDELIVERABLE: Final = "tests/jobs/test_undeliverable.py::"

OPERATOR_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "check that looks at no schedule",
        "breaks": "`pool check` says 0 problems, and `pool run` exits 2",
        "path": "pool/ops/cli/check.py",
        "old": "checked.problems += wrong_in_code(whole)",
        "new": "pass",
        "by": (_SCHEDULES,),
    },
    {
        "name": "schedule whose options are not looked at",
        "breaks": "a schedule that is refused when the node opens passes `pool check`",
        "path": "pool/jobs/client/schedules.py",
        "old": "            _ = DispatchOptions(**coded.options).known\n",
        "new": "",
        "by": (_SCHEDULES,),
    },
    {
        "name": "advice to wait for the end of a service",
        "breaks": "the caller waits for a result that never comes",
        "path": "pool/errors.py",
        "old": 'if self.kind == "service":',
        "new": 'if self.kind == "plan":',
        "by": (_SERVICE,),
    },
    {
        "name": "key whose live job has the kind of the refused one",
        "breaks": "a client learns of a service that it was a job",
        "path": "pool/redis/lua/dispatch.lua",
        "old": "live[ID], live[HANDLER], live[KIND] }, ' ')",
        "new": "live[ID], live[HANDLER], kind == 's' and 's' or 'j' }, ' ')",
        "by": (_SERVICE,),
    },
    {
        "name": "job for tests whose node is just new",
        "breaks": "the error says nothing about make_job()",
        "path": "pool/testing/jobs.py",
        "old": "node=node or _NoNode(",
        "new": "node=node or Node(",
        "by": (_MADE + "test_a_handler_that_uses_the_node_is_told_how_to_give_it_one",),
    },
    {
        "name": "server that is preferred by any word",
        "breaks": "a wrong word is a bare KeyError",
        "path": "pool/redis/embedded/program.py",
        "old": '    checks.word("prefer", prefer, "path", "wheel")\n',
        "new": "",
        "by": (_MADE + "test_a_server_is_preferred_by_one_of_two_words",),
    },
    {
        "name": "client that fixes the TTL of a pool",
        "breaks": "the first worker with settings exits, if a client was there before it",
        "path": "pool/runtime/pool_config.py",
        "old": "named_ms = session.timing.ttl_ms if names_ttl else 0",
        "new": "named_ms = session.timing.ttl_ms",
        "by": (_TTL + "test_a_client_without_settings_does_not_fix_the_ttl",),
    },
    {
        "name": "lanes that keep the TTL of a client",
        "breaks": "leases of a pool that names 4 s go on for 10 s",
        "path": "pool/jobs/fleet/membership.py",
        "old": "if context.settings.lease_ttl_s is not None and told.ttl.ms != self._pool_ttl_ms:",
        "new": "if False:",
        "by": (_TTL + "test_a_client_without_settings_does_not_fix_the_ttl",),
    },
    {
        "name": "TTL of an operator that the next node replaces",
        "breaks": "`pool ttl` counts until a node with settings opens",
        "path": "pool/ops/cli/ttl.py",
        "old": 'config, "ttl", ttl_ms, "named", 1)',
        "new": 'config, "ttl", ttl_ms)',
        "by": (_TTL + "test_a_ttl_that_an_operator_sets_counts_as_named",),
    },
    {
        "name": "TTL that is put back and that the next node replaces",
        "breaks": "a lost `config` lets a node with other settings change the TTL of all",
        "path": "pool/runtime/pool_config.py",
        "old": "ttl_ms or session.timing.ttl_ms, ttl_ms or named_ms",
        "new": "ttl_ms or session.timing.ttl_ms, named_ms",
        "by": (_TTL + "test_config_that_was_lost_keeps_a_ttl_that_was_named",),
    },
    {
        "name": "refusal that is reported as foreign data",
        "breaks": "NOREPLICAS becomes `maps.damaged`, with advice to delete healthy keys",
        "path": "pool/redis/lua/lib/typed.lua",
        "old": "reply.err and not string.find(reply.err, '^WRONGTYPE')",
        "new": "false",
        "by": (
            _WORDS,
            "tests/maps/test_outages.py::test_a_server_that_refuses_writes_has_no_foreign_data",
        ),
    },
    {
        "name": "stream that is foreign because a right is missing",
        "breaks": "readers set aside a healthy stream whenever XINFO is refused",
        "path": "pool/redis/lua/stream_probe.lua",
        "old": "not is_missing and typed('XINFO', 'STREAM', events).err)",
        "new": "not is_missing)",
        "by": (_WORDS,),
    },
    {
        "name": "reader that ends where it may not ask",
        "breaks": "a program whose user lacks the right to XINFO reads no event",
        "path": "pool/streams/reader.py",
        "old": "if isinstance(reply, AuthError):",
        "new": "if not reply:",
        "by": (_READER + "test_a_reader_that_is_told_nothing_of_a_streams_life_reads_it",),
    },
    {
        "name": "worker that forgets that a pull was in vain",
        "breaks": "one waiting key of a handler that nobody here runs costs each job a pull",
        "path": "pool/jobs/worker/outbox.py",
        "old": "asks=self.asks() if self.lane in self.context.barren else (),",
        "new": "asks=(),",
        "by": (_BACKLOG + "test_a_job_costs_the_same_scripts_beside_a_backlog_of_others",),
    },
    {
        "name": "backlog of others that hides ours",
        "breaks": "a key that a worker may run waits for a renewal beside its free slot",
        "path": "pool/redis/lua/advance.lua",
        "old": "if KEYS[k] and left > 0 and not waits_in(k) then",
        "new": "if KEYS[k] then",
        "by": (_BACKLOG + "test_what_becomes_ours_among_as_many_of_others_begins_at_once",),
    },
    {
        "name": "backlog of a paused handler that counts as ours",
        "breaks": "pausing a handler costs each job of its workers a pull",
        "path": "pool/redis/lua/advance.lua",
        "old": "not (paused and pause_of('', string.match(KEYS[i], ':unassigned:(.*)$')))",
        "new": "true",
        "by": (_BACKLOG + "test_a_job_costs_the_same_scripts_beside_a_backlog_of_others",),
    },
    {
        "name": "poll that pulls whatever waits in the lane",
        "breaks": "a backlog of others costs each poll over HTTP a pull",
        "path": "pool/jobs/remote/workers.py",
        "old": "if await self.waiting.has_waiting(visit.claim, lane):",
        "new": "if True:",
        "by": (_BACKLOG + "test_a_poll_pulls_nothing_beside_a_backlog_of_others",),
    },
    {
        "name": "listing without a lane that ends as if it were whole",
        "breaks": "a script takes what is left of a pool for all of it",
        "path": "pool/ops/cli/asking.py",
        "old": "return PARTLY if unread else OK if ok else FINDING",
        "new": "return OK if ok else FINDING",
        "by": (_AWAY + "test_each_verb_shows_the_lanes_that_answer_and_names_the_others",),
    },
    {
        "name": "program that is given a part for the whole",
        "breaks": "node.batches.list() leaves out a lane that is away, and nobody asked for that",
        "path": "pool/jobs/client/gaps.py",
        "old": "            if not self.is_wanted:\n                raise\n",
        "new": "",
        "by": (_AWAY + "test_a_program_is_told_that_a_lane_is_away_unless_it_asks_for_the_rest",),
    },
    {
        "name": "lane that is away and counts as foreign data",
        "breaks": "doctor counts two of three lanes, and advises to delete a key",
        "path": "pool/ops/checkup.py",
        "old": "            away[number] = sentence(error)\n",
        "new": '            unread.append(f"lane {number}: {error}")\n',
        "by": (_AWAY + "test_each_verb_shows_the_lanes_that_answer_and_names_the_others",),
    },
    {
        "name": "slot that was left in the middle of a move",
        "breaks": "nothing says why a lane answers TRYAGAIN for ever",
        "path": "pool/ops/checkup.py",
        "old": "open_slots=open_slots(nodes) if isinstance(nodes, bytes) else {},",
        "new": "open_slots={},",
        "by": (
            _AWAY + "test_a_slot_that_was_left_migrating_is_named_and_no_key_is_called_foreign",
        ),
    },
    {
        "name": "last replica that nobody counts",
        "breaks": "min-replicas-to-write 1 with one replica: the loss of either stops all writes",
        "path": "pool/ops/doctor_server.py",
        "old": "        if _replicas_beyond(server) == 0:",
        "new": "        if _replicas_beyond(server) == -1:",
        "by": (
            "tests/ops/test_doctor.py::test_each_row_finds_its_trouble_and_names_what_mends_it",
        ),
    },
    {
        "name": "job that was lost with all others, and is unknown",
        "breaks": "after data loss a client that saw a service run is told NoSuchJob",
        "path": "pool/jobs/context.py",
        "old": 'if self.generation and generation not in ("", self.generation):',
        "new": "if False:",
        "by": (_LOST + "test_what_was_seen_before_all_data_were_lost_is_lost_whatever_came_since",),
    },
    {
        "name": "answer that ends everybody's connection again and again",
        "breaks": "what a server cannot deliver is asked for on the line that all calls share",
        "path": "pool/redis/pipeline.py",
        "old": "once = self._once if cuts < CUTS_MAX else self._once_apart",
        "new": "once = self._once",
        "by": (
            _UNDELIVERABLE + "test_a_result_that_cannot_be_delivered_is_refused_with_the_reason",
        ),
    },
    {
        "name": "result that nobody can deliver, waited for in silence",
        "breaks": "`result()` waits for ever for an outcome over client-output-buffer-limit",
        "path": "pool/jobs/client/waiters.py",
        "old": "            elif was_cut(reply):",
        "new": "            elif False:",
        "by": (
            _UNDELIVERABLE + "test_a_result_that_cannot_be_delivered_is_refused_with_the_reason",
        ),
    },
    {
        "name": "page of messages that is never made smaller",
        "breaks": "messages that fit one by one are never delivered: a page of them is too large",
        "path": "pool/redis/commands/talk.py",
        "old": "        most = 1 if is_alone else pages.messages",
        "new": "        most = pages.messages",
        "by": (
            _UNDELIVERABLE + "test_many_messages_come_one_by_one_where_a_page_of_them_is_too_large",
        ),
    },
    {
        "name": "server that may hold no answer",
        "breaks": "a server that cuts off whoever fetches a payload is told of by no finding",
        "path": "pool/ops/doctor_server.py",
        "old": "if hard.isdecimal() and 0 < int(hard) < READ_BYTES_MAX:",
        "new": "if False:",
        "by": (
            "tests/ops/test_doctor.py::test_each_row_finds_its_trouble_and_names_what_mends_it",
        ),
    },
    {
        "name": "audit that looks at no type",
        "breaks": "a key that somebody else wrote in place of `kept` or a map is called sound",
        "path": "pool/testing/audit.py",
        "old": 'elif kind not in (wanted[word], "none"):',
        "new": "elif False:",
        "by": ("tests/redis/test_audit.py::test_a_key_of_another_type_is_named",),
    },
    {
        "name": "inbox finding that counts messages",
        "breaks": "doctor says of one job with 150 messages: keys k and 149 more",
        "path": "pool/ops/doctor.py",
        "old": "                count=len(full),\n                keys=tuple(keys),",
        "new": "                count=sum(full.values()),\n                keys=tuple(keys),",
        "by": (
            "tests/ops/test_doctor.py::test_the_inbox_finding_counts_jobs_and_not_their_messages",
        ),
    },
)
