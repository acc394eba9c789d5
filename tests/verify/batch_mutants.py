"""Bugs planted in batches within others, in how members are known, and in what is on its way."""

from __future__ import annotations

from typing import Any, Final

_MAKING: Final = "pool/jobs/client/batch.py"
_LOOKING: Final = "pool/jobs/client/batch_ref.py"
_CLIENT: Final = "pool/jobs/client/job_client.py"
_TESTS: Final = "tests/jobs/test_batches.py::test_"
_SCRIPTS: Final = "tests/redis/test_batch_scripts.py::test_"
_ON_ITS_WAY: Final = "tests/jobs/test_followers.py::test_what_"

BATCH_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "settled batch within another",
        "breaks": "one that has ended before it is entered within another is not counted there",
        "path": _MAKING,
        "old": "        if letter and words == NOT_ENDED:",
        "new": '        if letter == "m" and words == NOT_ENDED:',
        "by": (_TESTS + "one_that_has_ended_counts_at_once_in_another",),
    },
    {
        "name": "settled batch counts as missing",
        "breaks": "one that has ended counts as missing in the batch that it is entered within",
        "path": _MAKING,
        "old": "        if not (letter or opened.is_new) and opened.parent != parent:",
        "new": "        if not opened.is_new and opened.parent != parent:",
        "by": (_TESTS + "one_within_another_that_was_forgotten_counts_in_the_next_of_that_id",),
    },
    {
        "name": "batches within each other",
        "breaks": "one that is within another, or within none, is noted in a further one: for ever",
        "path": _MAKING,
        "old": "        if known != asked:",
        "new": '        if known != asked and known == "-":',
        "by": (_TESTS + "one_is_within_one_other_and_never_within_itself",),
    },
    {
        "name": "noted before it is refused",
        "breaks": "a batch that cannot be within another leaves a member there that waits for it",
        "path": _MAKING,
        "old": "        if found is not None and not found.head.is_settled:",
        "new": "        if False:",
        "by": (_TESTS + "one_is_within_one_other_and_never_within_itself",),
    },
    {
        "name": "opened by another meanwhile",
        "breaks": "a batch that somebody else opens between two looks is taken as within ours",
        "path": _MAKING,
        "old": '            letter = "m"  # somebody else has opened it meanwhile',
        "new": "            pass",
        "by": (_TESTS + "one_that_another_has_opened_meanwhile_is_missing",),
    },
    {
        "name": "refused to one of two",
        "breaks": "a member counts as missing that was refused to one maker, and runs for another",
        "path": _MAKING,
        "old": "await self._never_to_begin([items[n] for n in over]) if over else ()",
        "new": "{items[n].id for n in errors}",
        "by": (_TESTS + "one_that_was_refused_and_runs_since_is_neither_refused_nor_missing",),
    },
    {
        "name": "refused to who died",
        "breaks": "a member that never begins is not counted, if who made sure of that died then",
        "path": _MAKING,
        "old": "isinstance(each, PoolError) or each.seen is None]",
        "new": "isinstance(each, PoolError)]",
        "by": (_TESTS + "one_that_was_refused_to_who_died_then_is_missing",),
    },
    {
        "name": "noted long ago",
        "breaks": "who comes late begins a member that was refused, and counted, in the meantime",
        "path": _MAKING,
        "old": "            if now_s > noting.asked_s + context.settings.longest_s:",
        "new": "            if not noting.letters:",
        "by": (_TESTS + "one_that_was_refused_to_another_is_not_dispatched_by_who_comes_late",),
    },
    {
        "name": "missing long ago",
        "breaks": "a member counts as missing whose refusal has ended since, and which may run",
        "path": _MAKING,
        "old": "        if clock() > asked_s + settings.longest_s:",
        "new": "        if False:",
        "by": (_TESTS + "what_was_asked_too_long_ago_is_not_told_as_missing",),
    },
    {
        "name": "missing long ago to who looks after it",
        "breaks": "who sweeps, and stands still, counts as missing what may run by then",
        "path": "pool/jobs/fleet/caretaker.py",
        "old": "        if ends and clock() <= asked_s",
        "new": "        if ends or clock() <= asked_s",
        "by": (_TESTS + "what_was_asked_too_long_ago_is_not_told_as_missing",),
    },
    {
        "name": "lane not joined yet",
        "breaks": "who makes a batch is told of a loss of data where a lane is only not joined yet",
        "path": _MAKING,
        "old": "            if not state.lane.generation:",
        "new": "            if False:",
        "by": (_TESTS + "a_lane_that_is_not_joined_yet_has_not_lost_its_data",),
    },
    {
        "name": "parent that nobody is told",
        "breaks": "who opens a batch that is there is not told what it is within",
        "path": "pool/redis/lua/batch_open.lua",
        "old": " .. (had and ' ' .. had or '')",
        "new": "",
        "by": (_SCRIPTS + "who_opens_one_that_is_there_is_told_what_it_is_within",),
    },
    {
        "name": "members known by their keys alone",
        "breaks": "another handler, or other arguments, in the place of a member count as the same",
        "path": "pool/core/batches.py",
        "old": "digest_of(handler, payload)[:12]",
        "new": 'digest_of("", b"")[:12]',
        "by": (_TESTS + "who_adds_another_call_in_the_place_of_one_is_told",),
    },
    {
        "name": "keys with their digests",
        "breaks": "members are told, and looked for, by what they were noted as, and never found",
        "path": "pool/redis/lua/lib/members.lua",
        "old": "local MEMBER_KEY = '([^\\t\\n]+)[^\\n]*'",
        "new": "local MEMBER_KEY = '([^\\n]+)'",
        "by": (_SCRIPTS + "members_are_known_by_their_calls",),
    },
    {
        "name": "member that waits for its own batch",
        "breaks": "a member's handler that waits for a batch around it hangs for ever",
        "path": _LOOKING,
        "old": "            raise DeadlockRisk(key=key, job_id=job_id, batch=outer)",
        "new": "            pass",
        "by": (_TESTS + "a_member_that_waits_for_its_own_batch_is_told",),
    },
    {
        "name": "expired on its way",
        "breaks": "who asks for what follows, before it has come to its lane, is told it expired",
        "path": _CLIENT,
        "old": "            if isinstance(waiting.answer, OutcomeExpired) and is_derived(",
        "new": "            if not is_derived(waiting.job_id) and is_derived(",
        "by": (_ON_ITS_WAY + "was_released_is_waited_for_while_it_is_on_its_way",),
    },
    {
        "name": "unknown on its way",
        "breaks": "what follows, before it has come to its lane, is said to be unknown",
        "path": _CLIENT,
        "old": "            if isinstance(told, Missing) and arrives and",
        "new": "            if isinstance(told, Missing) and not arrives and",
        "by": (_ON_ITS_WAY + "was_released_is_waited_for_while_it_is_on_its_way",),
    },
    {
        "name": "the whole way must be empty",
        "breaks": "who asks for a job of long ago waits while others have messages for its lane",
        "path": _CLIENT,
        "old": "                left[lane] = min(upto, behind)",
        "new": "                left[lane] = behind",
        "by": (_ON_ITS_WAY + "has_long_ended_is_not_waited_for_however_busy_the_way_is",),
    },
    {
        "name": "stopped on its way",
        "breaks": "a stop of what follows, before it has come to its lane, returns, and it runs",
        "path": "pool/jobs/client/ref.py",
        "old": "            if isinstance(found, Record):  # it was on its way",
        "new": "            if False:",
        "by": (_ON_ITS_WAY + "was_released_is_waited_for_while_it_is_on_its_way",),
    },
)
