"""Match candidates to images by a protocol: each image gets its reconstruction and how good it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from engram.core.errors import require
from engram.core.loop import Progress, part, silent
from engram.scoring.metrics import Scorer, all_scores, image_blocks, require_same_shape, vote_average

if TYPE_CHECKING:
    from engram.scoring.protocols import ScoringProtocol

HIGHER_IS_BETTER = {"ssim": True, "ncc": True, "relative_l2": False, "distance": False}


@dataclass(frozen=True)
class Threshold:
    """A reconstruction passes if its metric is strictly on the better side of the value.

    >>> Threshold("ssim", 0.4).text, Threshold("relative_l2", 0.1).text
    ('ssim>0.4', 'relative_l2<0.1')
    """

    metric: str
    value: float

    def __post_init__(self) -> None:
        require(self.metric in HIGHER_IS_BETTER, "metric", f"must be one of {[*HIGHER_IS_BETTER]}", self.metric)

    @property
    def text(self) -> str:
        return f"{self.metric}{'>' if HIGHER_IS_BETTER[self.metric] else '<'}{self.value:g}"


@dataclass(frozen=True, eq=False)
class MatchTable:
    """One row per training image; every tensor has n rows, and an undefined metric is None.

    Each training image is one row, so a count over rows counts distinct training images. Several rows may
    share a candidate: `distinct_candidates` counts the different ones.
    """

    sample: Tensor
    """Index of the training image in the batch that was scored, int64."""
    candidate: Tensor
    """Index of its best candidate, int64; -1 if it has none (one-to-one with too few candidates)."""
    votes: Tensor
    """How many candidates were averaged, int64."""
    distance: Tensor
    """Distance to the best candidate alone, before the vote, as the protocol measures it."""
    reconstruction: Tensor
    """[n, *shape], ready to show: mean added, and images stretched to [0, 1]."""
    ssim: Tensor | None = None
    """Between the reconstruction as shown and the training image in [0, 1]."""
    ncc: Tensor | None = None
    """In network coordinates: the vote's average before the mean is added, against image minus mean.
    So the mean image alone gains nothing here."""
    relative_l2: Tensor | None = None
    """||candidate - x|| / ||x|| in network coordinates; vectors only, since images are matched up to scale."""
    label: Tensor | None = None
    model_output: Tensor | None = None

    def __len__(self) -> int:
        return len(self.sample)

    @property
    def primary(self) -> str:
        """The metric that sorts the table: SSIM for images, relative L2 for vectors."""
        return "relative_l2" if self.ssim is None else "ssim"

    def passing(self, metric: str, threshold: float) -> Tensor:
        """Which rows are strictly better than the threshold, [n] bool; unmatched rows (NaN) never are."""
        values = self._metric(metric)
        return values > threshold if HIGHER_IS_BETTER[metric] else values < threshold

    def count(self, metric: str, threshold: float) -> int:
        """How many distinct training images pass."""
        return int(self.passing(metric, threshold).sum())

    def distinct_candidates(self, metric: str | None = None, threshold: float = 0.0) -> int:
        """How many different best candidates there are among all rows, or among those that pass."""
        used = self.candidate >= 0
        if metric is not None:
            used = used & self.passing(metric, threshold)
        return len(set(self.candidate[used].tolist()))

    def take(self, rows: Tensor) -> MatchTable:
        """The given rows, in that order."""
        columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        taken: dict[str, Any] = {
            name: None if column is None else column[rows.to(column.device)] for name, column in columns.items()
        }
        return MatchTable(**taken)

    def top(self, k: int, metric: str | None = None) -> MatchTable:
        """The k best rows, best first, by `metric` (the primary one by default); unmatched rows last."""
        metric = metric or self.primary
        values = self._metric(metric)
        worst = -torch.inf if HIGHER_IS_BETTER[metric] else torch.inf
        order = values.nan_to_num(nan=worst).argsort(descending=HIGHER_IS_BETTER[metric], stable=True)
        return self.take(order[: max(k, 0)])

    def to_records(self) -> list[dict[str, Any]]:
        """One JSON-ready dict per row, without the images; undefined and non-finite numbers are None."""
        names = [field.name for field in fields(self) if field.name != "reconstruction"]
        columns = {name: getattr(self, name) for name in names}
        lists = {name: column.tolist() for name, column in columns.items() if column is not None}
        return [
            {name: _plain(lists[name][row]) if name in lists else None for name in names}
            for row in range(len(self))
        ]

    def _metric(self, name: str) -> Tensor:
        require(name in HIGHER_IS_BETTER, "metric", f"must be one of {[*HIGHER_IS_BETTER]}", name)
        values: Tensor | None = getattr(self, name)
        known = [metric for metric in HIGHER_IS_BETTER if getattr(self, metric) is not None]
        require(values is not None, "metric", f"must be one that this protocol defines, {known}", name)
        assert values is not None  # for the type checker
        return values


def _plain(value: Any) -> Any:
    """NaN and infinity are not JSON."""
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


LARGEST_MATRIX = 50_000_000
"""Most entries that `one_to_one` accepts: 400 MB in the float64 that scipy works in."""

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

    With fewer candidates than images, m < n, the remaining n - m images get -1.

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
    """Refuse an assignment that does not fit in memory, before any work."""
    require(
        images * candidates <= LARGEST_MATRIX,
        "one-to-one assignment",
        f"takes at most {LARGEST_MATRIX:,} image-candidate pairs",
        f"{images:,} images × {candidates:,} candidates",
        'use assignment="nearest", or score fewer candidates',
    )


Assignment = Literal["nearest", "one-to-one"]

PIXEL_TOLERANCE = 1e-4
"""Rounding allowed in pixels that went through mean subtraction and back."""


@torch.no_grad()
def score(
    candidates: Tensor,
    images: Tensor,
    mean: Tensor,
    *,
    protocol: ScoringProtocol,
    assignment: Assignment = "nearest",
    shown_mean: Tensor | None = None,
    labels: Tensor | None = None,
    model_outputs: Tensor | None = None,
    progress: Progress = silent,
) -> MatchTable:
    """Find the reconstruction of every image among the candidates, and measure it.

    candidates [m, *shape] in network coordinates (mean subtracted); images [n, *shape] in [0, 1];
    mean [*shape] of the training set. Pictures are candidates plus `shown_mean`, the attacker's own estimate, or
    plus the mean if there is none, as in the papers. labels and model_outputs [n, ...] are only copied.

    "nearest" lets a candidate serve several images, with the protocol's vote. "one-to-one" uses each candidate
    at most once and therefore does not vote: averaging would share candidates again.

    >>> from engram.scoring.protocols import VectorProtocol
    >>> points = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> table = score(points.flip(0), points, torch.zeros(2), protocol=VectorProtocol())
    >>> table.candidate, table.count("relative_l2", 0.1)
    (tensor([1, 0]), 2)
    """
    _check(candidates, images, mean, protocol, assignment, labels, model_outputs)
    dtype = torch.promote_types(torch.promote_types(candidates.dtype, images.dtype), torch.float32)
    images, mean = images.to(dtype), mean.to(images.device, dtype)
    originals = images - mean
    scorer = protocol.scorer(originals)
    find = _assigned if assignment == "one-to-one" else _nearest
    found = find(scorer, candidates, protocol, progress)
    added = mean if shown_mean is None else shown_mean.to(mean)
    measures = protocol.measure(found.averages, images, mean, added)
    unmatched = found.candidate < 0
    return MatchTable(
        sample=torch.arange(len(images), device=images.device),
        candidate=found.candidate,
        votes=found.votes,
        distance=protocol.distance(found.scores, originals),
        reconstruction=_blank(measures.reconstruction, unmatched, 0.0),
        ssim=None if measures.ssim is None else _blank(measures.ssim, unmatched),
        ncc=None if measures.ncc is None else _blank(measures.ncc, unmatched),
        relative_l2=None if measures.relative_l2 is None else _blank(measures.relative_l2, unmatched),
        label=labels,
        model_output=model_outputs,
    )


@dataclass(frozen=True, eq=False)
class _Found:
    """Each image's candidate (-1 for none), its score (NaN for none), the voters' average and their number."""

    candidate: Tensor
    scores: Tensor
    averages: Tensor
    votes: Tensor


def _nearest(scorer: Scorer, candidates: Tensor, protocol: ScoringProtocol, progress: Progress) -> _Found:
    """The nearest candidates and their vote, block by block."""
    blocks = image_blocks(len(scorer), len(candidates))
    parts = []
    for done, images in enumerate(blocks):
        own = part(progress, done / len(blocks), (done + 1) / len(blocks))
        parts.append(_nearest_of_block(scorer.only(images), candidates, protocol, own))
    return _Found(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _nearest_of_block(
    scorer: Scorer, candidates: Tensor, protocol: ScoringProtocol, progress: Progress
) -> tuple[Tensor, ...]:
    """The columns of `_Found`; a separate function, so that its scores are freed before the next block."""
    scores = all_scores(scorer, candidates, progress=progress)
    best, chosen = scores.max(1)
    floor = protocol.floor(best)
    if floor is None:
        return chosen, best, *_alone(candidates, chosen, protocol, scores)
    return chosen, best, *vote_average(candidates, scores, floor, prepare=protocol.prepare)


def _assigned(scorer: Scorer, candidates: Tensor, protocol: ScoringProtocol, progress: Progress) -> _Found:
    """Each image's own candidate, used once."""
    scores = all_scores(scorer, candidates, progress=progress)
    chosen = one_to_one(scores)
    own = scores.gather(1, chosen.clamp(min=0)[:, None]).squeeze(1)
    return _Found(chosen, _blank(own, chosen < 0), *_alone(candidates, chosen, protocol, scores))


