"""The report of a campaign: one HTML page that needs nothing else, in light and in dark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from tests.verify.checker import Report, around
from tests.verify.history import Event
from tests.verify.invariants import INVARIANTS, NOT_YET
from tests.verify.view import Bounds, Fault, Run, View

WIDTH: Final = 1160
LEFT: Final = 70
ROW: Final = 46
BAND: Final = 9
STYLE: Final = """
:root { color-scheme: light dark; --fg: #1a1d21; --bg: #fff; --dim: #6b7280; --line: #d7dbe0;
  --run: #4c78a8; --commit: #54a24b; --take: #b279a2; --fault: #e45756;
  --ok: #2f7d32; --bad: #c62828 }
@media (prefers-color-scheme: dark) { :root { --fg: #e6e8ea; --bg: #16181b; --dim: #9aa2ab;
  --line: #33383e; --run: #7aa6d6; --commit: #7fca77; --take: #d3a0c6; --fault: #ff7b72;
  --ok: #7fca77; --bad: #ff7b72 } }
body { font: 14px/1.45 system-ui, sans-serif; color: var(--fg); background: var(--bg);
  max-width: 1200px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.3em } h2 { font-size: 1.05em; margin-top: 1.8em }
table { border-collapse: collapse } td, th { padding: .15em .8em .15em 0; text-align: left;
  border-bottom: 1px solid var(--line); vertical-align: top } td.n { text-align: right }
.ok { color: var(--ok) } .bad { color: var(--bad); font-weight: 600 } .dim { color: var(--dim) }
pre { overflow-x: auto; font-size: 12px; border-left: 3px solid var(--line); padding-left: .8em }
svg { max-width: 100%; height: auto } svg text { fill: var(--fg); font-size: 11px }
"""


def page(told: Mapping[str, Any], events: Sequence[Event], report: Report) -> str:
    """Return the page."""
    word = '<span class="ok">ok</span>' if told["ok"] else '<span class="bad">VIOLATED</span>'
    parts = [
        f"<h1>Campaign {escape(told['campaign'])}: {word}</h1>",
        f'<p class="dim">{escape(_headline(told, report))}</p>',
        "<h2>Time line</h2>",
        _time_line(View.of_events(events, Bounds())),
        "<h2>Invariants</h2>",
        _table(_invariants(report)),
        "<h2>Faults</h2>",
        _table([[name, str(n), ""] for name, n in sorted(told["injected"].items())]),
        "<h2>Not injected here</h2>",
        _table([[name, "", why] for name, why in told["not injected"].items()]),
        "<h2>What happened, sometimes</h2>",
        _table([[name, str(n), ""] for name, n in report.sometimes.items()]),
        "<h2>Figures</h2>",
        _table([[name, f"{value:.3f}", ""] for name, value in report.figures.items()]),
        *_violations(report, events),
        *(f'<p class="bad">harness: {escape(trouble)}</p>' for trouble in told["troubles"]),
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(told["campaign"])}'
        f"</title><style>{STYLE}</style><body>{''.join(parts)}</body></html>\n"
    )


def _headline(told: Mapping[str, Any], report: Report) -> str:
    of = f"{told['server']}, seed {told['seed']}, {told['seconds']:g} s of chaos"
    return f"{of}, {report.events} events, {told['took_s']} s in all"


def _invariants(report: Report) -> Iterator[Sequence[str]]:
    for name, (meaning, _) in INVARIANTS.items():
        wrong = report.broken.get(name, 0)
        verdict = f"!{wrong} violations" if wrong else "ok" if report.judged[name] else "not judged"
        yield [f"{name} {meaning}", str(report.judged[name]), verdict]
    for name, why in NOT_YET.items():
        yield [name, "", f"not yet: {why}"]


def _table(rows: Any) -> str:
    cells = []
    for name, number, said in rows:
        look = ' class="bad"' if said.startswith("!") else ""
        cells.append(
            f'<tr><td>{escape(name)}</td><td class="n">{number}</td>'
            f"<td{look}>{escape(said.lstrip('!'))}</td></tr>"
        )
    return f"<table>{''.join(cells)}</table>"


def _violations(report: Report, events: Sequence[Event]) -> Iterator[str]:
    for violation in report.violations[:20]:
        near = "\n".join(event.line()[:400] for event in around(events, violation))
        yield f'<h2 class="bad">{violation.invariant}: {escape(violation.text)}</h2>'
        yield f"<pre>{escape(near)}</pre>"


# --- the time line ---------------------------------------------------------------------------


def _time_line(view: View) -> str:
    """Draw a row for each node: its faults as bands, above its runs, settled ones and takeovers."""
    if not view.events:
        return ""
    began = view.events[0].t
    scale = (WIDTH - LEFT) / max(1.0, view.events[-1].t - began)

    def x(t: float) -> float:
        return round(LEFT + (min(t, view.events[-1].t) - began) * scale, 1)

    nodes = sorted({run.start.node for run in view.runs} | {f.target for f in view.faults} - {""})
    rows = ["server", *nodes]
    marks = [*_grid(x, began, view, len(rows))]
    for at, name in enumerate(rows):
        y = at * ROW + 20
        marks.append(f'<text x="0" y="{y + 24}">{escape(name)}</text>')
        target = "" if name == "server" else name
        marks += _bands(x, y, [fault for fault in view.faults if fault.target == target])
        marks += _ticks(x, y, [run for run in view.runs if run.start.node == name], view)
    height = len(rows) * ROW + 40
    legend = "".join(
        f'<tspan fill="var(--{colour})">■ </tspan>{what}   '
        for colour, what in (
            ("fault", "fault"),
            ("run", "start"),
            ("commit", "settled"),
            ("take", "start of a key that ran elsewhere before"),
        )
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="time line">{"".join(marks)}'
        f'<text x="{LEFT}" y="{height - 6}">{legend}</text></svg>'
    )


def _grid(x: Any, began: float, view: View, rows: int) -> Iterator[str]:
    bottom = rows * ROW + 16
    for second in range(0, int(view.events[-1].t - began) + 1, 5):
        at = x(began + second)
        yield f'<line x1="{at}" x2="{at}" y1="14" y2="{bottom}" stroke="var(--line)"/>'
        yield f'<text x="{at}" y="10">{second}</text>'
    for event in (*view.of.get("heal", ()), *view.of.get("final_state", ())):
        at = x(event.t)
        yield (
            f'<line x1="{at}" x2="{at}" y1="14" y2="{bottom}" stroke="var(--dim)" '
            f'stroke-dasharray="3"/><text x="{at}" y="{bottom + 2}">{event.f}</text>'
        )


def _bands(x: Any, y: int, faults: Sequence[Fault]) -> Iterator[str]:
    for at, fault in enumerate(faults):
        left, right = x(fault.began), x(fault.ended)
        top = y + (at % 2) * (BAND + 1)
        yield (
            f'<rect x="{left}" y="{top}" width="{max(2.0, right - left):.1f}" height="{BAND}" '
            f'fill="var(--fault)" opacity=".55"><title>{escape(fault.kind)} ({fault.does}), '
            f"{fault.ended - fault.began:.2f} s</title></rect>"
            f'<text x="{left}" y="{top + BAND - 1}" style="font-size:8px">'
            f"{escape(fault.kind)}</text>"
        )


def _ticks(x: Any, y: int, runs: Sequence[Run], view: View) -> Iterator[str]:
    """Draw starts, ends and takeovers as three paths: a page with a tag for each is too large."""
    starts: list[float] = []
    ends: list[float] = []
    moved: list[float] = []
    for run in runs:
        earlier = view.by_job[run.start.job][0].start.node != run.start.node
        (moved if earlier else starts).append(x(run.start.t))
        if run.end is not None and run.end.type == "ok":
            ends.append(x(run.end.t))
    for colour, top, ticks in (("run", 22, starts), ("commit", 28, ends), ("take", 34, moved)):
        if ticks:
            path = "".join(f"M{tick} {y + top}v5" for tick in sorted(set(ticks)))
            yield f'<path d="{path}" stroke="var(--{colour})" fill="none"/>'
