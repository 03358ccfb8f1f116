"""Figures of the two-dimensional experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engram.report.figures import new_figure, png

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
