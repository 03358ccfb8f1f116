"""The picture of an inspection: the first layer's spectrum and, with samples, their ceiling, margins and duals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engram.report.figures import new_figure, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False)
class SpectrumPanel:
    """Singular values [k], descending; where known, noise ends at `edge` and signal begins at `threshold`."""

    values: Tensor
    rank: int
    edge: float | None
    threshold: float | None


@dataclass(frozen=True, eq=False)
class SamplesPanel:
    """Ceilings [n] under their name and, where one value divides good from bad, it; margins [n] and duals [n]."""

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
    # Zeros have no place on a logarithmic axis; the edge of a layer without noise is as good as zero.
    floor = 1e-9 * max(values[0], 1e-300)
    axis.plot(range(1, len(values) + 1), [max(value, floor) for value in values], ".", ms=3, color="tab:blue")
    for height, style, name in ((panel.edge, ":", "noise edge"), (panel.threshold, "--", "row space above")):
        if height is not None and height > floor:
            axis.axhline(height, ls=style, lw=1, color="tab:red", label=f"{name} ({height:.3g})")
    axis.set(xscale="log", yscale="log", xlabel="index", ylabel="singular value of the first layer")
    above = "all of unknown noise" if panel.edge is None else "above noise"
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
    axis.set(xlabel="margin", ylabel="dual (first layer's best)")
    axis.set_title("margins and duals", fontsize=9)
