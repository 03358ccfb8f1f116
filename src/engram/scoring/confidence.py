"""How well the blind confidence predicted which candidates show a training image."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from engram.attacks.reconstruction import Reconstruction
from engram.scoring.metrics import ncc

REAL = 0.8
"""A candidate of NCC above this with a training image shows it; the confidence was calibrated to that."""
EDGES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
DEPTHS = (10, 20, 50, 100, 250, 1000)
AT_ONCE = 2000


@dataclass(frozen=True)
class Bin:
    """Candidates with a confidence from `low` to `high`: how many, and the shares predicted and observed."""

    low: float
    high: float
    candidates: int
    predicted: float
    observed: float


@dataclass(frozen=True)
class Precision:
    """Of the k most confident candidates, the shares that show a training image and a held-out one."""

    k: int
    train: float
    held_out: float | None

    @property
    def sentence(self) -> str:
        """
        >>> Precision(20, 0.85, 0.05).sentence
        'of the 20 most confident candidates 85 % show a training image (NCC > 0.8), 5 % a held-out one'
        """
        unseen = "" if self.held_out is None else f", {self.held_out:.0%} a held-out one".replace("%", " %")
        share = f"{self.train:.0%}".replace("%", " %")
        return f"of the {self.k} most confident candidates {share} show a training image (NCC > {REAL}){unseen}"


@dataclass(frozen=True)
class Reliability:
    bins: tuple[Bin, ...]
    precision: tuple[Precision, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def reliability(found: Reconstruction, train: Tensor, held_out: Tensor | None) -> Reliability | None:
    """Against centred images [n, *shape]; None where there is no confidence, or too few values for NCC."""
    if found.scores is None or not bool(found.scores.isfinite().all()) or found.images[0].numel() < 3:
        return None
    said = found.scores.double()
    real = best_likeness(found.images, train) > REAL
    chance = None if held_out is None else best_likeness(found.images, held_out) > REAL
    order = said.argsort(descending=True, stable=True)
    depths = [k for k in DEPTHS if k < len(said)] + [len(said)]
    precision = [
        Precision(k, _share(real[order[:k]]), None if chance is None else _share(chance[order[:k]]))
        for k in depths
    ]
    bins = []
    for low, high in pairwise(EDGES):
        inside = (said >= low) & ((said < high) | (high == EDGES[-1]))
        if bool(inside.any()):
            bins.append(Bin(low, high, int(inside.sum()), float(said[inside].mean()), _share(real[inside])))
    return Reliability(tuple(bins), tuple(precision))


def best_likeness(candidates: Tensor, images: Tensor) -> Tensor:
    """The largest NCC of each candidate with any image, [m]."""
    return torch.cat([ncc(chunk, images).amax(1) for chunk in torch.split(candidates, AT_ONCE)])


def _share(flags: Tensor) -> float:
    return float(flags.double().mean())
