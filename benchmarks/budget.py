"""What an operation may cost: figures that hang on the code alone, and their budgets.

    measured  x  budgets.json  -->  judge()  -->  one line per figure that moved by over 10 %

A figure that got dearer fails: raise its budget and write the reason into its `why`.  One that got
cheaper fails too: lower its budget, or the gain is lost again unseen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

BUDGETS: Final = Path(__file__).with_name("budgets.json")
TOLERANCE: Final = 0.10


@attrs.frozen(kw_only=True)
class Figure:
    """One measured cost."""

    value: float
    unit: str
    what: str  # of what it is the cost
    server: str = ""  # kind of server on which it is like this; "": on all
    parts: str = ""  # what it is the sum of, for who looks for the difference


@attrs.frozen(kw_only=True)
class Budget:
    """What one figure may be."""

    value: float
    unit: str
    why: str  # what it is the cost of and, if it was raised, the reason
    server: str = ""


def load(path: Path = BUDGETS) -> dict[str, Budget]:
    """Return the budgets by name."""
    found: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8"))
    return {name: Budget(**fields) for name, fields in found.items()}


def save(budgets: Mapping[str, Budget], path: Path = BUDGETS) -> None:
    """Write budgets, one line each: a diff then shows figure and reason side by side."""
    lines = []
    for name, budget in sorted(budgets.items()):
        fields = {k: v for k, v in attrs.asdict(budget).items() if v != ""}
        lines.append(f"{json.dumps(name)}: {json.dumps(fields, ensure_ascii=False)}")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def change(measured: float, budget: float) -> float:
    """Return by which part of the budget a figure is above it; below it, a negative number."""
    if measured == budget:
        return 0.0
    return (measured - budget) / budget if budget else float("inf")


def judge(measured: Mapping[str, Figure], budgets: Mapping[str, Budget]) -> Iterator[str]:
    """Yield what is wrong, one line per figure.

    Budgets of another kind of server than the figures come from are left alone.
    """
    for name, figure in sorted(measured.items()):
        budget = budgets.get(name)
        if budget is None:
            yield f"{name}: {_said(figure.value, figure.unit)}, and it has no budget"
            continue
        if budget.server != figure.server:
            continue
        if figure.unit != budget.unit:
            yield f"{name}: is in {figure.unit}, its budget in {budget.unit}"
            continue
        off = change(figure.value, budget.value)
        if abs(off) > TOLERANCE:
            says = f"{_said(figure.value, figure.unit)}, budget {_said(budget.value)} ({off:+.0%})"
            advice = (
                "make it cheaper, or raise the budget and write the reason into its `why`"
                if off > 0
                else "lower the budget, to keep the gain"
            )
            yield f"{name}: {says}: {advice}{figure.parts and f' ({figure.parts})'}"


def rewrite(
    measured: Mapping[str, Figure], budgets: Mapping[str, Budget], because: str = ""
) -> dict[str, Budget]:
    """Return budgets as measured.  What each `why` says is kept; raised ones get `because` too.

    Raises:
        ValueError: A figure is dearer than its budget allows, and `because` is empty.
    """
    written: dict[str, Budget] = {}
    for name, figure in measured.items():
        value, old = _rounded(figure.value), budgets.get(name)
        why = old.why if old is not None else figure.what
        if old is not None and old.server == figure.server:
            if change(figure.value, old.value) > TOLERANCE:
                if not because:
                    raise ValueError(
                        f"{name} rose from {_said(old.value)} to {_said(value)}: say --because"
                    )
                why = f"{why}; raised from {_said(old.value)}: {because}"
            elif abs(change(figure.value, old.value)) <= TOLERANCE / 10:
                value = old.value  # the same, as far as it can be told
        written[name] = Budget(value=value, unit=figure.unit, why=why, server=figure.server)
    return written


def table(measured: Mapping[str, Figure], budgets: Mapping[str, Budget]) -> Iterator[str]:
    """Yield the lines of a table of all figures beside their budgets."""
    yield f"{'':34} {'measured':>10} {'budget':>10} {'':>7}"
    for name, figure in sorted(measured.items()):
        budget = budgets.get(name)
        known = budget is not None and budget.server == figure.server
        held = _said(budget.value) if budget is not None and known else "-"
        off = f"{change(figure.value, budget.value):+.1%}" if budget is not None and known else ""
        unit = figure.parts or figure.unit
        yield f"{name:34} {_said(figure.value):>10} {held:>10} {off:>7}  {unit}"


def _rounded(value: float) -> float:
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() else rounded


def _said(value: float, unit: str = "") -> str:
    return f"{_rounded(value):g} {unit}".rstrip()
