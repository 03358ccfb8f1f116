"""evaluate: the same scoring for training images, for held-out images, and for noise candidates.

A count of good reconstructions means nothing by itself: blurry candidates match images that the network never
saw, and noise plus the mean image is the mean image. What was recovered is the excess over held-out.

Read the SSIM excess together with the noise count: the training mean contains 1/n of every training image, so for
small n even noise plus that mean is slightly more similar to training images than to held-out ones. NCC, which is
taken without the mean, does not have this bias.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import torch
from torch import Tensor

from engram.core.errors import require
from engram.core.loop import Progress, silent
from engram.scoring.match import Assignment, MatchTable, Threshold, score
from engram.scoring.protocols import ScoringProtocol

SCHEMA_VERSION = 1
SSIM_GOOD = 0.4
"""The papers' threshold for a good reconstruction."""
NOISE_SIGMA = 1e-3


@dataclass(frozen=True, kw_only=True)
class Count:
    """Training images that pass a threshold, and the same count for held-out images and for noise candidates.

    excess = train - held_out * n_train / n_held_out is what was recovered; None without held-out images.
    `distinct_candidates` counts the different candidates of the training images that pass.
    """

    train: int
    held_out: int | None
    excess: float | None
    noise: int
    distinct_candidates: int | None = None

    @property
    def recovered(self) -> float:
        """The excess over held-out; the whole count if there were no held-out images."""
        return float(self.train if self.excess is None else self.excess)


@dataclass(frozen=True, eq=False)
class ScoreReport:
    """The tables for training images, held-out images and noise candidates, and the counts made from them."""

    protocol: ScoringProtocol
    assignment: Assignment
    candidates: int
    seconds: float
    counts: Mapping[str, Count]
    """By threshold, e.g. "ncc>0.8"; the papers' SSIM first."""
    train: MatchTable
    held_out: MatchTable | None
    noise: MatchTable
    warnings: tuple[str, ...] = ()

    @property
    def top10_mean(self) -> float | None:
        """Mean primary metric (SSIM for images) of the ten best training images, or of all if there are fewer."""
        best = getattr(self.train.top(10), self.train.primary)
        matched = best[best.isfinite()]
        return float(matched.mean()) if len(matched) else None

    def to_json(self, *, records: bool = False) -> dict[str, Any]:
        """A JSON-ready dict; `records` adds one entry per training image."""
        settings: dict[str, Any] = asdict(self.protocol) if is_dataclass(self.protocol) else {}
        report: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "protocol": {"name": self.protocol.name, **settings},
            "assignment": self.assignment,
            "n_train": len(self.train),
            "n_held_out": 0 if self.held_out is None else len(self.held_out),
            "candidates": self.candidates,
            "distinct_candidates": self.train.distinct_candidates(),
            "seconds": self.seconds,
            "top10_mean": {self.train.primary: self.top10_mean},
            "counts": {text: asdict(count) for text, count in self.counts.items()},
            "warnings": list(self.warnings),
        }
        return report | ({"records": self.train.to_records()} if records else {})


def evaluate(
    candidates: Tensor,
    train_images: Tensor,
    held_out_images: Tensor | None,
    mean: Tensor,
    *,
    protocol: ScoringProtocol,
    generator: torch.Generator,
    assignment: Assignment = "nearest",
    shown_mean: Tensor | None = None,
    labels: Tensor | None = None,
    model_outputs: Tensor | None = None,
    thresholds: Sequence[Threshold] | None = None,
    noise_sigma: float = NOISE_SIGMA,
    progress: Progress = silent,
) -> ScoreReport:
    """Score candidates against training and held-out images, and noise candidates against training images.

    candidates [m, *shape] in network coordinates; train_images [n, *shape] and held_out_images [k, *shape] in
    [0, 1], of the same classes; mean [*shape] of the training set, used for all three. Use k = n if
    possible; otherwise the excess scales the held-out count by n / k, with a warning. Without held-out images the
    excess is None, with a warning. `shown_mean` is the attacker's own, if it has one; see `score`. `generator`
    draws the noise, N(0, noise_sigma²). `thresholds` replaces the protocol's own, of which those with an undefined
    metric are left out.
    """
    started = time.perf_counter()
    train = score(
        candidates,
        train_images,
        mean,
        protocol=protocol,
        assignment=assignment,
        shown_mean=shown_mean,
        labels=labels,
        model_outputs=model_outputs,
        progress=progress,
    )
    held_out = None
    if held_out_images is not None and len(held_out_images):
        held_out = score(
            candidates, held_out_images, mean, protocol=protocol, assignment=assignment, shown_mean=shown_mean
        )
    null = noise_candidates(candidates, generator, sigma=noise_sigma)
    noise = score(null, train_images, mean, protocol=protocol, assignment=assignment, shown_mean=shown_mean)
    defined = [one for one in protocol.thresholds if getattr(train, one.metric) is not None]
    chosen = defined if thresholds is None else thresholds
    return ScoreReport(
        protocol=protocol,
        assignment=assignment,
        candidates=len(candidates),
        seconds=time.perf_counter() - started,
        counts={one.text: _counted(one, train, held_out, noise) for one in chosen},
        train=train,
        held_out=held_out,
        noise=noise,
        warnings=_warnings(train, held_out),
    )


def noise_candidates(like: Tensor, generator: torch.Generator, *, sigma: float = NOISE_SIGMA) -> Tensor:
    """The null: the same number of candidates of the same shape, drawn from N(0, sigma²)."""
    require(sigma > 0, "noise_sigma", "must be positive", sigma, f"the default is {NOISE_SIGMA:g}")
    dtype = torch.promote_types(like.dtype, torch.float32)
    noise = torch.randn(like.shape, generator=generator, device=generator.device, dtype=dtype)
    return noise.mul_(sigma).to(like.device)


def _counted(threshold: Threshold, train: MatchTable, held_out: MatchTable | None, noise: MatchTable) -> Count:
    metric, value = threshold.metric, threshold.value
    hits = train.count(metric, value)
    held = None if held_out is None else held_out.count(metric, value)
    excess = None if held is None or held_out is None else hits - held * len(train) / len(held_out)
    return Count(
        train=hits,
        held_out=held,
        excess=excess,
        noise=noise.count(metric, value),
        distinct_candidates=train.distinct_candidates(metric, value),
    )


EMPTY = 0.5
"""Share of held-out images above a threshold, beyond which the threshold says nothing."""


def _warnings(train: MatchTable, held_out: MatchTable | None) -> tuple[str, ...]:
    if held_out is None:
        return (
            "no held-out images: the excess is unknown, and the counts include matches that any blurry image "
            "would get; give the same number of held-out images of the same classes",
        )
    warnings = []
    if len(held_out) != len(train):
        warnings.append(
            f"the excess scales held-out counts by {len(train)}/{len(held_out)}; "
            "better give as many held-out images as training images"
        )
    passing = held_out.count("ssim", SSIM_GOOD) if held_out.ssim is not None else 0
    if passing > EMPTY * len(held_out):
        warnings.append(
            f"SSIM > {SSIM_GOOD:g} says nothing about these images: {passing} of {len(held_out)} held-out ones "
            "pass it too, since all share a flat background; read the counts by NCC"
        )
    return tuple(warnings)
