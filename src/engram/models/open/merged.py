"""State_dicts as training leaves them, made plain: weights in parts are put together, normalisations folded.

weight norm      g v / ||v||, saved as weight_g, weight_v or as parametrizations.weight.original0, original1
spectral norm    W / (uᵀ W v), saved as weight_orig, weight_u, weight_v or as parametrizations.weight.original
pruning          weight_orig * weight_mask
dynamic int8     _packed_params: the quantised weights and the bias
batch norm       folded into the layer before it, or after it where the numbers in the names say so
heads            a part of a larger model: the tensors whose names begin with a prefix
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engram.core.errors import ConfigError, EngramError
from engram.models.open.chain import Affine, Weighted
from engram.models.open.state_dict import dense_network, layer_of, listed

State = dict[str, Tensor]
MOST_TENSORS = 4000
"""Beyond this no parts are put together and no head is looked for, which takes the square of their number."""
BATCH_NORM_EPSILON = 1e-5
"""PyTorch's default; a state_dict does not say."""
PARAMETRIZED = re.compile(r"^(?P<stem>.*?\.?)parametrizations\.(?P<leaf>weight|bias)\.(?P<part>.+)$")
STATISTICS = (".running_mean", ".running_var")
FOLDED = (
    "batch norm folded into its neighbours: {}. The file does not say whether it stands before or after the "
    "activation: {}. Each neuron's equation then has a factor of its own, so expect fewer images than without it"
)


@dataclass(frozen=True, eq=False)
class MergedState:
    """A state_dict with plain weights, and notes on what was done."""

    state: State
    notes: tuple[str, ...] = ()
    is_folded: bool = False


def merged(state: Mapping[str, Tensor], *, ordered: bool = True) -> MergedState:
    """Every kind of parts put together; what is not known is left as it is, for the reader to refuse.

    >>> parts = {"a.weight_orig": torch.tensor([[2.0, 3.0]]), "a.weight_mask": torch.tensor([[1.0, 0.0]])}
    >>> merged(parts).state
    {'a.weight': tensor([[2., 0.]])}
    """
    if len(state) > MOST_TENSORS:
        return MergedState(dict(state))
    try:
        return _merged(dict(state), ordered)
    except Exception:  # parts that don't fit together, in a file that may be hostile
        return MergedState(dict(state))


def _merged(plain: State, ordered: bool) -> MergedState:
    notes = []
    kinds = (
        ("weight norm", _weight_norm),
        ("spectral norm", _spectral_norm),
        ("pruning", _pruned),
        ("8-bit quantisation", _dequantised),
    )
    for what, merge in kinds:
        plain, found = merge(plain)
        if found:
            notes.append(f"{what} merged into {listed(found, most=4)}")
    plain, found, note = _batch_norms(plain, ordered)
    if found:
        notes.append(FOLDED.format(listed(found, most=4), note))
    return MergedState(plain, tuple(notes), is_folded=bool(found))


def _replaced(state: State, gone: Mapping[str, State]) -> State:
    """The state with new tensors in the places of the parts that they replace; `gone` maps each part to them."""
    made: State = {}
    for name, value in state.items():
        if name not in gone:
            made[name] = value
        else:
            made |= {key: own for key, own in gone[name].items() if key not in made}
    return made


def _weight_norm(state: State) -> tuple[State, list[str]]:
    gone: dict[str, State] = {}
    found = []
    for name in state:
        if name.endswith(("weight_g", "bias_g")):
            direction, whole = f"{name[:-1]}v", name[:-2]
        elif (match := PARAMETRIZED.match(name)) and match["part"] == "original0":
            direction, whole = f"{name[:-1]}1", f"{match['stem']}{match['leaf']}"
        else:
            continue
        sizes, other = state[name], state.get(direction)
        if other is None or sizes.ndim != other.ndim:
            continue
        apart = [axis for axis in range(other.ndim) if sizes.shape[axis] == 1]
        norm = other.norm(dim=apart, keepdim=True) if apart else other.abs()
        made = {whole: sizes * other / norm.clamp(min=torch.finfo(other.dtype).tiny)}
        gone |= {name: made, direction: made}
        found.append(whole)
    return _replaced(state, gone), found


