"""Curves that judge a score: ROC for membership scores, reliability for the confidence of candidates.

And what finitely many records prove: bounds of a rate, p-values of records, a lower bound of epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from engram.attacks.reconstruction import Reconstruction
from engram.core.errors import require
from engram.scoring.metrics import ncc

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
    from scipy.stats import beta

    require(0 <= hits <= trials > 0, "hits", f"must be in 0..{trials}", hits)
    tail = (1 - confidence) / 2
    low = 0.0 if hits == 0 else float(beta.ppf(tail, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(beta.ppf(1 - tail, hits + 1, trials - hits))
    return Interval(hits / trials, low, high)


def chance_of_more(most: int, chances: Sequence[float]) -> float:
    """The probability that more than `most` of independent events happen.

    >>> round(chance_of_more(0, [0.5, 0.5]), 3), chance_of_more(1, [1.0])
    (0.75, 0.0)
    """
    if most >= len(chances):
        return 0.0
    counts = [1.0, *most * [0.0]]  # the probability of 0, 1, ..., most so far
    for chance in chances:
        before = [0.0, *counts[:-1]]
        counts = [old * (1 - chance) + less * chance for old, less in zip(counts, before, strict=True)]
    return 1 - sum(counts)


def rate_bounds(n: int, k: int, rate: float, false: Sequence[float], true: Sequence[float]) -> Interval:
    """The share of n members identified at a false-positive rate, bounded at 95 % confidence with a control of k.

    `false` and `true` are a ROC. The control only estimates the false-positive rate of a threshold. Low: what the
    usual threshold gives once the false alarms beyond `rate` that k records can't rule out are taken off. High: at
    the threshold where false alarms are at least `rate` with 97.5 % confidence, so that the share at `rate` itself
    is smaller.

    >>> print(rate_bounds(100, 100, 0.0, [0.0, 0.0, 1.0], [0.0, 0.5, 1.0]))
    Interval(rate=0.5, low=0.362..., high=0.601...)
    """

    def members(alarms: int) -> int:
        return round(n * max(one for alarm, one in zip(false, true, strict=True) if alarm * k <= alarms + 1e-6))

    allowed = math.floor(rate * k + 1e-6)
    usual = clopper_pearson(members(allowed), n)
    unseen = max(0.0, clopper_pearson(allowed, k).high - rate)
    cautious = 0 if rate == 0 else next((j for j in range(allowed, k) if clopper_pearson(j + 1, k).low >= rate), k)
    return Interval(usual.rate, max(0.0, usual.low - unseen), clopper_pearson(members(cautious), n).high)


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


def largest_epsilon(records: int, controls: int) -> float:
    """The bound if every member scored above every control: half of them judge.

    >>> round(largest_epsilon(100, 100), 2)
    2.57
    """
    n, k = records - records // 2, controls - controls // 2
    true, false = clopper_pearson(n, n).low, clopper_pearson(0, k).high
    return math.log((true - DELTA) / false) if true > DELTA else 0.0


RATES = (0.0, 0.001, 0.01)
"""False-positive rates that a privacy audit looks at: what an attacker gets who must not be wrong."""


@dataclass(frozen=True, eq=False)
class Roc:
    """False- and true-positive rates [p] from (0, 0) to (1, 1), one point per threshold, and their summary."""

    false_positive: Tensor
    true_positive: Tensor
    auc: float
    p_value: float
    """Probability of an AUC this large if members and others did not differ (one-sided rank-sum test)."""
    held_out: int

    def at(self, rate: float) -> float:
        """The largest true-positive rate whose false-positive rate is at most `rate`."""
        return float(self.true_positive[self.false_positive <= rate].max())

    def resolves(self, rate: float) -> bool:
        """Whether there are enough held-out records to distinguish `rate` from 0: at least 1 / rate."""
        return rate == 0 or self.held_out * rate >= 1

    @property
    def note(self) -> str | None:
        """Rates for which there are too few held-out records."""
        coarse = [rate for rate in RATES if not self.resolves(rate)]
        if not coarse:
            return None
        listed = " and ".join(f"{rate:.1%} (needs {round(1 / rate):,})" for rate in coarse)
        return f"{self.held_out:,} held-out records are too few to distinguish these rates from 0: {listed}"

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
    """Normal approximation of the rank-sum test, corrected for ties."""
    ties = torch.bincount(place).double()
    total = n + k
    tied = float((ties**3 - ties).sum()) / (total * (total - 1))
    variance = n * k / 12 * (total + 1 - tied)
    if variance <= 0:
        return 1.0
    return 0.5 * math.erfc((auc - 0.5) * n * k / math.sqrt(2 * variance))


REAL = 0.8
"""A candidate shows a training image if their NCC is above this; the confidence was calibrated to that."""
EDGES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
DEPTHS = (10, 20, 50, 100, 250, 1000)
AT_ONCE = 2000


@dataclass(frozen=True)
class Bin:
    """Candidates with a confidence from `low` to `high`: how many, and the predicted and observed shares."""

    low: float
    high: float
    candidates: int
    predicted: float
    observed: float


@dataclass(frozen=True)
class Precision:
    """Among the k most confident candidates, the shares that show a training image and a held-out one."""

    k: int
    train: float
    held_out: float | None

    @property
    def sentence(self) -> str:
        """
        >>> Precision(20, 0.85, 0.05).sentence
        'of the 20 most confident candidates, 85 % show a training image (NCC > 0.8), 5 % a held-out one'
        """
        unseen = "" if self.held_out is None else f", {self.held_out:.0%} a held-out one".replace("%", " %")
        share = f"{self.train:.0%}".replace("%", " %")
        return f"of the {self.k} most confident candidates, {share} show a training image (NCC > {REAL}){unseen}"


@dataclass(frozen=True)
class Reliability:
    bins: tuple[Bin, ...]
    precision: tuple[Precision, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def reliability(found: Reconstruction, train: Tensor, held_out: Tensor | None) -> Reliability | None:
    """Against centred images [n, *shape]; None if there is no confidence, or too few values per image for NCC."""
    if found.scores is None or not bool(found.scores.isfinite().all()) or found.images[0].numel() < 3:
        return None
    predicted = found.scores.double()
    real = best_likeness(found.images, train) > REAL
    chance = None if held_out is None else best_likeness(found.images, held_out) > REAL
    order = predicted.argsort(descending=True, stable=True)
    depths = [k for k in DEPTHS if k < len(predicted)] + [len(predicted)]
    precision = [
        Precision(k, _share(real[order[:k]]), None if chance is None else _share(chance[order[:k]]))
        for k in depths
    ]
    bins = []
    for low, high in pairwise(EDGES):
        inside = (predicted >= low) & ((predicted < high) | (high == EDGES[-1]))
        if bool(inside.any()):
            mean = float(predicted[inside].mean())
            bins.append(Bin(low, high, int(inside.sum()), mean, _share(real[inside])))
    return Reliability(tuple(bins), tuple(precision))


def best_likeness(candidates: Tensor, images: Tensor) -> Tensor:
    """The largest NCC of each candidate with any image, [m]."""
    return torch.cat([ncc(chunk, images).amax(1) for chunk in torch.split(candidates, AT_ONCE)])


DECOYS = 100


@dataclass(frozen=True, eq=False)
class LineUp:
    """Each record's best candidate asked "which of these is it?": the record's rank among decoys, 1 is first.

    [n] for training records, and [k] for held-out ones, which show what chance gives.
    """

    train: Tensor
    held_out: Tensor
    decoys: int

    @property
    def sentence(self) -> str:
        """
        >>> LineUp(torch.tensor([1, 1, 5]), torch.tensor([1, 7]), 100).sentence
        'in a line-up with 100 decoys, 2 of 3 training records are picked out by a candidate, 1 of 2 held-out ones'
        """
        own, other = (int((ranks == 1).sum()) for ranks in (self.train, self.held_out))
        return (
            f"in a line-up with {self.decoys} decoys, {own} of {len(self.train)} training records are picked out "
            f"by a candidate, {other} of {len(self.held_out)} held-out ones"
        )

    def to_json(self) -> dict[str, Any]:
        return {"decoys": self.decoys, "train": self.train.tolist(), "held_out": self.held_out.tolist()}


def line_up(candidates: Tensor, train: Tensor, held_out: Tensor, *, seed: int = 0) -> LineUp | None:
    """Ranks by NCC among held-out records, centred [n, *shape]; None where they or their values are too few."""
    decoys = min(DECOYS, len(held_out) - 1)
    if decoys < 1 or candidates[0].numel() < 3:
        return None
    likeness, others = (
        torch.cat([ncc(chunk, images) for chunk in torch.split(candidates, AT_ONCE)])
        for images in (train, held_out)
    )
    chosen = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(seed))[: decoys + 1]
    own = _ranks(likeness, others[:, chosen[:decoys]])
    ranks = []
    for record in range(len(held_out)):
        among = chosen[chosen != record][:decoys]  # a record is no decoy of its own
        ranks.append(_ranks(others[:, record : record + 1], others[:, among]))
    return LineUp(own, torch.cat(ranks), decoys)


def _ranks(likeness: Tensor, decoys: Tensor) -> Tensor:
    """Of records in columns: 1 + how many decoys are at least as like their best candidate, a row of both, [n]."""
    best, candidate = likeness.max(0)
    return 1 + (decoys[candidate] >= best[:, None]).sum(1)


def _share(flags: Tensor) -> float:
    return float(flags.double().mean())
