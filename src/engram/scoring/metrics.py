"""How similar two images are: distances that ignore brightness and contrast, SSIM, and a vote of candidates.

Scores of images against all candidates are made one block of images at a time, so that the vote needs no second
pass. Memory is bounded twice: the scores of a block with all candidates fit SCORES_AT_ONCE, and each block is
filled in chunks of candidates that are small enough to stay in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, embedding_bag, pad

from engram.core.errors import DataError, require
from engram.core.loop import Progress, silent


def zscored(images: Tensor, per_channel: bool = False) -> Tensor:
    """Flatten each image and z-score it: z = (x - mean(x)) / std(x), with std over d (not d - 1) values.

    `per_channel` z-scores each channel separately and then scales the whole image to mean square 1, which only
    matters if a channel is constant. A constant image has no z-score: it becomes zeros.

    images [n, C, H, W] or [n, d] -> [n, d].

    >>> zscored(torch.tensor([[0.0, 2.0], [5.0, 5.0]]))
    tensor([[-1.,  1.],
            [ 0.,  0.]])
    """
    images = _floating(images)
    require(images.ndim >= 2, "images", "must be [n, C, H, W] or [n, d]", tuple(images.shape))
    if not per_channel:
        return _standardised(images.flatten(1))
    require(
        images.ndim == 4,
        "images",
        "must be [n, C, H, W] to be z-scored per channel",
        tuple(images.shape),
        "pass vectors with per_channel=False",
    )
    return _unit_mean_square(_standardised(images.flatten(2)).flatten(1))


def ncc(a: Tensor, b: Tensor, per_channel: bool = False) -> Tensor:
    """Normalised cross-correlation of every image of `a` with every image of `b`.

    ncc_ij = (1/d) sum_k z(a_i)_k z(b_j)_k, in [-1, 1]; 0 if either image is constant.

    a [n, ...], b [m, ...] -> [n, m].

    >>> ncc(torch.tensor([[0.0, 1.0]]), torch.tensor([[3.0, 7.0], [7.0, 3.0], [4.0, 4.0]]))
    tensor([[ 1., -1.,  0.]])
    """
    require_same_shape(a, b)
    za, zb = zscored(a, per_channel), zscored(b, per_channel)
    dtype = torch.promote_types(za.dtype, zb.dtype)
    return (za.to(dtype) @ zb.to(dtype).T / za.shape[1]).clamp(-1, 1)


def half_resolution(images: Tensor) -> Tensor:
    """Average 2x2 blocks of pixels, as the 2022 protocol does with CIFAR: [n, C, H, W] -> [n, C, H/2, W/2].

    >>> half_resolution(torch.tensor([[[[1.0, 3.0], [5.0, 7.0]]]]))
    tensor([[[[4.]]]])
    """
    even = images.ndim == 4 and images.shape[2] % 2 == 0 and images.shape[3] % 2 == 0
    require(even, "images", "must be [n, C, H, W] with even H and W", tuple(images.shape), "crop or pad them")
    return avg_pool2d(_floating(images), 2)


def stretched(images: Tensor) -> Tensor:
    """Map each image's minimum to 0 and maximum to 1 (all channels together); a constant image becomes zeros.

    (x - min x) / (max x - min x), shapes [n, ...] -> [n, ...].

    >>> stretched(torch.tensor([[-1.0, 0.0, 3.0], [2.0, 2.0, 2.0]]))
    tensor([[0.0000, 0.2500, 1.0000],
            [0.0000, 0.0000, 0.0000]])
    """
    flat = _floating(images).flatten(1)
    low, high = _extremes(flat)
    span = torch.where(high > low, high - low, torch.ones_like(low))
    return ((flat - low) / span).view(images.shape)


def require_same_shape(a: Tensor, b: Tensor, names: tuple[str, str] = ("a", "b")) -> None:
    """Both batches must have items of one shape; the message gives both shapes."""
    require(
        a.ndim >= 2 and a.shape[1:] == b.shape[1:],
        f"{names[0]} and {names[1]}",
        "must have images of one shape",
        (tuple(a.shape), tuple(b.shape)),
        "reshape one of them to [count, *image shape] of the other",
    )


def _floating(images: Tensor) -> Tensor:
    """Float32 and float64 unchanged, anything else as float32."""
    return images if images.dtype in (torch.float32, torch.float64) else images.float()


def _extremes(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest along the last axis, [..., 1] each; torch's `aminmax` is eight times slower."""
    return rows.amin(-1, keepdim=True), rows.amax(-1, keepdim=True)


