"""One bar chart as SVG, by hand: it must be readable on a light page and on a dark one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

import attrs

_WIDTH: Final = 760
_NAMES: Final = 90  # pixels left of the bars
_VALUES: Final = 210  # right of them
_ROW: Final = 24
_TOP: Final = 44
_LOG_FROM: Final = 30.0  # where the greatest is so many times the least, the scale is logarithmic
_STYLE: Final = """
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .title { font-weight: 600 } .less { fill: #57606a }
  .bar { fill: #8c959f } .ours { fill: #0969da } .range { stroke: #24292f; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .less { fill: #9198a1 }
    .bar { fill: #6e7681 } .ours { fill: #58a6ff } .range { stroke: #e6edf3 }
  }"""


@attrs.frozen(kw_only=True)
class Bar:
    """One line: a figure with its range, or why there is none."""

    name: str
    median: float = 0.0
    low: float = 0.0
    high: float = 0.0
    missing: str = ""
    is_ours: bool = False


def chart(title: str, bars: Sequence[Bar]) -> str:
    """Return a chart of bars in the order given."""
    shown = [bar for bar in bars if not bar.missing]
    positive = [value for bar in shown for value in (bar.low, bar.high) if value > 0]
    is_log = bool(positive) and max(positive) > _LOG_FROM * min(positive)
    height = _TOP + _ROW * len(bars) + 8
    scale = " (log scale)" if is_log else ""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}\n</style>",
        f'<text class="title" x="8" y="24">{escape(title)}{scale}</text>',
    ]
    for index, bar in enumerate(bars):
        lines += _row(bar, _TOP + _ROW * index, _Scale.of(positive, is_log=is_log))
    return "\n".join([*lines, "</svg>\n"])


@attrs.frozen
class _Scale:
    low: float
    high: float
    is_log: bool

    @classmethod
    def of(cls, values: Sequence[float], *, is_log: bool) -> _Scale:
        if not values:
            return cls(0.0, 1.0, is_log=False)
        # A bar on a logarithmic scale begins below the least, or that one would have no length.
        return cls(min(values) / 2 if is_log else 0.0, max(values), is_log)

    def x(self, value: float) -> float:
        room = _WIDTH - _NAMES - _VALUES
        if not self.is_log:
            return room * max(value, 0.0) / self.high
        if value <= self.low:
            return 0.0
        return room * math.log(value / self.low) / math.log(self.high / self.low)


def _row(bar: Bar, y: int, scale: _Scale) -> Iterator[str]:
    yield f'<text x="{_NAMES - 6}" y="{y + 15}" text-anchor="end">{escape(bar.name)}</text>'
    if bar.missing:
        why = escape(bar.missing[:90])
        yield f'<text class="less" x="{_NAMES}" y="{y + 15}">- {why}</text>'
        return
    kind = "ours" if bar.is_ours else "bar"
    width, low, high = scale.x(bar.median), scale.x(bar.low), scale.x(bar.high)
    yield f'<rect class="{kind}" x="{_NAMES}" y="{y + 3}" width="{width:.1f}" height="16" rx="2"/>'
    if high > low:
        at = f'x1="{_NAMES + low:.1f}" x2="{_NAMES + high:.1f}" y1="{y + 11}" y2="{y + 11}"'
        yield f'<line class="range" {at}/>'
    end = _NAMES + max(width, high) + 6
    ends = f" ({said(bar.low)} to {said(bar.high)})" if bar.high > bar.low else ""
    yield f'<text x="{end:.1f}" y="{y + 15}">{said(bar.median)}'
    yield f'<tspan class="less">{ends}</tspan></text>'


def said(value: float) -> str:
    """Return a figure with as many digits as say something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
