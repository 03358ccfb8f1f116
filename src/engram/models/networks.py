"""Networks as values: named parameters and a pure forward pass that takes its activation as an argument."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import TypeVar

from engram.core.errors import ConfigError
from engram.models.activations import RELU, Activation, Pointwise
from engram.models.architecture import Architecture, AvgPool, Conv, Dense, Flatten, Layer, MaxPool, Nonlinearity
from engram.models.row_space import RowSpace, first_layer_space
from engram.models.uniform_start import EdgeReading, read_edges

SUPPORTED = (
    "fully-connected networks with one kind of activation, and one output (binary, regression) or one per class, "
    "saved as a state_dict (.pt, .pth, .safetensors), .pt2, .onnx, .keras, .h5 or .skops. Any other PyTorch model "
    "can be audited for membership: engram membership --model-code, in Python engram.membership(module, ...)"
)


@dataclass(frozen=True, eq=False)
class Network(ABC):
    """What training, attacks and files need from a network: weights and biases by layer, and a forward pass."""

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor | None, ...]
    activation: Activation = field(default=RELU, kw_only=True)
    """Between the layers."""
    gain: Tensor | None = field(default=None, kw_only=True)
    """What inputs are multiplied by before the first layer, [d]: 1 / std of a normalisation; None is 1.
    So inputs are pixels without their mean, while the weights stay as training left them."""

    @abstractmethod
    def __call__(self, inputs: Tensor, activation: Pointwise | None = None) -> Tensor:
        """Outputs [n, outputs] for inputs [n, ...]; an attack may replace the activation."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """Number of values that enter the network, and that leave each layer with weights."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """The shape of one input, if the layers determine it; None: any shape with the right number of values."""
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
        """The same network on another device or in another precision; itself, if that changes nothing."""
        moved = {name: value.to(device=device, dtype=dtype) for name, value in self.params.items()}
        if all(moved[name] is value for name, value in self.params.items()):
            return self
        gain = None if self.gain is None else self.gain.to(device=device, dtype=dtype)
        return replace(self.with_params(moved), gain=gain)

    def entering(self, inputs: Tensor) -> Tensor:
        """What the first layer sees of inputs [n, ...], [n, d]."""
        flat = inputs.flatten(1)
        return flat if self.gain is None else flat * self.gain.to(flat)

    def leaving(self, entering: Tensor) -> Tensor:
        """The inputs [n, d] that the first layer sees as `entering` [n, d]."""
        return entering if self.gain is None else entering / self.gain.to(entering)

    def digest(self) -> str:
        """SHA-256 of names and values: identifies the weights of a result. Computed once."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256(self._beyond_weights())
        for name, value in self.params.items():
            digest.update(name.encode())
            digest.update(value.detach().cpu().contiguous().numpy().ravel().data)
        return digest.hexdigest()

    @property
    def is_homogeneous(self) -> bool:
        """Whether scaling all params scales the output by a power: biases in the first layer only."""
        return self.activation.is_homogeneous and all(bias is None for bias in self.biases[1:])

    def _beyond_weights(self) -> bytes:
        """What the outputs depend on besides the names and values of the weights."""
        kind = b"" if self.activation == RELU else f" {self.activation}".encode()
        return kind if self.gain is None else kind + self.gain.detach().cpu().double().numpy().tobytes()


@dataclass(frozen=True, eq=False)
class DenseNetwork(Network):
    """A fully-connected network: weights [out, in] and biases [out] or None, input to output.

    >>> net = DenseNetwork((torch.tensor([[1.0, -1.0]]), torch.tensor([[2.0]])), (None, None))
    >>> net(torch.tensor([[3.0, 1.0], [1.0, 3.0]]))
    tensor([[4.],
            [0.]])
    """

    def __call__(self, inputs: Tensor, activation: Pointwise | None = None) -> Tensor:
        """Outputs [n, outputs] for inputs [n, ...]; images are flattened."""
        phi = activation or self.activation
        hidden = self.entering(inputs)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.nn.functional.linear(hidden if layer == 0 else phi(hidden), weight, bias)
        return hidden

    @cached_property
    def bare(self) -> DenseNetwork:
        """The same layers, for inputs as the first one sees them."""
        if self.gain is None:
            return self
        made = replace(self, gain=None)
        made.__dict__.update(_row_spaces=self._row_spaces, _edges=self._edges)  # of the same weights
        return made

    @property
    def sizes(self) -> tuple[int, ...]:
        """Width of every layer from the inputs to the outputs."""
        return (self.weights[0].shape[1], *(len(weight) for weight in self.weights))

    @property
    def name(self) -> str:
        sizes = "-".join(map(str, self.sizes))
        return sizes if self.activation == RELU else f"{sizes} {self.activation}"

    def scaled(self, factor: float) -> DenseNetwork:
        """The first layer's weights times a factor; what is known of them is kept."""
        made = replace(self, weights=(factor * self.weights[0], *self.weights[1:]))
        made._row_spaces.update({shape: space.scaled(factor) for shape, space in self._row_spaces.items()})
        for shape, edges in self._edges.items():
            made._edges[shape] = None if edges is None else edges.scaled(factor)
        return made

    def row_space(self, input_shape: tuple[int, ...]) -> RowSpace:
        """What training has written into the first layer, for inputs of that shape. Computed once."""
        if input_shape not in self._row_spaces:
            self._row_spaces[input_shape] = first_layer_space(self.weights[0], input_shape)
        return self._row_spaces[input_shape]

    def edges(self, input_shape: tuple[int, ...]) -> EdgeReading | None:
        """What training added to a first layer that started uniform, for inputs of that shape, or None if it shows
        no edges. Computed once."""
        if input_shape not in self._edges:
            noise_std = self.row_space(input_shape).noise_std
            self._edges[input_shape] = read_edges(self.weights[0], self.biases[0], input_shape, noise_std)
        return self._edges[input_shape]

    @cached_property
    def _row_spaces(self) -> dict[tuple[int, ...], RowSpace]:
        return {}

    @cached_property
    def _edges(self) -> dict[tuple[int, ...], EdgeReading | None]:
        return {}


