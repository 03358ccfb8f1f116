"""What is left of a layer's initialisation, and the directions above it, read off the singular values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.reconstruct.engine.row_space import SAFETY, RowSpace, marchenko_pastur_quantile, noise_level

FEWEST_VALUES = 20
"""The noise is fitted to the lower fifth of the singular values: at least four."""
TOLERANCE = 0.1
"""A fit that moves by more than this with one place in the spectrum tells nothing."""
LOWER_FIFTH = 0.2


@dataclass(frozen=True)
class Noise:
    """Standard deviation of the entries that training left alone, and their share of the layer's energy."""

    std: float
    share: float


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The first layer's singular values [min(h, d)], descending, and where their noise ends.

    `rank` counts the directions of the row space that stand above their noise: those whose value is above
    `threshold` = `SAFETY` x `edge`, and of images also weaker ones that stand out among low frequencies. Where the
    layer is too small to tell its noise, that is None and all directions count.
    """

    values: Tensor
    rank: int
    noise_std: float | None
    edge: float | None
    threshold: float | None

    @property
    def hidden(self) -> int:
        """Directions that only low frequencies tell from noise."""
        return 0 if self.threshold is None else max(0, self.rank - int((self.values > self.threshold).sum()))


def noise_is_told(rows: int, columns: int) -> bool:
    """Whether a layer of this shape is large enough for the Marchenko-Pastur fit.

    >>> noise_is_told(1000, 3072), noise_is_told(30, 625), noise_is_told(40, 40), noise_is_told(1, 1000)
    (True, True, False, False)
    """
    count = min(rows, columns)
    if count < FEWEST_VALUES:
        return False
    here, next_place = (
        marchenko_pastur_quantile(rows, columns, share) for share in (LOWER_FIFTH, LOWER_FIFTH + 1 / count)
    )
    return next_place / here - 1 <= TOLERANCE


def remaining_noise(values: Tensor, rows: int, columns: int) -> Noise | None:
    """sigma and sigma² h d / ||W||² for a layer [h, d] with these singular values; None if it is too small.

    sigma is the Marchenko-Pastur fit of the lower fifth. Where training has filled even that, both are upper
    bounds. A layer of zeros has no noise.
    """
    if not noise_is_told(rows, columns):
        return None
    energy = float(values.square().sum())
    std = noise_level(values, rows, columns, LOWER_FIFTH)
    return Noise(std, min(1.0, std**2 * rows * columns / energy) if energy > 0 else 0.0)


def whole_row_space(weight: Tensor) -> RowSpace:
    """Every direction of W [h, d], down to rounding: for layers too small to tell noise from signal."""
    _, values, directions = torch.linalg.svd(weight.double(), full_matrices=False)
    kept = values > max(weight.shape) * torch.finfo(weight.dtype).eps * values[0]
    rank = int(kept.sum())
    return RowSpace(directions[:rank].to(weight.dtype), values[:rank], rank, values, 0.0, 0.0)


def spectrum(space: RowSpace, rows: int, columns: int) -> Spectrum:
    """The spectrum of a first layer [h, d]; unlike the attack's basis, it may hold no direction at all."""
    if not noise_is_told(rows, columns):
        return Spectrum(space.singular_values, space.rank, None, None, None)
    return Spectrum(space.singular_values, space.detected, space.noise_std, space.edge, SAFETY * space.edge)
