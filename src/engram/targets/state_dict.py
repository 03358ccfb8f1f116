"""A stranger's named tensors -> `DenseNetwork`, or one error that lists everything in the way.

Names tell weights, biases and all that is neither; `chain` finds the order of the layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import reduce

import torch
from torch import Tensor

from engram.errors import UnsupportedModelError
from engram.targets.chain import NamedLayer, chained, listed
from engram.targets.networks import DenseNetwork

SUPPORTED = (
    "fully-connected ReLU networks with one output (binary, regression) or one a class, weights as [out, in], "
    "with or without biases, saved as a state_dict (.pt, .pth) or safetensors"
)
MAX_TENSORS = 256
_READABLE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# fc1.weight, W1, w_0, fc1_bias, weights.0: the layer is what is left without the leaf
_LEAF = re.compile(r"^(?:(?P<stem>.*?)[._])?(?P<leaf>weights?|bias(?:es)?|[wWbB])[._]?(?P<number>\d*)$")

_NORM = (
    "normalisation or a learnt activation (BatchNorm, LayerNorm, PReLU): {}; "
    "fold it into its neighbours or train without it (an output layer must be [1, in], not [in])"
)
_CONVOLUTION = (
    "convolution (weights of three or more dimensions): {}; describe the layers, for example "
    "--arch 'conv3x32 relu flatten 1000 relu 1'"
)
_EMBEDDING = "embedding: {}; if it is a fully-connected layer, rename it"
_RECURRENT = "recurrent layers: {}; only feed-forward ones can be read"
_ATTENTION = "attention: {}; only fully-connected layers can be read"
_QUANTISED = "quantised layers: {}; save the floating-point model from before the quantisation"
_IN_PARTS = "weights kept in parts (weight or spectral norm, pruning, LoRA): {}; merge the parts, then save"
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
    """The network whose parameters `state` holds under any names; `ordered` if the order of its keys counts.

    >>> state = {"out.weight": torch.ones(1, 3), "in.weight": torch.ones(3, 2), "in.bias": torch.zeros(3)}
    >>> dense_network(state).name
    '2-3-1'
    """
    state = {name: value.detach() for name, value in state.items() if not is_counter(value)}
    if not 0 < len(state) <= MAX_TENSORS:
        count = f"{len(state):,} tensors, more than {MAX_TENSORS}" if state else "no tensors"
        raise UnsupportedModelError(
            [f"it holds {count}; save the state_dict of one plain network"], supported=SUPPORTED
        )
    layers, problems = _layers(state)
    chain: list[NamedLayer] = []
    if len(layers) > 1:
        chain, misfits = chained(layers, ordered)
        problems += misfits
    elif not problems:  # else the other layers are the news
        problems.append(f"only one layer, {layers[0]}: no hidden layer to read images from; train one with it")
    problems += unreadable_values(state)
    if problems:
        raise UnsupportedModelError(problems, supported=SUPPORTED)
    # starting from float32 lifts the half precisions
    dtype = reduce(torch.promote_types, (value.dtype for value in state.values()), torch.float32)

    return DenseNetwork(
        tuple(own_copy(layer.weight, dtype) for layer in chain),
        tuple(None if layer.bias is None else own_copy(layer.bias, dtype) for layer in chain),
    )


def own_copy(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A plain tensor in memory that shares nothing with a mapped file or a live model."""
    return value.to(device="cpu", dtype=dtype, copy=True, memory_format=torch.contiguous_format)


def layer_of(name: str) -> str:
    """The layer that a weight or bias belongs to by its name; a name that says nothing is its own layer.

    >>> layer_of("net.fc1.weight"), layer_of("net.fc1.bias"), layer_of("W1"), layer_of("kernel")
    ('net.fc1', 'net.fc1', '1', 'kernel')
    """
    match = _LEAF.match(name)
    return name if match is None else ".".join(filter(None, (match["stem"], match["number"])))


def is_counter(value: Tensor) -> bool:
    """Steps, epochs, averaged models: a lone integer takes no part in the forward pass."""
    return value.ndim == 0 and not value.is_floating_point() and not value.is_complex()


def _layers(state: Mapping[str, Tensor]) -> tuple[list[NamedLayer], list[str]]:
    """The fully-connected layers in the order of `state`, and problems: all that is there besides."""
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
    in_parts = found.get(_IN_PARTS, [])  # these miss their weight for a reason that is listed already
    for layer, name in biases.items():
        if not any(part.startswith(f"{layer}.") for part in in_parts):
            found.setdefault(_ORPHAN, []).append(name)
    return layers, [kind.replace("{}", listed(names)) for kind, names in found.items()]


def unreadable_values(state: Mapping[str, Tensor]) -> list[str]:
    """Tensors that are not plain finite floating-point numbers, unless their name is a problem already."""
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
