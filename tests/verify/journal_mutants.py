"""Bugs planted in the journal, and in the events of ordinary jobs, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_SCRIPTS: Final = "tests/redis/test_journal_scripts.py::"
_JOURNAL: Final = "tests/jobs/test_journal.py::"
_CORE: Final = "tests/core/test_journal.py::"
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
        "old": "  if r[OWNER] ~= source or r[EPOCH] ~= epoch then\n    return 'FENCED'",
        "new": "  if r[OWNER] ~= source or r[EPOCH] ~= epoch then\n"
        "    journal_job(journal, 'retried', key, r, '')\n    return 'FENCED'",
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
        "old": "if len(lane.waiting) >= WAITING_MAX:",
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
)
