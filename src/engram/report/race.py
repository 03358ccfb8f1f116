"""Curves of two schemes over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engram.report.figures import new_figure, png


@dataclass(frozen=True)
class RaceLine:
    """One scheme: its count beyond held-out, and the held-out count, at the same seconds."""

    label: str
    colour: str
    seconds: Sequence[float]
    excess: Sequence[float]
    held_out: Sequence[float]


@dataclass(frozen=True)
class RacePanel:
    """All schemes under one metric."""

    metric: str
    lines: Sequence[RaceLine]


def race_figure(panels: Sequence[RacePanel], *, title: str) -> bytes:
    """A panel for each metric, seconds on a logarithmic axis; held-out counts are dashed."""
    figure = new_figure(4.6 * len(panels), 3.6)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        for line in panel.lines:
            axis.plot(line.seconds, line.excess, marker=".", color=line.colour, label=line.label)
            axis.plot(
                line.seconds,
                line.held_out,
                linestyle="--",
                linewidth=1,
                color=line.colour,
                label="  held-out",
            )
        axis.set_xscale("log")
        axis.set_title(panel.metric, fontsize=10, loc="left")
        axis.set_xlabel("seconds of the attack, without scoring")
        axis.set_ylabel("images beyond held-out")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=10)
    return png(figure, chart=True)
