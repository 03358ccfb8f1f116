"""Charts of many settings at once: parallel coordinates and bars, as SVG in the page's own colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from engram.report.html.charts import Axis

WIDTH, HEIGHT = 920, 330
TOP, BOTTOM, SIDE = 46, 18, 70
BAR, LABELS = 26, 150


@dataclass(frozen=True)
class Choices:
    """An axis of a few values that have no scale, by their names, bottom to top."""

    label: str
    names: Sequence[str]

    def place(self, name: str) -> float:
        """
        >>> Choices("dtype", ["float32", "float64"]).place("float64"), Choices("x", ["one"]).place("one")
        (1.0, 0.5)
        """
        return self.names.index(name) / (len(self.names) - 1) if len(self.names) > 1 else 0.5


@dataclass(frozen=True)
class Line:
    """One trial: a value on every axis, what a person reads of it, and whether it is among the best."""

    values: Sequence[float | str]
    told: str
    is_best: bool = False


def parallel_chart(title: str, axes: Sequence[Axis | Choices], lines: Sequence[Line], *, summary: str) -> Markup:
    """Every line across all axes, the best ones last and so on top."""
    across = [SIDE + index * (WIDTH - 2 * SIDE) / max(1, len(axes) - 1) for index in range(len(axes))]
    drawn = [_line(line, axes, across) for line in sorted(lines, key=lambda line: line.is_best)]
    parts = [_upright(axis, at) for axis, at in zip(axes, across, strict=True)]
    head = Markup('<text class="title" x="14" y="18">{}</text>').format(title)
    return _framed(f"{title}. {summary}", WIDTH, HEIGHT, [head, *drawn, *parts], broad=True)


def bar_chart(title: str, shares: Mapping[str, float], *, summary: str) -> Markup:
    """A bar from 0 to 1 for each name, the longest first."""
    width, height = 460, 34 + BAR * len(shares)
    parts = [Markup('<text class="title" x="14" y="18">{}</text>').format(title)]
    for row, (name, share) in enumerate(sorted(shares.items(), key=lambda item: -item[1])):
        top = 32 + BAR * row
        length = max(0.0, min(1.0, share)) * (width - LABELS - 60)
        parts += [
            _text(LABELS - 8, top + 13, name, "end"),
            Markup('<rect class="c0" x="{}" y="{}" width="{:.1f}" height="16"/>').format(LABELS, top, length),
            _text(LABELS + length + 6, top + 13, f"{share:.0%}", "start"),
        ]
    return _framed(f"{title}. {summary}", width, height, parts)


def _line(line: Line, axes: Sequence[Axis | Choices], across: Sequence[float]) -> Markup:
    heights = [_down(axis, value) for axis, value in zip(axes, line.values, strict=True)]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, heights, strict=True))
    kind = "c1" if line.is_best else "c4 thin"
    return Markup('<polyline class="{}" points="{}"><title>{}</title></polyline>').format(kind, points, line.told)


def _upright(axis: Axis | Choices, at: float) -> Markup:
    marks = axis.names if isinstance(axis, Choices) else axis.ticks()
    parts = [
        Markup('<line class="upright" x1="{0:.1f}" x2="{0:.1f}" y1="{1}" y2="{2}"/>').format(
            at, TOP, HEIGHT - BOTTOM
        ),
        _text(at, TOP - 10, axis.label, "middle"),
    ]
    for mark in marks:
        shown = mark if isinstance(mark, str) else f"{mark:g}"
        parts.append(_text(at + 5, _down(axis, mark) + 3.5, shown, "start"))
    return Markup("").join(parts)


def _down(axis: Axis | Choices, value: float | str) -> float:
    place = axis.place(str(value)) if isinstance(axis, Choices) else axis.place(float(value))
    return HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM)


def _framed(label: str, width: int, height: int, parts: Sequence[Markup], *, broad: bool = False) -> Markup:
    chart = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        width, height, label, Markup("").join(parts)
    )
    if not broad:
        return chart
    # On a phone it keeps its size and is scrolled by itself.
    return Markup('<div class="wide broad" tabindex="0" role="region" aria-label="{}">{}</div>').format(
        label, chart
    )


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>').format(x, y, anchor, text)
