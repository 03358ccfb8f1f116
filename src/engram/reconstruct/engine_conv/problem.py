"""The row space over the features, and every scale that the solver needs, from the weights alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engram.attacker import AttackerView
from engram.errors import ConfigError
from engram.reconstruct.engine.closed_form import parameters
from engram.reconstruct.engine.row_space import find_row_space
from engram.reconstruct.engine.scales import (
    MARGIN_PER_SPREAD,
    PIXEL_STD,
    SOFTNESS,
    Scales,
    candidates_for,
)
from engram.reconstruct.engine.settings import EngineSettings
from engram.reconstruct.published.relu import smoothed_relu
from engram.targets.convolutional import ConvNetwork
from engram.targets.networks import DenseNetwork

PROBES = 256
COARSE = 4
"""Probes are smooth: noise on a grid of this many pixels a side, since photographs hold most of theirs there."""

LIVE = 0.1
"""Neurons with less than this share of the mean energy are left out."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The network in two parts: features of images, and fully-connected layers on coordinates in the row space."""

    network: ConvNetwork
    scales: Scales
    """Of the fully-connected layers, as the engine has them: `scales.space` is the row space over features."""
    pixel_std: float
    feature_slope: float

    def features(self, images: Tensor) -> Tensor:
        """h(x) with soft gates, [m, features]."""
        return self.network.features(images, smoothed_relu(self.feature_slope))

    def coordinates(self, features: Tensor) -> Tensor:
        """V h, [m, r]."""
        return features @ self.scales.space.basis.to(features.dtype).T


def outside(features: Tensor, coordinates: Tensor) -> Tensor:
    """The share of each sample's energy outside the row space, 1 - ||V h||² / ||h||², [m].

    >>> outside(torch.tensor([[3.0, 4.0]]), torch.tensor([[3.0]]))
    tensor([0.6400])
    """
    energy = features.square().sum(1).clamp(min=torch.finfo(features.dtype).tiny)
    return 1 - coordinates.square().sum(1) / energy


@torch.no_grad()
def pose(view: AttackerView[ConvNetwork], settings: EngineSettings) -> Problem:
    """Rotate the first fully-connected layer into its row space and measure the scales on smooth random images."""
    network = view.network.to(dtype=settings.torch_dtype)
    if len(network.head.weights) < 2:
        raise ConfigError(
            f"the engine needs a hidden fully-connected layer, which {network.name} has not; "
            "use `engram reconstruct --recipe buzaglo2023`"
        )
    space = find_row_space(network.head.weights[0])
    inner = (network.head.weights[0].double() @ space.basis.double().T).to(settings.torch_dtype)
    reduced = live_neurons(network.head.with_params({**network.head.params, "layers.0.weight": inner}))
    low, high = view.pixel_range
    pixel_std = PIXEL_STD * (high - low)
    probes = smooth_noise(PROBES, view.input_shape, pixel_std, settings.seed).to(inner)
    features = network.features(probes)
    # In the row space, at the length of real features: those of noise lie anywhere.
    generator = torch.Generator().manual_seed(settings.seed)
    inside = torch.randn(PROBES, space.rank, generator=generator, dtype=torch.float64).to(inner)
    inside *= (features.square().sum(1).mean() / space.rank).sqrt()
    excited = functional.linear(inside, reduced.weights[0], reduced.biases[0])
    candidates = settings.candidates or candidates_for(space.rank)
    candidates += -candidates % view.task.label_count
    margin = MARGIN_PER_SPREAD * float(reduced(inside).std().clamp(min=1e-12))
    scales = Scales(
        network=reduced,
        space=space,
        candidates=candidates,
        latent_std=float(inside.std()),
        slope=SOFTNESS / float(excited.std().clamp(min=1e-12)),
        dual=float(parameters(reduced, 0).square().sum()) / (margin * candidates),
    )
    return Problem(network, scales, pixel_std, SOFTNESS / _spread_before_gates(network, probes))


def live_neurons(head: DenseNetwork) -> DenseNetwork:
    """Without the hidden neurons of the first layer that hold less than a share of the mean energy.

    Weight decay lets neurons die that no sample needs; what is left of them says nothing of the samples, yet each
    neuron's equation would count as much as any other's.

    >>> head = DenseNetwork((torch.tensor([[2.0], [0.1], [1.0]]), torch.tensor([[3.0, 4.0, 5.0]])), (None, None))
    >>> [weight.tolist() for weight in live_neurons(head).weights]
    [[[2.0], [1.0]], [[3.0, 5.0]]]
    """
    first, second, *upper = head.weights
    energies = parameters(head, 0).square().sum(1)
    live = energies >= LIVE * energies.mean()
    bias = head.biases[0]
    return DenseNetwork(
        (first[live], second[:, live], *upper), (None if bias is None else bias[live], *head.biases[1:])
    )


def smooth_noise(count: int, shape: tuple[int, ...], std: float, seed: int) -> Tensor:
    """Random images [count, C, H, W] of that spread, without detail."""
    channels, height, width = shape
    generator = torch.Generator().manual_seed(seed)
    grid = (count, channels, -(-height // COARSE), -(-width // COARSE))
    coarse = torch.randn(grid, generator=generator, dtype=torch.float64)
    fine = functional.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=False)
    return fine * (std / fine.std())


def _spread_before_gates(network: ConvNetwork, probes: Tensor) -> float:
    """The smallest spread of what enters a ReLU below the first fully-connected layer."""
    spreads: list[float] = []

    def watch(values: Tensor) -> Tensor:
        spreads.append(float(values.std()))
        return torch.relu(values)

    network.features(probes, watch)
    return max(min(spreads, default=1.0), 1e-12)
