"""Bugs planted in what operators are shown and told, as `mutants.py` takes them."""

from __future__ import annotations

from typing import Any, Final

_WORDS: Final = (
    "tests/redis/test_error_words.py::"
    "test_a_script_passes_on_every_word_but_that_of_a_wrong_type"
)

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
)
