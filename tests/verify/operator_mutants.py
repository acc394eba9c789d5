"""Bugs planted in what operators are shown and told, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_WORDS: Final = (
    "tests/redis/test_error_words.py::test_a_script_passes_on_every_word_but_that_of_a_wrong_type"
)
_BACKLOG: Final = "tests/jobs/test_others_backlog.py::"

OPERATOR_MUTANTS: Final[tuple[dict[str, Any], ...]] = (
    {
        "name": "refusal that is reported as foreign data",
        "breaks": "NOREPLICAS and MISCONF become `maps.damaged`, with advice to delete healthy keys",
        "path": "pool/redis/lua/lib/typed.lua",
        "old": "reply.err and not string.find(reply.err, '^WRONGTYPE')",
        "new": "false",
        "by": (
            _WORDS,
            "tests/maps/test_outages.py::test_a_server_that_refuses_writes_has_no_foreign_data",
        ),
    },
    {
        "name": "stream that is foreign because a right is missing",
        "breaks": "readers set aside a healthy stream whenever XINFO is refused",
        "path": "pool/redis/lua/stream_probe.lua",
        "old": "not is_missing and typed('XINFO', 'STREAM', events).err)",
        "new": "not is_missing)",
        "by": (_WORDS,),
    },
    {
        "name": "worker that forgets that a pull was in vain",
        "breaks": "one waiting key of a handler that nobody here runs costs each job a pull",
        "path": "pool/jobs/worker/outbox.py",
        "old": "asks=self.asks() if self.lane in self.context.barren else (),",
        "new": "asks=(),",
        "by": (_BACKLOG + "test_a_job_costs_the_same_scripts_beside_a_backlog_of_others",),
    },
    {
        "name": "backlog of others that hides ours",
        "breaks": "a key that a worker may run waits for a renewal beside its free slot",
        "path": "pool/redis/lua/advance.lua",
        "old": "if KEYS[k] and left > 0 and not waits_in(k) then",
        "new": "if KEYS[k] then",
        "by": (_BACKLOG + "test_what_becomes_ours_among_as_many_of_others_begins_at_once",),
    },
    {
        "name": "backlog of a paused handler that counts as ours",
        "breaks": "pausing a handler costs each job of its workers a pull",
        "path": "pool/redis/lua/advance.lua",
        "old": "not (paused and pause_of('', string.match(KEYS[i], ':unassigned:(.*)$')))",
        "new": "true",
        "by": (_BACKLOG + "test_a_job_costs_the_same_scripts_beside_a_backlog_of_others",),
    },
    {
        "name": "poll that pulls whatever waits in the lane",
        "breaks": "a backlog of others costs each poll over HTTP a pull",
        "path": "pool/jobs/remote/workers.py",
        "old": "if await self.waiting.has_waiting(visit.claim, lane):",
        "new": "if True:",
        "by": (_BACKLOG + "test_a_poll_pulls_nothing_beside_a_backlog_of_others",),
    },
)
