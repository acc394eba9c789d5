"""Bugs planted in what schedules and the channel between lanes do, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_CORE: Final = "pool/core/schedules.py"
_TESTS: Final = "tests/jobs/test_schedules.py::"
_WAITS: Final = "test_what_waits_for_no_time_begins_before_anybody_has_vouched_for_pool_time"
_AWAY: Final = "test_a_time_that_passed_while_all_were_away_is_late_by_the_clock_of_who_comes_back"
_AT_ONCE: Final = (
    "tests/redis/test_clock_scripts.py::"
    "test_what_waits_for_no_time_is_due_at_once_whatever_anybody_expects"
)
_POLICIES: Final = _TESTS + "test_the_policy_of_the_key_decides_what_overlaps"
_LATE: Final = "tests/core/test_schedules.py::test_of_late_times_only_the_newest_is_fired"
_NEWEST: Final = (
    _TESTS + "test_of_late_times_only_the_newest_is_fired_where_the_others_would_be_left_out"
)
_CRON: Final = "pool/core/cron.py"
_TABLE: Final = "tests/core/test_cron.py::"
_SAMPLE: Final = _TABLE + "test_cron_times_are_those_that_a_search_by_minutes_finds"
_CHANGED: Final = (
    _TESTS + "test_a_time_that_has_come_is_fired_or_missed_though_its_schedule_changes"
)
_SCHEDULING: Final = "pool/jobs/scheduling.py"
_SCHEDULER: Final = "pool/jobs/fleet/scheduler.py"

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
        "name": "what was missed is judged where pool time stands",
        "breaks": "a time that passed while all were away is fired as if it had just come",
        "path": _SCHEDULER,
        "old": "is_firing=True, skip=skip, expects=expects",
        "new": "is_firing=True, skip=skip",
        "by": (_TESTS + _AWAY,),
    },
    {
        "name": "a schedule begins where all have left",
        "breaks": "one that is made, or resumed, after an absence fires times from before",
        "path": _SCHEDULING,
        "old": "hold_s=HOLD_S, expects=expects)",
        "new": "hold_s=HOLD_S)",
        "by": (_TESTS + "test_what_begins_after_an_absence_has_no_times_from_before",),
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
        "old": "            overlapped=head.overlapped + self.overlapped,\n",
        "new": "",
        "by": (_NEWEST,),
    },
    {
        "name": "all of them, of which each drops the rest",
        "breaks": "`misfire='all'` is taken beside a policy that keeps one of them",
        "path": "pool/jobs/scheduling.py",
        "old": 'if when.misfire == "all" and job.is_left_out:',
        "new": "if False:",
        "by": (_NEWEST,),
    },
    {
        "name": "who made a schedule did not know its handler",
        "breaks": "of late times the oldest makes the job, where a client made the schedule",
        "path": "pool/jobs/fleet/scheduler.py",
        "old": "if each and each.head.next_ms <= since_ms}",
        "new": "if each and each.head.next_ms <= 0}",
        "by": (_NEWEST,),
    },
    {
        "name": "all late times of a handler that rejects",
        "breaks": "a client may ask for all late times to be fired, of which one makes a job",
        "path": "pool/jobs/scheduling.py",
        "old": "    check_misfire(when, known)\n",
        "new": "",
        "by": (_NEWEST,),
    },
    {
        "name": "jitter eats what a job may wait",
        "breaks": "a job whose schedule was changed expires before its jitter is over",
        "path": "pool/core/schedules.py",
        "old": "        more = postponed(more, wait_ms)\n",
        "new": "",
        "by": (_TESTS + "test_a_job_that_waits_for_its_jitter_expires_so_much_later",),
    },
    {
        "name": "a time in a gap is not put at its end",
        "breaks": "a named time that the clock skips comes before the gap, not at its end",
        "path": _CRON,
        "old": "return max(local - offset, begin)",
        "new": "return local - offset",
        "by": (_SAMPLE,),
    },
    {
        "name": "a repeated hour is not remembered",
        "breaks": "a named time in the hour that a clock shows twice comes twice",
        "path": _CRON,
        "old": "        day -= 2  #",
        "new": "        day -= 0  #",
        "by": (_SAMPLE,),
    },
    {
        "name": "a range of one number goes on to the last",
        "breaks": "`45-45/9` fires at 54 as well, as cronsim reads it",
        "path": _CRON,
        "old": "high if is_open and not dash else end)",
        "new": "high if is_open and end == begin else end)",
        "by": (_TABLE + "test_a_range_by_steps_has_no_number_outside",),
    },
    {
        "name": "the day of a zone behind UTC is skipped",
        "breaks": "the search skips days of UTC on which a zone still shows a day that fits",
        "path": _CRON,
        "old": "else (day - 1) * DAY_S)",
        "new": "else (day + 1) * DAY_S)",
        "by": (_SAMPLE,),
    },
    {
        "name": "a cron expression that is never due",
        "breaks": "an expression whose times a zone's clock always skips is accepted",
        "path": "pool/core/times.py",
        "old": "if self._next_ms(_RULES_MS) is None:",
        "new": "if False:",
        "by": (_TABLE + "test_an_expression_that_is_never_due_is_refused",),
    },
    {
        "name": "a change drops what has come",
        "breaks": "a schedule that is changed before its jitter is over loses that time silently",
        "path": _SCHEDULING,
        "old": "    if stored.head.is_paused or stored.head.next_ms > now_ms:\n",
        "new": "    if True:\n",
        "by": (_CHANGED,),
    },
    {
        "name": "a start with microseconds is another one",
        "breaks": "an edit of the arguments begins the interval anew",
        "path": _SCHEDULING,
        "old": "packed(had.when) == packed(when)",
        "new": "had.when == when",
        "by": (_CHANGED,),
    },
    {
        "name": "a change ends all jitter",
        "breaks": "what jitter has spread begins at once when its schedules are deployed",
        "path": _CORE,
        "old": "job.message(job_id(stored.name, at_ms), wait_ms)",
        "new": "job.message(job_id(stored.name, at_ms))",
        "by": (_TESTS + "test_a_job_whose_schedule_changed_waits_until_its_jitter_is_over",),
    },
    {
        "name": "a node opens without its schedules",
        "breaks": "whoever has opened a node finds none of the schedules of its code",
        "path": _SCHEDULER,
        "old": "                    tasks.start_soon(self._keep_once, state)\n",
        "new": "                    pass\n",
        "by": (_TESTS + "test_a_schedule_of_the_code_is_there_when_its_node_is_open",),
    },
    {
        "name": "an interval that begins anew is not told",
        "breaks": "an interval of the code with `start=now` never fires, and nothing says so",
        "path": _SCHEDULER,
        "old": "if before is not None and is_moved(before, each.when):",
        "new": "if False:",
        "by": (_TESTS + "test_an_interval_of_the_code_that_begins_anew_at_each_start_is_told",),
    },
    {
        "name": "a moment is compared by its zone",
        "breaks": "in the hour that a clock shows twice a job that returns a moment is parked",
        "path": "pool/jobs/typed/proof.py",
        "old": "return type(value) is datetime and _moment(value) == _moment(back)",
        "new": "return False",
        "by": (
            "tests/jobs/test_proof.py::test_a_moment_in_the_hour_that_a_clock_shows_twice_arrives",
        ),
    },
)
