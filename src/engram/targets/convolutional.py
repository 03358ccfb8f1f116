"""Networks with convolutions, as values like the fully-connected ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engram.targets.architecture import Architecture, AvgPool, Conv, Dense, Flatten, ReLU
from engram.targets.networks import Activation, Network


@dataclass(frozen=True, eq=False)
class ConvNetwork(Network):
    """Weights [channels, C, k, k] and [out, in] of the layers of an architecture that have any, input to output.

    >>> net = Architecture.parse("conv2x1 relu flatten 1", (1, 2, 2))
    >>> ConvNetwork((torch.ones(1, 1, 2, 2), torch.tensor([[3.0]])), (None, None), net)(torch.ones(1, 4))
    tensor([[12.]])
    """

    architecture: Architecture

    def __call__(self, inputs: Tensor, activation: Activation = torch.relu) -> Tensor:
        """Outputs [n, outputs] for inputs [n, ...] of as many values as the input shape has."""
        hidden = inputs.reshape(len(inputs), *self.architecture.input_shape)
        params = zip(self.weights, self.biases, strict=True)
        for layer in self.architecture.layers:
            match layer:
                case Conv():
                    weight, bias = next(params)
                    hidden = functional.conv2d(hidden, weight, bias, layer.stride, layer.padding)
                case Dense():
                    hidden = functional.linear(hidden, *next(params))
                case AvgPool():
                    hidden = functional.avg_pool2d(hidden, layer.kernel)
                case Flatten():
                    hidden = hidden.flatten(1)
                case ReLU():
                    hidden = activation(hidden)
        return hidden

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.architecture.sizes

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.architecture.input_shape

    @property
    def name(self) -> str:
        return self.architecture.name

    def _beyond_weights(self) -> bytes:
        return f"{self.architecture.input_shape} {self.architecture.text}".encode()
