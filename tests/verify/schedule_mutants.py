"""Bugs planted in what schedules and the channel between lanes do, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_CORE: Final = "pool/core/schedules.py"
_TESTS: Final = "tests/jobs/test_schedules.py::"
_WAITS: Final = "test_what_waits_for_no_time_begins_before_anybody_has_vouched_for_pool_time"
_AT_ONCE: Final = (
    "tests/redis/test_clock_scripts.py::"
    "test_what_waits_for_no_time_is_due_at_once_whatever_anybody_expects"
)
_POLICIES: Final = _TESTS + "test_the_policy_of_the_key_decides_what_overlaps"
_LATE: Final = "tests/core/test_schedules.py::test_of_late_times_only_the_newest_is_fired"
_NEWEST: Final = (
    _TESTS + "test_of_late_times_only_the_newest_is_fired_where_the_others_would_be_left_out"
)

SCHEDULE_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "what was carried waits for pool time",
        "breaks": "after an absence a firing's job waits until somebody has vouched for pool time",
        "path": "pool/redis/lua/incoming.lua",
        "old": "text_of(delay_ms == '0' and at_once or now + tonumber(delay_ms))",
        "new": "text_of(now + tonumber(delay_ms))",
        "by": (_TESTS + _WAITS,),
    },
    {
        "name": "whose turn it is waits for pool time",
        "breaks": "likewise the next one of a line",
        "path": "pool/redis/lua/lib/queue.lua",
        "old": "math.max(at_once, whole(r[SINCE]))",
        "new": "math.max(now, whole(r[SINCE]))",
        "by": (_AT_ONCE,),
    },
    {
        "name": "messages wait for pool time",
        "breaks": "likewise what one lane has for another",
        "path": "pool/redis/lua/lib/channel.lua",
        "old": "text_of(at_once), 'o:' .. to)",
        "new": "text_of(now), 'o:' .. to)",
        "by": (_AT_ONCE,),
    },
    {
        "name": "at once is what is expected",
        "breaks": "who expects another pool time writes deadlines that nobody sees",
        "path": "pool/redis/lua/lib/expected.lua",
        "old": "at_once = math.min(at_once, now)",
        "new": "at_once = now",
        "by": (_AT_ONCE,),
    },
    {
        "name": "a schedule begins where all have left",
        "breaks": "one that is made, or resumed, after an absence fires times from before",
        "path": "pool/redis/lua/schedule.lua",
        "old": "page_max > 0 and wall or math.max(wall, math.floor(raw_us / 1000) - offset)",
        "new": "wall",
        "by": (_TESTS + "test_what_begins_after_an_absence_has_no_times_from_before",),
    },
    {
        "name": "who resumes a schedule fires again",
        "breaks": "under a clock that was set back a pause brings times again that were fired",
        "path": "pool/core/schedules.py",
        "old": "now_ms if isinstance(when, At) else max(now_ms, last_ms)",
        "new": "now_ms",
        "by": (
            _TESTS + "test_times_that_come_once_more_are_not_fired_again_by_a_pause_or_a_change",
        ),
    },
    {
        "name": "an overlap is not sent back",
        "breaks": "a time that made no job is counted as fired",
        "path": "pool/redis/lua/incoming.lua",
        "old": "      send_out(from, 'o ' .. string.match(id, '^(.-)@?[^@]*$'))\n",
        "new": "",
        "by": (_POLICIES,),
    },
    {
        "name": "an overlap is counted twice",
        "breaks": "a time that made no job is counted as fired, too",
        "path": "pool/redis/lua/incoming.lua",
        "old": "text_of(whole(fired) - 1)",
        "new": "text_of(whole(fired))",
        "by": (_POLICIES,),
    },
    {
        "name": "an overlap is not told",
        "breaks": "no event tells of times that made no job",
        "path": "pool/jobs/fleet/carrier.py",
        "old": "                self._tell(origin.number, done.left_out)\n",
        "new": "",
        "by": (_POLICIES,),
    },
    {
        "name": "late times drop each other",
        "breaks": "of several late times the oldest is fired, and not the newest",
        "path": _CORE,
        "old": "    fired = fired[overlapped:]\n",
        "new": "    fired = fired[: len(fired) - overlapped]\n",
        "by": (
            _NEWEST,
            _LATE,
        ),
    },
    {
        "name": "late times are gone without a word",
        "breaks": "times that a later one would leave out are not counted",
        "path": _CORE,
        "old": "        overlapped=head.overlapped + overlapped,\n",
        "new": "",
        "by": (_NEWEST,),
    },
    {
        "name": "all of them, of which each drops the rest",
        "breaks": "`misfire='all'` is taken beside a policy that keeps one of them",
        "path": "pool/jobs/client/schedules.py",
        "old": 'if when.misfire == "all" and job.is_left_out:',
        "new": "if False:",
        "by": (_NEWEST,),
    },
)
