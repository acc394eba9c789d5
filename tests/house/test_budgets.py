"""The budgets: what an operation costs in commands, bytes, calls and lines of Python, on any day.

Nothing here is a time.  A red test names the figure, its budget, and by how much it is off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from benchmarks.budget import BUDGETS, Budget, Figure, judge, load, rewrite, save, table
from benchmarks.budgets import OF_NODES, measure_store
from benchmarks.desk import Desk
from pool.redis.embedded.server import EmbeddedServer

if TYPE_CHECKING:
    from pathlib import Path

    from pool.redis.embedded.server import ServerProgram

BUDGET = Budget(value=20, unit="commands", why="a dispatch")
OF_A_NODE = ("calls.", "python.")


def measured(value: float, *, unit: str = "commands", server: str = "") -> dict[str, Figure]:
    return {"dispatch": Figure(value=value, unit=unit, what="a dispatch", server=server)}


def verdict(figures: dict[str, Figure], budget: Budget = BUDGET) -> str:
    return "\n".join(judge(figures, {"dispatch": budget}))


def hold(figures: dict[str, Figure], budgets: dict[str, Budget]) -> None:
    """Fail with every line that the judge has to say, and with budgets nobody measures."""
    wrong = [*judge(figures, budgets)]
    wrong += [f"{name}: is not measured any more" for name in budgets.keys() - figures.keys()]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


# --- this build ---------------------------------------------------------------------------------


def test_what_the_store_does_is_within_its_budgets(program: ServerProgram) -> None:
    figures = measure_store(program).figures
    budgets = {k: v for k, v in load().items() if not k.startswith(OF_A_NODE)}
    hold(figures, budgets)


@pytest.mark.anyio
async def test_what_nodes_do_is_within_their_budgets(pool_url: str, pool_name: str) -> None:
    """The same budgets on both event loops."""
    figures: dict[str, Figure] = {}
    for name, measure in OF_NODES.items():
        figures |= await measure(pool_url, pool_name)
        assert figures, name
    budgets = {k: v for k, v in load().items() if k.startswith(OF_A_NODE)}
    hold(figures, budgets)


def test_each_budget_stands_in_a_line_of_its_own_with_its_reason(tmp_path: Path) -> None:
    """So that a diff shows figure and reason side by side; the file is as `--write` leaves it."""
    budgets = load()
    assert all(budget.why and budget.unit for budget in budgets.values())
    save(budgets, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text("utf-8") == BUDGETS.read_text("utf-8")
    assert len(BUDGETS.read_text("utf-8").splitlines()) == len(budgets) + 2


# --- the judge ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [18, 19.5, 20, 22])
def test_up_to_a_tenth_is_let_pass(value: float) -> None:
    assert verdict(measured(value)) == ""


def test_a_dearer_figure_is_named_with_its_budget_and_by_how_much() -> None:
    said = verdict(measured(23))
    assert said.startswith("dispatch: 23 commands, budget 20 (+15%): ")
    assert "raise the budget" in said


def test_a_sum_that_is_off_is_shown_with_its_parts() -> None:
    figure = Figure(value=23, unit="commands", what="a dispatch", parts="22 read, 1 write")
    assert verdict({"dispatch": figure}).endswith("(22 read, 1 write)")


def test_a_gain_must_be_kept() -> None:
    said = verdict(measured(16))
    assert said.startswith("dispatch: 16 commands, budget 20 (-20%): ")
    assert "lower the budget" in said


def test_a_figure_without_a_budget_is_named() -> None:
    assert list(judge(measured(7), {})) == ["dispatch: 7 commands, and it has no budget"]


def test_a_budget_of_nothing_allows_nothing() -> None:
    none = attrs.evolve(BUDGET, value=0)
    assert verdict(measured(0), none) == ""
    assert "budget 0" in verdict(measured(1), none)


def test_what_another_kind_of_server_needs_is_not_compared() -> None:
    elsewhere = attrs.evolve(BUDGET, server="redis 7 jemalloc")
    assert verdict(measured(99, server="valkey 9 libc"), elsewhere) == ""
    assert verdict(measured(99, server="redis 7 jemalloc"), elsewhere)


def test_units_are_not_mixed() -> None:
    assert verdict(measured(20, unit="bytes")) == "dispatch: is in bytes, its budget in commands"


# --- writing them -------------------------------------------------------------------------------


def test_a_gain_is_written_and_the_reason_kept() -> None:
    known = {"dispatch": attrs.evolve(BUDGET, why="a dispatch; raised from 9: it checks more")}
    assert rewrite(measured(16), known)["dispatch"] == Budget(
        value=16, unit="commands", why="a dispatch; raised from 9: it checks more"
    )


def test_a_raised_budget_needs_a_reason_which_joins_its_line() -> None:
    with pytest.raises(ValueError, match="dispatch rose from 20 to 23: say --because"):
        rewrite(measured(23), {"dispatch": BUDGET})
    raised = rewrite(measured(23), {"dispatch": BUDGET}, "it is fenced too")["dispatch"]
    assert raised.value == 23
    assert raised.why == "a dispatch; raised from 20: it is fenced too"


def test_a_figure_that_has_hardly_moved_leaves_its_line_alone() -> None:
    assert rewrite(measured(20.1), {"dispatch": BUDGET})["dispatch"] == BUDGET


def test_a_new_figure_gets_what_it_is_as_its_reason_and_an_old_one_goes() -> None:
    written = rewrite(measured(7), {"gone": BUDGET})
    assert written == {"dispatch": Budget(value=7, unit="commands", why="a dispatch")}


def test_the_table_shows_figure_budget_and_difference() -> None:
    lines = list(table(measured(22), {"dispatch": BUDGET}))
    assert lines[1].split() == ["dispatch", "22", "20", "+10.0%", "commands"]


# --- the desk -----------------------------------------------------------------------------------


def test_the_desk_counts_what_goes_over_the_wire_and_what_runs(program: ServerProgram) -> None:
    with EmbeddedServer.start(program) as server, Desk(server.url) as desk:
        cost, replies = desk.run(("SET", "k", "v"), ("GET", "k"))
    assert replies == [b"OK", b"v"]
    assert cost.commands == 2
    assert cost.sent_bytes == len(
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
    )
    assert cost.received_bytes == len(b"+OK\r\n$1\r\nv\r\n")
