"""What scripts write into a lane's hash is either told as a counter, or known to be none."""

from __future__ import annotations

import re
from pathlib import Path

import pool
from pool.ops.inspect import FACTS

LUA = Path(pool.__file__).parent / "redis" / "lua"
_WRITES = re.compile(r"'HSET', lane, (.*)\)")
_FIELD = re.compile(r"(?:^|, )'([a-z_]+)', ")


def test_no_fact_of_a_lane_is_told_as_a_counter() -> None:
    written = {
        field
        for path in LUA.rglob("*.lua")
        for line in _WRITES.findall(path.read_text("utf-8"))
        for field in _FIELD.findall(line)
    }
    assert len(written) > 10
    assert written <= FACTS
