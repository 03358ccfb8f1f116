"""A network beside the samples it was trained on: fit, margins, KKT gap, ceiling and boundaries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.attacker import AttackerView
from engram.errors import require
from engram.inspection.ceiling import ON_BOUNDARY, Ceiling, boundaries, ceiling
from engram.inspection.kkt import KKT, kkt
from engram.inspection.progress import Progress, silent
from engram.reconstruct.engine.row_space import RowSpace

ON_MARGIN = 1.15
"""Samples within 15 % of the smallest positive margin lie on the margin."""


@dataclass(frozen=True, eq=False)
class Examination:
    """What the samples say of the network and it of them; tensors have one value a sample, [n]."""

    loss: float
    accuracy: float
    labels: Tensor
    margins: Tensor
    kkt: KKT
    ceiling: Ceiling
    boundaries: Tensor
    held_out_boundaries: Tensor | None
    """The same count for samples that training never saw; None where there are none."""

    @property
    def on_margin(self) -> int:
        """How many samples lie within 15 % of the smallest positive margin."""
        return samples_on_margin(self.margins)

    @property
    def beyond_held_out(self) -> int | None:
        """How many samples lie on more boundaries than any held-out one: known as training samples by that."""
        if self.held_out_boundaries is None:
            return None
        return int((self.boundaries > self.held_out_boundaries.max()).sum())


@torch.no_grad()
def examine(
    view: AttackerView,
    space: RowSpace,
    images: Tensor,
    labels: Tensor,
    mean: Tensor,
    *,
    held_out: Tensor | None = None,
    width: float = ON_BOUNDARY,
    progress: Progress = silent,
) -> Examination:
    """Examine images [n, *shape] with labels [n]; `mean` [*shape] is what training subtracted from them."""
    require_shape(images, view.input_shape)
    require(
        0 <= int(labels.min()) <= int(labels.max()) < view.task.label_count,
        "the data's labels",
        f"must be below {view.task.label_count} for a {view.task.name} task",
        int(labels.max()),
        "choose another label map with --labels",
    )
    inputs = images - mean
    progress("samples", 0.0)
    logits = view.network.to(dtype=torch.float64)(inputs.double())
    found = kkt(
        view.network, view.task, inputs, labels, progress=lambda part, done: progress(part, 0.05 + 0.75 * done)
    )
    progress("ceiling", 0.8)
    reach = ceiling(space.basis, images, mean, pixel_range=view.pixel_range)
    progress("boundaries", 0.95)
    unseen = (
        None if held_out is None or not len(held_out) else boundaries(view.network, held_out - mean, width=width)
    )
    examination = Examination(
        loss=float(view.task.loss(logits, labels)),
        accuracy=float(view.task.correct(logits, labels).double().mean()),
        labels=labels,
        margins=view.task.margins(logits, labels),
        kkt=found,
        ceiling=reach,
        boundaries=boundaries(view.network, inputs, width=width),
        held_out_boundaries=unseen,
    )
    progress("done", 1.0)
    return examination


def samples_on_margin(margins: Tensor) -> int:
    """How many margins [n] are positive and within 15 % of the smallest positive one.

    >>> samples_on_margin(torch.tensor([2.0, 2.2, 3.0, -1.0])), samples_on_margin(torch.tensor([-1.0]))
    (2, 0)
    """
    positive = margins[margins > 0]
    return int((positive <= ON_MARGIN * positive.min()).sum()) if len(positive) else 0


def require_shape(images: Tensor, shape: tuple[int, ...]) -> None:
    """Images [n, *shape] must be such as the model takes."""
    require(
        tuple(images.shape[1:]) == tuple(shape),
        "the data's images",
        f"must have the model's input shape {_shape(shape)}",
        _shape(images.shape[1:]),
        "choose the data that the model was trained on, or another --input-shape",
    )


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
