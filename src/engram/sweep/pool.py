"""The candidates of all trials as one reconstruction: copies of an image are merged and scored by agreement.

`attacks.engine.consensus` does the same for the restarts of one run. Here it goes trial by trial, best first, so
that a hundred trials of a thousand candidates need no matrix of all pairs; and only the best trials vote, since
many trials of a sweep find nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engram.attacks.engine.consensus import SAME_IMAGE, confidence
from engram.attacks.reconstruction import Reconstruction
from engram.core.progress import Progress, silent
from engram.data.sets import Split
from engram.pipeline import compare
from engram.scoring.protocols import ScoringProtocol
from engram.scoring.report import Count, ScoreReport

MOST_POOLED = 20_000
"""Most candidates to keep; those of the best trials come first."""
VOTERS = 16
"""How many of the best trials agreement is measured with."""

Load = Callable[[int], Reconstruction]


@dataclass(eq=False)
class _Pool:
    """Leaders of the merged groups, the weighted sums of the groups, and the trial each leader came from."""

    leaders: Tensor
    sums: Tensor
    weights: Tensor
    labels: Tensor
    trials: Tensor


def pool_trials(
    numbers: Sequence[int],
    load: Load,
    *,
    most: int = MOST_POOLED,
    progress: Progress = silent,
) -> Reconstruction:
    """Merge the candidates of trials, given best first; `load` reads a trial by number.

    A candidate's score is the confidence of its mean best likeness to the other voting trials. A single trial has
    nothing to agree with: its scores are NaN.
    """
    voters = list(numbers[:VOTERS])
    total = len(numbers) + len(voters)
    pool: _Pool | None = None
    for done, number in enumerate(numbers, start=1):
        pool = _joined(pool, load(number), number, most)
        progress("pooling", done / total)
    assert pool is not None, "no trial to pool"
    agreed, votes = torch.zeros(len(pool.labels)), torch.zeros(len(pool.labels))
    for done, number in enumerate(voters, start=len(numbers) + 1):
        other = pool.trials != number
        agreed += other * _best_likeness(pool, load(number))
        votes += other
        progress("pooling", done / total)
    return _finished(pool, agreed / votes, len(numbers))


def prepared(images: Tensor) -> Tensor:
    """Rows [m, p] for `likeness`: images [m, C, H, W] centred and of length one, points [m, d] unchanged."""
    rows = images.flatten(1).float()
    if images.ndim == 4:
        rows = rows - rows.mean(1, keepdim=True)
        rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return rows


def likeness(rows: Tensor, others: Tensor, *, are_images: bool) -> Tensor:
    """Likeness, at most 1, [m, k]: NCC for images; 1 - ||a - b|| / (||a|| + ||b||) for points.

    >>> circle = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> likeness(circle[:1], circle, are_images=False).round(decimals=2)
    tensor([[1.0000, 0.2900, 0.0000]])
    """
    if are_images:
        return rows @ others.T
    sizes = rows.norm(dim=1)[:, None] + others.norm(dim=1)[None]
    apart = torch.cdist(rows, others, compute_mode="donot_use_mm_for_euclid_dist")
    alike: Tensor = 1 - apart / sizes.clamp(min=1e-12)
    return alike


def _joined(pool: _Pool | None, found: Reconstruction, number: int, most: int) -> _Pool:
    """The pool with one more trial added, its largest duals first."""
    found = found.take(found.duals.argsort(descending=True, stable=True))
    own, images = prepared(found.images), found.images.float()
    # Each trial has its own scale of duals.
    weights = found.duals.float().clamp(min=0)
    weights = weights / weights.mean().clamp(min=1e-12) + 1e-6
    if pool is None:
        pool = _Pool(own[:0], images[:0], weights[:0], found.labels[:0], found.labels[:0])
    leaders, fresh = _groups(pool, own, found.labels)
    room = max(0, most - len(pool.labels))
    kept = fresh[:room]
    pool = _Pool(
        torch.cat([pool.leaders, own[kept]]),
        torch.cat([pool.sums, torch.zeros_like(images[kept])]),
        torch.cat([pool.weights, torch.zeros_like(weights[kept])]),
        torch.cat([pool.labels, found.labels[kept]]),
        torch.cat([pool.trials, torch.full((len(kept),), number)]),
    )
    inside = leaders < len(pool.labels)
    shaped = weights.view(-1, *[1] * (images.ndim - 1))
    pool.sums.index_add_(0, leaders[inside], (shaped * images)[inside])
    pool.weights.index_add_(0, leaders[inside], weights[inside])
    return pool


def _groups(pool: _Pool, own: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each candidate the index of its leader in the pool; and which candidates become leaders, in order."""
    there = len(pool.labels)
    leaders = torch.full((len(own),), -1)
    if there:
        best = _within_labels(pool, own, labels, pool.leaders, pool.labels).max(1)
        leaders = torch.where(best.values >= SAME_IMAGE, best.indices, leaders)
    alike = _within_labels(pool, own, labels, own, labels) >= SAME_IMAGE
    fresh: list[int] = []
    for candidate in range(len(own)):
        if leaders[candidate] < 0:
            joins = alike[candidate] & (leaders < 0)
            joins[candidate] = True
            leaders[joins] = there + len(fresh)
            fresh.append(candidate)
    return leaders, torch.tensor(fresh, dtype=torch.int64)


