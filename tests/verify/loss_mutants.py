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
)