N = TypeVar("N", bound=Network, default=DenseNetwork)
N_co = TypeVar("N_co", bound=Network, default=DenseNetwork, covariant=True)
"""A kind of network; fully-connected by default."""


@dataclass(frozen=True, eq=False)
class ConvNetwork(Network):
    """A network with convolutions: weights [channels, C, k, k] and [out, in] by layer, input to output.

    >>> net = Architecture.parse("conv2x1 relu flatten 1", (1, 2, 2))
    >>> ConvNetwork((torch.ones(1, 1, 2, 2), torch.tensor([[3.0]])), (None, None), net)(torch.ones(1, 4))
    tensor([[12.]])
    """

    architecture: Architecture

    def __post_init__(self) -> None:
        object.__setattr__(self, "activation", self.architecture.activation)

    def __call__(self, inputs: Tensor, activation: Pointwise | None = None) -> Tensor:
        """Outputs [n, outputs] for inputs [n, ...] with as many values as the input shape."""
        return self._through(self.architecture.layers, inputs, activation or self.activation)

    def features(self, inputs: Tensor, activation: Pointwise | None = None) -> Tensor:
        """The inputs of the first fully-connected layer, [n, features]."""
        lower = self.architecture.layers[: self._first_dense]
        return self._through(lower, inputs, activation or self.activation)

    @cached_property
    def head(self) -> DenseNetwork:
        """The fully-connected layers, which read the features; an error unless `has_head`."""
        if not self.has_head:
            upper = self.architecture.layers[self._first_dense :]
            raise ConfigError(
                f"{self.name} has no fully-connected part of the form 'width {self.activation} width': "
                f"{' '.join(map(str, upper))}; use `engram reconstruct --recipe buzaglo2023`, which supports them"
            )
        lower = self._lower
        return DenseNetwork(self.weights[lower:], self.biases[lower:], activation=self.activation)

    @property
    def has_head(self) -> bool:
        """Whether there is an activation between each two fully-connected layers."""
        upper = self.architecture.layers[self._first_dense :]
        return all(isinstance(layer, Nonlinearity if place % 2 else Dense) for place, layer in enumerate(upper))

    @property
    def lower_names(self) -> list[str]:
        """The names of the parameters below the first fully-connected layer."""
        return [name for names in self.layer_names[: self._lower] for name in names]

    @cached_property
    def dense_equivalent(self) -> DenseNetwork | None:
        """The same function as a fully-connected network if every kernel covers its whole input; else None."""
        layers = [layer for layer in self.architecture.layers if not isinstance(layer, Flatten)]
        entering = zip(self.architecture.layers, self.architecture.shapes, strict=False)
        whole = all(
            layer.padding == 0 and layer.groups == 1 and layer.dilation == 1 and shape[1:] == 2 * (layer.kernel,)
            for layer, shape in entering
            if isinstance(layer, Conv)
        )
        alternate = all(
            isinstance(layer, Nonlinearity) if place % 2 else isinstance(layer, Conv | Dense)
            for place, layer in enumerate(layers)
        )
        if not (whole and alternate):
            return None
        flat = tuple(weight.flatten(1) for weight in self.weights)
        return DenseNetwork(flat, self.biases, activation=self.activation, gain=self.gain)

    @property
    def _first_dense(self) -> int:
        return next(place for place, layer in enumerate(self.architecture.layers) if isinstance(layer, Dense))

    @property
    def _lower(self) -> int:
        """How many layers with weights are below the first fully-connected one."""
        return sum(isinstance(layer, Conv) for layer in self.architecture.layers[: self._first_dense])

    def _through(self, layers: Sequence[Layer], inputs: Tensor, activation: Pointwise) -> Tensor:
        hidden = self.entering(inputs).reshape(len(inputs), *self.architecture.input_shape)
        params = iter(zip(self.weights, self.biases, strict=True))
        for layer in layers:
            match layer:
                case Conv():
                    weight, bias = next(params)
                    hidden = functional.conv2d(
                        hidden, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups
                    )
                case Dense():
                    hidden = functional.linear(hidden, *next(params))
                case AvgPool():
                    hidden = functional.avg_pool2d(hidden, layer.kernel)
                case MaxPool():
                    hidden = functional.max_pool2d(hidden, layer.kernel, layer.stride, layer.padding)
                case Flatten():
                    hidden = hidden.flatten(1)
                case Nonlinearity():
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
        layers = f"{self.architecture.input_shape} {self.architecture.text}".encode()
        return layers if self.gain is None else layers + super()._beyond_weights()
