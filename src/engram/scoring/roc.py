"""ROC: how well scores tell training records from held-out ones, at rates of false alarms that matter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engram.core.errors import require

RATES = (0.0, 0.001, 0.01)
"""False-positive rates at which a privacy audit is read: what an attacker gets who must not be wrong."""


@dataclass(frozen=True, eq=False)
class Roc:
    """False- and true-positive rates [p] from (0, 0) to (1, 1), one point for each threshold, and what follows."""

    false_positive: Tensor
    true_positive: Tensor
    auc: float
    p_value: float
    """Chance of an AUC as large if both kinds of records were alike (rank-sum test, one-sided)."""
    held_out: int

    def at(self, rate: float) -> float:
        """The largest true-positive rate whose false-positive rate is at most `rate`."""
        return float(self.true_positive[self.false_positive <= rate].max())

    def resolves(self, rate: float) -> bool:
        """Whether there are held-out records enough to tell `rate` from 0: at least 1 / rate."""
        return rate == 0 or self.held_out * rate >= 1

    @property
    def note(self) -> str | None:
        """Which rates the held-out records are too few for."""
        coarse = [rate for rate in RATES if not self.resolves(rate)]
        if not coarse:
            return None
        listed = " and ".join(f"{rate:.1%} (needs {round(1 / rate):,})" for rate in coarse)
        return f"{self.held_out:,} held-out records can't tell these rates from 0: {listed}"

    def to_json(self) -> dict[str, Any]:
        return {
            "auc": self.auc,
            "p_value": self.p_value,
            "tpr_at_fpr": {f"{rate:g}": self.at(rate) for rate in RATES},
            "held_out": self.held_out,
            "note": self.note,
            "fpr": self.false_positive.tolist(),
            "tpr": self.true_positive.tolist(),
        }


def roc(members: Tensor, others: Tensor) -> Roc:
    """The curve of "higher means member" for scores [n] of members and [k] of others; NaN is the lowest score.

    AUC = P(member > other) + P(equal) / 2.

    >>> curve = roc(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([2.0, 0.0]))
    >>> curve.auc, round(curve.at(0), 3), curve.at(0.5)
    (0.75, 0.333, 1.0)
    """
    for name, values in (("members", members), ("others", others)):
        require(values.ndim == 1 and len(values) > 0, name, "must be scores [n] with n > 0", tuple(values.shape))
    scores = torch.cat([members, others]).double().nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    is_member = torch.arange(len(scores)) < len(members)
    levels, place = torch.unique(scores, return_inverse=True)  # ascending; equal scores share a threshold
    hits = torch.bincount(place[is_member], minlength=len(levels)).flip(0).cumsum(0)
    alarms = torch.bincount(place[~is_member], minlength=len(levels)).flip(0).cumsum(0)
    start = torch.zeros(1, dtype=torch.float64)
    true = torch.cat([start, hits.double() / len(members)])
    false = torch.cat([start, alarms.double() / len(others)])
    auc = float(torch.trapezoid(true, false))
    return Roc(false, true, auc, _p_value(auc, place, len(members), len(others)), len(others))


def _p_value(auc: float, place: Tensor, n: int, k: int) -> float:
    """Normal approximation of the rank-sum test with its correction for ties."""
    ties = torch.bincount(place).double()
    total = n + k
    tied = float((ties**3 - ties).sum()) / (total * (total - 1))
    variance = n * k / 12 * (total + 1 - tied)
    if variance <= 0:
        return 1.0
    return 0.5 * math.erfc((auc - 0.5) * n * k / math.sqrt(2 * variance))
