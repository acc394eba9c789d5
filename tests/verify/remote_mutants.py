"""Bugs planted in what nodes do for workers that poll, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_REMOTE: Final = "pool/jobs/remote/"
_TESTS: Final = "tests/jobs/test_remote.py::"
_TOLD: Final = "tests/jobs/test_remote_told.py::"

REMOTE_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "a gateway counts its own renewals",
        "breaks": "a worker that another gateway served before is not opened, or not closed",
        "path": _REMOTE + "leases.py",
        "old": "        self.last = max(self.last + 1, int(_TENTHS * over_ms))",
        "new": "        self.last += 1",
        "by": (_TESTS + "test_any_gateway_opens_whom_another_has_closed",),
    },
    {
        "name": "what a poll does not name is not handed out again",
        "breaks": "a job whose answer was lost is run by nobody while its worker lives",
        "path": _REMOTE + "visit.py",
        "old": "finds_all or wants > 0",
        "new": "finds_all",
        "by": (_TESTS + "test_after_a_lost_answer_the_next_poll_brings_the_same_claims",),
    },
    {
        "name": "a poll that was answered leaves its worker open",
        "breaks": "a worker is granted jobs that it has not asked for",
        "path": _REMOTE + "workers.py",
        "old": "            desk.is_closing = True\n            await self._close(visit)\n",
        "new": "            desk.takes = {}\n",
        "by": (_TESTS + "test_an_open_poll_is_answered_by_a_dispatch",),
    },
    {
        "name": "a poll that was cancelled leaves its worker open",
        "breaks": "what a client that is gone is granted waits until its lease ends",
        "path": _REMOTE + "workers.py",
        "old": "        if is_latest and any(desk.takes.values()):",
        "new": "        if False and is_latest:",
        "by": (_TESTS + "test_a_poll_that_is_cancelled_closes_its_worker",),
    },
    {
        "name": "a gateway renews whom another has given jobs",
        "breaks": "a client that is gone keeps its jobs while a poll of its waits somewhere",
        "path": _REMOTE + "polls.py",
        "old": "        elif said.keys and desk.is_waiting:",
        "new": "        elif False and desk.is_waiting:",
        "by": (_TESTS + "test_a_poll_that_holds_nothing_ends_when_jobs_were_handed_out_elsewhere",),
    },
    {
        "name": "a beat keeps what was granted to nobody",
        "breaks": "what a gateway that died had opened a worker for waits until that polls again",
        "path": _REMOTE + "workers.py",
        "old": "        if not any(visit.takes.values()):\n            await visit.give_back()",
        "new": "        if False:\n            await visit.give_back()",
        "by": (_TESTS + "test_a_beat_gives_back_what_was_granted_and_no_poll_waits_for",),
    },
    {
        "name": "whatever stands in its name is a worker's own end",
        "breaks": "a client believes that the result of a job which was timed out was taken",
        "path": _REMOTE + "ending.py",
        "old": "            case EdgeStatus.REPEAT if changed.facts in _OWN[type(edge)]:",
        "new": "            case EdgeStatus.REPEAT if True:",
        "by": (_TESTS + "test_a_limit_is_told_and_enforced",),
    },
    {
        "name": "a client is told more time than its lease has",
        "breaks": "it goes on with jobs that others have begun",
        "path": _REMOTE + "visit.py",
        "old": "            said.asked_s + said.ttl_s - Timing(said.ttl_s).margin_s\n",
        "new": "            said.asked_s + 2 * said.ttl_s\n",
        "by": (_TESTS + "test_beats_keep_a_long_job_and_polls_keep_an_idle_worker",),
    },
    {
        "name": "a run-time limit of a worker that polls is not written",
        "breaks": "a job that its client never ends runs for ever",
        "path": _REMOTE + "handing.py",
        "old": "        if limit_s is not None:",
        "new": "        if False and limit_s is not None:",
        "by": (_TESTS + "test_a_limit_is_told_and_enforced",),
    },
    {
        "name": "two polls of one worker go on",
        "breaks": "the answer may go to a connection that nobody reads any more",
        "path": _REMOTE + "polls.py",
        "old": "        if former is not None:\n            former.is_over = True",
        "new": "        if False and former is not None:\n            former.is_over = True",
        "by": (_TESTS + "test_the_later_of_two_polls_takes_over",),
    },
    {
        "name": "a gateway tells nobody of what it gives back",
        "breaks": "who stops a job that was granted waits until it asks again",
        "path": _REMOTE + "ending.py",
        "old": "                self.over(claim, job, edge, changed, runs.get(job))\n",
        "new": "",
        "by": (_TOLD + "test_who_stops_what_is_given_back_hears_of_it",),
    },
    {
        "name": "a repeated end is told as another one",
        "breaks": "figures count a job twice whose client has asked again",
        "path": _REMOTE + "ending.py",
        "old": "                if run is not None:  # it was there just now",
        "new": "                if True:  # it was there just now",
        "by": (_TOLD + "test_of_another_gateways_run_the_store_is_asked_since_when_it_is",),
    },
    {
        "name": "a start that was read late is a run of its own",
        "breaks": "one answer hands a job out twice",
        "path": _REMOTE + "workers.py",
        "old": "starts.keys() - known}",
        "new": "starts.keys()}",
        "by": (_TOLD + "test_a_start_that_is_read_late_is_not_handed_out_beside_its_run",),
    },
    {
        "name": "each lane fills an answer of its own",
        "breaks": "an answer is as large as there are lanes",
        "path": _REMOTE + "handing.py",
        "old": "        return self.is_used and self.left_bytes < 0",
        "new": "        return False",
        "by": (_TOLD + "test_all_lanes_together_fill_one_answer",),
    },
    {
        "name": "all that is handed out is one call",
        "breaks": "a script runs for as long as a worker has room",
        "path": _REMOTE + "handing.py",
        "old": "edges[at : at + BATCH_MAX]]",
        "new": "edges[at:]] if not told else []",
        "by": (_TOLD + "test_many_are_handed_out_in_bounded_calls",),
    },
)
