"""The nearest candidates of every image; candidates are streamed in chunks, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engram.errors import DataError, require

Progress = Callable[[int, int], None]
"""Called with (candidates done, candidates in all)."""

SCORES_AT_ONCE = 2**24
"""Numbers in the largest temporary: 64 MB in float32, large enough that the matrix product dominates."""

KEPT = 32
"""Candidates remembered for each image. Votes are seldom larger; those that are get an exact second pass."""


@dataclass(frozen=True, eq=False)
class Scorer:
    """Likeness of every image to a chunk of candidates, [n, c]; higher is nearer.

    scores = compare(queries, features(chunk)), with queries [n, d] made once and chunk [c, *shape].
    """

    queries: Tensor
    features: Callable[[Tensor], Tensor]
    compare: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, chunk: Tensor) -> Tensor:
        return self.compare(self.queries, self.features(chunk.to(self.queries)))

    def __len__(self) -> int:
        return len(self.queries)

    def only(self, rows: Tensor) -> Scorer:
        """The same for some of the images."""
        return replace(self, queries=self.queries[rows])


@dataclass(frozen=True, eq=False)
class Nearest:
    """The best candidates of each image, best first: indices [n, k] int64 and scores [n, k]."""

    indices: Tensor
    scores: Tensor

    @property
    def best(self) -> Tensor:
        """Index of the nearest candidate, [n]."""
        return self.indices[:, 0]

    @property
    def best_scores(self) -> Tensor:
        """Score of the nearest candidate, [n]."""
        return self.scores[:, 0]


def search(
    scorer: Scorer,
    candidates: Tensor,
    *,
    keep: int = KEPT,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> Nearest:
    """The `keep` nearest candidates of every image, in one pass over candidates [m, *shape].

    Among candidates of equal score, which comes first is not defined.

    >>> dot = Scorer(torch.eye(2), lambda chunk: chunk, lambda a, b: a @ b.T)
    >>> search(dot, torch.tensor([[1.0, 0.0], [3.0, 1.0], [0.0, 2.0]]), keep=2, chunk=1).indices
    tensor([[1, 0],
            [2, 1]])
    """
    require(len(candidates) > 0, "candidates", "must not be empty", tuple(candidates.shape))
    require(keep > 0, "keep", "must be positive", keep)
    keep = min(keep, len(candidates))
    scores = scorer.queries.new_full((len(scorer), keep), -torch.inf)
    indices = torch.zeros_like(scores, dtype=torch.int64)
    for start, block in chunks(candidates, chunk or chunk_size(scorer)):
        _require_finite(block, start)
        found, places = scorer(block).topk(min(keep, len(block)), dim=1)
        scores, order = torch.cat([scores, found], dim=1).topk(keep, dim=1)
        indices = torch.cat([indices, places + start], dim=1).gather(1, order)
        if progress is not None:
            progress(start + len(block), len(candidates))
    return Nearest(indices, scores)


def all_scores(scorer: Scorer, candidates: Tensor, *, chunk: int | None = None) -> Tensor:
    """The whole score matrix [n, m], for small problems."""
    parts = []
    for start, block in chunks(candidates, chunk or chunk_size(scorer)):
        _require_finite(block, start)
        parts.append(scorer(block))
    return torch.cat(parts, dim=1)


def chunks(candidates: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
    """(index of the first, candidates) for consecutive slices; slices share memory with `candidates`."""
    for start in range(0, len(candidates), size):
        yield start, candidates[start : start + size]


def chunk_size(scorer: Scorer) -> int:
    """How many candidates to take at once so that neither scores nor features grow past the limit."""
    return max(1, SCORES_AT_ONCE // max(scorer.queries.shape))


def _require_finite(block: Tensor, start: int) -> None:
    finite = block.flatten(1).isfinite().all(1)
    if not bool(finite.all()):
        raise DataError(
            f"candidate {start + int((~finite).int().argmax())} holds NaN or infinity and has no distance; "
            "drop such candidates first: candidates[candidates.flatten(1).isfinite().all(1)]"
        )
