"""The ceiling: how much of each sample is in the weights at all, and how near neuron boundaries it lies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.matching import ssim
from engram.matching.protocols import paired_ncc
from engram.reconstruct.engine.closed_form import parameters
from engram.targets.networks import DenseNetwork

RECOGNISED = 0.4
"""The papers' SSIM of a good reconstruction."""
ON_BOUNDARY = 0.002
"""A sample this near a neuron's boundary, in units of the input, is on it: training has pushed it there."""


@dataclass(frozen=True, eq=False)
class Ceiling:
    """Each sample against its own projection on the row space, [n] each.

    No method without an image prior does better: the weights say nothing of the rest of the sample.
    """

    share: Tensor
    """Share of the centred sample's energy inside the row space."""
    ssim: Tensor | None
    """Of pixels, the mean added back and clamped to the pixel range; None for vectors."""
    ncc: Tensor | None
    """Of centred samples, as in scoring; None below three values, where only a sign is left."""
    mean_ssim: Tensor | None
    """The null: SSIM of the training mean alone, which no weights are needed for; None for vectors."""

    @property
    def recognisable(self) -> int | None:
        """How many samples have an SSIM above 0.4."""
        return _good(self.ssim)

    @property
    def recognisable_by_mean(self) -> int | None:
        """How many the mean alone would count."""
        return _good(self.mean_ssim)


def ceiling(
    basis: Tensor, images: Tensor, mean: Tensor, *, pixel_range: tuple[float, float] = (0.0, 1.0)
) -> Ceiling:
    """Compare images [n, *shape] with V Vᵀ (x - mean) + mean for orthonormal rows V [r, d]; mean [*shape]."""
    images, mean, basis = images.double(), mean.double(), basis.double()
    inputs = images - mean
    projected = (inputs.flatten(1) @ basis.T @ basis).view_as(inputs)
    is_image = images.ndim == 4
    energy = inputs.flatten(1).square().sum(1)
    inside = projected.flatten(1).square().sum(1)
    return Ceiling(
        share=torch.where(energy > 0, inside / energy, torch.ones_like(energy)),
        ssim=ssim((projected + mean).clamp(*pixel_range), images) if is_image else None,
        ncc=paired_ncc(projected, inputs) if inputs[0].numel() > 2 else None,
        mean_ssim=ssim(mean.expand_as(images), images) if is_image else None,
    )


@torch.no_grad()
def boundaries(network: DenseNetwork, inputs: Tensor, *, width: float = ON_BOUNDARY) -> Tensor:
    """How many first-layer neurons have |w_k x + b_k| / ||(w_k, b_k)|| < width, [n], for inputs [n, ...].

    Neurons without any weight have no boundary and are left out.

    >>> net = DenseNetwork((torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.ones(1, 2)), (None, None))
    >>> boundaries(net, torch.tensor([[0.001, 5.0], [1.0, 5.0]])).tolist()
    [1, 0]
    """
    network = network.to(dtype=torch.float64)
    sizes = parameters(network, 0).norm(dim=1)
    distances = torch.nn.functional.linear(inputs.flatten(1).double(), network.weights[0], network.biases[0])
    near: Tensor = (distances.abs() < width * sizes) & (sizes > 0)
    return near.sum(1)


def _good(values: Tensor | None) -> int | None:
    return None if values is None else int((values > RECOGNISED).sum())
