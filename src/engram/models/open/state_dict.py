"""Named tensors -> `DenseNetwork`, or one error that lists every problem.

Names distinguish weights, biases and everything else. A layer is an edge from its input width to its output width,
so the layers of a fully-connected network form a trail that uses every edge once. If there are several trails,
the numbers in the names decide, then the file's order.

Named tensors and a description of the layers -> `ConvNetwork`, or one error that lists every mismatch.

Order and shapes decide: each layer takes the first unused tensor of exactly its weight's shape. A bias
belongs to the weight whose name it shares up to the last word; if there is none, to the weight before it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor

from engram.core.errors import UnsupportedModelError
from engram.models.architecture import Architecture, Shape
from engram.models.networks import SUPPORTED, ConvNetwork, DenseNetwork

DESCRIBED = (
    "networks of convolutions, one kind of activation, average and max pooling, flatten and fully-connected "
    "layers in one line, described by --arch and --input-shape. Any other PyTorch model can be audited for "
    "membership: engram membership --model-code, in Python engram.membership"
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
            [f"it contains {len(state):,} tensors, more than {MAX_TENSORS}"], supported=DESCRIBED
        )
    names = list(state) if ordered else sorted(state, key=_natural)
    weights, problems = _weights({name: state[name] for name in names}, architecture.weight_shapes)
    biases, more = _biases(state, names, weights)
    problems += more + unreadable_values(state)
    if problems:
        raise UnsupportedModelError(problems, supported=DESCRIBED)
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


_MAX_STEPS = 20_000  # of the search for trails: layers of equal width have factorially many


@dataclass(frozen=True, eq=False)
class NamedLayer:
    """A fully-connected layer as stored in a file; `inputs` and `outputs` are its widths."""

    name: str
    weight_name: str
    weight: Tensor  # [outputs, inputs]
    bias: Tensor | None
    outputs: int
    inputs: int

    @property
    def bias_fits(self) -> bool:
        return self.bias is None or self.bias.shape == (self.outputs,)

    @property
    def number(self) -> tuple[str, tuple[int, ...]]:
        """The name without its numbers, and the numbers: ("fc#", (10,))."""
        digits = r"\d{1,9}"  # don't convert thousands of digits to an int
        return re.sub(digits, "#", self.name), tuple(map(int, re.findall(digits, self.name)))

    def __str__(self) -> str:
        return f"{self.weight_name} {list(self.weight.shape)}"


def chained(layers: list[NamedLayer], ordered: bool) -> tuple[list[NamedLayer], list[str]]:
    """The layers from input to output if exactly one order fits, and the problems."""
    if _is_transposed(layers, ordered):
        layers = [replace(_flipped(layer), weight=layer.weight.T) for layer in layers]
    problems = [
        f"the bias of {layer} is {list(layer.bias.shape)}, not [{layer.outputs}]; save both from one model"
        for layer in layers
        if layer.bias is not None and not layer.bias_fits
    ]
    for before in (_numbered_before(layers), {}):
        trails, complete = _trails(layers, before)
        # trails are in lexicographic order, so the file's own order comes first if it is a trail
        if (len(trails) == 1 and complete) or (trails and ordered and trails[0] == tuple(range(len(layers)))):
            return [layers[index] for index in trails[0]], problems
        if trails:
            orders = "; or ".join(listed([layers[i].weight_name for i in trail], " > ") for trail in trails)
            return [], [*problems, f"several orders of the layers fit: {orders}; number their names in order"]
    return [], problems + _misfits(layers if ordered else sorted(layers, key=lambda layer: layer.number))


def _trails(layers: Sequence[NamedLayer], before: Mapping[int, int]) -> tuple[list[tuple[int, ...]], bool]:
    """The first two trails that use every layer, i after before[i]; and whether the search was complete."""
    surplus = Counter(layer.inputs for layer in layers)
    surplus.subtract(Counter(layer.outputs for layer in layers))
    if sorted(filter(None, surplus.values())) not in ([], [-1, 1]):  # Euler: there is no trail
        return [], True
    start = next((width for width, excess in surplus.items() if excess == 1), None)
    found: list[tuple[int, ...]] = []
    stack: list[tuple[int, ...]] = [()]
    for _ in range(_MAX_STEPS):
        if not stack or len(found) == 2:
            return found, True
        trail = stack.pop()
        if len(trail) == len(layers):
            found.append(trail)
            continue
        width, used = (layers[trail[-1]].outputs if trail else start), {None, *trail}
        stack += [
            (*trail, index)
            for index in reversed(range(len(layers)))
            if index not in used and before.get(index) in used and width in (None, layers[index].inputs)
        ]
    return found, False


def _numbered_before(layers: Sequence[NamedLayer]) -> dict[int, int]:
    """The layer before each one by number: fc10 comes after fc2, although safetensors sorts it first."""
    by_number = sorted(range(len(layers)), key=lambda index: layers[index].number)
    return {b: a for a, b in pairwise(by_number) if layers[a].number[0] == layers[b].number[0]}


def _is_transposed(layers: Sequence[NamedLayer], ordered: bool) -> bool:
    """Whether the weights are [in, out]. Those chain backwards, so biases or order must decide."""
    flipped = [_flipped(layer) for layer in layers]
    pairs = list(zip(layers, flipped, strict=True))
    if any(layer.bias_fits and not other.bias_fits for layer, other in pairs):
        return False
    if any(other.bias_fits and not layer.bias_fits for layer, other in pairs):
        return bool(_trails(flipped, {})[0])
    return not _chains_in_order(layers, ordered) and _chains_in_order(flipped, ordered)


def _chains_in_order(layers: Sequence[NamedLayer], ordered: bool) -> bool:
    before = _numbered_before(layers)
    in_file = ordered and all(first.outputs == second.inputs for first, second in pairwise(layers))
    return in_file or bool(before and _trails(layers, before)[0])


def _flipped(layer: NamedLayer) -> NamedLayer:
    return replace(layer, outputs=layer.inputs, inputs=layer.outputs)


def _misfits(layers: Sequence[NamedLayer]) -> list[str]:
    """What breaks the chain, walking the layers in their likely order."""
    chain, branches, problems = [layers[0]], [], []
    for previous, layer in pairwise(layers):
        if layer.inputs == chain[-1].outputs:
            chain.append(layer)
        elif any(layer.inputs in (other.inputs, other.outputs) for other in chain):
            branches.append(str(layer))
        elif layer.inputs != previous.outputs:
            problems.append(
                f"{layer} takes {layer.inputs} values, but {previous} before it gives {previous.outputs}; "
                "a layer is missing, or there is something other than a ReLU between them"
            )
    if branches:
        path = listed([str(layer) for layer in chain], " > ")
        problems.append(f"residual or branching: {listed(branches)} fits nowhere in {path}; save a single path")
    return problems


def listed(names: Sequence[str], between: str = ", ", most: int = 8) -> str:
    """
    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return between.join(names[:most]) + more


