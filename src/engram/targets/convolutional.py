"""Networks with convolutions, as values like the fully-connected ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from engram.errors import ConfigError
from engram.targets.architecture import Architecture
from engram.targets.layers import AvgPool, Conv, Dense, Flatten, Layer, ReLU
from engram.targets.networks import Activation, DenseNetwork, Network


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
        return self._through(self.architecture.layers, inputs, activation)

    def features(self, inputs: Tensor, activation: Activation = torch.relu) -> Tensor:
        """What enters the first fully-connected layer, [n, features]."""
        return self._through(self.architecture.layers[: self._first_dense], inputs, activation)

    @cached_property
    def head(self) -> DenseNetwork:
        """The fully-connected layers, which read the features; an error unless `has_head`."""
        if not self.has_head:
            upper = self.architecture.layers[self._first_dense :]
            raise ConfigError(
                f"{self.name} has no fully-connected part of the form 'width relu width': "
                f"{' '.join(map(str, upper))}; use `engram reconstruct --recipe buzaglo2023`, which reads them"
            )
        return DenseNetwork(self.weights[self._lower :], self.biases[self._lower :])

    @property
    def has_head(self) -> bool:
        """Whether a ReLU lies between any two of the fully-connected layers."""
        upper = self.architecture.layers[self._first_dense :]
        return all(isinstance(layer, ReLU if place % 2 else Dense) for place, layer in enumerate(upper))

    @property
    def lower_names(self) -> list[str]:
        """The names of the parameters below the first fully-connected layer."""
        return [name for names in self.layer_names[: self._lower] for name in names]

    @property
    def dense_equivalent(self) -> DenseNetwork | None:
        """The same function as a fully-connected network where all kernels cover what enters them; else None."""
        layers = [layer for layer in self.architecture.layers if not isinstance(layer, Flatten)]
        entering = zip(self.architecture.layers, self.architecture.shapes, strict=False)
        whole = all(
            layer.padding == 0 and shape[1:] == (layer.kernel, layer.kernel)
            for layer, shape in entering
            if isinstance(layer, Conv)
        )
        alternate = all(
            isinstance(layer, ReLU) if place % 2 else isinstance(layer, Conv | Dense)
            for place, layer in enumerate(layers)
        )
        if not (whole and alternate):
            return None
        return DenseNetwork(tuple(weight.flatten(1) for weight in self.weights), self.biases)

    @property
    def _first_dense(self) -> int:
        return next(place for place, layer in enumerate(self.architecture.layers) if isinstance(layer, Dense))

    @property
    def _lower(self) -> int:
        """How many layers with weights lie below the first fully-connected one."""
        return sum(isinstance(layer, Conv) for layer in self.architecture.layers[: self._first_dense])

    def _through(self, layers: Sequence[Layer], inputs: Tensor, activation: Activation) -> Tensor:
        hidden = inputs.reshape(len(inputs), *self.architecture.input_shape)
        params = iter(zip(self.weights, self.biases, strict=True))
        for layer in layers:
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
