"""Real faults that come again and again: few log lines, and few calls of an idle node.

The short form of `python -m tests.verify.floods`.
"""

from __future__ import annotations

import anyio
import pytest

from tests.verify.floods import CALLS_MAX, FAULTS, LINES_MAX, play

FAULT_S = 8.0


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("name", [name for name in FAULTS if name != "nothing"])
def test_a_fault_again_and_again_is_few_lines_and_few_calls(name: str, loop: str) -> None:
    async def main() -> None:
        found = await play(FAULTS[name], loop, fault_s=FAULT_S, watch_s=FAULT_S)
        assert found.is_alive
        assert found.lines, "the fault was not noticed"
        assert found.most[1] <= LINES_MAX
        assert found.calls <= CALLS_MAX

    anyio.run(main)
