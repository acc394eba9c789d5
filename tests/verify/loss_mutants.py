"""Bugs planted in what tells numbers and ids of before a loss of data from those of after it."""

from __future__ import annotations

from typing import Any, Final

_BACK: Final = "tests/jobs/test_gone_back.py::"
_SINK: Final = "tests/streams/test_gone_back.py::"
_TALK: Final = "tests/redis/test_talk_scripts.py::"
_CLOCK: Final = "tests/redis/test_clock_scripts.py::"
_SCRIPTS: Final = "tests/redis/test_stream_scripts.py::"
_INBOX: Final = (
    "tests/jobs/test_object_form.py::test_after_lost_data_a_message_is_known_by_its_request"
)
_STREAM: Final = "test_an_acknowledgement_of_a_lost_event_hits_no_other_one"

LOSS_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "an inbox that goes by numbers alone",
        "breaks": "a message that is accepted after a loss is taken for a handled one (G-01)",
        "path": "pool/jobs/job.py",
        "old": "        if message in self._known:\n            return",
        "new": "        if number_in(message) <= number_in(self._last):\n            return",
        "by": (_BACK + "test_what_is_accepted_after_a_loss_is_handled", _INBOX),
    },
    {
        "name": "a number that takes out what lies below it",
        "breaks": "what was handled before a loss removes what was accepted after it (G-01)",
        "path": "pool/redis/lua/lib/inbox.lua",
        "old": "    elseif string.find(entry, '^%d+|') then\n      return 0",
        "new": "    elseif string.find(entry, '^%d+|') then\n      return first",
        "by": (_TALK + "test_a_message_of_before_a_loss_takes_no_other_one_out",),
    },
    {
        "name": "positions that outlive a failed read",
        "breaks": "signals behind a loss of data are not seen for up to ten TTLs",
        "path": "pool/jobs/lane_tailers.py",
        "old": "            is_read_anew=True,\n",
        "new": "",
        "by": (_BACK + "test_a_stop_behind_a_loss_is_seen",),
    },
    {
        "name": "an acknowledgement that asks for no mark",
        "breaks": "an acknowledgement of a lost event hits another one of its id (G6)",
        "path": "pool/redis/lua/sink_ack.lua",
        "old": "  if not is_same(events, id, mark) then",
        "new": "  if false then",
        "by": (_SCRIPTS + "test_another_event_of_the_same_id_is_left_alone", _SINK + _STREAM),
    },
    {
        "name": "an event that is always of the present connection",
        "breaks": "an acknowledgement of a lost event hits another one of its id (G6)",
        "path": "pool/streams/sink_acks.py",
        "old": "    return link if all(event.link is link for event in events) else None",
        "new": "    return link",
        "by": (_SINK + _STREAM,),
    },
    {
        "name": "a call that goes out on any connection",
        "breaks": "an acknowledgement that waited goes to a server that lost data",
        "path": "pool/redis/pipeline.py",
        "old": "            elif call.link is not None and call.link is not self.link:\n",
        "new": "            elif False:\n",
        "by": (
            "tests/redis/test_pipeline.py::test_a_call_that_is_bound_to_a_connection_goes_by_no_other",
        ),
    },
    {
        "name": "a claim that is as old as it likes",
        "breaks": "after clock steps with nobody there pool time runs ahead, and jobs wait",
        "path": "pool/redis/lua/lib/expected.lua",
        "old": "math.min(age, 4 * period_ms)",
        "new": "age",
        "by": (
            "tests/redis/test_clock_scripts.py::test_an_old_claim_does_not_age_what_was_stored",
        ),
    },
    {
        "name": "a journal that is read on behind a loss",
        "breaks": "who follows it is told nothing until the clock has passed where it had been",
        "path": "pool/jobs/client/journal.py",
        "old": "                is_behind = not page.entries and self._ats[lane].id != ZERO\n",
        "new": "                is_behind = False\n",
        "by": (
            "tests/jobs/test_journal.py::test_what_comes_after_a_loss_is_read_though_its_ids_are_lower",
        ),
    },
    {
        "name": "turns that answered what a server lost",
        "breaks": "who asks for a turn after a loss is answered by one of before it",
        "path": "pool/core/plans.py",
        "old": "        of_now = (each for each in self.asked if each.upto <= upto)\n",
        "new": "        of_now = self.asked\n",
        "by": ("tests/jobs/test_plans.py::test_a_turn_of_before_a_loss_answers_nobody",),
    },
    {
        "name": "an entry that is dropped whatever it is",
        "breaks": "who drops a parked event that was lost drops another one of its entry",
        "path": "pool/redis/lua/sink_drop.lua",
        "old": "entry[2][4] == id and is_same(parked, ARGV[i], mark)",
        "new": "true",
        "by": (
            "tests/streams/test_sink.py::test_an_event_delivered_too_often_is_parked_with_its_origin",
        ),
    },
    {
        "name": "an end that stands for its own run alone",
        "breaks": "a job that had ended runs again where a server went back to before its start",
        "path": "pool/jobs/worker/outbox.py",
        "old": "            if not is_accepted or edge.epoch < epoch:",
        "new": "            if True:",
        "by": (
            "tests/jobs/test_gone_back.py::test_an_end_that_is_undone_stands_however_often_its_key_was_used_since",
            "tests/verify/sim/test_found.py::test_an_end_stands_for_each_run_that_a_server_without_it_may_have",
        ),
    },
    {
        "name": "an end that is forgotten with the next job of its key",
        "breaks": "what a server lost of the job before the latest one of a key is done again",
        "path": "pool/jobs/worker/outbox.py",
        "old": "        if (key, edge.id) in kept:\n            self._drop((key, edge.id))\n",
        "new": "        for at in [each for each in kept if each[0] == key]:\n"
        "            self._drop(at)\n",
        "by": (
            "tests/jobs/test_gone_back.py::test_an_end_that_is_undone_stands_however_often_its_key_was_used_since",
        ),
    },
    {
        "name": "a start of older data begins",
        "breaks": "a handler begins under a lower epoch than its key had; fenced stores refuse it",
        "path": "pool/jobs/context.py",
        "old": "        return epoch < self.floor\n",
        "new": "        return False\n",
        "by": (
            "tests/jobs/test_gone_back.py::test_no_handler_begins_under_an_epoch_of_older_data",
        ),
    },
    {
        "name": "a read that failed is no break",
        "breaks": "likewise: the worker does not know that the server may have gone back",
        "path": "pool/jobs/lane_tailers.py",
        "old": "        self.context.lanes[lane].break_off()\n",
        "new": "",
        "by": (
            "tests/jobs/test_gone_back.py::test_no_handler_begins_under_an_epoch_of_older_data",
        ),
    },
    {
        "name": "a repeated failure is said to be refused",
        "breaks": "a failure whose answer was lost is told as a commit that came too late, once "
        "another worker has the next attempt",
        "path": "pool/redis/lua/advance.lua",
        "old": "return edge == 'w' and has_failed(key, r, y) and 'REPEAT failed' or 'FENCED'",
        "new": "return 'FENCED'",
        "by": (
            "tests/jobs/test_outcomes.py::test_a_failure_whose_answer_was_lost_is_not_said_to_be_refused",
        ),
    },
    {
        "name": "older data are not told",
        "breaks": "a failover that lost data is told to no operator",
        "path": "pool/redis/lua/renew.lua",
        "old": "  older_ms = math.max(older_ms, math.ceil((floor - stamp_last) / 1000))\n",
        "new": "",
        "by": (f"{_BACK}test_older_data_are_told_once_and_found_by_the_doctor",),
    },
    {
        "name": "older data that were used are not told",
        "breaks": "what was lost is told to nobody if a job is dispatched before the next renewal",
        "path": "pool/redis/lua/renew.lua",
        "old": "heard_ms > seen + CLOCK_MS and heard_ms - seen or 0",
        "new": "0",
        "by": (
            "tests/redis/test_lease_scripts.py::test_a_renewal_tells_of_older_data_though_the_lane_was_used_since",
        ),
    },
)
