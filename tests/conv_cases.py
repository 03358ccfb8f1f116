"""Small networks with convolutions and faces of 12 x 12 pixels for several tests."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from engram.data.readers import load_faces
from engram.models.networks import ConvNetwork
from engram.models.tasks import Binary
from engram.training.recipe import BiasPolicy, ConvSpec

SHAPE = (1, 12, 12)
SIZE = 8
LABELS = torch.arange(SIZE) % 2


def drawn(layers: str, dtype: torch.dtype = torch.float64, bias: BiasPolicy = "first") -> ConvNetwork:
    spec = ConvSpec(input_shape=SHAPE, layers=layers, bias=bias, first_layer_std=None)
    return spec.initialise(torch.Generator().manual_seed(0), dtype)


def faces(start: int, count: int = SIZE) -> Tensor:
    """Real faces, [count, 1, 12, 12]."""
    return torch.nn.functional.avg_pool2d(load_faces().images[start : start + count].float(), 2)


@cache
def written() -> ConvNetwork:
    """A network whose first fully-connected layer is W = sum_i lambda_i y_i delta_i h_iᵀ over the first faces
    minus their mean, with its own gates, as training leaves it, plus a little noise."""
    network = drawn("conv3x8 relu flatten 200 relu 1", torch.float32, bias="none")
    images = faces(0) - faces(0).mean(0)
    features, outgoing = network.features(images), 0.3 * network.weights[2].sign()
    weight = network.weights[1]
    for _ in range(200):  # slowly, until the gates agree with the weights
        gates = (features @ weight.T > 0).float()
        signals = 0.05 * Binary.signs(LABELS, torch.float32)[:, None] * gates * outgoing
        weight = torch.lerp(weight, signals.T @ features, 0.1)
    weight = weight + 1e-5 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    return network.with_params({**network.params, "layers.1.weight": weight, "layers.2.weight": outgoing})
