"""Charts as SVG that takes its colours from the page, so that light, dark and paper each look right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 30, 44
LINE = 16
"""Height of a line of the legend, which stands beneath the chart."""
MOST_TICKS = 6


@dataclass(frozen=True)
class Series:
    """Points that belong together, drawn as dots or as a line; `colour` is one of the page's four, 4 is grey."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    kind: Literal["line", "dots", "dashed"] = "line"
    colour: int = 0


@dataclass(frozen=True)
class Axis:
    """A label, the range of values, and whether the scale is logarithmic."""

    label: str
    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value lies, 0 at `low` and 1 at `high`; outside is put on the edge.

        >>> Axis("x", 0, 10).place(5), Axis("x", 1, 100, log=True).place(10)
        (0.5, 0.5)
        """
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return (at - low) / (high - low) if high > low else 0.5

    def ticks(self) -> list[float]:
        """Round values inside the range.

        >>> Axis("x", 0, 1).ticks(), Axis("x", 1, 1000, log=True).ticks()
        ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [1.0, 10.0, 100.0, 1000.0])
        """
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            step = max(1, math.ceil((last - first + 1) / MOST_TICKS))
            return [10.0**power for power in range(first, last + 1, step)]
        raw = (self.high - self.low) / (MOST_TICKS - 1) or 1.0
        unit = 10.0 ** math.floor(math.log10(raw))
        width = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= raw * (1 - 1e-9))
        first_tick = math.ceil(self.low / width - 1e-9) * width
        count = math.floor((self.high - first_tick) / width + 1e-9) + 1
        return [round(first_tick + index * width, 10) for index in range(count)]


def chart(title: str, x: Axis, y: Axis, series: Sequence[Series], *, summary: str) -> Markup:
    """One panel with axes, all series and a legend; `summary` says in words what it shows."""
    parts = [_frame(title, x, y), *(_draw(one, x, y) for one in series), _legend(series)]
    height = HEIGHT + LINE * sum(bool(one.name) for one in series)
    return Markup('<svg class="chart" viewBox="0 0 {w} {h}" role="img" aria-label="{label}">{body}</svg>').format(
        w=WIDTH, h=height, label=f"{title}. {summary}", body=Markup("").join(parts)
    )


def _draw(series: Series, x: Axis, y: Axis) -> Markup:
    points = [(_across(x, a), _down(y, b)) for a, b in zip(series.x, series.y, strict=True)]
    if series.kind == "dots":
        dots = (Markup('<circle cx="{:.1f}" cy="{:.1f}" r="2.6"/>').format(*point) for point in points)
        return Markup('<g class="dots c{}">{}</g>').format(series.colour, Markup("").join(dots))
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    return Markup('<polyline class="{} c{}" points="{}"/>').format(series.kind, series.colour, path)


def _frame(title: str, x: Axis, y: Axis) -> Markup:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [Markup('<text class="title" x="{}" y="16">{}</text>').format(LEFT, title)]
    for tick in x.ticks():
        at = _across(x, tick)
        parts.append(
            Markup('<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>').format(at, TOP, bottom)
        )
        parts.append(_text(at, bottom + 14, f"{tick:g}", "middle"))
    for tick in y.ticks():
        at = _down(y, tick)
        parts.append(
            Markup('<line class="grid" x1="{1}" x2="{2}" y1="{0:.1f}" y2="{0:.1f}"/>').format(at, LEFT, right)
        )
        parts.append(_text(LEFT - 6, at + 3.5, f"{tick:g}", "end"))
    middle = (TOP + bottom) / 2
    parts.append(_text((LEFT + right) / 2, HEIGHT - 8, x.label, "middle"))
    parts.append(
        Markup(
            '<text x="12" y="{0:.0f}" text-anchor="middle" transform="rotate(-90 12 {0:.0f})">{1}</text>'
        ).format(middle, y.label)
    )
    return Markup("").join(parts)


def _legend(series: Sequence[Series]) -> Markup:
    named = [one for one in series if one.name]
    parts = []
    for row, one in enumerate(named):
        height = HEIGHT + 4 + LINE * row
        parts.append(
            Markup('<circle class="key c{}" cx="{}" cy="{}" r="4"/>').format(one.colour, LEFT + 14, height - 4)
        )
        parts.append(_text(LEFT + 24, height, one.name, "start"))
    return Markup("").join(parts)


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, escape(text))


def _across(axis: Axis, value: float) -> float:
    return LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT)


def _down(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - TOP - BOTTOM)
