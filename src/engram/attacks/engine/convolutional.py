"""The engine for networks that start with convolutions: candidates are pixels.

A convolution's kernels are small and its gradient is a sum over all patches of all images: C k k directions, all
of them used, so it has no row space that could contain images. The first fully-connected layer has one, over the
features h(x) that the convolutions compute from an image:

    W = sum_i lambda_i y_i delta_i h(x_i)ᵀ

Its rows lie in the span of the training images' features, few directions among very many; hardly anything but a
training image has its features there. So the unknowns are pixels, the coordinates of their features in that row
space enter the engine's own objective, and what lies outside the row space is penalised:

    F = stationarity of the first fully-connected layer + margin + SPAN * share of features outside + prior * TV

The first two are the engine's objective at the features' coordinates in the row space; their gradients with
respect to the pixels take one backward pass through the convolutions. `iteration` has the steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from engram.attacks.engine.closed_form import Metric, chunks, parameters
from engram.attacks.engine.consensus import CONVOLUTIONAL, Constants
from engram.attacks.engine.image_prior import total_variation
from engram.attacks.engine.iteration import EngineIteration
from engram.attacks.engine.objective import Objective
from engram.attacks.engine.self_tuning import (
    MARGIN_PER_SPREAD,
    PIXEL_STD,
    SOFTNESS,
    Scales,
    candidates_for,
)
from engram.attacks.published import smoothed
from engram.attacks.settings import EngineSettings
from engram.core.errors import ConfigError
from engram.core.loop import State
from engram.models.networks import ConvNetwork, DenseNetwork
from engram.models.view import AttackerView

PROBES = 256
COARSE = 4
"""Probes are smooth, like photographs: noise on a grid of cells with sides of this many pixels."""

LIVE = 0.1
"""Neurons with less than this share of the mean energy are left out."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The network in two parts: features of images, and fully-connected layers on coordinates in the row space."""

    network: ConvNetwork
    scales: Scales
    """Those of the fully-connected layers: `scales.space` is the row space over features."""
    pixel_std: float
    feature_slope: float
    values_each: int
    """Values that one image has before all gates and as features, which a pass back needs."""

    def features(self, images: Tensor) -> Tensor:
        """h(x) with soft gates, [m, features]."""
        return self.network.features(images, smoothed(self.network.activation, self.feature_slope))

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
    space = network.head.row_space((network.head.sizes[0],))
    inner = (network.head.weights[0].double() @ space.basis.double().T).to(settings.torch_dtype)
    reduced = live_neurons(network.head.with_params({**network.head.params, "layers.0.weight": inner}))
    low, high = view.pixel_range
    pixel_std = PIXEL_STD * (high - low)
    probes = smooth_noise(PROBES, view.input_shape, pixel_std, settings.seed).to(inner)
    features = network.features(probes)
    # In the row space, with the length of real features: features of noise may lie anywhere.
    generator = torch.Generator().manual_seed(settings.seed)
    inside = torch.randn(PROBES, space.rank, generator=generator, dtype=torch.float64).to(inner)
    inside *= (features.square().sum(1).mean() / space.rank).sqrt()
    excited = functional.linear(inside, reduced.weights[0], reduced.biases[0])
    candidates = settings.candidates or candidates_for(strong_directions(space.strengths))
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
    spread, values = _before_gates(network, probes)
    return Problem(network, scales, pixel_std, SOFTNESS / spread, values + features.shape[1])


STRONG = 0.999
"""Share of the energy that directions have which count as strong."""


def strong_directions(strengths: Tensor) -> int:
    """The fewest directions, of these strengths [r], that have almost all of the energy.

    Kernels move while the layer above learns, so its row space holds features from all of training: rank 727 for
    50 images, of which 50 directions have 99.9 % of the energy.

    >>> strong_directions(torch.tensor([3.0, 0.01, 4.0, 0.02]))
    2
    """
    energies = strengths.double().square().sort(descending=True).values.cumsum(0)
    return int((energies < STRONG * energies[-1]).sum()) + 1


def live_neurons(head: DenseNetwork) -> DenseNetwork:
    """Without the hidden neurons of the first layer that have less than a share of the mean energy.

    Weight decay lets neurons die that no sample needs; what is left of them says nothing about the samples, but
    each neuron's equation would count as much as any other's.

    >>> head = DenseNetwork((torch.tensor([[2.0], [0.1], [1.0]]), torch.tensor([[3.0, 4.0, 5.0]])), (None, None))
    >>> [weight.tolist() for weight in live_neurons(head).weights]
    [[[2.0], [1.0]], [[3.0, 5.0]]]
    """
    first, second, *upper = head.weights
    energies = parameters(head, 0).square().sum(1)
    live = energies >= LIVE * energies.mean()
    bias = head.biases[0]
    return replace(
        head,
        weights=(first[live], second[:, live], *upper),
        biases=(None if bias is None else bias[live], *head.biases[1:]),
    )


