"""Scores of images against all candidates, one block of images at a time, so that the vote needs no second pass.

Memory is bounded twice: images come in blocks whose scores with all candidates fit SCORES_AT_ONCE, and each block
is filled in chunks of candidates that are small enough to stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from engram.core.errors import DataError, require
from engram.core.progress import Progress, silent

SCORES_AT_ONCE = 2**27
"""Scores held at once: 512 MB in float32."""

FEATURES_AT_ONCE = 2**22
"""Numbers in a chunk's features or scores: 16 MB in float32, small enough for the cache, enough for matmul."""


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores of every image against a chunk of candidates, [n, c]; higher is nearer.

    scores = compare(queries, features(chunk)), with queries [n, d] computed once and chunk [c, *shape].
    """

    queries: Tensor
    features: Callable[[Tensor], Tensor]
    compare: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, chunk: Tensor) -> Tensor:
        return self.compare(self.queries, self.features(chunk.to(self.queries)))

    def __len__(self) -> int:
        return len(self.queries)

    def only(self, images: slice) -> Scorer:
        """The same for a subset of the images."""
        return replace(self, queries=self.queries[images])


def all_scores(
    scorer: Scorer, candidates: Tensor, *, chunk: int | None = None, progress: Progress = silent
) -> Tensor:
    """The whole score matrix of n images and candidates [m, *shape], [n, m].

    >>> import torch
    >>> dot = Scorer(torch.eye(2), lambda chunk: chunk, lambda a, b: a @ b.T)
    >>> all_scores(dot, torch.tensor([[1.0, 0.0], [3.0, 1.0], [0.0, 2.0]]), chunk=2)
    tensor([[1., 3., 0.],
            [0., 1., 2.]])
    """
    require(len(candidates) > 0, "candidates", "must not be empty", tuple(candidates.shape))
    scores = scorer.queries.new_empty(len(scorer), len(candidates))
    for start, block in chunks(candidates, chunk or max(1, FEATURES_AT_ONCE // max(scorer.queries.shape))):
        _require_finite(block, start)
        scores[:, start : start + len(block)] = scorer(block)
        progress("scoring", (start + len(block)) / len(candidates))
    return scores


def image_blocks(images: int, candidates: int) -> list[slice]:
    """Slices of nearly equal size whose scores with all candidates fit SCORES_AT_ONCE (at least one image).

    >>> image_blocks(5_000, 100_000)
    [slice(0, 1250, None), slice(1250, 2500, None), slice(2500, 3750, None), slice(3750, 5000, None)]
    """
    count = -(-images // max(1, SCORES_AT_ONCE // candidates))
    size = -(-images // count)
    return [slice(start, min(start + size, images)) for start in range(0, images, size)]


def chunks(candidates: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
    """(index of the first, candidates) for consecutive slices; slices share memory with `candidates`."""
    for start in range(0, len(candidates), size):
        yield start, candidates[start : start + size]


def _require_finite(block: Tensor, start: int) -> None:
    rows = block.flatten(1)
    if bool(rows.sum(1).isfinite().all()):  # a cheap test first; the exact one is needed only if it fails
        return
    finite = rows.isfinite().all(1)
    if not bool(finite.all()):
        raise DataError(
            f"candidate {start + int((~finite).int().argmax())} contains NaN or infinity and has no distance; "
            "drop such candidates first: candidates[candidates.flatten(1).isfinite().all(1)]"
        )


NUMBERS_AT_ONCE = 2**24
"""Numbers in a chunk of candidates or of votes, 64 MB in float32."""

CROWDED = 16
"""If more than one in this many candidates votes for an image, it is averaged by a matrix product: a number costs
about a sixteenth as much there as in a gather."""


def vote_2023(best: Tensor, B: float = 1.1) -> Tensor:
    """Floor of the 2023 vote: distance within B times the nearest distance, D = 2 d (1 - ncc).

    D <= B D_best  <=>  ncc >= 1 - B (1 - ncc_best); never above ncc_best, whatever the rounding. [n] -> [n].

    >>> vote_2023(torch.tensor([0.5, 1.0]), B=1.5)
    tensor([0.2500, 1.0000])
    """
    require(B >= 1, "B", "must be at least 1", B, "the papers use 1.1 (MLP) and 1.5 (convolutional)")
    return torch.minimum(1 - B * (1 - best), best)


def vote_2022(best: Tensor, fraction: float = 0.9) -> Tensor:
    """Floor of the 2022 vote: ncc >= fraction * ncc_best, [n] -> [n].

    If even the best NCC is negative, the fraction would exclude the best itself; then only it votes.

    >>> vote_2022(torch.tensor([0.5, -0.5]), fraction=0.5)
    tensor([ 0.2500, -0.5000])
    """
    require(0 < fraction <= 1, "fraction", "must be in (0, 1]", fraction, "the paper uses 0.9")
    return torch.minimum(fraction * best, best)


def vote_average(
    candidates: Tensor,
    scores: Tensor,
    floor: Tensor,
    *,
    prepare: Callable[[Tensor], Tensor] = lambda chosen: chosen,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean of the prepared candidates whose score reaches the floor, and their number.

    average_i = (1/C_i) sum over j with score_ij >= floor_i of prepare(y_j)

    Every image needs a vote: floor_i <= max_j score_ij. candidates [m, *shape], scores [n, m], floor [n] ->
    average [n, *shape], votes [n] int64.

    >>> vote_average(torch.tensor([[2.0], [4.0], [9.0]]), torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([0.5]))
    (tensor([[3.]]), tensor([2]))
    """
    totals = scores.new_zeros(len(scores), candidates[0].numel())
    votes = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
    for start, block in chunks(candidates, chunk or max(1, NUMBERS_AT_ONCE // max(totals.shape))):
        there = scores[:, start : start + len(block)]
        voting = torch.ge(there, floor[:, None], out=torch.empty_like(there))  # 0 or 1, as the product needs it
        counts = voting.sum(1).to(torch.int64)
        _add(totals, voting, counts, prepare(block.to(totals)).flatten(1))
        votes += counts
    return (totals / votes[:, None]).view(-1, *candidates.shape[1:]), votes


def _add(totals: Tensor, voting: Tensor, counts: Tensor, prepared: Tensor) -> None:
    """totals += voting @ prepared: [n, d], [n, c] of 0 and 1 with `counts` [n] ones in a row, [c, d].

    Crowded rows by a matrix product; the others, nearly all zeros, by a gather.
    """
    crowded = counts * CROWDED > len(prepared)
    for rows, total in ((crowded, _product), (~crowded, _picked)):
        if bool(rows.all()):  # no copy of the votes
            totals += total(voting, counts, prepared)
        elif bool(rows.any()):
            totals[rows] += total(voting[rows], counts[rows], prepared)


def _product(voting: Tensor, counts: Tensor, prepared: Tensor) -> Tensor:
    return voting @ prepared


def _picked(voting: Tensor, counts: Tensor, prepared: Tensor) -> Tensor:
    columns = voting.nonzero(as_tuple=True)[1]  # row by row, so that a row's picks are adjacent
    return embedding_bag(columns, prepared, counts.cumsum(0) - counts, mode="sum")
