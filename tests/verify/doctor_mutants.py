"""Bugs planted in what looks for trouble, and in what keeps a pause, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_NODES: Final = "tests/ops/test_doctor_nodes.py::"
_DOCTOR: Final = "tests/ops/test_doctor.py::"
_AILING: Final = "tests/core/test_ailing.py::"
_PAUSES: Final = "tests/jobs/test_pauses.py::"

DOCTOR_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "a lane made anew grants what is paused",
        "breaks": "a lane that lost its data has forgotten that an operator paused it",
        "path": "pool/jobs/fleet/membership.py",
        "old": "paused=self._paused_in(state),",
        "new": 'paused="",',
        "by": (_PAUSES + "test_a_lane_that_lost_its_data_is_paused_from_its_first_moment",),
    },
    {
        "name": "a lane made anew forgets which keys are paused",
        "breaks": "it says that so many are, and not which",
        "path": "pool/redis/lua/join.lua",
        "old": "redis.call('HSET', lane, 'paused ' .. key, '1')",
        "new": "redis.call('HGET', lane, 'paused ' .. key)",
        "by": (_PAUSES + "test_a_lane_that_lost_its_data_is_paused_from_its_first_moment",),
    },
    {
        "name": "a pool made anew is not paused",
        "breaks": "what operators asked for goes with the data, and those who asked do not know",
        "path": "pool/jobs/fleet/membership.py",
        "old": "await self.announcer.write_asked(made.generation)",
        "new": "pass",
        "by": (_PAUSES + "test_a_pool_that_was_lost_as_a_whole_stays_paused_and_cordoned",),
    },
    {
        "name": "renewals that fail ail nobody",
        "breaks": "a node that can hardly renew says that it is well",
        "path": "pool/jobs/fleet/keepalive.py",
        "old": "self._renewals.add(float(isinstance(reply, PoolError)), now_s)",
        "new": "self._renewals.add(0.0, now_s)",
        "by": (_NODES + "test_renewals_that_fail_now_and_then_are_told_of",),
    },
    {
        "name": "a copy that cannot go on is well",
        "breaks": "a process goes on with a map as it was, and nobody is told",
        "path": "pool/maps/replica.py",
        "old": "return self._is_failing",
        "new": "return False",
        "by": (
            _NODES + "test_a_copy_that_cannot_go_on_is_told_of_and_mended_by_deleting_what_is_in"
            "_its_way",
        ),
    },
    {
        "name": "a copy of which nothing is heard is well",
        "breaks": "a server of maps that hangs is no trouble of those that copy them",
        "path": "pool/maps/follower.py",
        "old": "if each.heard_s < since_s}",
        "new": "if False}",
        "by": (_NODES + "test_a_copy_of_which_nothing_is_heard_is_behind",),
    },
    {
        "name": "a node ails for ever",
        "breaks": "what was over long ago is said with each renewal",
        "path": "pool/core/ailing.py",
        "old": "if age_s >= 2 * SPAN_S:",
        "new": "if False:",
        "by": (_AILING + "test_numbers_are_kept_for_one_to_two_spans",),
    },
    {
        "name": "a crash of long ago is one of now",
        "breaks": "what is over is a finding for as long as the journal has it",
        "path": "pool/ops/findings.py",
        "old": "if each.edge == edge and now_s - each.at.timestamp() < within_s",
        "new": "if each.edge == edge",
        "by": (_DOCTOR + "test_up_to_its_threshold_nothing_is_found",),
    },
    {
        "name": "a batch that has ended lacks members",
        "breaks": "it is a finding for as long as it is remembered",
        "path": "pool/ops/checkup.py",
        "old": "if looked is not None and looked.head.missing and not looked.head.is_settled:",
        "new": "if looked is not None and looked.head.missing:",
        "by": (_NODES + "test_a_batch_under_way_that_lacks_members_is_told_of",),
    },
)
