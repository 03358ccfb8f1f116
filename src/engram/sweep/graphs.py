"""Charts of a sweep, from what sweep.json holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from engram.auditing.comparison import deciding_threshold
from engram.matching import ScoreReport
from engram.report.html.charts import Axis, Series, chart
from engram.report.html.parallel import Choices, Line, bar_chart, parallel_chart
from engram.sweep.record import BEST_SHARE

MOST_LINES = 500


def growth_chart(points: Sequence[Mapping[str, Any]], score: ScoreReport | None) -> Markup:
    """Good images, or confident candidates in the blind mode, against the number of trials pooled."""
    lines: dict[str, list[float]] = {"confident candidates": [point["sure"] for point in points]}
    if score is not None:
        name = deciding_threshold(score).text
        lines = {f"training, {name}": [point["train"][name] for point in points]}
        if score.held_out is not None:
            lines[f"held-out, {name}"] = [point["held_out"][name] for point in points]
    trials = [point["trials"] for point in points]
    series = [Series(name, trials, line, colour=index) for index, (name, line) in enumerate(lines.items())]
    series += [Series("", trials, line, kind="dots", colour=index) for index, line in enumerate(lines.values())]
    x = Axis("trials pooled", 1, max(2, trials[-1]), log=True)
    y = Axis("images" if score is not None else "candidates", 0, max(1.0, *map(max, lines.values())))
    summary = "; ".join(f"{name}: {line[-1]:g} with all" for name, line in lines.items())
    return chart("Against the number of trials pooled", x, y, series, summary=summary)


def history_chart(summary: Mapping[str, Any]) -> Markup:
    """The objective of every complete trial, and the best so far."""
    complete = [row for row in summary["trials"] if row["objective"] is not None]
    numbers, values = [row["number"] for row in complete], [row["objective"] for row in complete]
    last = max(1, summary["trials"][-1]["number"])
    steps: list[tuple[float, float]] = []
    for number, value in summary["best_so_far"]:
        steps += [(number, steps[-1][1]), (number, value)] if steps else [(number, value)]
    steps.append((last, steps[-1][1]))
    best = Series("best so far", [x for x, _ in steps], [y for _, y in steps], colour=2)
    told = f"best {summary['best']['objective']:.4g} in trial {summary['best']['number']}"
    x, y = Axis("trial", 0, last), _range(f"{summary['objective']['name']} objective", values)
    return chart("Objective of every trial", x, y, [Series("", numbers, values, kind="dots"), best], summary=told)


def settings_chart(summary: Mapping[str, Any]) -> Markup:
    """Parallel coordinates: an axis for each setting, the objective last."""
    sign = 1 if summary["objective"]["direction"] == "minimize" else -1
    rows = [row for row in summary["trials"] if row["objective"] is not None]
    rows = sorted(rows, key=lambda row: (sign * row["objective"], row["number"]))
    search = summary["space"]["search"]
    axes: list[Axis | Choices] = [_axis(name, described) for name, described in search.items()]
    axes.append(_range("objective", [row["objective"] for row in rows]))
    best = math.ceil(BEST_SHARE * len(rows))
    lines = [_line(row, axes, is_best=place < best) for place, row in enumerate(rows[:MOST_LINES])]
    told = f"{len(lines)} of {len(rows)} complete trials, the best in colour; the best has " + _settings(rows[0])
    return parallel_chart("Settings and objective", axes, lines, summary=told)


def importance_chart(shares: Mapping[str, float]) -> Markup:
    listed = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    return bar_chart("Importance", shares, summary=listed)


def _line(row: Mapping[str, Any], axes: Sequence[Axis | Choices], *, is_best: bool) -> Line:
    values = [row["params"][axis.label] for axis in axes[:-1]]
    shown = [str(value) if isinstance(axis, Choices) else value for axis, value in zip(axes, values, strict=False)]
    told = f"trial {row['number']}: objective {row['objective']:.4g}, {_settings(row)}"
    return Line([*shown, row["objective"]], told, is_best)


def _settings(row: Mapping[str, Any]) -> str:
    shown = {name: f"{value:.3g}" if isinstance(value, float) else value for name, value in row["params"].items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _axis(name: str, described: Mapping[str, Any]) -> Axis | Choices:
    if "choices" in described:
        return Choices(name, [str(choice) for choice in described["choices"]])
    return Axis(name, described["low"], described["high"], log=described["log"])


def _range(label: str, values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    return Axis(label, low, high if high > low else low + 1)
