"""The candidates of all restarts: a score for each without training data, from their agreement, and merging.

Restarts that reach the same image from different starts have most likely found something that is in the weights;
an image that only one restart reaches is probably a local minimum. Agreement is the best NCC with a candidate of
the same label in another restart: an image that few restarts find is real all the same. A candidate that explains
much of the weights is more likely real too; its strength is its dual times its contrast.

Images on a flat background are shown on it (`on_background`), with the mean image that follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from engram.attacks.engine.objective import background_level
from engram.attacks.reconstruction import Reconstruction

SAME_IMAGE = 0.95
"""Candidates with the same label and at least this NCC are the same image."""

ARRAYS = 4
"""Arrays of the size of a block of similarities that are needed to compute one."""

Constants = tuple[float, float, float]
"""P(NCC with a training image > 0.8) = sigmoid(c_0 + c_1 * -log(1 - agreement) + c_2 * strength)."""

CLEAN: Constants = (-3.69, 0.86, 1.59)
NOISY: Constants = (-5.82, 1.39, 1.34)
CONVOLUTIONAL: Constants = (-4.67, 1.51, 0.65)
"""By what the attack reads: a first layer without much noise, one with (as people train), and one above
convolutions. Fitted by `python -m benchmarks.confidence` on targets used for nothing else."""
IN_USE, FURTHEST = 1e-3, 3.0
"""Strengths are relative to the median of the candidates whose dual is above this share of the largest, and count
up to a factor of e to this power."""


def consensus(
    found: Reconstruction, restarts: int, room: int, constants: Constants = CLEAN, crowd: float = math.inf
) -> Reconstruction:
    """Merge candidates of the same image, score them, and sort by score; `found` lists one restart after another.

    With a single restart there is no agreement: the scores are NaN, and the order is by dual. The pairwise
    similarities are computed in blocks of about `room` bytes.
    """
    likenesses = Likeness.of(found, room)
    if restarts == 1:
        scores = torch.full_like(found.duals, torch.nan)
        order = found.duals.argsort(descending=True)
    else:
        scores = confidence(evidence(found, restarts, likenesses, crowd), constants)
        order = scores.argsort(descending=True, stable=True)
    return _merged(found, likenesses, order, scores)


def evidence(found: Reconstruction, restarts: int, likenesses: Likeness, crowd: float = math.inf) -> Tensor:
    """What speaks for each candidate: -log(1 - agreement), and its strength; [m, 2].

    A restart whose candidates have collapsed onto one picture, a mixture of all images, would agree with any other
    that has: where more than `crowd` others of its own restart look alike, agreement says nothing.
    """
    everyone = likenesses.blocks(torch.arange(len(found)))
    agreement = torch.cat(
        [
            agreements(likeness, rows, restarts) * (crowds(likeness, rows, restarts) <= crowd)
            for rows, likeness in everyone
        ]
    )
    return from_agreement(agreement, strengths(found))


def from_agreement(agreement: Tensor, strength: Tensor | None = None) -> Tensor:
    """The evidence [m, 2] of agreements [m]; a strength that is not known counts as the median."""
    strength = torch.zeros_like(agreement) if strength is None else strength
    return torch.stack([-torch.log1p(-agreement.clamp(max=1 - 1e-4)), strength], 1)


def strengths(found: Reconstruction) -> Tensor:
    """log(dual * contrast), relative to the median of the candidates in use, [m]."""
    sizes = found.duals.abs()
    logs = (sizes * found.images.flatten(1).std(1, correction=0)).clamp(min=1e-30).log()
    used = logs[sizes > IN_USE * sizes.max()]
    return (logs - (used.median() if len(used) else 0.0)).clamp(-FURTHEST, FURTHEST)


@dataclass(frozen=True, eq=False)
class Likeness:
    """NCC of candidates [m, d] with the same label [m], -1 between labels; `size` rows at a time."""

    unit: Tensor
    labels: Tensor
    size: int

    @classmethod
    def of(cls, found: Reconstruction, room: int) -> Likeness:
        centred = found.images.flatten(1) - found.images.flatten(1).mean(1, keepdim=True)
        unit = centred / centred.norm(dim=1, keepdim=True).clamp(min=1e-12)
        return cls(unit, found.labels, max(1, room // (ARRAYS * unit.element_size() * len(unit))))

    def blocks(self, order: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The candidates of `order` [m] in turn, some at a time, and their similarities [size, m]."""
        for rows in torch.split(order, self.size):
            yield rows, self._rows(rows) if self._whole is None else self._whole[rows]

    @cached_property
    def _whole(self) -> Tensor | None:
        """All rows, computed once, if they are one block."""
        return self._rows(torch.arange(len(self.unit))) if self.size >= len(self.unit) else None

    def _rows(self, rows: Tensor) -> Tensor:
        found = self.unit.new_full((len(rows), len(self.unit)), -1.0)
        for label in set(self.labels.tolist()):  # with ten classes, a tenth of the products
            (own,) = (self.labels[rows] == label).nonzero(as_tuple=True)
            (same,) = (self.labels == label).nonzero(as_tuple=True)
            found[own[:, None], same] = self.unit[rows[own]] @ self.unit[same].T
        return found


