"""Which candidate belongs to which image: everyone's nearest, or each candidate at most once."""

from __future__ import annotations

import torch
from torch import Tensor

from engram.errors import require

LARGEST_MATRIX = 50_000_000
"""Entries of the largest matrix `one_to_one` takes: 400 MB in the float64 that scipy works in."""

UNMATCHED = -1


def nearest(scores: Tensor) -> Tensor:
    """Each image's best candidate; a candidate may serve several images. scores [n, m] -> [n].

    >>> nearest(torch.tensor([[0.9, 0.8], [0.7, 0.1]]))
    tensor([0, 0])
    """
    require(scores.ndim == 2 and scores.shape[1] > 0, "scores", "must be [n, m] with m > 0", tuple(scores.shape))
    return scores.argmax(1)


def one_to_one(scores: Tensor) -> Tensor:
    """The assignment of largest total score that uses no candidate twice. scores [n, m] -> [n].

    With fewer candidates than images, m < n, the n - m images left over get -1.

    >>> one_to_one(torch.tensor([[0.9, 0.8], [0.7, 0.1]]))
    tensor([1, 0])
    >>> one_to_one(torch.tensor([[0.1], [0.7]]))
    tensor([-1,  0])
    """
    require(scores.ndim == 2 and scores.shape[1] > 0, "scores", "must be [n, m] with m > 0", tuple(scores.shape))
    require_assignable(*scores.shape)
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(scores.detach().cpu().double().numpy(), maximize=True)
    assigned = torch.full((len(scores),), UNMATCHED, dtype=torch.int64)
    assigned[torch.from_numpy(rows)] = torch.from_numpy(columns)
    return assigned.to(scores.device)


def require_assignable(images: int, candidates: int) -> None:
    """Refuse, before any work, an assignment too large to hold."""
    require(
        images * candidates <= LARGEST_MATRIX,
        "one-to-one assignment",
        f"takes at most {LARGEST_MATRIX:,} image-candidate pairs",
        f"{images:,} images × {candidates:,} candidates",
        'use assignment="nearest", or score fewer candidates',
    )