def _alone(candidates: Tensor, chosen: Tensor, protocol: ScoringProtocol, like: Tensor) -> tuple[Tensor, Tensor]:
    """Averages and votes if each image has only one candidate."""
    picked = candidates[chosen.clamp(min=0).to(candidates.device)].to(like)
    return protocol.prepare(picked), (chosen >= 0).to(torch.int64)


def _blank(values: Tensor, rows: Tensor, fill: float = torch.nan) -> Tensor:
    """Overwrite the rows without a candidate; a metric without a reconstruction is NaN."""
    return values.masked_fill(rows.view(-1, *[1] * (values.ndim - 1)), fill)


def _check(
    candidates: Tensor,
    images: Tensor,
    mean: Tensor,
    protocol: ScoringProtocol,
    assignment: str,
    labels: Tensor | None,
    model_outputs: Tensor | None,
) -> None:
    require(len(candidates) > 0, "candidates", "must not be empty", tuple(candidates.shape))
    require(len(images) > 0, "images", "must not be empty", tuple(images.shape))
    require_same_shape(candidates, images, ("candidates", "images"))
    require(
        mean.shape == images.shape[1:],
        "mean",
        f"must have the shape of one image, {tuple(images.shape[1:])}",
        tuple(mean.shape),
        "give the training set's mean image, without a batch axis",
    )
    if protocol.images_only:
        require(images.ndim == 4, "images", "must be [n, C, H, W]", tuple(images.shape), "use VectorProtocol()")
        low, high = images.min().item(), images.max().item()
        in_range = low >= -PIXEL_TOLERANCE and high <= 1 + PIXEL_TOLERANCE
        require(
            in_range,
            "images",
            "must have pixels in [0, 1]",
            (low, high),
            "give them without mean subtraction",
        )
    for name, column in (("labels", labels), ("model_outputs", model_outputs)):
        fits = column is None or len(column) == len(images)
        require(fits, name, f"must have one row for each of {len(images)} images", column is None or len(column))
    known = assignment in ("nearest", "one-to-one")
    require(known, "assignment", 'must be "nearest" or "one-to-one"', assignment)
    if assignment == "one-to-one":
        require_assignable(len(images), len(candidates))
