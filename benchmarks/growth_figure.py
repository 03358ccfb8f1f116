"""The figure of `benchmarks.growth`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engram.report.figures import new_figure, png

PANELS = (
    ("training", "seconds_an_epoch", "training: seconds an epoch"),
    ("training", "peak_bytes", "training: peak memory, bytes"),
    ("engine", "seconds_a_step", "engine: seconds a step"),
    ("engine", "computed_peak_bytes", "engine: peak memory, bytes (computed)"),
)


def figure(rows: Sequence[dict[str, Any]]) -> bytes:
    """Over n above, a line for each width that has several; over width below, at the smallest n."""
    drawing = new_figure(3.4 * len(PANELS), 6.4)
    axes = drawing.subplots(2, len(PANELS), squeeze=False)
    smallest = min(row["n"] for row in rows)
    for column, (kind, value, title) in enumerate(PANELS):
        own = [row for row in rows if row["kind"] == kind]
        for width in sorted({row["width"] for row in own}):
            series = sorted((row["n"], row[value]) for row in own if row["width"] == width)
            if len(series) > 1:
                axes[0, column].plot(*zip(*series, strict=True), marker=".", label=f"width {width:,}")
        series = sorted((row["width"], row[value]) for row in own if row["n"] == smallest)
        axes[1, column].plot(*zip(*series, strict=True), marker=".", label=f"n = {smallest}")
        axes[0, column].set_title(title, fontsize=9, loc="left")
        for axis, name in ((axes[0, column], "training images"), (axes[1, column], "width of both hidden layers")):
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_xlabel(name)
            axis.grid(alpha=0.3)
            axis.legend(fontsize=8, frameon=False)
    return png(drawing)
