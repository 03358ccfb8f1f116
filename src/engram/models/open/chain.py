"""Steps of a forward pass, as file formats list them, put together into a network.

A reader of a format translates its operations into steps. Normalisations are folded into the layer before them or
after them; one at the very beginning is the preprocessing of the inputs. What is not a chain of such steps is
refused by the reader, operation by operation.

Folding keeps the outputs. It changes what the weights say: training moved the unfolded weights, so each row of the
folded layer is its row of the sum over training samples times a factor gamma / sigma of its own. Rows still lie in
the span of what entered the layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor

from engram.core.errors import ConfigError, UnsupportedModelError
from engram.models.activations import RELU
from engram.models.architecture import (
    Architecture,
    AvgPool,
    Conv,
    Dense,
    Flatten,
    Layer,
    MaxPool,
    Nonlinearity,
    Shape,
)
from engram.models.networks import ConvNetwork, DenseNetwork, Network
from engram.models.view import Normalization

SUPPORTED = (
    "chains of fully-connected layers and convolutions with one kind of activation, average and max pooling, "
    "flatten, and normalisations that can be folded into their neighbours. Any other PyTorch model can be audited "
    "for membership: engram membership --model-code, in Python engram.membership"
)


class UnlikeError(Exception):
    """A setting of an operation that no layer here has; the message says which."""


@dataclass(frozen=True, eq=False)
class Weighted:
    """A fully-connected layer [out, in] or a convolution [out, in / groups, k, k], with its bias [out] or None."""

    weight: Tensor
    bias: Tensor | None = None
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    name: str = ""

    @property
    def layer(self) -> Layer:
        if self.weight.ndim == 2:
            return Dense(len(self.weight))
        return Conv(self.weight.shape[2], len(self.weight), self.stride, self.padding, self.dilation, self.groups)

    def then(self, norm: Affine) -> Weighted:
        """This layer with a normalisation after it."""
        scale, shift = (value.to(self.weight).expand(len(self.weight)) for value in (norm.scale, norm.shift))
        weight = scale.view(-1, *(1 for _ in self.weight.shape[1:])) * self.weight
        bias = shift if self.bias is None else scale * self.bias + shift
        return Weighted(weight, bias, self.stride, self.padding, self.dilation, self.groups, self.name)


@dataclass(frozen=True, eq=False)
class Affine:
    """scale z + shift, a value of each for every channel: a normalisation outside of training, [channels] each."""

    scale: Tensor
    shift: Tensor
    name: str = ""

    @classmethod
    def batch_norm(
        cls,
        mean: Tensor,
        variance: Tensor,
        gamma: Tensor | None,
        beta: Tensor | None,
        epsilon: float,
        name: str = "",
    ) -> Affine:
        """gamma (z - mean) / sqrt(variance + epsilon) + beta."""
        scale = 1 / (variance.double() + epsilon).sqrt()
        scale = scale if gamma is None else gamma.double() * scale
        shift = -mean.double() * scale
        return cls(scale, shift if beta is None else shift + beta.double(), name)


BYTES = 16
"""A normalisation of images that divides by more than this is one of bytes, 0 to 255."""
Step = Weighted | Affine | Nonlinearity | AvgPool | MaxPool | Flatten


@dataclass(frozen=True, eq=False)
class ReadNetwork:
    """A network, what the file says about its inputs, and what was done to read it."""

    network: Network
    input_shape: Shape | None = None
    normalization: Normalization | None = None
    notes: tuple[str, ...] = ()
    is_assumed: bool = False
    """Whether activation and wiring are a guess: a state_dict does not say."""
    is_folded: bool = False
    """Whether a normalisation was folded into the weights, which are then no plain sum over the samples."""


def assembled(steps: Sequence[Step], input_shape: Shape | None, notes: Sequence[str] = ()) -> ReadNetwork:
    """The network that computes `steps` one after the other; its input shape is needed for convolutions."""
    is_image = input_shape is not None and len(input_shape) == 3
    normalization, rest = _preprocessing(list(steps), is_image=is_image)
    folded, names, problems = _folded(rest)
    layers = [
        step.layer if isinstance(step, Weighted) else step for step in folded if not isinstance(step, Affine)
    ]
    weighted = [step for step in folded if isinstance(step, Weighted)]
    while layers and isinstance(layers[-1], Flatten):
        layers.pop()
    if layers and weighted and not isinstance(layers[-1], Dense | Conv):
        problems.append(f"it ends in {layers[-1]}, not in a layer with weights")
    if not weighted:
        problems.append("it has no fully-connected layer and no convolution")
    problems += [
        f"{step.name or 'a layer'} has weights {list(step.weight.shape)} and a bias {list(step.bias.shape)}"
        for step in weighted
        if step.bias is not None and step.bias.shape != step.weight.shape[:1]
    ]
    if problems:
        raise UnsupportedModelError(problems, supported=SUPPORTED)
    dtype = reduce(torch.promote_types, (step.weight.dtype for step in weighted), torch.float32)
    weights = tuple(_plain(step.weight, dtype) for step in weighted)
    biases = tuple(None if step.bias is None else _plain(step.bias, dtype) for step in weighted)
    told = list(notes)
    if names:
        told.append(
            f"normalisation folded into its neighbours: {', '.join(names)}. Each neuron's equation has a factor "
            "of its own, so expect fewer images than without it; membership is asked of the folded layers"
        )
    try:
        network = _network(layers, weights, biases, input_shape)
    except ConfigError as error:
        raise UnsupportedModelError([str(error)], supported=SUPPORTED) from error
    return ReadNetwork(network, input_shape, normalization, tuple(told), is_folded=bool(names))


def _network(
    layers: list[Layer],
    weights: tuple[Tensor, ...],
    biases: tuple[Tensor | None, ...],
    input_shape: Shape | None,
) -> Network:
    if any(isinstance(layer, Conv) for layer in layers):
        if input_shape is None:
            raise ConfigError("convolutions need the shape of one input; give it, e.g. --input-shape 3x32x32")
        architecture = Architecture(tuple(input_shape), tuple(layers))
        for weight, shape in zip(weights, architecture.weight_shapes, strict=True):
            if tuple(weight.shape) != shape:
                raise ConfigError(f"a layer has weights {list(weight.shape)}, but takes {list(shape)}")
        return ConvNetwork(weights, biases, architecture)
    dense = [layer for layer in layers if not isinstance(layer, Flatten)]
    if len(weights) < 2:
        raise ConfigError("it has only one layer: there is no hidden layer to read images from")
    for place, layer in enumerate(dense):
        if not isinstance(layer, Nonlinearity if place % 2 else Dense):
            raise ConfigError(
                f"{layer} stands where {'an activation' if place % 2 else 'a layer'} belongs; fully-connected "
                "layers and activations must alternate"
            )
    kinds = {layer.activation for layer in dense if isinstance(layer, Nonlinearity)} or {RELU}
    if len(kinds) > 1:
        raise ConfigError(f"its activations differ: {', '.join(sorted(map(str, kinds)))}")
    for before, after in pairwise(weights):
        if len(before) != after.shape[1]:
            raise ConfigError(
                f"a layer takes {after.shape[1]:,} values, but the one before it gives {len(before):,}"
            )
    return DenseNetwork(weights, biases, activation=kinds.pop())


def _preprocessing(steps: list[Step], *, is_image: bool) -> tuple[Normalization | None, list[Step]]:
    """Normalisations before the first layer, as (x - mean) / std, and the steps after them."""
    scale = shift = None
    while steps and isinstance(steps[0], Affine | Flatten):
        first = steps[0]
        if isinstance(first, Affine):
            if not bool((first.scale > 0).all()):
                break
            shift = first.shift if scale is None or shift is None else first.scale * shift + first.shift
            scale = first.scale if scale is None else first.scale * scale
        elif not any(isinstance(step, Affine) for step in steps[:2]):
            break
        steps = steps[1:]
    if scale is None or shift is None:
        return None, steps
    mean, std = -shift / scale, 1 / scale
    if is_image and float(std.min()) >= BYTES:  # the file's inputs are bytes, engram's are pixels in [0, 1]
        mean, std = mean / 255, std / 255
    return Normalization(tuple(mean.flatten().tolist()), tuple(std.flatten().tolist())), steps


def _folded(steps: list[Step]) -> tuple[list[Step], list[str], list[str]]:
    """Steps without normalisations, the names of those that were folded, and what could not be."""
    made: list[Step] = []
    names, problems = [], []
    waiting: Affine | None = None
    for step in steps:
        if isinstance(step, Affine):
            last = made[-1] if made else None
            names.append(step.name or "a normalisation")
            if isinstance(last, Weighted) and waiting is None:
                if len(step.scale) not in (1, len(last.weight)):
                    problems.append(f"{step.name} has {len(step.scale)} channels, its layer {len(last.weight)}")
                    continue
                made[-1] = last.then(step)
            elif waiting is None:
                waiting = step
            else:
                problems.append(f"{step.name}: two normalisations in a row")
        elif waiting is not None and isinstance(step, Flatten):
            made.append(step)
        elif waiting is not None and isinstance(step, Weighted):
            into = _before(waiting, step)
            if isinstance(into, str):
                problems.append(f"{waiting.name}: {into}")
            else:
                made.append(into)
            waiting = None
        elif waiting is not None:
            problems.append(f"{waiting.name} stands before {step}, where it can't be folded into a layer")
            waiting = None
            made.append(step)
        else:
            made.append(step)
    if waiting is not None:
        problems.append(f"{waiting.name} is the last step: it can't be folded into a layer")
    return made, names, problems


def _before(norm: Affine, layer: Weighted) -> Weighted | str:
    """The layer with a normalisation before it, or why it can't take it."""
    weight = layer.weight
    if layer.padding and bool((norm.shift != 0).any()):
        return "it stands before a convolution with padding, so its shift can't be folded into the bias"
    if layer.groups != 1:
        return "it stands before a convolution with groups"
    entering = weight.shape[1]
    if entering % len(norm.scale):
        return f"it has {len(norm.scale)} channels, and the layer after it takes {entering}"
    each = entering // len(norm.scale)  # pixels of a channel, if the features were flattened
    scale, shift = (value.to(weight).repeat_interleave(each) for value in (norm.scale, norm.shift))
    columns = (1, -1, *(1 for _ in weight.shape[2:]))
    moved = (weight * shift.view(columns)).flatten(1).sum(1)
    bias = moved if layer.bias is None else layer.bias + moved
    return Weighted(
        weight * scale.view(columns), bias, layer.stride, layer.padding, layer.dilation, layer.groups, layer.name
    )


def _plain(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.detach().to(device="cpu", dtype=dtype, copy=True, memory_format=torch.contiguous_format)


def channels_first_columns(weight: Tensor, shape: Shape) -> Tensor:
    """Columns [out, H W C] of a layer after flattened [H, W, C] features, in the order of [C, H, W].

    >>> channels_first_columns(torch.tensor([[1.0, 10.0, 2.0, 20.0]]), (2, 1, 2)).tolist()
    [[1.0, 2.0, 10.0, 20.0]]
    """
    channels, height, width = shape
    if weight.shape[1] != math.prod(shape):
        return weight
    return weight.view(-1, height, width, channels).permute(0, 3, 1, 2).flatten(1)
