"""Bugs planted in the journal, and in the events of ordinary jobs, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_SCRIPTS: Final = "tests/redis/test_journal_scripts.py::"
_JOURNAL: Final = "tests/jobs/test_journal.py::"
_CORE: Final = "tests/core/test_journal.py::"
_ONE_A_MINUTE: Final = (
    "test_what_comes_with_each_ordinary_job_is_one_entry_a_minute_with_their_number"
)
_OUTAGES: Final = "tests/runtime/test_outages.py::"
_EVENTS: Final = "tests/jobs/test_job_events.py::"

JOURNAL_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "a journal without a cap",
        "breaks": "what goes wrong often enough fills the server",
        "path": "pool/redis/lua/lib/journal.lua",
        "old": "'MAXLEN', '~', ENTRIES_MAX, ",
        "new": "",
        "by": (_SCRIPTS + "test_it_is_bounded_in_entries_and_in_bytes",),
    },
    {
        "name": "a journal in everybody's way",
        "breaks": "where another value stands in its place no job can fail, or be parked",
        "path": "pool/redis/lua/lib/journal.lua",
        "old": "redis.pcall('XADD'",
        "new": "redis.call('XADD'",
        "by": (_SCRIPTS + "test_what_stands_in_its_place_keeps_no_job_from_its_end",),
    },
    {
        "name": "an entry for an edge that was refused",
        "breaks": "the journal has retries that never were, one for each late copy of a call",
        "path": "pool/redis/lua/advance.lua",
        "old": "  if r[OWNER] ~= source or r[EPOCH] ~= epoch then\n    return edge",
        "new": "  if r[OWNER] ~= source or r[EPOCH] ~= epoch then\n"
        "    journal_job(journal, 'retried', key, r, '')\n    return edge",
        "by": (_SCRIPTS + "test_an_edge_and_its_entry_are_one_step_and_a_repeat_has_none",),
    },
    {
        "name": "following without an end",
        "breaks": "what was asked for once costs each job for ever",
        "path": "pool/redis/lua/lib/follow.lua",
        "old": "if not ends or whole(ends) <= now then",
        "new": "if not ends then",
        "by": (_SCRIPTS + "test_it_ends_by_itself_and_when_it_is_told_to",),
    },
    {
        "name": "keys that begin alike are followed",
        "breaks": "the edges of other keys fill the journal",
        "path": "pool/redis/lua/lib/follow.lua",
        "old": "'\\nk' .. key .. '\\n', 1, true)",
        "new": "'\\n' .. string.sub('k' .. key, 1, 2), 1, true)",
        "by": (_SCRIPTS + "test_all_edges_are_noted_of_what_was_named_and_of_nothing_else",),
    },
    {
        "name": "a gap that nobody is told of",
        "breaks": "who reads on behind what the cap took takes the rest for all there was",
        "path": "pool/core/journal.py",
        "old": "at.is_exact and not is_there",
        "new": "False",
        "by": (_JOURNAL + "test_entries_that_the_cap_took_are_told_of",),
    },
    {
        "name": "lanes are told one behind the other",
        "breaks": "a position behind a full page skips what another lane has before it",
        "path": "pool/core/journal.py",
        "old": "if horizon is not None and rank > horizon:",
        "new": "if False:",
        "by": (_CORE + "test_nothing_is_told_before_what_a_full_page_may_still_lead_to",),
    },
    {
        "name": "a node's events wait without a limit",
        "breaks": "while a lane hangs the memory of its nodes fills with what they see",
        "path": "pool/jobs/noting.py",
        "old": "if len(lane.waiting) + len(lane.unanswered) >= WAITING_MAX:",
        "new": "if False:",
        "by": (_JOURNAL + "test_while_a_lane_hangs_so_many_wait_and_the_others_are_counted",),
    },
    {
        "name": "each node has a sample of its own",
        "breaks": "of most jobs that are told of, only their beginning or their end is",
        "path": "pool/runtime/observers.py",
        "old": 'crc32(f"{job_id} {key}".encode())',
        "new": 'crc32(f"{job_id} {key} {id(self)}".encode())',
        "by": (_EVENTS + "test_a_sample_is_of_whole_lives_and_the_same_at_all_nodes",),
    },
    {
        "name": "a run is settled before the store knows",
        "breaks": "what was refused is told as done",
        "path": "pool/jobs/worker/telling.py",
        "old": "type(edge) in _ENDS and changed.status in _KNOWN",
        "new": "type(edge) in _ENDS",
        "by": (_EVENTS + "test_what_the_store_refuses_is_not_told_as_settled",),
    },
    {
        "name": "a foreign value ends who reads one key",
        "breaks": "a journal that somebody overwrote is an error where an entry was promised",
        "path": "pool/jobs/client/journal.py",
        "old": " if not isinstance(e, StoreFault)]",
        "new": "]",
        "by": (_JOURNAL + "test_a_lane_without_a_journal_keeps_nobody_from_the_others",),
    },
    {
        "name": "one lane that is silent ends the reader of all",
        "breaks": "whose lanes are read to their end gets an error on top",
        "path": "pool/jobs/client/journal.py",
        "old": "if silent and len(silent) == len(self._lanes()):",
        "new": "if silent:",
        "by": (_JOURNAL + "test_without_an_answer_of_any_lane_there_is_an_error",),
    },
    {
        "name": "what was lost was capped",
        "breaks": "who reads a server that has lost its data is told that a cap took the entries",
        "path": "pool/jobs/client/journal.py",
        "old": "_CAPPED if page.is_full else _ANEW",
        "new": "_CAPPED",
        "by": (_JOURNAL + "test_a_gap_says_what_made_it",),
    },
    {
        "name": "an entry for each call of a hook that raises",
        "breaks": "ordinary jobs drive all else out of the journal",
        "path": "pool/jobs/noting.py",
        "old": "        if same is None:",
        "new": "        if True:",
        "by": (_JOURNAL + _ONE_A_MINUTE,),
    },
    {
        "name": "a minute's entry without its number",
        "breaks": "nobody sees whether a hook failed once or a thousand times",
        "path": "pool/jobs/noting.py",
        "old": "self._note(known.last, known.times)",
        "new": "self._note(known.last)",
        "by": (_JOURNAL + _ONE_A_MINUTE,),
    },
    {
        "name": "time that stands still is a clock that is behind",
        "breaks": "each pool that was empty for a while has a clock that is behind",
        "path": "pool/redis/lua/renew.lua",
        "old": "stamp_last - raw_us > 1000000",
        "new": "stamp_last - now_us > 1000000",
        "by": (_JOURNAL + "test_a_pool_that_was_empty_for_a_while_is_no_clock_that_is_behind",),
    },
    {
        "name": "an end without a run that nobody tells",
        "breaks": "what is stopped, late or superseded before it began is in no figure",
        "path": "pool/jobs/settlement.py",
        "old": "if context.jobs is not None and type(edge) in _OVER:",
        "new": "if False:",
        "by": (_EVENTS + "test_each_way_to_end_without_a_run_is_told_once",),
    },
    {
        "name": "a line for each time an observer raises",
        "breaks": "an observer that always raises fills the log, a traceback for each job",
        "path": "pool/runtime/observers.py",
        "old": "(of, type(error).__qualname__)",
        "new": "(of, id(error))",
        "by": (_OUTAGES + "test_an_observer_that_always_raises_is_a_line_and_their_number",),
    },
    {
        "name": "numbers of who failed die with the node",
        "breaks": "what was counted within the last minute is told by nobody, and its thread stays",
        "path": "pool/runtime/observers.py",
        "old": "    if event.event == NodeLeft.event:\n        _hush.rest()",
        "new": "    return",
        "by": (_OUTAGES + "test_an_observer_that_always_raises_is_a_line_and_their_number",),
    },
    {
        "name": "what was noted without an answer is noted again",
        "breaks": "one lost lease is two entries behind a frozen server, and doctor counts both",
        "path": "pool/redis/lua/note.lua",
        "old": "  if is_first(entry[2]) then",
        "new": "  if false then",
        "by": ("tests/jobs/test_journal.py::test_what_was_noted_without_an_answer_stands_once",),
    },
    {
        "name": "an equal entry of before is taken for this one",
        "breaks": "an event that happens again is not noted if the answer to it was lost",
        "path": "pool/redis/lua/note.lua",
        "old": "'(' .. after, 'COUNT'",
        "new": "'-', 'COUNT'",
        "by": ("tests/jobs/test_journal.py::test_what_was_noted_without_an_answer_stands_once",),
    },
)
