"""LoRA adapters as PEFT saves them: an update of some layers of a base model, scale * B A, in two thin factors.

Training moved the factors alone and B began at zero, so an adapter is what training wrote and nothing else: a base
of zero. A module is given the adapter layer by layer, with the frozen weights beside it as constants, so that a
test of the weights reads the factors. Nothing in an adapter is executed; paths in its config are not followed.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from engram.core import files
from engram.core.errors import CheckpointError, ConfigError
from engram.models.open.files import read_state
from engram.models.open.state_dict import listed

CONFIG_FILE = "adapter_config.json"
WEIGHT_FILES = ("adapter_model.safetensors", "adapter_model.bin")
MAX_CONFIG = 2**20
MAX_RANK = 1024
PREFIX = "base_model.model."
FACTOR = re.compile(r"^(?P<layer>.+)\.lora_(?P<factor>[AB])(\.[\w-]+)?\.weight$")
CHANGES_THE_FORM = ("use_dora", "fan_in_fan_out", "use_qalora", "use_bdlora", "megatron_config", "lora_bias")
"""Settings under which the update is no scale * B A of a Linear or Conv2d."""
_CURE = "save it with model.save_pretrained(directory)"


@dataclass(frozen=True, eq=False)
class LowRank:
    """The update of one layer: scale * B A, with A [r, ...] and B [out, r, ...]."""

    A: Tensor
    B: Tensor
    scale: float

    @property
    def rank(self) -> int:
        return len(self.A)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the layer's weight."""
        return (len(self.B), *self.A.shape[1:])

    @property
    def singular_values(self) -> Tensor:
        """Of the update [out, in], [r], from the thin factors alone."""
        after = torch.linalg.qr(self.B.flatten(1).double(), mode="r").R
        before = torch.linalg.qr(self.A.flatten(1).T.double(), mode="r").R
        values: Tensor = self.scale * torch.linalg.svdvals(after @ before.T)
        return values


@dataclass(frozen=True, eq=False)
class Adapter:
    """The updates by layer, and tensors that were trained as a whole (heads, biases), by name."""

    layers: Mapping[str, LowRank]
    whole: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        factors = [factor for one in self.layers.values() for factor in (one.A, one.B)]
        return sum(value.numel() for value in (*factors, *self.whole.values()))


def is_adapter(path: Path) -> bool:
    """Whether it is a directory with an adapter's config."""
    return (path / CONFIG_FILE).is_file()


def read_adapter(path: Path) -> Adapter:
    """The adapter in a directory of PEFT: adapter_config.json and adapter_model.safetensors (or .bin)."""
    if not is_adapter(path):
        raise CheckpointError(f"{path} contains no {CONFIG_FILE}, so it is no adapter of PEFT; {_CURE}")
    config = _config(path / CONFIG_FILE)
    weights = next((path / name for name in WEIGHT_FILES if (path / name).is_file()), None)
    if weights is None:
        raise CheckpointError(f"{path} contains no {WEIGHT_FILES[0]}; {_CURE}")
    factors: dict[str, dict[str, Tensor]] = {}
    whole: dict[str, Tensor] = {}
    for name, value in read_state(weights).items():
        plain = name.removeprefix(PREFIX)
        if not value.is_floating_point() or not bool(value.isfinite().all()):
            raise CheckpointError(f"{weights}: {name} must be finite floats; {_CURE}")
        if found := FACTOR.match(plain):
            factors.setdefault(found["layer"], {})[found["factor"]] = value.float()
        elif "lora_" in plain:
            raise CheckpointError(f"{weights}: {name} is not a factor of a Linear or Conv2d layer; {_SUPPORTED}")
        else:
            whole[re.sub(r"(^|\.)modules_to_save\.(\w+\.)?", r"\1", plain)] = value.float()
    if not factors:
        raise CheckpointError(f"{weights} contains no lora_A and lora_B; {_CURE}")
    return Adapter({name: _low_rank(weights, name, pair, config) for name, pair in factors.items()}, whole)


_SUPPORTED = (
    "plain LoRA of Linear and Conv2d layers can be read; merge the adapter with merge_and_unload() instead"
)


