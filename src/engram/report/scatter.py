"""SSIM of every training sample against the network's output or margin (Haim et al. 2022, Fig. 4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engram.report.figures import new_figure, png

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
