"""Networks as values: named parameters and a pure forward pass that takes its activation as an argument."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor
from typing_extensions import TypeVar

if TYPE_CHECKING:
    from engram.targets.spec import MLPSpec

Activation = Callable[[Tensor], Tensor]
ROWS = 1024
"""Rows of a layer that are drawn at once."""


@dataclass(frozen=True, eq=False)
class Network(ABC):
    """What training, attacks and files need of a network: weights and biases by layer, and a forward pass."""

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]

    @abstractmethod
    def __call__(self, inputs: Tensor, activation: Activation = torch.relu) -> Tensor:
        """Outputs [n, outputs] for inputs [n, ...]."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """How many values enter the network, and come out of each layer that has weights."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """The shape of one input, if the layers tell it; None: any shape of that many values."""
        return None

    @property
    def params(self) -> dict[str, Tensor]:
        """theta by name: `layers.0.weight`, `layers.0.bias`, `layers.1.weight`, ..."""
        named = {}
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            named[f"layers.{layer}.weight"] = weight
            if bias is not None:
                named[f"layers.{layer}.bias"] = bias
        return named

    @property
    def layer_names(self) -> list[list[str]]:
        """The names of `params`, layer by layer."""
        layers = range(len(self.weights))
        return [[name for name in self.params if name.startswith(f"layers.{layer}.")] for layer in layers]

    def with_params(self, params: dict[str, Tensor]) -> Self:
        """The same architecture with other values, by the names of `params`."""
        layers = range(len(self.weights))
        return replace(
            self,
            weights=tuple(params[f"layers.{layer}.weight"] for layer in layers),
            biases=tuple(params.get(f"layers.{layer}.bias") for layer in layers),
        )

    def to(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        moved = {name: value.to(device=device, dtype=dtype) for name, value in self.params.items()}
        return self.with_params(moved)

    def digest(self) -> str:
        """SHA-256 of names and values: says which weights a result belongs to."""
        digest = hashlib.sha256(self._beyond_weights())
        for name, value in self.params.items():
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().numpy().ravel().data)
        return digest.hexdigest()

    @property
    def is_homogeneous(self) -> bool:
        """Whether scaling all params scales the output by a power: biases in the first layer only."""
        return all(bias is None for bias in self.biases[1:])

    def _beyond_weights(self) -> bytes:
        """What the outputs depend on that the names and shapes of the weights do not tell."""
        return b""


@dataclass(frozen=True, eq=False)
class DenseNetwork(Network):
    """A fully-connected network: weights [out, in] and biases [out] or None, input to output.

    >>> net = DenseNetwork((torch.tensor([[1.0, -1.0]]), torch.tensor([[2.0]])), (None, None))
    >>> net(torch.tensor([[3.0, 1.0], [1.0, 3.0]]))
    tensor([[4.],
            [0.]])
    """

    def __call__(self, inputs: Tensor, activation: Activation = torch.relu) -> Tensor:
        """Outputs [n, outputs] for inputs [n, ...]; images are flattened."""
        hidden = inputs.flatten(1)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.nn.functional.linear(hidden if layer == 0 else activation(hidden), weight, bias)
        return hidden

    @property
    def sizes(self) -> tuple[int, ...]:
        """Width of every layer from the inputs to the outputs."""
        return (self.weights[0].shape[1], *(len(weight) for weight in self.weights))

    @property
    def name(self) -> str:
        return "-".join(map(str, self.sizes))


N = TypeVar("N", bound=Network, default=DenseNetwork)
N_co = TypeVar("N_co", bound=Network, default=DenseNetwork, covariant=True)
"""A kind of network; what holds one holds a fully-connected one unless it says otherwise."""


def initialise(spec: MLPSpec, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> DenseNetwork:
    """Draw a fully-connected network, see `draw_layers`."""
    shapes = list(zip(spec.sizes[1:], spec.sizes, strict=False))
    has_bias = [spec.has_bias(layer) for layer in range(len(shapes))]
    return DenseNetwork(*draw_layers(shapes, has_bias, spec.first_layer_std, generator, dtype))


def draw_layers(
    shapes: Sequence[tuple[int, ...]],
    has_bias: Sequence[bool],
    first_layer_std: float | None,
    generator: torch.Generator,
    dtype: torch.dtype,
) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
    """Weights [out, in, ...] and biases [out]: U(±1/sqrt(fan_in)), but N(0, std²) in a small first layer.

    Drawn in float64 and then rounded, so that float32 and float64 targets of a seed start alike.
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
    """U(±bound), some rows at a time: the same numbers, without a copy of a wide layer in float64."""
    value = torch.empty(shape, dtype=dtype)
    for rows in torch.split(value, ROWS):
        rows.copy_(torch.empty(rows.shape, dtype=torch.float64).uniform_(-bound, bound, generator=generator))
    return value
