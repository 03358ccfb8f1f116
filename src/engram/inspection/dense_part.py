"""The fully-connected part of a network: all of it, or what reads the features of its convolutions.

The first fully-connected layer is a sum over what enters it, W = sum_i lambda_i y_i delta_i h(x_i)ᵀ, with the
image itself for h(x) where there are no convolutions. So what can be said of a fully-connected network and its
inputs can be said of this part and its features: row space, duals, neuron boundaries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.attacker import AttackerView
from engram.inspection.ceiling import ON_BOUNDARY, boundaries
from engram.reconstruct.engine.scales import PIXEL_STD
from engram.reconstruct.engine_conv.problem import PROBES, smooth_noise
from engram.targets.convolutional import ConvNetwork
from engram.targets.networks import DenseNetwork, Network

AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class DensePart:
    """`view` sees the part alone, with features as its inputs where `whole` begins with convolutions.

    A point within `width` of a neuron's boundary is on it: `ON_BOUNDARY` in units of an image, and of features as
    much more as they are larger than their image.
    """

    view: AttackerView
    whole: Network
    width: float = ON_BOUNDARY

    def entering(self, images: Tensor) -> Tensor:
        """What enters the part for centred images [n, *shape]: images [n, d] or features [n, f], in float64."""
        if not isinstance(self.whole, ConvNetwork):
            return images.flatten(1).double()
        network = self.whole.to(dtype=torch.float64)
        with torch.no_grad():
            chunks = [network.features(chunk.double()) for chunk in torch.split(images, AT_ONCE)]
        return torch.cat(chunks) if chunks else images.new_zeros(0, *self.view.input_shape).double()

    def boundaries(self, entering: Tensor) -> Tensor:
        """On how many neurons' boundaries each row of `entering` [n, d] lies, [n]."""
        return boundaries(self.view.network, entering, width=self.width)


def dense_part(view: AttackerView[Network]) -> DensePart:
    """The part of a view's network; an error where its layers have none that the engine could read."""
    if not isinstance(view.network, ConvNetwork):
        return DensePart(view.narrowed(DenseNetwork), view.network)
    head = view.network.head
    part = DensePart(AttackerView(head, (head.sizes[0],), view.task), view.network)
    low, high = view.pixel_range
    probes = smooth_noise(PROBES, view.input_shape, PIXEL_STD * (high - low), seed=0)
    growth = part.entering(probes).norm(dim=1).mean() / probes.flatten(1).norm(dim=1).mean()
    return DensePart(part.view, view.network, ON_BOUNDARY * float(growth))
