"""One score from many, without asking who is a member.

Every record has a vector of scores, a few per layer. Over the pool these are a mixture: records that were not in
training, around zero by construction, and members, shifted by an unknown amount at each score. Expectation
maximisation finds both, and the best direction between them is Fisher's: C_0⁻¹ (m_1 - m_0). Where nobody was in
training the direction is arbitrary, and then members and controls score alike in it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDS = 30
SHRINKAGE = 0.1
"""How far covariances are drawn to their diagonal, and further by the number of scores per record of the pool."""
SURENESS = 3.0
"""How steeply the first guess at who is a member follows the sum of the scores."""


@dataclass(frozen=True, eq=False)
class Mixture:
    """The combined score [n], the weight of every standardised score [k], and the share of members found."""

    scores: Tensor
    weights: Tensor
    share: float


def combine(scores: Tensor, centred: Tensor | None = None) -> Mixture:
    """One score from k for each of n records, [n, k].

    Where `centred` [k] is set (everywhere by default), records that were not in training have mean 0.

    >>> drawn = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    >>> drawn[:200, 0] += 4
    >>> found = combine(drawn.double())
    >>> [round(weight, 1) for weight in found.weights.abs().tolist()], round(found.share, 1)
    ([1.0, 0.0], 0.5)
    """
    known = torch.ones(scores.shape[1], dtype=torch.bool) if centred is None else centred
    unit = scores / scores.std(0).clamp(min=1e-12)
    unit = torch.where(known, unit, unit - unit.median(0).values)
    direction = unit.mean(0).clamp(min=0)
    first = unit @ direction
    members = torch.sigmoid(SURENESS * (first - first.mean()) / first.std().clamp(min=1e-12))
    shrinkage = min(1.0, SHRINKAGE + scores.shape[1] / len(scores))
    for _ in range(ROUNDS):
        share = members.mean().clamp(1e-3, 1 - 1e-3)
        others = 1 - members
        centre = (members[:, None] * unit).sum(0) / members.sum().clamp(min=1e-9)
        rest = (others[:, None] * unit).sum(0) / others.sum().clamp(min=1e-9)
        rest = torch.where(known, torch.zeros_like(rest), rest)
        here, there = _covariance(unit, rest, others, shrinkage), _covariance(unit, centre, members, shrinkage)
        odds = _log_density(unit, centre, there) - _log_density(unit, rest, here)
        members = torch.sigmoid(odds + torch.log(share / (1 - share))).clamp(1e-6, 1 - 1e-6)
        direction = torch.linalg.solve(here, centre - rest)
    weights = direction / direction.abs().sum().clamp(min=1e-12)
    return Mixture(unit @ weights, weights, float(members.mean()))


def _covariance(points: Tensor, centre: Tensor, weights: Tensor, shrinkage: float) -> Tensor:
    away = points - centre
    found = (away * weights[:, None]).T @ away / weights.sum().clamp(min=1e-9)
    diagonal = torch.diag(torch.diag(found))
    return (1 - shrinkage) * found + shrinkage * diagonal + 1e-6 * torch.eye(len(found), dtype=found.dtype)


def _log_density(points: Tensor, centre: Tensor, covariance: Tensor) -> Tensor:
    """Of a normal distribution, up to a constant, [n]."""
    lower = torch.linalg.cholesky(covariance)
    away = torch.linalg.solve_triangular(lower, (points - centre).T, upper=False)
    density: Tensor = -0.5 * away.square().sum(0) - torch.log(torch.diag(lower)).sum()
    return density