MAX_TENSORS = 256
_READABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# fc1.weight, W1, w_0, fc1_bias, weights.0: the layer's name is the rest without the leaf
_LEAF = re.compile(r"^(?:(?P<stem>.*?)[._])?(?P<leaf>weights?|bias(?:es)?|[wWbB])[._]?(?P<number>\d*)$")

_NORM = (
    "normalisation or a learnt activation that can't be folded into a layer (LayerNorm, PReLU): {}; no image can "
    "be read through it, but membership can with --model-code. An output layer must be [1, in], not [in]"
)
_CONVOLUTION = (
    "convolution (weights of three or more dimensions): {}; describe the layers, for example "
    "--arch 'conv3x32 relu flatten 1000 relu 1'"
)
_EMBEDDING = "embedding: {}; audit membership with --model-code. If it is a fully-connected layer, rename it"
_RECURRENT = "recurrent layers: {}; only feed-forward layers can be read, but membership can with --model-code"
_ATTENTION = "attention: {}; no image can be read through it, but membership can be audited with --model-code"
_QUANTISED = "quantised layers: {}; save the floating-point model before quantisation"
_IN_PARTS = "weights stored in parts of an unknown kind: {}; merge the parts, then save"
_UNKNOWN = "neither the weight nor the bias of a layer: {}; rename to layers.0.weight, layers.0.bias, ..."
_ORPHAN = "bias without a weight: {}; save the whole state_dict"
_TWICE = "a second weight or bias of the same layer: {}; keep one of them"
_BY_NAME = {
    re.compile(r"(^|[._])(running_(mean|var)|num_batches_tracked)$"): _NORM,
    re.compile(r"(weight|bias)_(ih|hh|hr)(_|$)"): _RECURRENT,
    re.compile(r"(^|[._])([a-z]*attn|[a-z]*attention|[qkv]_proj|in_proj)([._]|$)|(^|\.)bias_[kv]$"): _ATTENTION,
    re.compile(r"_packed_params|(^|\.)(scale|zero_point)$"): _QUANTISED,
    re.compile(r"(weight|bias)_([guv]|orig|mask)$|(^|\.)parametrizations\.|(^|[._])lora_"): _IN_PARTS,
}


