"""What a mend is, and the first of them: noise on the weights, which an attacker who knows of it takes off again.

Every layer is a matrix [W b], [q, p] (by groups), that meets what enters it, h. A mend takes from the matrix what
the records left in it, and should leave what it does to inputs in general: E ||[W b] h||² over public records,
which are of the same kind as the training records but were not among them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrize import is_parametrized

from engram.core.errors import ConfigError, require
from engram.members.layers import Mendable, as_fed, columns_of, layer_weight, readable_layers
from engram.models.tasks import Task

MOST_COLUMNS = 4000
"""Directions are found from at most this many positions of all public records."""
RIDGE = 0.1
"""Shaped noise takes directions for empty below this share of the mean energy of a direction."""


@dataclass(frozen=True, eq=False)
class Public:
    """Records that training never saw: inputs [m, ...] as the model takes them, labels [m]."""

    inputs: Tensor
    labels: Tensor
    task: Task


Reader = Callable[[nn.Module], nn.Module]
"""How an attacker who knows of a mend reads the published model."""


@dataclass(frozen=True, eq=False)
class Mended:
    """The model to publish, and how an attacker who knows how it was mended may read it, besides as it is."""

    model: nn.Module
    readers: tuple[Reader, ...] = ()

    def readings(self) -> list[nn.Module]:
        """The model as it is, then as every reader reads it."""
        return [self.model, *(read(self.model) for read in self.readers)]


class Mend(Protocol):
    """A way to change a model; `text` is how `parse` reads it."""

    @property
    def text(self) -> str: ...

    def apply(self, model: nn.Module, public: Public, seed: int) -> Mended:
        """A changed copy."""


def set_weight(layer: Mendable, value: Tensor) -> None:
    """Put [W b], [g, q, p], into a layer, in its own precision."""
    weight = layer.weight
    wide = weight[0].numel()
    with torch.no_grad():
        weight.copy_(value[..., :wide].reshape(weight.shape))
        if layer.bias is not None:
            layer.bias.copy_(value[..., wide].reshape(layer.bias.shape))


@torch.no_grad()
def entering(model: nn.Module, layer: Mendable, inputs: Tensor, seed: int = 0) -> Tensor:
    """What meets a layer's [W b], [g, m, p], at up to `MOST_COLUMNS` positions chosen at random."""
    seen: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
    try:
        for some in torch.split(as_fed(model, inputs), 256):
            model(some)
    finally:
        handle.remove()
    generator = torch.Generator().manual_seed(seed)
    each = -(-MOST_COLUMNS // max(1, len(seen)))
    parts = []
    for one in seen:
        columns = columns_of(layer, one).permute(1, 0, 3, 2).flatten(1, 2)  # [g, b L, p]
        kept = torch.randperm(columns.shape[1], generator=generator)[:each]
        parts.append(columns[:, kept.to(columns.device)].double())
    found = torch.cat(parts, 1)
    return found if layer.bias is None else functional.pad(found, (0, 1), value=1.0)


def copied(model: nn.Module) -> nn.Module:
    if any(is_parametrized(module) for module in model.modules()):
        raise ConfigError(
            "the model's weights are computed from others (weight norm, spectral norm or pruning); merge them "
            "first with torch.nn.utils.parametrize.remove_parametrizations"
        )
    return copy.deepcopy(model).eval()


def layers_of(model: nn.Module) -> list[tuple[str, Mendable]]:
    return list(readable_layers(model).items())


@dataclass(frozen=True)
class WeightNoise:
    """Gaussian noise on every weight. `level` is its size beside the signal, in what leaves a layer:

        E ||N h||² = level² E ||[W b] h||²

    Plain noise has the same variance everywhere. Shaped noise has the covariance (C + r)⁻¹ with C = E h hᵀ: least
    where inputs have most energy, so that at the same level there is far more of it in all other directions, and
    there the records left what makes them different from each other.

    The attacker who knows level and shape removes what of it can be removed: singular values are shrunk as is best
    for this noise (Gavish and Donoho 2017), after whitening it.
    """

    level: float
    shaped: bool = False
    name: ClassVar[str] = "noise"

    def __post_init__(self) -> None:
        require(0 < self.level < math.inf, "noise", "must be positive", self.level, "for example: noise 0.5")

    @property
    def text(self) -> str:
        return f"{'shaped ' if self.shaped else ''}noise {self.level:g}"

    def apply(self, model: nn.Module, public: Public, seed: int) -> Mended:
        made = copied(model)
        generator = torch.Generator().manual_seed(seed)
        drawn: dict[str, list[Coloured]] = {}
        for name, layer in layers_of(made):
            columns = entering(model, readable_layers(model)[name], public.inputs)
            weight = layer_weight(layer)
            drawn[name] = [self._colour(own, some) for own, some in zip(weight, columns, strict=True)]
            white = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight.device)
            noise = [one.coloured(some) for one, some in zip(drawn[name], white, strict=True)]
            set_weight(layer, weight + torch.stack(noise))
        return Mended(made, (lambda published: denoised(published, drawn),))

    def _colour(self, weight: Tensor, columns: Tensor) -> Coloured:
        shape = Coloured.like(columns) if self.shaped else Coloured.flat(columns)
        signal = (columns @ weight.T).square().sum(1).mean()
        effect = len(weight) * shape.coloured(columns).square().sum(1).mean()
        return shape.times(self.level * (signal / effect).sqrt())


