"""Bugs planted in batches and schedules for callers that block."""

from __future__ import annotations

from typing import Any, Final

_BATCHES: Final = "pool/jobs/sync/batches.py"
_TESTS: Final = "tests/jobs/test_sync.py::test_"

SYNC_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "blocking batch sealed by an error",
        "breaks": "a batch for callers that block is sealed though an exception left its block",
        "path": _BATCHES,
        "old": "made.__aexit__(kind, error, traceback)",
        "new": "made.__aexit__(None, None, None)",
        "by": (_TESTS + "a_batch_that_is_left_by_an_error_is_gone_on_with",),
    },
    {
        "name": "blocking batch within none",
        "breaks": "a batch for callers that block is no member of the one that it was made within",
        "path": _BATCHES,
        "old": "                within=outer,",
        "new": "                within=None,",
        "by": (_TESTS + "a_batch_that_is_left_by_an_error_is_gone_on_with",),
    },
    {
        "name": "blocking batch without follower",
        "breaks": "what is to follow a batch is forgotten where its maker blocks",
        "path": _BATCHES,
        "old": "                then=options.then,",
        "new": "",
        "by": (_TESTS + "a_batch_is_made_waited_for_and_read",),
    },
    {
        "name": "blocking members passed over",
        "breaks": "whoever blocks reads a batch from its first member on, whatever is passed",
        "path": _BATCHES,
        "old": "return self._pages(handler, checks.count(",
        "new": "return self._pages(handler, 0 * checks.count(",
        "by": (_TESTS + "a_batch_is_made_waited_for_and_read",),
    },
    {
        "name": "blocking schedule without options",
        "breaks": "the options of a client are not those of the schedules that it makes",
        "path": "pool/jobs/sync/client.py",
        "old": "lambda node: self._of(node).schedule(",
        "new": "lambda node: node.schedule(",
        "by": (_TESTS + "schedules_are_made_changed_triggered_and_removed",),
    },
    {
        "name": "members end with the first page",
        "breaks": "who reads a batch's members does not wait for those that have not ended",
        "path": "pool/jobs/client/batch_ref.py",
        "old": "                    if found.ended or found.head.is_settled:",
        "new": "                    if found.ended or self._at or found.head.is_settled:",
        "by": (_TESTS + "a_batch_is_cancelled_and_each_member_is_told_once_it_has_ended",),
    },
)
