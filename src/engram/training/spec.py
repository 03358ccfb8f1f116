"""Draw a network's initial weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from engram.core.errors import require
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


def _has_bias(policy: BiasPolicy, layer: int, hidden_layers: int) -> bool:
    return layer < hidden_layers and (policy == "all" or (policy == "first" and layer == 0))


def _check(bias: str, first_layer_std: float | None) -> None:
    require(bias in ("first", "all", "none"), "bias", "must be first, all or none", bias)
    require(
        first_layer_std is None or first_layer_std > 0,
        "first_layer_std",
        "must be positive",
        first_layer_std,
        "leave it out for the standard initialisation",
    )
