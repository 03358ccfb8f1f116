"""Named tensors and a description of the layers -> `ConvNetwork`, or one error that lists every mismatch.

Order and shapes decide: each layer takes the first unused tensor of exactly its weight's shape. A bias
belongs to the weight whose name it shares up to the last word; if there is none, to the weight before it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from engram.core.errors import UnsupportedModelError
from engram.models.architecture import Architecture, Shape
from engram.models.networks import ConvNetwork
from engram.models.open.state_dict import MAX_TENSORS, is_counter, layer_of, listed, own_copy, unreadable_values

SUPPORTED = (
    "networks of convolutions (no dilation, no groups), ReLU, average pooling, flatten and fully-connected layers "
    "in one line, described by --arch and --input-shape, or exported with torch.export.save (.pt2). Any other "
    "PyTorch model can be audited for membership: engram membership --model-code, in Python engram.membership"
)


def described_network(
    state: Mapping[str, Tensor], architecture: Architecture, *, ordered: bool = True
) -> ConvNetwork:
    """The network of `architecture` with the parameters in `state`; `ordered` if the order of its keys matters.

    >>> net = Architecture.parse("conv2x1 relu flatten 1", (1, 2, 2))
    >>> state = {"a.weight": torch.ones(1, 1, 2, 2), "a.bias": torch.zeros(1), "z.weight": torch.ones(1, 1)}
    >>> described_network(state, net).name
    '1x2x2-conv2x1-1'
    """
    state = {name: value.detach() for name, value in state.items() if not is_counter(value)}
    if len(state) > MAX_TENSORS:
        raise UnsupportedModelError(
            [f"it contains {len(state):,} tensors, more than {MAX_TENSORS}"], supported=SUPPORTED
        )
    names = list(state) if ordered else sorted(state, key=_natural)
    weights, problems = _weights({name: state[name] for name in names}, architecture.weight_shapes)
    biases, more = _biases(state, names, weights)
    problems += more + unreadable_values(state)
    if problems:
        raise UnsupportedModelError(problems, supported=SUPPORTED)
    dtype = reduce(torch.promote_types, (value.dtype for value in state.values()), torch.float32)
    return ConvNetwork(
        tuple(own_copy(state[name], dtype) for name in weights if name is not None),
        tuple(None if name is None else own_copy(state[name], dtype) for name in biases),
        architecture,
    )


def _weights(state: Mapping[str, Tensor], shapes: Sequence[Shape]) -> tuple[list[str | None], list[str]]:
    """The name of each layer's weight, and the problems: layers without a tensor, tensors without a layer."""
    free = {name: tuple(value.shape) for name, value in state.items() if value.ndim != 1}
    taken: list[str | None] = []
    for shape in shapes:
        name = next((name for name, found in free.items() if found == shape), None)
        taken.append(name)
        free.pop(name or "", None)
    problems = [
        f"layer {index} of the description has weights {list(shape)}, but no tensor of that shape is left"
        for index, (name, shape) in enumerate(zip(taken, shapes, strict=True))
        if name is None
    ]
    if free:
        spare = listed([f"{name} {list(shape)}" for name, shape in free.items()])
        problems.append(f"no layer of the description has weights of this shape: {spare}")
    return taken, problems


def _biases(
    state: Mapping[str, Tensor], names: Sequence[str], weights: Sequence[str | None]
) -> tuple[list[str | None], list[str]]:
    """The name of each layer's bias or None, and the problems."""
    layer_by_stem = {layer_of(name): layer for layer, name in enumerate(weights) if name is not None}
    biases: list[str | None] = [None] * len(weights)
    strays, misfits, previous = [], [], None
    for name in names:
        value = state[name]
        if value.ndim != 1:
            previous = weights.index(name) if name in weights else None
            continue
        layer = layer_by_stem.get(layer_of(name), previous)
        owner = None if layer is None else weights[layer]
        if layer is None or owner is None or biases[layer] is not None:
            strays.append(f"{name} {list(value.shape)}")
        elif len(value) != len(state[owner]):
            misfits.append(f"{name} {list(value.shape)} is not a bias of {owner} {list(state[owner].shape)}")
        else:
            biases[layer] = name
    if strays:
        misfits.append(
            "vectors that are not the bias of any layer (fold normalisation into its neighbours): "
            + listed(strays)
        )
    return biases, misfits


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """fc10 after fc2."""
    parts = re.split(r"(\d{1,9})", name)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]
