"""The pooled fit: how much of a layer's weight does a record explain that no other record of the pool explains?

With the whole training set in the pool, W = sum_i lambda_i g_i + noise is a regression with one unknown a record.
Its ridge is not tuned: lambda ~ N(0, tau²) and noise ~ N(0, sigma²) give W a likelihood, whose maximum fixes both.
A record's score is what remains of its lambda when all others have explained what they can, in units of its
standard deviation (leave-one-out, in closed form):

    score_i = lambda_i / (sigma sqrt(C_ii)),    C = (K + rho)⁻¹,    lambda = C b,    rho = sigma² / tau²

with K_ij = <g_i, g_j> and b_i = <g_i, W>. It knows the other members and cancels them exactly, where the matched
filter treats them as noise; the filter in turn needs no other member. The two fail on different records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engram.members.layers import Layer, LayerPass, layer_weight

MOST_RECORDS = 3000
"""The fit takes the square of their number in memory and its cube in time."""
MOST_VALUES = 128 * 1024 * 1024
"""Values of per-sample gradients that are held for layers with positions, over all layers."""
RIDGES = torch.logspace(-9, 3, 49, dtype=torch.float64).tolist()
"""rho as a multiple of the largest eigenvalue of K."""


@dataclass(eq=False)
class PooledFit:
    """The fit of one layer; vectors are kept where a gradient is their product, else gradients."""

    weight: Tensor
    entering: list[Tensor] = field(default_factory=list)
    signals: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, layer: Layer) -> PooledFit:
        return cls(layer_weight(layer))

    def add(self, one: LayerPass) -> None:
        if one.positions == 1:
            entering, signals = one.vectors(1)
            self.entering.append(entering[:, :, 0].transpose(0, 1).double())
            self.signals.append(signals[:, :, 0].transpose(0, 1).double())
        else:
            self.gradients.append(one.gradients().flatten(1))

    def state(self) -> dict[str, Tensor]:
        """What was added."""
        if self.gradients:
            return {"gradients": torch.cat(self.gradients)}
        return {"entering": torch.cat(self.entering, 1), "signals": torch.cat(self.signals, 1)}

    def merge(self, state: Mapping[str, Tensor]) -> None:
        """Add what another part of the pool gave."""
        for name, value in state.items():
            getattr(self, name).append(value)

    def scores(self) -> Tensor:
        """Of every record that was added, [n]."""
        if self.gradients:
            rows = torch.cat(self.gradients)
            gram, products = _gram(rows), (rows @ self.weight.flatten().to(rows)).double()
        else:
            h, u = torch.cat(self.entering, 1), torch.cat(self.signals, 1)  # [g, n, p], [g, n, q]
            gram = ((h @ h.transpose(1, 2)) * (u @ u.transpose(1, 2))).sum(0)
            products = ((u @ self.weight) * h).sum((0, 2))
        return left_out_scores(gram, products, float(self.weight.square().sum()), self.weight.numel())


def _gram(rows: Tensor, at_once: int = 256) -> Tensor:
    """rows rowsᵀ in float64, a few rows at a time in it."""
    gram = torch.empty(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    parts = torch.split(rows, at_once)
    for i, first in enumerate(parts):
        for j, second in enumerate(parts[: i + 1]):
            block = (first @ second.T).double()
            gram[i * at_once : i * at_once + len(first), j * at_once : j * at_once + len(second)] = block
            gram[j * at_once : j * at_once + len(second), i * at_once : i * at_once + len(first)] = block.T
    return gram


def left_out_scores(gram: Tensor, products: Tensor, energy: float, size: int) -> Tensor:
    """The scores [n] from K [n, n] and b [n], for a weight of `size` values with the sum of squares `energy`."""
    values, vectors = torch.linalg.eigh(gram)
    values = values.clamp(min=0)
    along = vectors.T @ products
    rho, variance = _likeliest(values, along, energy, size)
    inverse = 1 / (values + rho)
    duals = vectors @ (inverse * along)
    spread = (vectors.square() @ inverse).sqrt()
    scores: Tensor = duals / spread / math.sqrt(variance)
    return scores


def _likeliest(values: Tensor, along: Tensor, energy: float, size: int) -> tuple[float, float]:
    """rho and sigma² of the largest likelihood of W ~ N(0, tau² sum_i g_i g_iᵀ + sigma²)."""
    top = float(values[-1])
    if top <= 0 or energy <= 0:
        return 1.0, 1.0
    kept = values > 1e-12 * top
    values, along = values[kept], along[kept]
    explained = along.square() / values
    rest = max(energy - float(explained.sum()), 1e-12 * energy)
    best = (-math.inf, 1.0, 1.0)
    for ridge in RIDGES:
        rho = ridge * top
        variance = (float((explained * rho / (rho + values)).sum()) + rest) / size
        likelihood = -0.5 * (size * math.log(variance) + float(torch.log1p(values / rho).sum()))
        best = max(best, (likelihood, rho, variance))
    return best[1], best[2]