def _spectral_norm(state: State) -> tuple[State, list[str]]:
    gone: dict[str, State] = {}
    found = []
    for name in state:
        if name.endswith("weight_orig"):
            left, right, whole = f"{name[:-4]}u", f"{name[:-4]}v", name[:-5]
        elif (match := PARAMETRIZED.match(name)) and match["part"] == "original":
            base = name.removesuffix("original")
            left, right, whole = f"{base}0._u", f"{base}0._v", f"{match['stem']}{match['leaf']}"
        else:
            continue
        if left not in state or right not in state:
            continue
        weight, u, v = state[name], state[left], state[right]
        if weight.ndim < 2 or u.shape != weight.shape[:1] or v.shape != weight.flatten(1).shape[1:]:
            continue
        made = {whole: weight / (u @ weight.flatten(1) @ v)}
        gone |= {name: made, left: made, right: made}
        found.append(whole)
    return _replaced(state, gone), found


def _pruned(state: State) -> tuple[State, list[str]]:
    gone: dict[str, State] = {}
    found = []
    for name in state:
        mask, whole = f"{name.removesuffix('_orig')}_mask", name.removesuffix("_orig")
        if name.endswith("_orig") and mask in state and state[mask].shape == state[name].shape:
            made = {whole: state[name] * state[mask].to(state[name].dtype)}
            gone |= {name: made, mask: made}
            found.append(whole)
    return _replaced(state, gone), found


PACKED = "._packed_params._packed_params"


def _dequantised(state: State) -> tuple[State, list[str]]:
    """The weights that dynamic quantisation packed, as plain numbers; what they lost in rounding stays lost."""
    gone: dict[str, State] = {}
    found = []
    for name in state:
        if not name.endswith(f"{PACKED}.0") or not state[name].is_quantized:
            continue
        stem = name.removesuffix(f"{PACKED}.0")
        made = {f"{stem}.weight": state[name].dequantize()}
        if (bias := state.get(f"{stem}{PACKED}.1")) is not None:
            made[f"{stem}.bias"] = bias
        parts = (f"{PACKED}.0", f"{PACKED}.1", ".scale", ".zero_point")
        gone |= {f"{stem}{part}": made for part in parts if f"{stem}{part}" in state}
        found.append(f"{stem}.weight")
    return _replaced(state, gone), found


def _batch_norms(state: State, ordered: bool) -> tuple[State, list[str], str]:
    """Without batch norms; where one stands is read off the numbers of its name, else it is before the activation.

    Linear 0, BatchNorm 1, ReLU 2 fold into layer 0; Linear 0, ReLU 1, BatchNorm 2 into the layer after it.
    """
    stems = [name.removesuffix(STATISTICS[0]) for name in state if name.endswith(STATISTICS[0])]
    stems = [stem for stem in stems if f"{stem}{STATISTICS[1]}" in state]
    if not stems or not ordered:
        return state, [], ""
    after: list[str] = []
    made = dict(state)
    for stem in stems:
        own = {name: made[name] for name in made if name.rpartition(".")[0] == stem}
        mean, variance = (own[f"{stem}{leaf}"] for leaf in STATISTICS)
        gamma, beta = own.get(f"{stem}.weight"), own.get(f"{stem}.bias")
        norm = Affine.batch_norm(mean, variance, gamma, beta, BATCH_NORM_EPSILON, stem)
        layers = [name for name in made if name.endswith(".weight") and made[name].ndim >= 2]
        order = {name: number for number, name in enumerate(made)}
        place = order[next(iter(own))]
        before = [name for name in layers if order[name] < place and len(made[name]) == len(mean)]
        behind = [name for name in layers if order[name] > place]
        if before and not _stands_apart(before[-1], stem):
            target = before[-1]
            changed = Weighted(made[target], made.get(_bias(target))).then(norm)
        elif behind and made[behind[0]].ndim == 2 and made[behind[0]].shape[1] % len(mean) == 0:
            target = behind[0]
            changed = _into_next(norm, made[target], made.get(_bias(target)))
            after.append(stem)
        else:
            return state, [], ""
        made = {name: value for name, value in made.items() if name not in own}
        assert changed.bias is not None
        made[target] = changed.weight
        made = _with_bias(made, target, changed.bias)
    where = "before, as usual"
    if after:
        where = f"the numbers in the names say after for {listed(after, most=4)}, before for the others"
    return made, stems, where