def _config(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_CONFIG:
        raise CheckpointError(f"{path} has more than {MAX_CONFIG:,} bytes; {_CURE}")
    config = files.read_json(path, cure=_CURE)
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        kind = config.get("peft_type") if isinstance(config, dict) else type(config).__name__
        raise CheckpointError(f"{path}: the kind of adapter is {str(kind)[:40]!r}, not LORA; {_SUPPORTED}")
    if other := [name for name in CHANGES_THE_FORM if config.get(name)]:
        raise CheckpointError(f"{path}: {', '.join(other)} is set; {_SUPPORTED}")
    patterns = config.get("alpha_pattern") or {}
    named = isinstance(patterns, dict) and all(_is_positive(value) for value in patterns.values())
    if not _is_positive(config.get("lora_alpha")) or not named:
        raise CheckpointError(f"{path}: lora_alpha and alpha_pattern must be positive numbers; {_CURE}")
    return config


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e6


def _low_rank(path: Path, name: str, pair: Mapping[str, Tensor], config: Mapping[str, Any]) -> LowRank:
    if pair.keys() != {"A", "B"}:
        raise CheckpointError(f"{path}: {name} has only one of lora_A and lora_B; {_CURE}")
    A, B = pair["A"], pair["B"]
    fits = A.ndim == B.ndim and A.ndim in (2, 4) and B.shape[1] == A.shape[0] and set(B.shape[2:]) <= {1}
    if not fits or not 0 < len(A) <= MAX_RANK or 0 in A.shape + B.shape:
        raise CheckpointError(
            f"{path}: lora_A {list(A.shape)} and lora_B {list(B.shape)} of {name} are no factors of one weight of "
            f"rank 1 to {MAX_RANK:,}; {_CURE}"
        )
    patterns = config.get("alpha_pattern") or {}
    own = next((value for key, value in patterns.items() if name == key or name.endswith(f".{key}")), None)
    alpha = float(config["lora_alpha"] if own is None else own)
    return LowRank(A, B, alpha / (math.sqrt(len(A)) if config.get("use_rslora") else len(A)))


class Adapted(nn.Module):
    """A layer with its adapter: what it was as constants, and the two factors as layers, which can be read."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Linear | nn.Conv2d, low: LowRank) -> None:
        super().__init__()
        self.register_buffer("weight", layer.weight.detach())
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())
        self.scale = low.scale
        self.settings: dict[str, Any] = {}
        if isinstance(layer, nn.Conv2d):
            self.settings = {name: getattr(layer, name) for name in ("stride", "padding", "dilation")}
            kernel = (layer.kernel_size[0], layer.kernel_size[1])
            first: nn.Module = nn.Conv2d(layer.in_channels, low.rank, kernel, bias=False, **self.settings)
            second: nn.Module = nn.Conv2d(low.rank, layer.out_channels, 1, bias=False)
        else:
            first = nn.Linear(layer.in_features, low.rank, bias=False)
            second = nn.Linear(low.rank, layer.out_features, bias=False)
        first.weight, second.weight = (nn.Parameter(one.to(layer.weight)) for one in (low.A, low.B))
        self.lora_A, self.lora_B = first, second

    def forward(self, inputs: Tensor) -> Tensor:
        if self.settings:
            before = functional.conv2d(inputs, self.weight, self.bias, **self.settings)
        else:
            before = functional.linear(inputs, self.weight, self.bias)
        after: Tensor = before + self.scale * self.lora_B(self.lora_A(inputs))
        return after


def with_adapter(model: nn.Module, adapter: Adapter) -> tuple[nn.Module, list[str]]:
    """A copy of the model with the adapter, in eval mode, and the names of the layers that training moved."""
    adapted, moved = copy.deepcopy(model).eval(), []
    layers = dict(adapted.named_modules())
    state = adapted.state_dict()
    if stray := [
        name for name, value in adapter.whole.items() if name not in state or state[name].shape != value.shape
    ]:
        raise ConfigError(f"the model has no {listed(stray)} of the adapter's shape; {_OTHER}")
    with torch.no_grad():
        for name, value in adapter.whole.items():
            state[name].copy_(value)
            moved.append(name.rpartition(".")[0])
    for name, low in adapter.layers.items():
        layer = layers.get(name)
        if not isinstance(layer, nn.Linear | nn.Conv2d) or getattr(layer, "groups", 1) != 1:
            raise ConfigError(
                f"the model has no Linear or plain Conv2d layer {name}, which the adapter changes; {_OTHER}"
            )
        if getattr(layer, "padding_mode", "zeros") != "zeros":
            raise ConfigError(f"{name} pads with {layer.padding_mode}, which is not read with an adapter")
        if layer.weight.shape != low.shape:
            raise ConfigError(
                f"{name} is {list(layer.weight.shape)} in the model, but the adapter's update is "
                f"{list(low.shape)}; {_OTHER}"
            )
        where, _, own = name.rpartition(".")
        setattr(adapted.get_submodule(where), own, Adapted(layer, low))
        moved += [f"{name}.lora_A", f"{name}.lora_B"]
    return adapted, moved


_OTHER = "give the base model that the adapter was trained on"