def _best_likeness(pool: _Pool, voter: Reconstruction) -> Tensor:
    """Likeness of every leader to the most similar candidate of a trial, [leaders]."""
    alike = _within_labels(pool, pool.leaders, pool.labels, prepared(voter.images), voter.labels)
    return alike.amax(1).clamp(min=0)


def _within_labels(pool: _Pool, rows: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor) -> Tensor:
    """Likeness of candidates with the same label, -1 across labels."""
    alike = likeness(rows, others, are_images=pool.sums.ndim == 4)
    return alike.masked_fill_(labels[:, None] != other_labels[None], -1.0)


def _finished(pool: _Pool, agreement: Tensor, trials: int) -> Reconstruction:
    """Sorted by agreement; duals are means over the trials, in units of each trial's mean dual."""
    order = agreement.nan_to_num(nan=0.0).argsort(descending=True, stable=True)
    shaped = pool.weights.view(-1, *[1] * (pool.sums.ndim - 1))
    scores = confidence(agreement)
    return Reconstruction(pool.sums / shaped, pool.weights / trials, pool.labels, scores).take(order)


@dataclass(frozen=True)
class Grown:
    """The pool of the first `trials` complete trials: candidates, those at 90 % confidence, counts if scored."""

    trials: int
    candidates: int
    sure: int
    counts: dict[str, Count] | None = None


def sizes(trials: int) -> list[int]:
    """1, 2, 4, ... and all: pooling each of them from scratch only doubles the time of pooling all.

    >>> sizes(10), sizes(1)
    ([1, 2, 4, 8, 10], [1])
    """
    return [*(2**power for power in range(trials.bit_length()) if 2**power < trials), trials]


def grown(pooled: Reconstruction, trials: int, score: ScoreReport | None) -> Grown:
    """The point of the curve for a pool that has been scored."""
    counts = None if score is None else dict(score.counts)
    return Grown(trials, len(pooled), pooled.count_above(0.9), counts)


def growth(
    best_first: Sequence[int],
    load: Load,
    data: Split | None,
    protocol: ScoringProtocol | None,
    *,
    progress: Progress = silent,
) -> list[Grown]:
    """Pools of the first trials by number, except the pool of all; within a pool the best trials come first."""
    curve, wanted = [], sizes(len(best_first))[:-1]
    for done, size in enumerate(wanted, start=1):
        first = set(sorted(best_first)[:size])
        pooled = pool_trials([number for number in best_first if number in first], load)
        score = None if data is None else compare(pooled, data, protocol=protocol)
        curve.append(grown(pooled, size, score))
        progress("pooling: fewer trials", done / len(wanted))
    return curve
