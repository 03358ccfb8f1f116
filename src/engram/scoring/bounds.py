"""What finitely many records prove: bounds of a rate, p-values of records, a lower bound of epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.stats import beta
from torch import Tensor

from engram.core.errors import require

CONFIDENCE = 0.95
DELTA = 1e-5


@dataclass(frozen=True)
class Interval:
    """A rate and its Clopper-Pearson bounds at 95 % confidence."""

    rate: float
    low: float
    high: float


def clopper_pearson(hits: int, trials: int, *, confidence: float = CONFIDENCE) -> Interval:
    """The interval that holds the rate behind `hits` of `trials` with at least this confidence.

    >>> print(clopper_pearson(0, 100))
    Interval(rate=0.0, low=0.0, high=0.036...)
    """
    require(0 <= hits <= trials > 0, "hits", f"must be in 0..{trials}", hits)
    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(beta.ppf(1 - tail, hits + 1, trials - hits))
    return Interval(hits / trials, low, high)


def p_values(scores: Tensor, controls: Tensor, *, are_controls: bool = False) -> Tensor:
    """Of each score [n], the probability that a control scores as high, [n]: (1 + such controls) / (1 + controls).

    Controls themselves are compared with the others, so that theirs are uniform.

    >>> p_values(torch.tensor([5.0, 0.0]), torch.tensor([1.0, 2.0, 3.0])).tolist()
    [0.25, 1.0]
    """
    ordered = controls.double().sort().values
    above = len(ordered) - torch.searchsorted(ordered, scores.double().contiguous(), side="left")
    itself = int(are_controls)
    return (1 + above - itself).double() / (1 + len(ordered) - itself)


def epsilon_lower(members: Tensor, others: Tensor, *, delta: float = DELTA, seed: int = 0) -> float:
    """A lower bound, at 95 % confidence, of epsilon in (epsilon, delta)-differential privacy.

    Training with that epsilon has TPR <= exp(epsilon) FPR + delta. The threshold is chosen on half of the records
    and judged on the other half, so that choosing it costs no confidence.

    >>> epsilon_lower(torch.zeros(100), torch.zeros(100))
    0.0
    """
    generator = torch.Generator().manual_seed(seed)
    chosen, judged = zip(*(_halves(scores.double(), generator) for scores in (members, others)), strict=True)
    if min(map(len, chosen)) == 0:
        return 0.0
    thresholds = sorted(set(torch.cat(chosen).tolist()))
    best = max(thresholds, key=lambda threshold: _epsilon(chosen[0], chosen[1], threshold, delta))
    return max(0.0, _epsilon(judged[0], judged[1], best, delta))


def _halves(scores: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(scores), generator=generator)
    return scores[order[: len(scores) // 2]], scores[order[len(scores) // 2 :]]


def _epsilon(members: Tensor, others: Tensor, threshold: float, delta: float) -> float:
    """log((TPR_low - delta) / FPR_high) for "a score of at least `threshold` is a member"."""
    true = clopper_pearson(int((members >= threshold).sum()), len(members)).low
    false = clopper_pearson(int((others >= threshold).sum()), len(others)).high
    return math.log((true - delta) / false) if true > delta else -math.inf