def smooth_noise(count: int, shape: tuple[int, ...], std: float, seed: int) -> Tensor:
    """Random images [count, C, H, W] of that spread, without fine detail."""
    channels, height, width = shape
    generator = torch.Generator().manual_seed(seed)
    grid = (count, channels, -(-height // COARSE), -(-width // COARSE))
    coarse = torch.randn(grid, generator=generator, dtype=torch.float64)
    fine = functional.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=False)
    return fine * (std / fine.std())


def _before_gates(network: ConvNetwork, probes: Tensor) -> tuple[float, int]:
    """The smallest spread of the inputs of an activation below the first fully-connected layer, and how many such
    inputs an image has."""
    spreads: list[float] = []
    sizes: list[int] = []

    def watch(values: Tensor) -> Tensor:
        spreads.append(float(values.std()))
        sizes.append(values[0].numel())
        return network.activation(values)

    network.features(probes, watch)
    return max(min(spreads, default=1.0), 1e-12), sum(sizes)


ARRAYS = 8
"""Arrays of that size that a pass and its way back need at the same time."""


@dataclass(frozen=True, eq=False)
class FeaturePass:
    """Images [m, C, H, W], their features [m, f] and the features' coordinates [m, r], for one pass back."""

    images: Tensor
    features: Tensor
    coordinates: Tensor

    def pulled_back(self, by_coordinates: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted share of the features outside the row space, and the gradient of it and of what depends on
        the coordinates, [m, C, H, W]."""
        span = SPAN * (share * outside(self.features, self.coordinates)).sum()
        pulled = (self.coordinates * by_coordinates).sum() + span
        (by_images,) = torch.autograd.grad(pulled, self.images)
        return span.detach(), by_images


PIXEL_RATE = 0.16
"""Adam's rate as a share of the pixels' spread."""
SPAN = 60.0
"""Weight of the features' share outside the row space; stationarity starts at 1."""
PRIOR = 0.8
"""Strength of total variation. The row space over features says more about pixels than one over pixels does."""


CROWD = 2.0
"""Times the candidates for each strong direction, which are 3: real images had at most 5 others alike."""


@dataclass(frozen=True, eq=False)
class ConvEngine(EngineIteration[ConvNetwork]):
    """Stationarity of the first fully-connected layer, read through the convolutions below it."""

    moved: ClassVar[str] = "images"

    def __post_init__(self) -> None:
        if len(self.posed.network.head.weights) < 2:
            raise ConfigError(
                f"the engine needs a hidden fully-connected layer, which {self.view.network.name} does not have; "
                "use `engram reconstruct --recipe buzaglo2023`"
            )

    @cached_property
    def posed(self) -> AttackerView[ConvNetwork]:
        """With one dual per pair of a sample and another class: the whole KKT condition."""
        return replace(self.view.narrowed(ConvNetwork), task=self.view.task.with_all_duals())

    @cached_property
    def problem(self) -> Problem:
        return pose(self.posed, self.settings)

    @property
    def scales(self) -> Scales:
        return self.problem.scales

    @cached_property
    def objective(self) -> Objective:
        shape = (self.scales.space.rank,)
        return Objective(self.scales, self.settings, self.posed.task, shape, ridge=self.ridge)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.input_shape

    @property
    def constants(self) -> Constants:
        return CONVOLUTIONAL

    @property
    def crowd(self) -> float:
        """Of digits, all candidates may end as one mixture, whose features lie in the row space too."""
        return CROWD * self.scales.candidates / strong_directions(self.scales.space.strengths)

    @property
    def priors(self) -> tuple[float, ...]:
        return (PRIOR,)

    @property
    def rate(self) -> float:
        return PIXEL_RATE * self.problem.pixel_std

    def draw(self, seed: int) -> Tensor:
        return smooth_noise(self.scales.candidates, self.shape, self.problem.pixel_std, seed)

    def gradients(self, state: State, metric: Metric, prior: float) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Span and prior are weighted by the duals' shares, whose own gradient is omitted: no dual should vanish
        only because its candidate is not yet in the span."""
        images, share = state["images"], self.objective.shares(state["duals"])
        parts = self.parts(len(images))
        kept = self._read(images) if len(parts) == 1 else None
        coordinates = self.latents(images) if kept is None else kept.coordinates.detach()
        losses, by_coordinates, by_duals = self.objective({**state, "latents": coordinates}, metric, 0.0)
        pulled = [
            (kept or self._read(images[part])).pulled_back(by_coordinates[part], share[part]) for part in parts
        ]
        spans, by_parts = zip(*pulled, strict=True)
        by_images = torch.cat(by_parts)
        losses = {**losses, "outside": torch.stack(spans).sum()}
        if prior > 0:
            values, by_variation = total_variation(images)
            losses["variation"] = prior * (share * values).sum()
            by_images = by_images + prior * share.view(-1, 1, 1, 1) * by_variation
        return losses, by_images, by_duals

    def parts(self, count: int) -> list[slice]:
        """So many images in as few chunks as leave room for their features and what lies below them."""
        arrays = self.problem.values_each * ARRAYS * self.settings.torch_dtype.itemsize
        return chunks(count, arrays, self.settings.room)

    def _read(self, images: Tensor) -> FeaturePass:
        images = images.detach().requires_grad_()
        features = self.problem.features(images)
        return FeaturePass(images, features, self.problem.coordinates(features))

    @torch.no_grad()
    def latents(self, moved: Tensor) -> Tensor:
        read = (self.problem.features(moved[part]) for part in self.parts(len(moved)))
        return torch.cat([self.problem.coordinates(features) for features in read])

    def images(self, moved: Tensor) -> Tensor:
        return moved
