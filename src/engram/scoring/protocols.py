"""Scoring protocols: how near is measured, who votes, which metrics. The papers' two, and one for plain vectors.

Coordinates: `images` are pixels in [0, 1]; candidates and `originals` = images - mean are what the network
sees ("network coordinates").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from engram.core.errors import require
from engram.scoring.match import Threshold
from engram.scoring.metrics import Scorer, half_resolution, ssim, stretched, vote_2022, vote_2023, zscored

IMAGE_THRESHOLDS = (Threshold("ssim", 0.4), Threshold("ncc", 0.8), Threshold("ncc", 0.9))
VECTOR_THRESHOLDS = (Threshold("relative_l2", 0.1), Threshold("relative_l2", 0.3), *IMAGE_THRESHOLDS[1:])


@dataclass(frozen=True, eq=False)
class Measures:
    """A protocol's metrics [n] of finished reconstructions; None where undefined."""

    reconstruction: Tensor
    ssim: Tensor | None = None
    ncc: Tensor | None = None
    relative_l2: Tensor | None = None


class ScoringProtocol(Protocol):
    """The steps of scoring that differ between protocols; `score` runs them in order."""

    name: ClassVar[str]
    thresholds: ClassVar[tuple[Threshold, ...]]
    images_only: ClassVar[bool]
    """Whether it needs pixels [n, C, H, W] in [0, 1]."""

    def scorer(self, originals: Tensor) -> Scorer:
        """Scores of originals [n, *shape] against candidates."""

    def distance(self, scores: Tensor, originals: Tensor) -> Tensor:
        """The distance that scores [n] stand for."""

    def floor(self, best: Tensor) -> Tensor | None:
        """Lowest score that votes, given the best scores [n]; None if only the nearest candidate counts."""

    def prepare(self, candidates: Tensor) -> Tensor:
        """Candidates as they are averaged, [c, *shape] -> [c, *shape]."""

    def measure(self, averages: Tensor, images: Tensor, mean: Tensor, shown_mean: Tensor) -> Measures:
        """Measure the averages [n, *shape] against the images they were matched to.

        `mean` is the training set's; `shown_mean` is added to make pictures: the attacker's own, if it has one.
        """


@dataclass(frozen=True)
class Buzaglo2023Protocol:
    """z-scored L2 (Eq. 16), average within B times the nearest distance, add the mean, stretch, SSIM.

    B = 1.1 for MLPs, 1.5 for convolutional networks. A constant candidate counts as uncorrelated with
    everything, distance 2 d: the zero vector's own distance d would beat every candidate with NCC below 1/2.
    """

    B: float = 1.1
    name: ClassVar[str] = "buzaglo2023"
    thresholds: ClassVar[tuple[Threshold, ...]] = IMAGE_THRESHOLDS
    images_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(self.B >= 1, "B", "must be at least 1", self.B, "the paper uses 1.1 (MLP) and 1.5 (convolutional)")

    def scorer(self, originals: Tensor) -> Scorer:
        """NCC over all channels together."""
        return Scorer(zscored(originals) / originals[0].numel(), zscored, _products)

    def distance(self, scores: Tensor, originals: Tensor) -> Tensor:
        """2 d (1 - ncc)."""
        return 2 * originals[0].numel() * (1 - scores.clamp(-1, 1))

    def floor(self, best: Tensor) -> Tensor:
        return vote_2023(best, self.B)

    def prepare(self, candidates: Tensor) -> Tensor:
        """Unchanged: the 2023 paper averages in network coordinates."""
        return candidates

    def measure(self, averages: Tensor, images: Tensor, mean: Tensor, shown_mean: Tensor) -> Measures:
        return _measure_images(averages, images, mean, shown_mean)


