"""Bugs planted in epochs after a loss, in takeovers of two at once, and in what is left to others.

As `mutants.py` takes them.
"""

from __future__ import annotations

from typing import Any, Final

_LEASES: Final = "tests/redis/test_lease_scripts.py::"
_CLOCK: Final = "tests/jobs/test_clock.py::"
_ADVANCE: Final = "tests/redis/test_advance_script.py::"
_TYPES: Final = "tests/jobs/test_types.py::"
_OVERRUN: Final = "tests/process/test_overrun.py::"

EDGE_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "a lane made anew begins at the server's clock",
        "breaks": "epochs fall when data are lost behind a clock that was set back (K11)",
        "path": "pool/redis/lua/join.lua",
        "old": "if floor <= STAMP_MAX and (stamp_had > STAMP_MAX or stamp_had < floor) then",
        "new": "if false then",
        "by": (
            _LEASES + "test_a_lane_that_begins_anew_begins_above_what_its_joiners_have_seen",
            _CLOCK + "test_epochs_do_not_fall_when_data_are_lost_behind_a_clock_that_was_set_back",
        ),
    },
    {
        "name": "only the first joiner is asked what it has seen",
        "breaks": "a later joiner that has seen higher epochs does not raise them (K11)",
        "path": "pool/redis/lua/join.lua",
        "old": "if floor <= STAMP_MAX and (stamp_had > STAMP_MAX or stamp_had < floor) then",
        "new": "if is_new and floor <= STAMP_MAX then",
        "by": (_LEASES + "test_a_lane_that_begins_anew_begins_above_what_its_joiners_have_seen",),
    },
    {
        "name": "epochs of data that went back stay low",
        "breaks": "no renewal raises the stamp of a restored snapshot (K11)",
        "path": "pool/redis/lua/renew.lua",
        "old": "if floor > stamp_last and floor <= STAMP_MAX then",
        "new": "if false then",
        "by": (_LEASES + "test_a_renewal_raises_epochs_of_data_that_went_back",),
    },
    {
        "name": "a pool found anew forgets its epochs",
        "breaks": "who finds the pool anew does not know any more which epochs it has seen (K11)",
        "path": "pool/jobs/fleet/membership.py",
        "old": "                highest=highest.get(k, 0),\n",
        "new": "",
        "by": (
            _CLOCK + "test_epochs_do_not_fall_when_data_are_lost_behind_a_clock_that_was_set_back",
        ),
    },
    {
        "name": "the dead are dealt keys",
        "breaks": "of two workers that die at once the second one gets keys of the first (K4)",
        "path": "pool/redis/lua/lib/renewed.lua",
        "old": "  return target.is_renewed\n",
        "new": "  return true\n",
        "by": (_ADVANCE + "test_a_key_goes_to_who_has_renewed_within_two_periods_or_to_nobody",),
    },
    {
        "name": "what the dead never read is suspected",
        "breaks": "what was granted to a dead worker is tried alone, one at a time (K4)",
        "path": "pool/core/settlement.py",
        "old": " or (death.alive_ms and granted_s > judgement.silent_s)",
        "new": "",
        "by": ("tests/core/test_job.py::test_what_was_granted_to_a_dead_worker_is_no_suspect",),
    },
    {
        "name": "left to others by name alone",
        "breaks": "a job is given again to the worker that cannot read its arguments (K7)",
        "path": "pool/jobs/fleet/sweeper.py",
        "old": "lane=state.number, left=left)",
        "new": "lane=state.number)",
        "by": (_TYPES + "test_what_a_worker_cannot_read_goes_to_another_one_at_once",),
    },
    {
        "name": "nobody notes who left it",
        "breaks": "the store does not remember which worker left a job to others (K7)",
        "path": "pool/redis/lua/advance.lua",
        "old": "  if string.find(letters, 'l', 1, true) then",
        "new": "  if false then",
        "by": (
            _TYPES + "test_what_a_worker_cannot_read_goes_to_another_one_at_once",
            _TYPES + "test_what_nobody_can_read_is_asked_for_less_and_less_often",
        ),
    },
    {
        "name": "a blocked worker ends without a word",
        "breaks": "nobody is told which handler blocked the event loop for a TTL (K3)",
        "path": "pool/jobs/fleet/keepalive.py",
        "old": "        io.aside(tell)\n        ends_s",
        "new": "        ends_s",
        "by": (
            _OVERRUN + "test_a_worker_whose_handler_blocks_for_a_ttl_says_which_and_its_jobs_go_on"
            "_elsewhere",
        ),
    },
    {
        "name": "the end does not wait for its report",
        "breaks": "the process has ended before its log has the handler that blocked (K3)",
        "path": "pool/jobs/fleet/keepalive.py",
        "old": "        while not told and io.clock() < ends_s:",
        "new": "        while False:",
        "by": (
            _OVERRUN + "test_a_worker_whose_handler_blocks_for_a_ttl_says_which_and_its_jobs_go_on"
            "_elsewhere",
        ),
    },
)
