"""A network examined with its training samples: fit, margins, KKT gap, ceiling and boundaries."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engram.core.errors import require
from engram.core.loop import Progress, silent
from engram.core.loop import part as part_of
from engram.members.kkt import KKT, DensePart, kkt
from engram.models.networks import Network
from engram.models.row_space import RowSpace
from engram.scoring.metrics import ssim
from engram.scoring.protocols import paired_ncc

RECOGNISED = 0.4
"""The papers' SSIM of a good reconstruction."""


@dataclass(frozen=True, eq=False)
class Ceiling:
    """Each sample compared with its own projection onto the row space, [n] each.

    No method without an image prior does better: the weights say nothing about the rest of the sample.
    """

    share: Tensor
    """Share of the centred sample's energy inside the row space."""
    ssim: Tensor | None
    """Of pixels, with the mean added back and clamped to the pixel range; None for vectors."""
    ncc: Tensor | None
    """Of centred samples, as in scoring; None below three values, where NCC is only a sign."""
    mean_ssim: Tensor | None
    """The null: SSIM of the training mean alone, which needs no weights; None for vectors."""

    @property
    def recognisable(self) -> int | None:
        """How many samples have an SSIM above 0.4."""
        return _good(self.ssim)

    @property
    def recognisable_by_mean(self) -> int | None:
        """The same count for the mean alone."""
        return _good(self.mean_ssim)


def ceiling(
    basis: Tensor,
    images: Tensor,
    mean: Tensor,
    *,
    pixel_range: tuple[float, float] = (0.0, 1.0),
    network: Network | None = None,
) -> Ceiling:
    """Compare images [n, *shape] with V Vᵀ (x - mean) + mean for orthonormal rows V [r, d]; mean [*shape].

    V is in the coordinates that the `network`'s first layer sees.
    """
    images, mean, basis = images.double(), mean.double(), basis.double()
    inputs = images - mean
    entering = inputs.flatten(1) if network is None else network.entering(inputs)
    projected = entering @ basis.T @ basis
    projected = (projected if network is None else network.leaving(projected)).view_as(inputs)
    is_image = images.ndim == 4
    energy = inputs.flatten(1).square().sum(1)
    inside = projected.flatten(1).square().sum(1)
    return Ceiling(
        share=torch.where(energy > 0, inside / energy, torch.ones_like(energy)),
        ssim=ssim((projected + mean).clamp(*pixel_range), images) if is_image else None,
        ncc=paired_ncc(projected, inputs) if inputs[0].numel() > 2 else None,
        mean_ssim=ssim(mean.expand_as(images), images) if is_image else None,
    )


def _good(values: Tensor | None) -> int | None:
    return None if values is None else int((values > RECOGNISED).sum())


ON_MARGIN = 1.15
"""Samples within 15 % of the smallest positive margin count as on the margin."""


@dataclass(frozen=True, eq=False)
class Examination:
    """What the samples show about the network and vice versa; tensors have one value per sample, [n]."""

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
        """How many samples lie on more boundaries than any held-out one, which identifies them."""
        if self.held_out_boundaries is None:
            return None
        return int((self.boundaries > self.held_out_boundaries.max()).sum())


@torch.no_grad()
def examine(
    part: DensePart,
    space: RowSpace,
    images: Tensor,
    labels: Tensor,
    mean: Tensor,
    *,
    held_out: Tensor | None = None,
    progress: Progress = silent,
) -> Examination:
    """Examine images [n, *shape] with labels [n]; `mean` [*shape] is what training subtracted from them.

    Where the part reads features, the ceiling is only a share of their energy: what a projected feature looks like
    is unknown.
    """
    network, task = part.view.network, part.view.task
    require_shape(images, part.input_shape)
    require(
        0 <= int(labels.min()) <= int(labels.max()) < task.label_count,
        "the data's labels",
        f"must be below {task.label_count} for a {task.name} task",
        int(labels.max()),
        "choose another label map with --labels",
    )
    progress("examining: samples", 0.0)
    entering = part.entering(images - mean)
    logits = network.to(dtype=torch.float64)(entering)
    found = kkt(network, task, entering, labels, progress=part_of(progress, 0.05, 0.8))
    progress("examining: ceiling", 0.8)
    if part.reads_features:
        reach = replace(ceiling(space.basis, entering, torch.zeros_like(entering[0])), ncc=None)
    else:
        reach = ceiling(space.basis, images, mean, pixel_range=part.view.pixel_range, network=part.whole)
    progress("examining: boundaries", 0.95)
    unseen = None
    if held_out is not None and len(held_out):
        unseen = part.boundaries(part.entering(held_out - mean))
    below = len(part.whole.weights) - len(network.weights)
    layers = tuple(replace(gap, name=f"layers.{below + place}") for place, gap in enumerate(found.layers))
    examination = Examination(
        loss=float(task.loss(logits, labels)),
        accuracy=float(task.correct(logits, labels).double().mean()),
        labels=labels,
        margins=task.margins(logits, labels),
        kkt=replace(found, layers=layers),
        ceiling=reach,
        boundaries=part.boundaries(entering),
        held_out_boundaries=unseen,
    )
    progress("examining", 1.0)
    return examination


def samples_on_margin(margins: Tensor) -> int:
    """How many margins [n] are positive and within 15 % of the smallest positive one.

    >>> samples_on_margin(torch.tensor([2.0, 2.2, 3.0, -1.0])), samples_on_margin(torch.tensor([-1.0]))
    (2, 0)
    """
    positive = margins[margins > 0]
    return int((positive <= ON_MARGIN * positive.min()).sum()) if len(positive) else 0


def require_shape(images: Tensor, shape: tuple[int, ...]) -> None:
    """Images [n, *shape] must have the model's input shape."""
    require(
        tuple(images.shape[1:]) == tuple(shape),
        "the data's images",
        f"must have the model's input shape {_shape(shape)}",
        _shape(images.shape[1:]),
        "choose the data that the model was trained on, or another --input-shape",
    )


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