def dense_network(state: Mapping[str, Tensor], *, ordered: bool = True) -> DenseNetwork:
    """The network whose parameters `state` holds under any names; `ordered` if the order of its keys matters.

    >>> state = {"out.weight": torch.ones(1, 3), "in.weight": torch.ones(3, 2), "in.bias": torch.zeros(3)}
    >>> dense_network(state).name
    '2-3-1'
    """
    state = {name: value.detach() for name, value in state.items() if not is_counter(value)}
    if not 0 < len(state) <= MAX_TENSORS:
        count = f"{len(state):,} tensors, more than {MAX_TENSORS}" if state else "no tensors"
        raise UnsupportedModelError(
            [f"it contains {count}; save the state_dict of one plain network"], supported=SUPPORTED
        )
    layers, problems = _layers(state)
    chain: list[NamedLayer] = []
    if len(layers) > 1:
        chain, misfits = chained(layers, ordered)
        problems += misfits
    elif not problems:  # else the problems with the other layers matter more
        problems.append(f"only one layer, {layers[0]}: no hidden layer to read images from; train with one")
    problems += unreadable_values(state)
    if problems:
        raise UnsupportedModelError(problems, supported=SUPPORTED)
    # starting from float32 promotes half precision
    dtype = reduce(torch.promote_types, (value.dtype for value in state.values()), torch.float32)

    return DenseNetwork(
        tuple(own_copy(layer.weight, dtype) for layer in chain),
        tuple(None if layer.bias is None else own_copy(layer.bias, dtype) for layer in chain),
    )


def own_copy(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A plain tensor in memory, which shares nothing with a mapped file or a live model."""
    return value.to(device="cpu", dtype=dtype, copy=True, memory_format=torch.contiguous_format)


def layer_of(name: str) -> str:
    """The layer that a weight or bias belongs to by its name; an unrecognised name is its own layer.

    >>> layer_of("net.fc1.weight"), layer_of("net.fc1.bias"), layer_of("W1"), layer_of("kernel")
    ('net.fc1', 'net.fc1', '1', 'kernel')
    """
    match = _LEAF.match(name)
    return name if match is None else ".".join(filter(None, (match["stem"], match["number"])))


def is_counter(value: Tensor) -> bool:
    """A single integer, such as a count of steps or epochs, takes no part in the forward pass."""
    return value.ndim == 0 and not value.is_floating_point() and not value.is_complex()


def _layers(state: Mapping[str, Tensor]) -> tuple[list[NamedLayer], list[str]]:
    """The fully-connected layers in the order of `state`, and problems: everything else in it."""
    weights: dict[str, str] = {}  # layer -> tensor name
    biases: dict[str, str] = {}
    found: dict[str, list[str]] = {}  # problem -> tensor names
    for name in state:
        kind = next((kind for pattern, kind in _BY_NAME.items() if pattern.search(name)), None)
        match = _LEAF.match(name)
        if kind or not match:
            found.setdefault(kind or _UNKNOWN, []).append(name)
            continue
        layer = layer_of(name)
        if (weights if match["leaf"][0] in "wW" else biases).setdefault(layer, name) != name:
            found.setdefault(_TWICE, []).append(name)
    layers = []
    for layer, name in weights.items():
        weight, bias = state[name], biases.pop(layer, None)
        if "embed" in layer.lower() and bias is None:
            found.setdefault(_EMBEDDING, []).append(name)
        elif weight.ndim == 2:
            layers.append(NamedLayer(layer, name, weight, None if bias is None else state[bias], *weight.shape))
        else:
            kind = _NORM if weight.ndim < 2 else _CONVOLUTION
            found.setdefault(kind, []).extend(filter(None, (name, bias)))
    in_parts = found.get(_IN_PARTS, [])  # why these lack a weight is already listed
    for layer, name in biases.items():
        if not any(part.startswith(f"{layer}.") for part in in_parts):
            found.setdefault(_ORPHAN, []).append(name)
    return layers, [kind.replace("{}", listed(names)) for kind, names in found.items()]


def unreadable_values(state: Mapping[str, Tensor]) -> list[str]:
    """Tensors that are not plain finite floating-point numbers, unless their name is already a problem."""
    kinds, broken = [], []
    for name, value in state.items():
        if any(pattern.search(name) for pattern in _BY_NAME):
            continue
        plain = value.dtype in _READABLE and value.layout == torch.strided and not value.is_meta
        if not plain or not value.numel():
            what = "no values" if value.is_meta or not value.numel() else f"{value.dtype}, {value.layout}"
            kinds.append(f"{name} ({what.replace('torch.', '')})")
        elif count := value.numel() - int(value.isfinite().sum()):
            broken.append(f"{name} ({count:,} of {value.numel():,})")
    problems = []
    if kinds:
        problems.append(f"not plain floating-point tensors: {listed(kinds)}; save model.float().state_dict()")
    if broken:
        problems.append(f"NaN or infinite values: {listed(broken)}; training diverged, or the file is damaged")
    return problems