def agreements(likeness: Tensor, rows: Tensor, restarts: int) -> Tensor:
    """Best similarity in another restart; `likeness` [b, R m] of candidates `rows` -> [b]."""
    each = likeness.shape[1] // restarts
    best = likeness.view(len(rows), restarts, each).amax(2)  # candidate x restart
    best[torch.arange(len(rows)), rows // each] = 0
    return best.amax(1)


ALIKE = 0.9


def crowds(likeness: Tensor, rows: Tensor, restarts: int) -> Tensor:
    """How many others of its own restart are alike; `likeness` [b, R m] of candidates `rows` -> [b]."""
    each = likeness.shape[1] // restarts
    own = likeness.view(len(rows), restarts, each)[torch.arange(len(rows)), rows // each]
    return (own > ALIKE).sum(1) - 1


def confidence(evidence: Tensor, constants: Constants = CLEAN) -> Tensor:
    """The calibrated probability that a candidate shows a training image; [m, 2] -> [m].

    >>> confidence(torch.tensor([[1.0, 0.0], [4.0, 0.0], [5.0, 2.0]])) > 0.5
    tensor([False, False,  True])
    """
    at_zero, *slopes = constants
    return torch.sigmoid(at_zero + evidence @ torch.tensor(slopes).to(evidence))


def _merged(found: Reconstruction, likenesses: Likeness, order: Tensor, scores: Tensor) -> Reconstruction:
    """Greedily in `order`: each candidate absorbs every similar one that is still free."""
    free = torch.ones(len(found), dtype=torch.bool)
    images, duals, leaders = [], [], []
    for rows, likeness in likenesses.blocks(order):
        same = likeness >= SAME_IMAGE
        for leader, alike, count in zip(rows.tolist(), same, same.sum(1).tolist(), strict=True):
            if not free[leader]:
                continue
            if count <= 1:  # most candidates are like no other
                free[leader] = False
                images.append(found.images[leader])
                duals.append(found.duals[leader])
                leaders.append(leader)
                continue
            members = (alike & free).index_fill(0, torch.tensor([leader]), True)
            free &= ~members
            weights = found.duals[members] + 1e-12
            share = (weights / weights.sum()).view(-1, *[1] * (found.images.ndim - 1))
            images.append((share * found.images[members]).sum(0))
            duals.append(found.duals[members].mean())
            leaders.append(leader)
    return Reconstruction(torch.stack(images), torch.stack(duals), found.labels[leaders], scores[leaders])


ROUNDS = 4
INK = 0.25
"""Pixels that rise less than this share of the image's own range above the background belong to it."""
BRIGHTEST = 0.99
"""Quantile of an image's pixels that is taken for white; single pixels are often wrong."""


def on_background(found: Reconstruction, pixel_range: tuple[float, float]) -> Reconstruction:
    """The candidates with a background of exactly the lowest pixel value, and the mean image that follows.

    x = pixels - mean, so where a candidate shows background, x = low - mean: the background of all candidates is
    the mean in negative. It is estimated from their lowest values, then from all pixels that it leaves as
    background; each candidate's range makes up for its contrast, which the prior lowers.
    """
    low, high = pixel_range
    values = found.images.flatten(1)
    level = background_level(values, found.duals)
    trust = found.duals if found.scores is None or not found.has_confidence else found.scores.nan_to_num(0.0)
    pixels = torch.zeros_like(values)
    for _ in range(ROUNDS):
        risen = values - level
        pixels = (risen / risen.quantile(BRIGHTEST, dim=1, keepdim=True).clamp(min=1e-12)).clamp(0, 1)
        pixels = torch.where(pixels < INK, 0.0, pixels)
        empty = (pixels == 0) * found.duals[:, None]
        level = (empty * values).sum(0) / empty.sum(0).clamp(min=1e-12)
    pixels = low + (high - low) * pixels
    share = trust / trust.sum().clamp(min=1e-12)
    mean = (share[:, None] * pixels).sum(0)
    shape = found.images.shape
    return replace(found, images=(pixels - mean).view(shape), mean=mean.view(shape[1:]))
