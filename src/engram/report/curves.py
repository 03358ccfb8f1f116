"""Counts and errors over one setting: number of classes, weight decay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engram.report.figures import new_figure, png


@dataclass(frozen=True)
class Line:
    """Values over x; dashed for a null."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = "tab:blue"
    dashed: bool = False


@dataclass(frozen=True)
class CurvePanel:
    """Lines over one axis, and named horizontal levels to compare them with."""

    x_label: str
    y_label: str
    lines: Sequence[Line]
    levels: dict[str, float] = field(default_factory=dict)
    log: bool = False


def curves_figure(panels: Sequence[CurvePanel], *, title: str) -> bytes:
    """The panels side by side."""
    figure = new_figure(4.8 * len(panels), 3.6)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        for line in panel.lines:
            style = "--" if line.dashed else "-"
            axis.plot(line.x, line.y, marker=".", ls=style, color=line.colour, label=line.name)
        for shade, (name, level) in enumerate(panel.levels.items()):
            axis.axhline(level, ls=":", color=f"C{3 + shade}", label=f"{name}: {level:g}")
        if panel.log:
            axis.set_xscale("log")
        else:
            axis.set_xticks(sorted({value for line in panel.lines for value in line.x}))
        axis.set(xlabel=panel.x_label, ylabel=panel.y_label)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, frameon=False)
    figure.suptitle(title, fontsize=10)
    return png(figure, chart=True)
