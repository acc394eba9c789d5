"""Bugs planted in epochs after a loss, in takeovers of two at once, and in what is left to others.

As `mutants.py` takes them.
"""

from __future__ import annotations

from typing import Any, Final

_LEASES: Final = "tests/redis/test_lease_scripts.py::"
_CLOCK: Final = "tests/jobs/test_clock.py::"
_ADVANCE: Final = "tests/redis/test_advance_script.py::"
_VERSIONS: Final = "tests/verify/sim/test_versions.py::"
_TYPES: Final = "tests/jobs/test_types.py::"
_OVERRUN: Final = "tests/process/test_overrun.py::"
_MARKS: Final = "tests/redis/test_marks_scripts.py::"
_ENDINGS: Final = "tests/jobs/test_endings.py::"

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
        "name": "an interrupt is a failed attempt",
        "breaks": "Ctrl-C parks the job in whose code it came, where it had one attempt",
        "path": "pool/jobs/worker/settlement.py",
        "old": """                return self._interrupted(run)
""",
        "new": """                return self._failed(run, "failed", "KeyboardInterrupt")
""",
        "by": (f"{_ENDINGS}test_an_interrupt_out_of_a_handler_ends_the_node_in_order",),
    },
    {
        "name": "an interrupt leaves no mark",
        "breaks": "a job that always raises KeyboardInterrupt ends one node after another for ever",
        "path": "pool/jobs/worker/settlement.py",
        "old": "        run.is_marked = True\n",
        "new": "",
        "by": (f"{_ENDINGS}test_a_job_that_always_interrupts_is_parked",),
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
        "name": "a job that is left has no mark",
        "breaks": "a simulated job of a newer version stays with old workers for ever (K7)",
        "path": "pool/jobs/settlement.py",
        "old": 'start.attempt, error, "l", pack_attempt',
        "new": 'start.attempt, error, "", pack_attempt',
        "by": (_VERSIONS + "test_a_job_reaches_a_worker_that_can_read_it",),
    },
    {
        "name": "placement forgets who left a job",
        "breaks": "simulated placement ranks a worker first that has left the job (K7)",
        "path": "pool/jobs/context.py",
        "old": "        if left:\n            none",
        "new": "        if left and but:\n            none",
        "by": (_VERSIONS + "test_a_job_reaches_a_worker_that_can_read_it",),
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
    {
        "name": "suspects that wait for their time are surplus",
        "breaks": "they go from worker to worker, and wait from the beginning in each",
        "path": "pool/jobs/worker/executor.py",
        "old": " and now_s + self._wait_s(now_s) <= until_s:",
        "new": ":",
        "by": (
            "tests/verify/sim/test_kills.py::test_no_innocent_is_given_up_for_kills_from_outside",
        ),
    },
    {
        "name": "lost for a while",
        "breaks": "a job that was told as lost has ended long ago when it is asked for again",
        "path": "pool/jobs/client/ref.py",
        "old": "            self._see(attrs.evolve(self._seen, was_lost=True))\n",
        "new": "            pass\n",
        "by": ("tests/jobs/test_lost.py::test_what_was_told_as_lost_stays_lost",),
    },
    {
        "name": "no slot is kept for the next suspect",
        "breaks": "a suspect that waits for its time in one slot is given back when it has come, "
        "and waits elsewhere from the beginning: again and again",
        "path": "pool/jobs/worker/executor.py",
        "old": " - bool(self._suspects)\n",
        "new": "\n",
        "by": ("tests/verify/sim/test_sim.py::test_what_was_found_stays_found[seed71]",),
    },
    {
        "name": "a worker that could not leave has no entry",
        "breaks": "a late renewal opens a worker that has left: jobs are granted to it, "
        "and its end counts as a death",
        "path": "pool/redis/lua/thaw.lua",
        "old": "    redis.call('HSET', open, id, n .. '|0|0|0')\n",
        "new": "    redis.call('HDEL', open, id)\n",
        "by": (_MARKS + "test_a_late_renewal_opens_nobody_who_could_not_leave",),
    },
    {
        "name": "a renewal opens a worker that drains",
        "breaks": "what a draining worker asked for before opens it again",
        "path": "pool/redis/lua/renew.lua",
        "old": "(said == '0' or whole(by)",
        "new": "(whole(by)",
        "by": (_MARKS + "test_a_late_renewal_opens_nobody_who_drains",),
    },
)
