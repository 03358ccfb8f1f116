"""What to train and how: a network before its weights are drawn, and the settings of the papers' recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from engram.core.errors import machine_memory, require, require_memory, require_numbers
from engram.core.loop import Observer, Progress, State, Values, by_steps
from engram.models.architecture import Architecture
from engram.models.networks import ConvNetwork, DenseNetwork, N_co

ROWS = 1024
"""Rows of a layer that are drawn at a time."""


def draw_layers(
    shapes: Sequence[tuple[int, ...]],
    has_bias: Sequence[bool],
    first_layer_std: float | None,
    generator: torch.Generator,
    dtype: torch.dtype,
) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
    """Weights [out, in, ...] and biases [out]: U(±1/sqrt(fan_in)), but N(0, std²) in a small first layer.

    Drawn in float64 and then rounded, so that float32 and float64 targets with the same seed start alike.
    """
    weights: list[Tensor] = []
    biases: list[Tensor | None] = []
    for layer, (shape, with_bias) in enumerate(zip(shapes, has_bias, strict=True)):
        std = first_layer_std if layer == 0 else None
        bound = 1 / math.sqrt(math.prod(shape[1:]))

        def draw(shape: tuple[int, ...], std: float | None = std, bound: float = bound) -> Tensor:
            if std is None:
                return _uniform(shape, bound, generator, dtype)
            return torch.empty(shape, dtype=torch.float64).normal_(0, std, generator=generator).to(dtype)

        weights.append(draw(shape))
        biases.append(draw(shape[:1]) if with_bias else None)
    return tuple(weights), tuple(biases)


def _uniform(shape: tuple[int, ...], bound: float, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """U(±bound), some rows at a time: the same numbers, without a float64 copy of a wide layer."""
    value = torch.empty(shape, dtype=dtype)
    for rows in torch.split(value, ROWS):
        rows.copy_(torch.empty(rows.shape, dtype=torch.float64).uniform_(-bound, bound, generator=generator))
    return value


BiasPolicy = Literal["first", "all", "none"]
"""Which hidden layers have biases. `first` keeps the network homogeneous; the output layer never has one."""


class Spec(Protocol[N_co]):
    """A network without its weights."""

    @property
    def name(self) -> str: ...

    def initialise(self, generator: torch.Generator, dtype: torch.dtype) -> N_co:
        """Draw its weights."""


@dataclass(frozen=True, kw_only=True)
class MLPSpec:
    """A ReLU network inputs-widths-outputs.

    `first_layer_std` draws the first layer, weight and bias, from N(0, std²), which the first paper found to
    help the attack (1e-4); None is the standard initialisation U(-1/sqrt(fan_in), 1/sqrt(fan_in)) everywhere.

    >>> MLPSpec(inputs=3072, widths=(1000, 1000)).name
    '3072-1000-1000-1'
    """

    inputs: int
    widths: tuple[int, ...] = (1000, 1000)
    outputs: int = 1
    bias: BiasPolicy = "first"
    first_layer_std: float | None = 1e-4

    def __post_init__(self) -> None:
        require(self.inputs > 0, "inputs", "must be positive", self.inputs)
        require(self.outputs > 0, "outputs", "must be positive", self.outputs)
        require(
            len(self.widths) > 0 and min(self.widths, default=0) > 0,
            "widths",
            "must name at least one hidden layer of positive width",
            self.widths,
            "for example 1000,1000",
        )
        require_numbers(self)
        parameters = sum(before * after for before, after in pairwise(self.sizes))
        fits = _widest(self.inputs + self.outputs, len(self.widths))
        cure = f"layers of {fits:,} fit"
        require_memory(COPIES * parameters, "widths", self.widths, cure)
        _check(self.bias, self.first_layer_std)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Width of every layer from the inputs to the outputs."""
        return (self.inputs, *self.widths, self.outputs)

    @property
    def name(self) -> str:
        return "-".join(map(str, self.sizes))

    def has_bias(self, layer: int) -> bool:
        """Whether layer 0, 1, ... has a bias."""
        return _has_bias(self.bias, layer, len(self.widths))

    def initialise(self, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> DenseNetwork:
        shapes = list(zip(self.sizes[1:], self.sizes, strict=False))
        has_bias = [self.has_bias(layer) for layer in range(len(shapes))]
        return DenseNetwork(*draw_layers(shapes, has_bias, self.first_layer_std, generator, dtype))


@dataclass(frozen=True, kw_only=True)
class ConvSpec:
    """A ReLU network with convolutions, its layers as text (`architecture`); the rest is as in `MLPSpec`.

    >>> ConvSpec(input_shape=(3, 32, 32), layers="conv3x32 relu flatten 1000 relu 1").name
    '3x32x32-conv3x32-1000-1'
    """

    input_shape: tuple[int, ...]
    layers: str
    bias: BiasPolicy = "first"
    first_layer_std: float | None = 1e-4

    def __post_init__(self) -> None:
        _check(self.bias, self.first_layer_std)
        parameters = sum(math.prod(shape) for shape in self.architecture.weight_shapes)
        require_memory(COPIES * parameters, "layers", self.layers, "take fewer channels or narrower layers")
        assert self.architecture is not None  # parsed here, so that an error shows at once

    @cached_property
    def architecture(self) -> Architecture:
        return Architecture.parse(self.layers, self.input_shape)

    @property
    def outputs(self) -> int:
        return self.architecture.sizes[-1]

    @property
    def name(self) -> str:
        return self.architecture.name

    def initialise(self, generator: torch.Generator, dtype: torch.dtype) -> ConvNetwork:
        shapes = self.architecture.weight_shapes
        has_bias = [_has_bias(self.bias, layer, len(shapes) - 1) for layer in range(len(shapes))]
        return ConvNetwork(
            *draw_layers(shapes, has_bias, self.first_layer_std, generator, dtype), architecture=self.architecture
        )


COPIES = 4 * 3
"""Bytes of a parameter while a network is trained: itself, its gradient and its start, in float32."""


def _widest(ends: int, layers: int) -> int:
    """The width w of equal hidden layers that fit in memory: ends w + (layers - 1) w² parameters."""
    room = machine_memory() // COPIES
    if layers == 1:
        return max(1, room // ends)
    between = layers - 1
    return max(1, (math.isqrt(ends**2 + 4 * between * room) - ends) // (2 * between))


def _has_bias(policy: BiasPolicy, layer: int, hidden_layers: int) -> bool:
    return layer < hidden_layers and (policy == "all" or (policy == "first" and layer == 0))


def _check(bias: str, first_layer_std: float | None) -> None:
    require(bias in ("first", "all", "none"), "bias", "must be first, all or none", bias)
    require(
        first_layer_std is None or 0 < first_layer_std < math.inf,
        "first_layer_std",
        "must be positive and finite",
        first_layer_std,
        "leave it out for the standard initialisation",
    )


DTypeName = Literal["float32", "float64"]


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Follow the gradient flow once the loss is `below`, with errors of at most `tolerance` of a layer's norm."""

    below: float = 0.3
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        require_numbers(self)
        require(self.below > 0, "below", "must be positive", self.below, "0.3 is past the plateau")
        require(
            0 < self.tolerance <= 0.1,
            "tolerance",
            "must be above 0 and at most 0.1",
            self.tolerance,
            "0.01 stays on the path, 0.03 halves the epochs",
        )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train; the defaults are those of Haim et al. 2022.

    `batch` None is full-batch descent; otherwise every epoch shuffles and takes batches of that size.
    `normalise_below` c multiplies the rate by c / loss once the loss is below c: gradients shrink in
    proportion to the loss, so the steps continue along the same path where a constant rate would almost stop.
    `weight_decay` w adds w theta to the gradient, i.e. (w/2) ||theta||² to the loss.
    `flow` follows the gradient flow in large adaptive steps once the loss is low enough (`flow.py`); an epoch is
    then one evaluation of the gradient.
    `forget` removes after that many epochs what weight decay has left of the initialisation, (1 - lr w)^t
    theta(0), which would otherwise take many more epochs to fade; later epochs settle what has been learnt.
    Training stops early when the loss is below `loss_threshold`, or when the norm of the mean gradient, weight
    decay included, is below `gradient_threshold` (`descent.py`).
    """

    lr: float = 0.01
    epochs: int = 1_000_000
    loss_threshold: float | None = None
    gradient_threshold: float | None = None
    batch: int | None = None
    weight_decay: float = 0.0
    normalise_below: float | None = None
    forget: int | None = None
    flow: Flow | None = None
    dtype: DTypeName = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        require_numbers(self)
        require(self.lr > 0, "lr", "must be positive", self.lr, "the paper uses 0.01")
        require(self.epochs > 0, "epochs", "must be positive", self.epochs)
        require(self.batch is None or self.batch > 0, "batch", "must be positive", self.batch)
        require(self.weight_decay >= 0, "weight_decay", "must not be negative", self.weight_decay)
        require(self.dtype in ("float32", "float64"), "dtype", "must be float32 or float64", self.dtype)
        for name in ("loss_threshold", "gradient_threshold", "normalise_below"):
            value = getattr(self, name)
            require(value is None or value > 0, name, "must be positive", value)
        for name in ("gradient_threshold", "flow"):
            alone = getattr(self, name) is None or self.batch is None
            require(alone, "batch", f"must be left out with {name}, which needs the full batch", self.batch)
        alone = self.flow is None or self.normalise_below is None
        require(
            alone,
            "normalise_below",
            "must be left out with flow, which serves the same purpose",
            self.normalise_below,
        )
        if self.forget is not None:
            require(0 < self.forget < self.epochs, "forget", "must lie between 0 and the epochs", self.forget)
            require(self.weight_decay > 0, "forget", "needs weight_decay, whose effect it completes", self.forget)
            plain = self.batch is None and self.normalise_below is None and self.flow is None
            require(plain, "forget", "needs full batches and a constant rate", self.forget)

    def settings(self) -> dict[str, Any]:
        """Fields by name, for cache keys; `forget`, a later addition, only if it is used."""
        return {name: value for name, value in asdict(self).items() if name != "forget" or value is not None}

    def is_reached(self, metrics: Values) -> bool:
        """Whether the loss or the gradient is below its threshold."""
        bounds = {"loss": self.loss_threshold, "gradient": self.gradient_threshold}
        return any(bound is not None and metrics.get(name, math.inf) < bound for name, bound in bounds.items())

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == "float64" else torch.float32


def training_progress(progress: Progress, recipe: Recipe) -> Observer:
    """An observer that reports the share of the epochs; along the flow, where log-loss falls evenly, the share of
    the way of log-loss to its goal.

    >>> shares = []
    >>> recipe = Recipe(loss_threshold=0.01, flow=Flow())
    >>> observe = training_progress(lambda _, share: shares.append(share), recipe)
    >>> for step, loss in enumerate((1.0, 0.1, 0.005)):
    ...     observe(step, {"loss": loss}, {})
    >>> [round(share, 6) for share in shares]
    [0.0, 0.5, 1.0]
    """
    goal = recipe.loss_threshold
    if recipe.flow is None or goal is None:
        return by_steps(progress, "training", recipe.epochs)
    first: list[float] = []

    def observe(step: int, metrics: Values, state: State) -> None:
        first[:] = first or [max(metrics["loss"], 2 * goal)]
        share = math.log(first[0] / max(metrics["loss"], goal)) / math.log(first[0] / goal)
        progress(f"training: loss {metrics['loss']:.3g} of {goal:g}, epoch {step:,}", max(share, 0.0))

    return observe