def denoised(model: nn.Module, noise: Mapping[str, Sequence[Coloured]]) -> nn.Module:
    """The weights that the noise of each layer, by its name and groups, hides least."""
    made = copied(model)
    for name, layer in layers_of(made):
        parts = zip(layer_weight(layer), noise[name], strict=True)
        set_weight(layer, torch.stack([one.coloured(shrunk(one.whitened(own))) for own, one in parts]))
    return made


@dataclass(frozen=True, eq=False)
class Coloured:
    """A covariance of rows [p], by its root f_0 (1 - Vᵀ V) + Vᵀ diag(f) V with orthonormal rows V [r, p]."""

    basis: Tensor
    scales: Tensor
    rest: Tensor

    @classmethod
    def like(cls, columns: Tensor) -> Coloured:
        """(C + r)⁻¹ for C = HᵀH / m of columns H [m, p]."""
        _, values, basis = torch.linalg.svd(columns / math.sqrt(len(columns)), full_matrices=False)
        energy = values.square()
        ridge = RIDGE * energy.sum() / columns.shape[1]
        return cls(basis, (energy + ridge).rsqrt(), ridge.rsqrt())

    @classmethod
    def flat(cls, columns: Tensor) -> Coloured:
        """The same everywhere, for columns [m, p]."""
        return cls(columns.new_zeros(0, columns.shape[1]), columns.new_zeros(0), columns.new_ones(()))

    def times(self, factor: Tensor) -> Coloured:
        return Coloured(self.basis, factor * self.scales, factor * self.rest)

    def coloured(self, rows: Tensor) -> Tensor:
        return self.rest * rows + ((rows @ self.basis.T) * (self.scales - self.rest)) @ self.basis

    def whitened(self, rows: Tensor) -> Tensor:
        return rows / self.rest + ((rows @ self.basis.T) * (1 / self.scales - 1 / self.rest)) @ self.basis


def shrunk(noisy: Tensor) -> Tensor:
    """The best guess at a matrix of low rank under white noise of variance 1, [q, p].

    Its singular values are y sqrt(n) with n the larger side and beta the ratio of the sides; what the noise adds
    to them is known, and what it hides is zero (Gavish and Donoho, Optimal Shrinkage of Singular Values, 2017):

        eta(y) = sqrt((y² - beta - 1)² - 4 beta) / y     for y > 1 + sqrt(beta), else 0
    """
    u, values, vh = torch.linalg.svd(noisy, full_matrices=False)
    large, small = max(noisy.shape), min(noisy.shape)
    beta = small / large
    y = values / math.sqrt(large)
    kept = y > 1 + math.sqrt(beta)
    inner = ((y.square() - beta - 1).square() - 4 * beta).clamp(min=0).sqrt() / y.clamp(min=1e-12)
    found: Tensor = (u * torch.where(kept, inner, torch.zeros_like(y)) * math.sqrt(large)) @ vh
    return found
