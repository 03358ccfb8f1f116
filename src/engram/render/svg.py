"""SVG charts that take their colours from the page, so that they look right on light, dark and printed pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup, escape

WIDTH, HEIGHT = 460, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 30, 44
LINE = 16
"""Height of one line of the legend below the chart."""
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
        """Where a value lies, 0 at `low` and 1 at `high`; values outside are put on the edge.

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


@dataclass(frozen=True)
class Chart:
    """One panel with axes, all series and a legend, as numbers; `summary` says in words what it shows.

    A page draws it when it is rendered, so that a stored page holds no markup.
    """

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    summary: str

    def __html__(self) -> Markup:
        """What a template shows for it."""
        parts = [_frame(self.title, self.x, self.y), *(_draw(one, self.x, self.y) for one in self.series)]
        parts.append(_legend(self.series))
        height = HEIGHT + LINE * sum(bool(one.name) for one in self.series)
        return _framed(f"{self.title}. {self.summary}", WIDTH, height, parts)


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


PARALLEL_WIDTH, PARALLEL_HEIGHT = 920, 330
PARALLEL_TOP, PARALLEL_BOTTOM, SIDE = 46, 18, 70
BAR, LABELS = 26, 150


@dataclass(frozen=True)
class Choices:
    """An axis of a few named values without a scale, bottom to top."""

    label: str
    names: Sequence[str]

    def place(self, name: str) -> float:
        """
        >>> Choices("dtype", ["float32", "float64"]).place("float64"), Choices("x", ["one"]).place("one")
        (1.0, 0.5)
        """
        return self.names.index(name) / (len(self.names) - 1) if len(self.names) > 1 else 0.5


@dataclass(frozen=True)
class TrialLine:
    """One trial: a value on every axis, its tooltip, and whether it is among the best."""

    values: Sequence[float | str]
    title: str
    is_best: bool = False


@dataclass(frozen=True)
class ParallelChart:
    """Every line across all axes, the best ones drawn last, on top."""

    title: str
    axes: Sequence[Axis | Choices]
    lines: Sequence[TrialLine]
    summary: str

    def __html__(self) -> Markup:
        """What a template shows for it."""
        gap = (PARALLEL_WIDTH - 2 * SIDE) / max(1, len(self.axes) - 1)
        across = [SIDE + index * gap for index in range(len(self.axes))]
        drawn = [_line(line, self.axes, across) for line in sorted(self.lines, key=lambda line: line.is_best)]
        parts = [_upright(axis, at) for axis, at in zip(self.axes, across, strict=True)]
        head = Markup('<text class="title" x="14" y="18">{}</text>').format(self.title)
        label = f"{self.title}. {self.summary}"
        return _framed(label, PARALLEL_WIDTH, PARALLEL_HEIGHT, [head, *drawn, *parts], broad=True)


@dataclass(frozen=True)
class BarChart:
    """A bar from 0 to 1 for each name, the longest first."""

    title: str
    shares: Mapping[str, float]
    summary: str

    def __html__(self) -> Markup:
        """What a template shows for it."""
        width, height = 460, 34 + BAR * len(self.shares)
        parts = [Markup('<text class="title" x="14" y="18">{}</text>').format(self.title)]
        for row, (name, share) in enumerate(sorted(self.shares.items(), key=lambda item: -item[1])):
            top = 32 + BAR * row
            length = max(0.0, min(1.0, share)) * (width - LABELS - 60)
            parts += [
                _label(LABELS - 8, top + 13, name, "end"),
                Markup('<rect class="c0" x="{}" y="{}" width="{:.1f}" height="16"/>').format(LABELS, top, length),
                _label(LABELS + length + 6, top + 13, f"{share:.0%}", "start"),
            ]
        return _framed(f"{self.title}. {self.summary}", width, height, parts)


Drawing = Chart | ParallelChart | BarChart


def _line(line: TrialLine, axes: Sequence[Axis | Choices], across: Sequence[float]) -> Markup:
    heights = [_parallel_down(axis, value) for axis, value in zip(axes, line.values, strict=True)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, heights, strict=True))
    kind = "c1" if line.is_best else "c4 thin"
    return Markup('<polyline class="{}" points="{}"><title>{}</title></polyline>').format(kind, points, line.title)


def _upright(axis: Axis | Choices, at: float) -> Markup:
    marks = axis.names if isinstance(axis, Choices) else axis.ticks()
    parts = [
        Markup('<line class="upright" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>').format(
            at, PARALLEL_TOP, PARALLEL_HEIGHT - PARALLEL_BOTTOM
        ),
        _label(at, PARALLEL_TOP - 10, axis.label, "middle"),
    ]
    for mark in marks:
        shown = mark if isinstance(mark, str) else f"{mark:g}"
        parts.append(_label(at + 5, _parallel_down(axis, mark) + 3.5, shown, "start"))
    return Markup("").join(parts)


def _parallel_down(axis: Axis | Choices, value: float | str) -> float:
    place = axis.place(str(value)) if isinstance(axis, Choices) else axis.place(float(value))
    return PARALLEL_HEIGHT - PARALLEL_BOTTOM - place * (PARALLEL_HEIGHT - PARALLEL_TOP - PARALLEL_BOTTOM)


def _framed(label: str, width: int, height: int, parts: Sequence[Markup], *, broad: bool = False) -> Markup:
    chart = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        width, height, label, Markup("").join(parts)
    )
    if not broad:
        return chart
    # On a phone the chart keeps its size and scrolls inside its box.
    return Markup('<div class="wide broad" tabindex="0" role="region" aria-label="{}">{}</div>').format(
        label, chart
    )


def _label(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, text)
