"""Bugs planted in what counts, and in what answers who asks, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_METRICS: Final = "tests/ops/test_metrics.py::"
_SCRIPT: Final = "tests/redis/test_rate_script.py::"
_RATES: Final = "tests/ops/test_rates.py::"
_HTTPD: Final = "pool/ops/httpd.py"
_HEALTH: Final = "pool/ops/health.py"
_LUA: Final = "pool/redis/lua/rate.lua"

METRIC_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "a label for each handler there ever was",
        "breaks": "what is scraped grows with the names that come by",
        "path": "pool/ops/metrics.py",
        "old": "if len(self._by_handler) >= HANDLERS_MAX and handler != OTHER:",
        "new": "if False:",
        "by": (_METRICS + "test_labels_are_bounded",),
    },
    {
        "name": "a takeover is a late start",
        "breaks": "a service that ran for days counts as a job that waited for days",
        "path": "pool/ops/metrics.py",
        "old": "if not event.is_again:",
        "new": "if True:",
        "by": (_METRICS + "test_what_goes_on_after_a_takeover_is_no_late_start",),
    },
    {
        "name": "an outage kills the fleet",
        "breaks": "whoever cannot reach the store is not live, so that all are restarted",
        "path": _HEALTH,
        "old": "is_live=silent_s < LIVE_S,",
        "new": "is_live=any(map(_has_lease, _known(wiring))),",
        "by": (_METRICS + "test_without_the_store_it_lives_and_does_not_move",),
    },
    {
        "name": "a crashed part moves",
        "breaks": "progress is told while an actor is dead",
        "path": _HEALTH,
        "old": '_part("actors", "down: ", wiring.down),',
        "new": '_part("actors", "down: ", ()),',
        "by": (_METRICS + "test_every_part_moves_or_progress_says_which_does_not",),
    },
    {
        "name": "who came first keeps the door",
        "breaks": "idle connections keep everybody else from being answered",
        "path": _HTTPD,
        "old": "oldest = next(iter(self._reading), None)",
        "new": "oldest = None",
        "by": (_METRICS + "test_who_is_slow_or_says_too_much_is_cut_and_all_others_are_answered",),
    },
    {
        "name": "patience for each byte",
        "breaks": "who sends a byte now and then keeps a thread for ever",
        "path": _HTTPD,
        "old": "left_s = until_s - time.monotonic()",
        "new": "left_s = self.patience_s",
        "by": (_METRICS + "test_who_sends_a_byte_now_and_then_is_cut",),
    },
    {
        "name": "a minute is never over",
        "breaks": "the figures of a day are one minute",
        "path": _LUA,
        "old": "if at and at ~= minute then",
        "new": "if false then",
        "by": (
            _SCRIPT + "test_counts_of_one_minute_add_up_and_are_one_entry_when_it_is_over",
            _RATES + "test_what_nodes_count_is_added_up_and_told",
        ),
    },
    {
        "name": "what does not fit is told all the same",
        "breaks": "entries, and so a day of them, are as long as there are handlers",
        "path": _LUA,
        "old": "    if size <= room then",
        "new": "    if true then",
        "by": (_SCRIPT + "test_even_what_is_told_together_keeps_to_its_bound",),
    },
    {
        "name": "counts are sent again",
        "breaks": "each node adds all that it ever counted, once in 20 seconds",
        "path": "pool/ops/rates.py",
        "old": "            self._sent.update(some)\n",
        "new": "",
        "by": (_RATES + "test_what_nodes_count_is_added_up_and_told",),
    },
)
