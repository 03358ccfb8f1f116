"""Membership tests that train shadow models, as their papers describe them: LiRA and RMIA.

LiRA: Carlini et al. 2022, "Membership Inference Attacks From First Principles". RMIA: Zarifzadeh et al. 2024,
"Low-Cost High-Power Membership Inference Attacks". All tests see margins: of the target [n], and of shadow models
[s, n] with who was in their training, [s, n] bool. The margin is the logit of the probability of the own label,
log(p / (1 - p)), which LiRA uses as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

FEW = 64
"""With fewer shadow models than this, LiRA shares one spread between all records, as its authors advise."""
GAMMA = 2.0
"""RMIA counts how many other records the record beats by this factor."""


def online_lira(target: Tensor, shadows: Tensor, members: Tensor) -> Tensor:
    """log of the likelihood ratio of "in" and "out", both normal, [n]."""
    inside, outside = _spread(shadows, members), _spread(shadows, ~members)
    return _log_normal(target, *inside) - _log_normal(target, *outside)


def offline_lira(target: Tensor, shadows: Tensor, members: Tensor) -> Tensor:
    """How unusual the target's margin is for models that did not see the record, [n]."""
    mean, spread = _spread(shadows, ~members)
    return (target - mean) / spread


def rmia(target: Tensor, shadows: Tensor, members: Tensor) -> Tensor:
    """The share of other records that the record's probability ratio beats, [n]."""
    reference = torch.sigmoid(shadows.double())
    inside = (reference * members).sum(0) / members.sum(0).clamp(min=1)
    outside = (reference * ~members).sum(0) / (~members).sum(0).clamp(min=1)
    log_ratio = functional.logsigmoid(target.double()) - ((inside + outside) / 2).clamp(min=1e-30).log()
    beaten = log_ratio[:, None] - log_ratio[None, :] >= torch.tensor(GAMMA).log()
    # equal shares are frequent: the ratio itself decides between them
    return beaten.double().mean(1) + 1e-6 * log_ratio


def _spread(shadows: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every record's margins over the chosen shadow models, [n] each."""
    values, weights = shadows.double(), chosen.double()
    count = weights.sum(0).clamp(min=1)
    mean = (values * weights).sum(0) / count
    squares = ((values - mean).square() * weights).sum(0)
    if len(shadows) < FEW:
        return mean, (squares.sum() / weights.sum()).sqrt().expand_as(mean).clamp(min=1e-6)
    return mean, (squares / (count - 1).clamp(min=1)).sqrt().clamp(min=1e-6)


def _log_normal(values: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    return -0.5 * ((values.double() - mean) / spread).square() - spread.log()
