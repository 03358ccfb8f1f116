"""Neuron boundaries, and the fully-connected part of a network whose neurons they are.

The first fully-connected layer is a sum over what enters it, W = sum_i lambda_i y_i delta_i h(x_i)ᵀ, with the
image itself for h(x) where there are no convolutions. So what can be said of a fully-connected network and its
inputs can be said of this part and its features: row space, duals, neuron boundaries.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.attacks.engine.closed_form import parameters
from engram.attacks.engine.convolutional import PROBES, smooth_noise
from engram.attacks.engine.scales import PIXEL_STD
from engram.models.networks import ConvNetwork, DenseNetwork, Network
from engram.models.view import AttackerView

ON_BOUNDARY = 0.002
"""A sample this near a neuron's boundary, in units of the input, is on it: training has pushed it there."""


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

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of the images, not of their features."""
        return self.whole.input_shape or self.view.input_shape

    @property
    def reads_features(self) -> bool:
        return isinstance(self.whole, ConvNetwork)

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
    if (dense := view.dense) is not None:
        return DensePart(dense, dense.network)
    head = view.narrowed(ConvNetwork).network.head
    part = DensePart(AttackerView(head, (head.sizes[0],), view.task), view.network)
    low, high = view.pixel_range
    probes = smooth_noise(PROBES, view.input_shape, PIXEL_STD * (high - low), seed=0)
    growth = part.entering(probes).norm(dim=1).mean() / probes.flatten(1).norm(dim=1).mean()
    return DensePart(part.view, view.network, ON_BOUNDARY * float(growth))