def _stands_apart(layer: str, norm: str) -> bool:
    """Whether both are numbered in one sequence and something, an activation, stands between them."""
    stem, _, number = layer.removesuffix(".weight").rpartition(".")
    other, _, place = norm.rpartition(".")
    return stem == other and number.isdecimal() and place.isdecimal() and int(place) - int(number) > 1


def _into_next(norm: Affine, weight: Tensor, bias: Tensor | None) -> Weighted:
    each = weight.shape[1] // len(norm.scale)
    scale, shift = (value.to(weight).repeat_interleave(each) for value in (norm.scale, norm.shift))
    moved = weight @ shift
    return Weighted(weight * scale, moved if bias is None else bias + moved)


def _bias(weight: str) -> str:
    return f"{weight.removesuffix('weight')}bias"


def _with_bias(state: State, weight: str, bias: Tensor) -> State:
    """The state with the bias right after its weight, as modules save it."""
    name = _bias(weight)
    if name in state:
        return {**state, name: bias}
    made: State = {}
    for key, value in state.items():
        made[key] = value
        if key == weight:
            made[name] = bias
    return made


def head_of(state: Mapping[str, Tensor], prefix: str, name: str) -> State:
    """The tensors whose names begin with a prefix, without it.

    >>> list(head_of({"body.0.weight": torch.ones(1), "head.0.weight": torch.ones(1)}, "head", "model.pt"))
    ['0.weight']
    """
    start = f"{prefix.rstrip('.')}."
    found = {key.removeprefix(start): value for key, value in state.items() if key.startswith(start)}
    if not found:
        tops = list(dict.fromkeys(key.partition(".")[0] for key in state))
        raise ConfigError(f"--head {prefix}: no tensor of {name} begins with it; they begin with {listed(tops)}")
    return found


def heads_in(state: Mapping[str, Tensor]) -> str | None:
    """What could be read in a larger model: the last part of it that is a chain of fully-connected layers."""
    if len(state) > MOST_TENSORS:
        return None
    prefixes: dict[str, int] = {}
    for place, name in enumerate(state):
        parts = name.split(".")
        prefixes |= {".".join(parts[:depth]): place for depth in range(1, len(parts) - 1)}
    found = []
    for prefix, place in prefixes.items():
        part = head_of(state, prefix, "")
        weights = [value for key, value in part.items() if value.ndim == 2]
        if len(part) == len(state) or len(weights) < 2:
            continue
        try:
            dense_network(merged(part).state)
        except EngramError:
            continue
        found.append((place, -len(prefix), prefix, part))
    if not found:
        return None
    _, _, prefix, part = max(found, key=lambda one: one[:2])
    layers = listed(list(dict.fromkeys(f"{prefix}.{layer_of(key)}" for key in part)))
    inputs = next(value.shape[1] for value in part.values() if value.ndim == 2)
    return (
        f"this file holds a backbone of {len(state) - len(part):,} tensors and a head, {layers}. Audit the head "
        f"with --head {prefix} --input-shape {inputs} and its inputs, the embeddings, as data; or the whole model "
        "for membership with --model-code"
    )
