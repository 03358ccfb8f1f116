"""The figure of `benchmarks.growth`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

from engram.render.figures import new_figure, png

PANELS = (
    ("training", "seconds_an_epoch", 1.0, "training: seconds per epoch"),
    ("training", "peak_bytes", 1e-9, "training: peak memory, GB"),
    ("engine", "seconds_a_step", 1.0, "engine: seconds per step"),
    ("engine", "computed_peak_bytes", 1e-9, "engine: peak memory, GB (computed)"),
)


def figure(rows: Sequence[dict[str, Any]]) -> bytes:
    """Top row over n, one line per width with several n; bottom row over width, at the smallest n."""
    drawing = new_figure(3.4 * len(PANELS), 6.4)
    axes = drawing.subplots(2, len(PANELS), squeeze=False)
    smallest = min(row["n"] for row in rows)
    for column, (kind, value, unit, title) in enumerate(PANELS):
        own = [row for row in rows if row["kind"] == kind]
        for width in sorted({row["width"] for row in own}):
            series = sorted((row["n"], unit * row[value]) for row in own if row["width"] == width)
            if len(series) > 1:
                axes[0, column].plot(*zip(*series, strict=True), marker=".", label=f"width {width:,}")
        series = sorted((row["width"], unit * row[value]) for row in own if row["n"] == smallest)
        axes[1, column].plot(*zip(*series, strict=True), marker=".", label=f"n = {smallest}")
        axes[0, column].set_title(title, fontsize=9, loc="left")
        for axis, size, name in (
            (axes[0, column], "n", "training images"),
            (axes[1, column], "width", "width of both hidden layers"),
        ):
            axis.set_xscale("log")
            ticks = sorted({row[size] for row in own})
            axis.set_xticks(ticks, labels=[f"{tick:,}" for tick in ticks], fontsize=8)
            axis.xaxis.set_minor_locator(NullLocator())
            if value.startswith("seconds"):
                axis.set_yscale("log")
                axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.yaxis.set_major_formatter(FormatStrFormatter("%g"))
                axis.yaxis.set_minor_locator(NullLocator())
            else:
                axis.set_ylim(bottom=0)
            axis.tick_params(axis="y", labelsize=8)
            axis.set_xlabel(name)
            axis.grid(alpha=0.3)
            axis.legend(fontsize=8, frameon=False)
    return png(drawing, chart=True)