def _constant(rows: Tensor) -> Tensor:
    """Exact test, since the standard deviation of a constant is rarely exactly 0: [..., d] -> [..., 1]."""
    low, high = _extremes(rows)
    return low == high


def _standardised(rows: Tensor) -> Tensor:
    """Mean 0 and mean square 1 along the last axis; constant rows become 0.

    Dividing by the largest entry first keeps the squares of tiny candidates from underflowing in float32. That
    entry is an extreme of `rows`, since subtracting the mean keeps the order.
    """
    low, high = _extremes(rows)
    mean = rows.mean(-1, keepdim=True)
    peak = torch.where(low == high, torch.inf, torch.maximum(high - mean, mean - low))  # x / inf = 0
    return _unit_mean_square((rows - mean).div_(peak))


def _unit_mean_square(rows: Tensor) -> Tensor:
    """Scale rows, in place, to mean square 1; zero rows stay zero."""
    size = torch.linalg.vector_norm(rows, dim=-1, keepdim=True) / rows.shape[-1] ** 0.5
    return rows.div_(torch.where(size > 0, size, torch.ones_like(size)))


C1 = 0.01**2
C2 = 0.03**2
SIGMA = 1.5
PAIRS_AT_ONCE = 64
"""Few enough for the maps of a batch to stay in the cache; 1024 take twice as long."""


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Mean structural similarity of each pair of images in [0, 1]: [n, C, H, W] twice -> [n].

    >>> x = torch.linspace(0, 1, 16).view(1, 1, 4, 4)
    >>> bool(torch.isclose(ssim(x, x), torch.ones(1)))
    True
    >>> black, white = torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 4, 4)
    >>> bool(torch.isclose(ssim(black, white), torch.tensor(C1 / (1 + C1))))
    True
    """
    require_same_shape(a, b)
    require(len(a) == len(b), "a and b", "must have the same number of images", (tuple(a.shape), tuple(b.shape)))
    if not len(a):
        return a.new_zeros(0)
    blocks = [slice(start, start + PAIRS_AT_ONCE) for start in range(0, len(a), PAIRS_AT_ONCE)]
    return torch.cat([ssim_map(a[block], b[block]).mean((1, 2, 3)) for block in blocks])


def ssim_map(a: Tensor, b: Tensor) -> Tensor:
    """SSIM at every pixel and channel, [n, C, H, W] twice -> [n, C, H, W].

    (2 mu_a mu_b + C1)(2 s_ab + C2) / ((mu_a² + mu_b² + C1)(s_aa + s_bb + C2)), where mu = w * x and
    s_xy = w * (x y) - mu_x mu_y under the window w. The border is mirrored without repeating the edge pixel
    (torch's 'reflect'); scikit-image repeats it, so the two agree only away from the border.
    """
    require_same_shape(a, b)
    large_enough = a.ndim == 4 and min(a.shape[2:]) >= 2
    require(large_enough, "images", "must be [n, C, H, W] with H and W at least 2", tuple(a.shape))
    dtype = torch.promote_types(a.dtype, b.dtype)
    a, b = a.to(dtype), b.to(dtype)
    mean_a, mean_b = _blurred(a), _blurred(b)
    variance_a = _blurred(a * a) - mean_a**2
    variance_b = _blurred(b * b) - mean_b**2
    covariance = _blurred(a * b) - mean_a * mean_b
    alike = (2 * mean_a * mean_b + C1) * (2 * covariance + C2)
    return alike / ((mean_a**2 + mean_b**2 + C1) * (variance_a + variance_b + C2))


def _blurred(images: Tensor) -> Tensor:
    """Gaussian 3x3 window at every pixel; the window is separable: a row (w1, w0, w1), then a column."""
    falloff = math.exp(-1 / (2 * SIGMA**2))  # the neighbour's weight for a centre of 1
    side, centre = falloff / (1 + 2 * falloff), 1 / (1 + 2 * falloff)
    padded = pad(images, (1, 1, 1, 1), mode="reflect")
    across: Tensor = centre * padded[..., 1:-1] + side * (padded[..., :-2] + padded[..., 2:])
    blurred: Tensor = centre * across[..., 1:-1, :] + side * (across[..., :-2, :] + across[..., 2:, :])
    return blurred


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
