"""What independent restarts agree on: a score for every candidate without training data, and merging.

A restart that ends in the same image as the others, from another start, has most likely found something that is in
the weights; one that ends alone has found a local minimum. Agreement is the mean over the other restarts of the
best NCC with a candidate of the same label.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engram.reconstruct.candidates import Reconstruction

SAME_IMAGE = 0.95
"""Candidates of one label with at least this NCC are one image."""

# P(NCC with a training image > 0.8) = sigmoid(INTERCEPT + SLOPE * -log(1 - agreement)), fitted by
# `python -m benchmarks.confidence` on targets that are used for nothing else.
INTERCEPT, SLOPE = -5.62, 2.02


def consensus(found: Reconstruction, restarts: int) -> Reconstruction:
    """Merge what is the same image, score it, and sort by score; candidates come restart after restart.

    With a single restart nothing can agree: the scores are NaN, and the order is by dual.
    """
    likeness = _likeness(found)
    if restarts == 1:
        agreement = torch.full_like(found.duals, torch.nan)
        order = found.duals.argsort(descending=True)
    else:
        agreement = agreements(likeness, restarts)
        order = agreement.argsort(descending=True, stable=True)
    return _merged(found, likeness, order, confidence(agreement))


def agreements(likeness: Tensor, restarts: int) -> Tensor:
    """Mean over the other restarts of the best likeness there; likeness [R m, R m] -> [R m]."""
    each = len(likeness) // restarts
    best = likeness.view(len(likeness), restarts, each).amax(2)  # candidate x restart
    own = torch.arange(len(likeness), device=likeness.device) // each
    best[torch.arange(len(likeness)), own] = 0
    return best.sum(1) / (restarts - 1)


def confidence(agreement: Tensor) -> Tensor:
    """The calibrated chance that a candidate shows a training image, in [0, 1].

    >>> confidence(torch.tensor([0.5, 0.9, 0.99])).round(decimals=2)
    tensor([0.0100, 0.2800, 0.9800])
    """
    return torch.sigmoid(INTERCEPT - SLOPE * torch.log1p(-agreement.clamp(max=1 - 1e-4)))


def _likeness(found: Reconstruction) -> Tensor:
    """NCC of candidates with the same label, -1 between labels, [m, m]."""
    centred = found.images.flatten(1) - found.images.flatten(1).mean(1, keepdim=True)
    unit = centred / centred.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return torch.where(found.labels[:, None] == found.labels[None], unit @ unit.T, -1.0)


def _merged(found: Reconstruction, likeness: Tensor, order: Tensor, scores: Tensor) -> Reconstruction:
    """Greedily from the front of `order`: each takes in everything like it that is still free."""
    free = torch.ones(len(found), dtype=torch.bool)
    images, duals, leaders = [], [], []
    for leader in order.tolist():
        if not free[leader]:
            continue
        members = ((likeness[leader] >= SAME_IMAGE) & free).index_fill(0, torch.tensor([leader]), True)
        free &= ~members
        weights = found.duals[members] + 1e-12
        share = (weights / weights.sum()).view(-1, *[1] * (found.images.ndim - 1))
        images.append((share * found.images[members]).sum(0))
        duals.append(found.duals[members].mean())
        leaders.append(leader)
    return Reconstruction(torch.stack(images), torch.stack(duals), found.labels[leaders], scores[leaders])