@dataclass(frozen=True)
class Haim2022Protocol:
    """Stretch candidates to [0, 1], NCC per channel, average those within 0.9 of the best NCC, add the mean,
    stretch, SSIM.

    `half_resolution` compares 2x2 averages; None follows the paper: colour images (CIFAR) yes, grey no.
    """

    fraction: float = 0.9
    half_resolution: bool | None = None
    name: ClassVar[str] = "haim2022"
    thresholds: ClassVar[tuple[Threshold, ...]] = IMAGE_THRESHOLDS
    images_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require(0 < self.fraction <= 1, "fraction", "must be in (0, 1]", self.fraction, "the paper uses 0.9")

    def scorer(self, originals: Tensor) -> Scorer:
        """NCC of separately z-scored channels. The paper stretches first, which does not change NCC."""
        queries = self._features(originals)
        return Scorer(queries / queries.shape[1], self._features, _products)

    def distance(self, scores: Tensor, originals: Tensor) -> Tensor:
        """2 d (1 - ncc), with d the number of values compared."""
        d = originals[0].numel() // (4 if self._halves(originals) else 1)
        return 2 * d * (1 - scores.clamp(-1, 1))

    def floor(self, best: Tensor) -> Tensor:
        return vote_2022(best, self.fraction)

    def prepare(self, candidates: Tensor) -> Tensor:
        return stretched(candidates)

    def measure(self, averages: Tensor, images: Tensor, mean: Tensor, shown_mean: Tensor) -> Measures:
        return _measure_images(averages, images, mean, shown_mean)

    def _features(self, images: Tensor) -> Tensor:
        return zscored(half_resolution(images) if self._halves(images) else images, per_channel=True)

    def _halves(self, images: Tensor) -> bool:
        return images.shape[1] > 1 if self.half_resolution is None else self.half_resolution


@dataclass(frozen=True)
class VectorProtocol:
    """Points and vectors [n, d], which have no SSIM: nearest by L2, no vote, no stretching.

    NCC is left out below three dimensions, where z-scoring leaves only a sign.
    """

    name: ClassVar[str] = "vector"
    thresholds: ClassVar[tuple[Threshold, ...]] = VECTOR_THRESHOLDS
    images_only: ClassVar[bool] = False

    def scorer(self, originals: Tensor) -> Scorer:
        """-||x - y||, from differences rather than products, which lose precision for near pairs."""
        return Scorer(originals.flatten(1), lambda chunk: chunk.flatten(1), _negative_l2)

    def distance(self, scores: Tensor, originals: Tensor) -> Tensor:
        """L2."""
        return -scores

    def floor(self, best: Tensor) -> None:
        return None

    def prepare(self, candidates: Tensor) -> Tensor:
        return candidates

    def measure(self, averages: Tensor, images: Tensor, mean: Tensor, shown_mean: Tensor) -> Measures:
        originals = images - mean
        difference = (averages - originals).flatten(1).norm(dim=1)
        relative = torch.where(difference == 0, 0, difference / originals.flatten(1).norm(dim=1))
        paired = paired_ncc(averages, originals) if originals[0].numel() > 2 else None
        return Measures(averages + shown_mean, ncc=paired, relative_l2=relative)


def paired_ncc(a: Tensor, b: Tensor) -> Tensor:
    """NCC of each pair, [n, ...] twice -> [n]."""
    return (zscored(a) * zscored(b)).mean(1).clamp(-1, 1)


def _measure_images(averages: Tensor, images: Tensor, mean: Tensor, shown_mean: Tensor) -> Measures:
    """Add the mean, stretch, SSIM; NCC without the mean, [n, C, H, W] each."""
    reconstruction = stretched(averages + shown_mean)
    return Measures(reconstruction, ssim=ssim(reconstruction, images), ncc=paired_ncc(averages, images - mean))


def _products(queries: Tensor, features: Tensor) -> Tensor:
    return queries @ features.T


def _negative_l2(queries: Tensor, features: Tensor) -> Tensor:
    return -torch.cdist(queries, features, compute_mode="donot_use_mm_for_euclid_dist")
