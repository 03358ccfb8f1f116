"""Networks as values: named parameters and a pure forward pass that takes its activation as an argument."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engram.targets.spec import MLPSpec

Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class DenseNetwork:
    """A fully-connected network: weights [out, in] and biases [out] or None, input to output.

    >>> net = DenseNetwork((torch.tensor([[1.0, -1.0]]), torch.tensor([[2.0]])), (None, None))
    >>> net(torch.tensor([[3.0, 1.0], [1.0, 3.0]]))
    tensor([[4.],
            [0.]])
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]

    def __call__(self, inputs: Tensor, activation: Activation = torch.relu) -> Tensor:
        """Outputs [n, outputs] for inputs [n, ...]; images are flattened."""
        hidden = inputs.flatten(1)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.nn.functional.linear(hidden if layer == 0 else activation(hidden), weight, bias)
        return hidden

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

    def with_params(self, params: dict[str, Tensor]) -> DenseNetwork:
        """The same architecture with other values, by the names of `params`."""
        layers = range(len(self.weights))
        return replace(
            self,
            weights=tuple(params[f"layers.{layer}.weight"] for layer in layers),
            biases=tuple(params.get(f"layers.{layer}.bias") for layer in layers),
        )

    def to(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> DenseNetwork:
        moved = {name: value.to(device=device, dtype=dtype) for name, value in self.params.items()}
        return self.with_params(moved)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Width of every layer from the inputs to the outputs."""
        return (self.weights[0].shape[1], *(len(weight) for weight in self.weights))

    @property
    def name(self) -> str:
        return "-".join(map(str, self.sizes))

    def digest(self) -> str:
        """SHA-256 of names and values: says which weights a result belongs to."""
        digest = hashlib.sha256()
        for name, value in self.params.items():
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    @property
    def is_homogeneous(self) -> bool:
        """Whether scaling all params scales the output by a power: biases in the first layer only."""
        return all(bias is None for bias in self.biases[1:])


def initialise(spec: MLPSpec, generator: torch.Generator, dtype: torch.dtype = torch.float32) -> DenseNetwork:
    """Draw a network: U(±1/sqrt(fan_in)) in every layer, but N(0, std²) in a small first layer.

    Drawn in float64 and then rounded, so that float32 and float64 targets of a seed start alike.
    """
    weights: list[Tensor] = []
    biases: list[Tensor | None] = []
    for layer, (fan_in, fan_out) in enumerate(zip(spec.sizes, spec.sizes[1:], strict=False)):
        std = spec.first_layer_std if layer == 0 else None

        def draw(shape: Iterable[int], std: float | None = std, bound: float = 1 / math.sqrt(fan_in)) -> Tensor:
            value = torch.empty(tuple(shape), dtype=torch.float64)
            if std is None:
                return value.uniform_(-bound, bound, generator=generator).to(dtype)
            return value.normal_(0, std, generator=generator).to(dtype)

        weights.append(draw((fan_out, fan_in)))
        biases.append(draw((fan_out,)) if spec.has_bias(layer) else None)
    return DenseNetwork(tuple(weights), tuple(biases))
