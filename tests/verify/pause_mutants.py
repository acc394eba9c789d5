"""Bugs planted in pauses and cordons, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_SCRIPTS: Final = "tests/redis/test_pause_scripts.py::"
_NODES: Final = "tests/jobs/test_pauses.py::"
_PLACE: Final = "pool/redis/lua/lib/place.lua"
_PULL: Final = "pool/redis/lua/pull.lua"
_PAUSE: Final = "pool/redis/lua/pause.lua"
_OPERATOR: Final = "pool/jobs/client/pausing.py"
_LATE: Final = _SCRIPTS + "test_who_comes_late_changes_nothing_and_is_told_how_far_behind"
_LAST: Final = _NODES + "test_of_two_operators_the_last_one_in_the_map_counts_in_all_lanes"
_HEARS: Final = _NODES + "test_nodes_hear_of_a_resume_and_wait_for_no_renewal"
_KEEPS: Final = _NODES + "test_who_is_cordoned_keeps_what_it_has_and_takes_nothing"

PAUSE_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "who places asks for no pause",
        "breaks": "what is dispatched, retried or taken over is granted though it is paused",
        "path": _PLACE,
        "old": "  local pause = paused and pause_of(key, r[HANDLER])",
        "new": "  local pause = false",
        "by": (_SCRIPTS + "test_whatever_becomes_of_a_job_it_is_not_granted_again",),
    },
    {
        "name": "who pulls asks for no pause of pool or handler",
        "breaks": "workers with room fetch what waits because it is paused",
        "path": _PULL,
        "old": "  if not is_paused then\n    read(list)",
        "new": "  is_paused = false\n  if true then\n    read(list)",
        "by": (_SCRIPTS + "test_a_dispatch_is_accepted_and_waits",),
    },
    {
        "name": "a head is given away though its key is paused",
        "breaks": "who is dispatched to a line has its paused head granted",
        "path": _PLACE,
        "old": "    local held = paused and hold_back(unassigned, key)",
        "new": "    local held = false",
        "by": (_SCRIPTS + "test_who_dispatches_does_not_give_a_paused_head_away",),
    },
    {
        "name": "a resumed key stays behind all others",
        "breaks": "where its line is never empty its job never begins",
        "path": _PAUSE,
        "old": "  if score and score >= HELD then",
        "new": "  if false then",
        "by": (_SCRIPTS + "test_nobody_looks_past_a_paused_key_twice",),
    },
    {
        "name": "a resume is one of all handlers that begin so",
        "breaks": "resuming one handler resumes, or spoils, the pause of another",
        "path": _PAUSE,
        "old": "string.find('|' .. names, '|' .. name .. '|', 1, true)",
        "new": "string.find('|' .. names, name .. '|', 1, true)",
        "by": (_SCRIPTS + "test_a_name_that_is_part_of_another_is_not_that",),
    },
    {
        "name": "nobody pulls when something is resumed",
        "breaks": "what waited goes on only when a renewal tells of it",
        "path": "pool/jobs/fleet/heeding.py",
        "old": "        if before.pauses.keys() - asked.pauses.keys():",
        "new": "        if False:",
        "by": (_HEARS,),
    },
    {
        "name": "a resume that misses a lane ends the pause",
        "breaks": "nobody is told that a lane goes on being paused",
        "path": _OPERATOR,
        "old": "        if decided.is_over and not report.missed:",
        "new": "        if decided.is_over:",
        "by": (_NODES + "test_a_lane_that_is_not_reached_is_told_and_doing_it_again_completes_it",),
    },
    {
        "name": "a lane takes a pause of before a resume",
        "breaks": "of two operators at once the list has the word of one, lanes that of the other",
        "path": _PAUSE,
        "old": "if is_pause and not stands and order <= at_resume then",
        "new": "if false then",
        "by": (_LATE, _LAST),
    },
    {
        "name": "a lane takes a resume of before a pause",
        "breaks": "what is shown as paused is granted",
        "path": _PAUSE,
        "old": "elseif stands and not is_pause and order <= at_pause then",
        "new": "elseif false then",
        "by": (_LATE, _LAST),
    },
    {
        "name": "who is behind looks at no entry",
        "breaks": "its report is complete, and nothing has come of it",
        "path": _OPERATOR,
        "old": "            if not ahead:",
        "new": "            if True:",
        "by": (_LAST,),
    },
    {
        "name": "a resume takes away whatever stands there",
        "breaks": "a pause of a moment later is in no list, and holds",
        "path": _OPERATOR,
        "old": "await self._write(CompareAndDelete(decided.entry, decided.pack()))",
        "new": "await self._write(Delete(decided.entry))",
        "by": (_NODES + "test_a_resume_that_ends_late_leaves_the_pause_of_another",),
    },
    {
        "name": "nodes do not compare",
        "breaks": "what an operator who died left half done stays so until somebody looks",
        "path": "pool/jobs/wiring.py",
        "old": "        if told.paused or asked.pauses:",
        "new": "        if False:",
        "by": (_NODES + "test_nodes_bring_together_what_stands_apart",),
    },
    {
        "name": "nobody takes the cordons of the dead away",
        "breaks": "they are listed for ever",
        "path": "pool/jobs/wiring.py",
        "old": "        if asked.cordons:",
        "new": "        if False:",
        "by": (_NODES + "test_a_cordon_goes_when_who_is_meant_is_gone",),
    },
    {
        "name": "an uncordoned worker of a cordoned node is said to take jobs",
        "breaks": "an operator waits for a worker that stays closed",
        "path": _OPERATOR,
        "old": "            kept=kept,\n",
        "new": "",
        "by": (_NODES + "test_a_worker_of_a_cordoned_node_stays_closed_and_says_so",),
    },
    {
        "name": "a renewal opens who is cordoned",
        "breaks": "a cordon lasts for a renewal period",
        "path": "pool/jobs/worker/worker.py",
        "old": "        if self.is_draining or self.is_cordoned or self.is_crashed:\n",
        "new": "        if self.is_draining or self.is_crashed:\n",
        "by": (_KEEPS,),
    },
    {
        "name": "a service is moved to where it waits",
        "breaks": "what runs ends because a better place has come while it is paused",
        "path": "pool/jobs/worker/rebalance.py",
        "old": "if self.context.roster.asked.pause_of(run.key, start.handler) is not None:",
        "new": "if False:",
        "by": (_NODES + "test_a_service_is_not_moved_to_wait",),
    },
    {
        "name": "a node that drains takes a worker",
        "breaks": "who waits until it has drained is given jobs all the same",
        "path": "pool/jobs/wiring.py",
        "old": "        if self._is_draining:\n            raise NotRunning",
        "new": "        if False:\n            raise NotRunning",
        "by": (
            "tests/jobs/test_workers.py::test_a_worker_that_comes_as_its_node_drains_is_refused",
        ),
    },
    {
        "name": "a resume says nothing of what stays paused",
        "breaks": "who resumes the pool believes that all of it goes on",
        "path": "pool/jobs/client/pausing.py",
        "old": "        return attrs.evolve(report, others=others)",
        "new": "        return report",
        "by": ("tests/jobs/test_pauses.py::test_a_resume_names_what_may_keep_its_jobs_still",),
    },
    {
        "name": "a late pull has the last word",
        "breaks": "who takes keys again is given none until the next renewal (G-05)",
        "path": "pool/jobs/worker/worker.py",
        "old": "        if self.context.lanes[box.lane].door.opened != lane.opened:",
        "new": "        if False:",
        "by": (
            "tests/jobs/test_pauses.py::test_a_pull_answered_behind_a_renewal_takes_back_nothing_of_what_that_told",
        ),
    },
)
