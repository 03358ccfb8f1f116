"""Scores of images against candidates, whole for a block of images, so that the vote needs no second pass.

Memory is bounded twice over: images come in blocks whose scores with all candidates fit SCORES_AT_ONCE, and
each block's scores are filled candidate chunk by candidate chunk, small enough to stay in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from engram.errors import DataError, require

Progress = Callable[[int, int], None]
"""Called with (work done, work in all)."""

SCORES_AT_ONCE = 2**27
"""Scores held at once: 512 MB in float32."""

FEATURES_AT_ONCE = 2**22
"""Numbers in a chunk's features or scores: 16 MB in float32, few enough for the cache, enough for the product."""


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

    def only(self, images: slice) -> Scorer:
        """The same for some of the images."""
        return replace(self, queries=self.queries[images])


def all_scores(
    scorer: Scorer, candidates: Tensor, *, chunk: int | None = None, progress: Progress | None = None
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
        if progress is not None:
            progress(start + len(block), len(candidates))
    return scores


def image_blocks(images: int, candidates: int) -> list[slice]:
    """Slices of nearly equal size whose scores with all candidates fit SCORES_AT_ONCE (one image at the least).

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
    if bool(rows.sum(1).isfinite().all()):  # one quick reading; the exact test is needed only if this fails
        return
    finite = rows.isfinite().all(1)
    if not bool(finite.all()):
        raise DataError(
            f"candidate {start + int((~finite).int().argmax())} holds NaN or infinity and has no distance; "
            "drop such candidates first: candidates[candidates.flatten(1).isfinite().all(1)]"
        )
