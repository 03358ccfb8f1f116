"""Plots of numbers only, as PNG bytes; nothing is computed here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engram.render.figures import new_figure, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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


def heat_figure(
    values: Sequence[Sequence[float]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    row_name: str,
    column_name: str,
    title: str,
) -> bytes:
    """One cell for each row and column, with its number in it."""
    figure = new_figure(0.9 * len(columns) + 2.2, 0.6 * len(rows) + 1.4)
    axis = figure.subplots()
    highest = max(max(row) for row in values)
    axis.imshow(values, cmap="Blues", vmin=0, vmax=max(highest, 1), aspect="auto")
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            colour = "white" if value > 0.6 * highest > 0 else "black"
            axis.text(column, row, f"{value:g}", ha="center", va="center", color=colour, fontsize=9)
    axis.set_xticks(range(len(columns)), columns)
    axis.set_yticks(range(len(rows)), rows)
    axis.set(xlabel=column_name, ylabel=row_name)
    figure.suptitle(title, fontsize=9)
    return png(figure, chart=True)


RADIUS = 1.6
CLASS_COLOURS = ("tab:blue", "tab:red")
CANDIDATE_COLOURS = ("tab:green", "magenta")


@dataclass(frozen=True, eq=False)
class PlanePanel:
    """Training points [n, 2] as crosses; optionally candidates [m, 2] as dots, or the output of a network."""

    title: str
    points: Tensor
    labels: Tensor
    candidates: Tensor | None = None
    candidate_labels: Tensor | None = None
    network: Callable[[Tensor], Tensor] | None = None


def plane_figure(panels: Sequence[PlanePanel], *, columns: int = 3) -> bytes:
    """The panels in a grid."""
    rows = -(-len(panels) // columns)
    figure = new_figure(3.2 * columns, 3.3 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis, panel in zip(axes, panels, strict=False):
        axis.set_title(panel.title, fontsize=10, loc="left")
        axis.set(xlim=(-RADIUS, RADIUS), ylim=(-RADIUS, RADIUS), aspect="equal")
        if panel.network is not None:
            values = _grid_outputs(panel.network)
            bound = float(values.abs().max())
            extent = (-RADIUS, RADIUS, -RADIUS, RADIUS)
            axis.imshow(values.numpy(), origin="lower", extent=extent, cmap="RdBu_r", vmin=-bound, vmax=bound)
        for label, colour in enumerate(CLASS_COLOURS):
            chosen = panel.points[panel.labels == label]
            axis.scatter(*chosen.T.tolist(), marker="x", s=45, color=colour, zorder=3)
        if panel.candidates is not None and panel.candidate_labels is not None:
            for label, colour in enumerate(CANDIDATE_COLOURS):
                chosen = panel.candidates[panel.candidate_labels == label]
                axis.scatter(*chosen.T.tolist(), marker="o", s=14, color=colour, alpha=0.8)
    return png(figure, chart=True)


@torch.no_grad()
def _grid_outputs(network: Callable[[Tensor], Tensor], side: int = 120) -> Tensor:
    line = torch.linspace(-RADIUS, RADIUS, side)
    grid = torch.cartesian_prod(line, line).flip(1)  # rows are y, columns x
    return network(grid).reshape(side, side)


GOOD_SSIM = 0.4


@dataclass(frozen=True)
class ScatterPanel:
    """One target: x and SSIM of each sample; vertical lines at `margins`, the outputs nearest to the boundary."""

    title: str
    x: Sequence[float]
    ssim: Sequence[float]
    margins: Sequence[float] = ()


def scatter_figure(
    panels: Sequence[ScatterPanel], *, columns: int, title: str, x_label: str = "output of the network"
) -> bytes:
    """The panels in a grid, with a line at SSIM 0.4, above which the papers call a reconstruction good."""
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(2.7 * columns, 2.3 * rows + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axis, panel in zip(axes.flat, panels, strict=False):
        good = [score > GOOD_SSIM for score in panel.ssim]
        colours = ["tab:red" if one else "tab:blue" for one in good]
        axis.scatter(panel.x, panel.ssim, s=5, c=colours, alpha=0.6, linewidths=0)
        axis.axhline(GOOD_SSIM, lw=0.8, ls="--", color="tab:grey")
        for margin in panel.margins:
            axis.axvline(margin, lw=0.8, ls=":", color="tab:green")
        axis.set_title(panel.title, fontsize=8)
        axis.set_ylim(-0.05, 1.0)
        axis.tick_params(labelsize=7)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    figure.supxlabel(x_label, fontsize=8)
    figure.supylabel("SSIM", fontsize=8)
    figure.suptitle(title, fontsize=10)
    return png(figure, chart=True)


@dataclass(frozen=True, eq=False)
class SpectrumPanel:
    """Singular values [k], descending; where known, noise ends at `edge` and signal begins at `threshold`."""

    values: Tensor
    rank: int
    edge: float | None
    threshold: float | None


@dataclass(frozen=True, eq=False)
class SamplesPanel:
    """Ceilings [n] with their name and, if any, the value above which they are good; margins and duals [n]."""

    ceiling: Tensor
    ceiling_name: str
    good: float | None
    margins: Tensor
    duals: Tensor


def inspection_figure(spectrum: SpectrumPanel, samples: SamplesPanel | None = None, *, title: str) -> bytes:
    """One panel from the weights alone; two more with samples."""
    panels = 1 if samples is None else 3
    figure = new_figure(4.6 * panels, 3.8)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    _draw_spectrum(axes[0], spectrum)
    if samples is not None:
        _draw_ceiling(axes[1], samples)
        _draw_duals(axes[2], samples)
    figure.suptitle(title, fontsize=10)
    return png(figure, chart=True)


def _draw_spectrum(axis: Axes, panel: SpectrumPanel) -> None:
    values = panel.values.tolist()
    # Zeros can't be drawn on a logarithmic axis; the edge of a layer without noise is practically zero.
    floor = 1e-9 * max(values[0], 1e-300)
    axis.plot(range(1, len(values) + 1), [max(value, floor) for value in values], ".", ms=3, color="tab:blue")
    for height, style, name in ((panel.edge, ":", "noise edge"), (panel.threshold, "--", "row space above")):
        if height is not None and height > floor:
            axis.axhline(height, ls=style, lw=1, color="tab:red", label=f"{name} ({height:.3g})")
    axis.set(xscale="log", yscale="log", xlabel="index", ylabel="singular value of the first layer")
    above = "noise unknown" if panel.edge is None else "above noise"
    axis.set_title(f"spectrum: {panel.rank} directions, {above}", fontsize=9)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=7)


def _draw_ceiling(axis: Axes, panel: SamplesPanel) -> None:
    lowest = min(0.0, float(panel.ceiling.min()))
    edges = torch.linspace(lowest, max(1.0, float(panel.ceiling.max())), 26).tolist()
    axis.hist(panel.ceiling.tolist(), bins=edges, color="tab:blue")
    if panel.good is not None:
        axis.axvline(panel.good, ls="--", lw=1, color="tab:red", label=f"good above {panel.good:g}")
        axis.legend(fontsize=7)
    axis.set(xlabel=panel.ceiling_name, ylabel="training samples")
    axis.set_title("ceiling: projection on the row space", fontsize=9)


def _draw_duals(axis: Axes, panel: SamplesPanel) -> None:
    axis.scatter(panel.margins.tolist(), panel.duals.tolist(), s=8, color="tab:blue", alpha=0.6)
    axis.set(xlabel="margin", ylabel="dual (best fit of the first layer)")
    axis.set_title("margins and duals", fontsize=9)
