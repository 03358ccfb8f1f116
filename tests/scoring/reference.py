"""Slow, obvious references in float64 numpy: loops over the definitions, nothing shared with the library."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def zscore(image: Array) -> Array:
    flat = image.reshape(-1)
    if flat.min() == flat.max():
        return np.zeros_like(flat)
    deviation = math.sqrt(sum((value - flat.mean()) ** 2 for value in flat) / flat.size)
    return np.asarray((flat - flat.mean()) / deviation)


def zscore_per_channel(image: Array) -> Array:
    """Each channel separately, then the whole scaled to mean square 1 (only matters for constant channels)."""
    joined = np.concatenate([zscore(channel) for channel in image])
    size = math.sqrt((joined**2).mean())
    return joined / size if size > 0 else joined


def ncc(a: Array, b: Array) -> float:
    return float((zscore(a) * zscore(b)).mean())


def ncc_per_channel(a: Array, b: Array) -> float:
    return float((zscore_per_channel(a) * zscore_per_channel(b)).mean())


def distance(a: Array, b: Array) -> float:
    return float(((zscore(a) - zscore(b)) ** 2).sum())


def halved(image: Array) -> Array:
    channels, height, width = image.shape
    out = np.zeros((channels, height // 2, width // 2))
    for c, y, x in np.ndindex(*out.shape):
        out[c, y, x] = image[c, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2].mean()
    return out


def stretch(image: Array) -> Array:
    low, high = image.min(), image.max()
    return np.zeros_like(image) if low == high else (image - low) / (high - low)


def ssim(a: Array, b: Array) -> float:
    """Mean over channels and pixels of the windowed formula, borders mirrored at the edge pixel."""
    weights = np.array(
        [[math.exp(-(y * y + x * x) / (2 * 1.5**2)) for x in (-1, 0, 1)] for y in (-1, 0, 1)],
        dtype=np.float64,
    )
    weights /= weights.sum()
    values = []
    channels, height, width = a.shape
    for c in range(channels):
        pa, pb = np.pad(a[c], 1, mode="reflect"), np.pad(b[c], 1, mode="reflect")
        for y in range(height):
            for x in range(width):
                wa, wb = pa[y : y + 3, x : x + 3], pb[y : y + 3, x : x + 3]
                mu_a, mu_b = (weights * wa).sum(), (weights * wb).sum()
                var_a, var_b = (weights * (wa - mu_a) ** 2).sum(), (weights * (wb - mu_b) ** 2).sum()
                cov = (weights * (wa - mu_a) * (wb - mu_b)).sum()
                luminance = (2 * mu_a * mu_b + 1e-4) / (mu_a**2 + mu_b**2 + 1e-4)
                values.append(luminance * (2 * cov + 9e-4) / (var_a + var_b + 9e-4))
    return float(np.mean(values))


@dataclass(frozen=True)
class Row:
    candidate: int
    votes: int
    ssim: float
    ncc: float
    distance: float
    reconstruction: Array


def buzaglo2023(candidates: Array, image: Array, mean: Array, B: float) -> Row:
    """Distances in network coordinates; average all within B times the nearest, add the mean, stretch, SSIM."""
    original = image - mean
    distances = [distance(original, candidate) for candidate in candidates]
    nearest = min(distances)
    voters = [candidate for candidate, d in zip(candidates, distances, strict=True) if d <= B * nearest]
    average = np.mean(voters, axis=0)
    return _row(distances.index(nearest), len(voters), average, image, mean, nearest)


def haim2022(candidates: Array, image: Array, mean: Array, fraction: float, half: bool) -> Row:
    """Stretch candidates, NCC per channel (at half resolution), average all of at least fraction * best."""
    original = image - mean
    stretched_ones = [stretch(candidate) for candidate in candidates]
    compared = [(halved(original), halved(one)) if half else (original, one) for one in stretched_ones]
    scores = [ncc_per_channel(left, right) for left, right in compared]
    best = max(scores)
    floor = min(fraction * best, best)
    voters = [one for one, s in zip(stretched_ones, scores, strict=True) if s >= floor]
    average = np.mean(voters, axis=0)
    d = compared[0][0].size
    return _row(scores.index(best), len(voters), average, image, mean, 2 * d * (1 - best))


def _row(candidate: int, votes: int, average: Array, image: Array, mean: Array, nearest: float) -> Row:
    shown = stretch(average + mean)
    return Row(candidate, votes, ssim(shown, image), ncc(average, image - mean), nearest, shown)
