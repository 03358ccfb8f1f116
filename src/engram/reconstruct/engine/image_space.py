"""The row space of a first layer that looks at images, found where images are large and noise is not.

Noise of the initialisation is spread evenly over all d frequencies, images are not: among the k frequencies in
which photographs have most of their power the noise ends at sigma (sqrt h + sqrt k) instead of sigma (sqrt h +
sqrt d), and directions stand out that the whole spectrum hides. So

1. of several bands k take the one in which the directions above the noise are told best, and there the
   neurons' patterns u_j (left singular vectors) that go with them;
2. read each direction over all frequencies, u_jᵀ W, and in every shell of frequencies keep the share that is
   signal (Wiener): E - sigma² k out of the energy E that it has there.

From a small start this keeps fine detail and adds weak directions; from a standard start, whose noise hides all
but a few directions, it is what makes an attack possible at all. Numbers in docs/engine-log.md.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from engram.reconstruct.engine.frequencies import Frequencies
from engram.reconstruct.engine.row_space import SAFETY, RowSpace, floor_of_rounding, noise_edge, noise_level

NARROWEST = 32
"""Frequencies of the narrowest band at least, which is the first shell too; each further one has twice as many."""


def find_image_space(weight: Tensor, shape: tuple[int, int, int]) -> RowSpace:
    """Directions of W [h, C H W] above the noise in the band that tells them best; at least one is kept."""
    frequencies = Frequencies.of(shape)
    rows = frequencies.coefficients(weight.double())
    neurons, inputs = rows.shape
    values = singular_values(rows)
    noise_std = noise_level(values, neurons, inputs)
    rounding = floor_of_rounding(values, weight.dtype)

    def edge_of(width: int) -> float:
        return max(noise_edge(noise_std, neurons, width), rounding)

    best = Band.of(values, neurons, inputs, edge_of(inputs))
    for width in bands(inputs)[1:]:
        narrow = Band.of(singular_values(rows[:, :width]), neurons, width, edge_of(width))
        best = narrow if narrow.overlap > best.overlap else best
    patterns = strongest_patterns(rows[:, : best.width], max(1, best.detected))
    strengths, basis = rotated(rows, keep_signal(patterns.T @ rows, noise_std))
    return RowSpace(
        basis=frequencies.pixels(basis).to(weight.dtype),
        strengths=strengths,
        detected=best.detected,
        singular_values=values,
        noise_std=noise_std,
        edge=edge_of(inputs),
    )


@dataclass(frozen=True)
class Band:
    """The lowest `width` frequencies: how many directions stand out, and how well they are told, by theory."""

    width: int
    detected: int
    overlap: float

    @classmethod
    def of(cls, values: Tensor, neurons: int, width: int, edge: float) -> Band:
        """From the singular values of W [h, width] there, and where their noise ends."""
        standing_out = values[values > SAFETY * edge]
        if len(standing_out) == 0:  # and perhaps no noise to measure them by
            return cls(width, 0, 0.0)
        found = overlaps(standing_out * noise_edge(1.0, neurons, width) / edge, neurons, width)
        return cls(width, len(standing_out), float(found.sum()))


def overlaps(values: Tensor, rows: int, columns: int) -> Tensor:
    """Squared cosines between the singular vectors found, left and right, and those without noise, added.

    For values above the edge of noise of variance 1 in [rows, columns] (Benaych-Georges and Nadakuditi 2012).
    Strong directions have 2, those at the edge 0.

    >>> overlaps(torch.tensor([1e6, 1e3, 88.0]).double(), 1000, 3072).mul(100).round().div(100).tolist()
    [2.0, 2.0, 0.52]
    """
    excess = values.square() - rows - columns
    strength = (excess + (excess.square() - 4 * rows * columns).clamp(min=0).sqrt()) / 2
    common = (strength.square() - rows * columns).clamp(min=0) / strength
    return common / (strength + rows) + common / (strength + columns)


def bands(inputs: int) -> list[int]:
    """How many frequencies each band has, the widest first.

    >>> bands(3072), bands(30)
    ([3072, 1536, 768, 384, 192, 96, 48], [30])
    """
    found = [inputs]
    while found[-1] // 2 >= NARROWEST:
        found.append(found[-1] // 2)
    return found


def singular_values(matrix: Tensor) -> Tensor:
    """Of a float64 matrix, descending, by the smaller of its two Gram matrices; see `row_space.decompose`."""
    rows, columns = matrix.shape
    gram = matrix @ matrix.T if rows <= columns else matrix.T @ matrix
    squares: Tensor = torch.linalg.eigvalsh(gram)
    return squares.flip(0).clamp(min=0).sqrt()


def strongest_patterns(matrix: Tensor, count: int) -> Tensor:
    """The left singular vectors of the largest singular values, [rows, count]."""
    rows, columns = matrix.shape
    gram = matrix @ matrix.T if rows <= columns else matrix.T @ matrix
    vectors: Tensor = torch.linalg.eigh(gram).eigenvectors[:, -count:].flip(1)
    return vectors if rows <= columns else torch.nn.functional.normalize(matrix @ vectors, dim=0)


def keep_signal(directions: Tensor, noise_std: float) -> Tensor:
    """Directions [r, d] over frequencies, each shell scaled by the share of its energy that is not noise."""
    inputs = directions.shape[1]
    ends = [0, *reversed(bands(inputs))]
    kept = directions.clone()
    for first, last in itertools.pairwise(ends):
        energy = directions[:, first:last].square().sum(1)
        signal = (energy - noise_std**2 * (last - first)).clamp(min=0)
        kept[:, first:last] *= (signal / energy.clamp(min=torch.finfo(energy.dtype).tiny))[:, None]
    return kept


def rotated(rows: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Strengths [r] and basis [r, d] of the directions' span, those in which W is strongest first."""
    span = torch.linalg.qr(directions.T).Q
    inner = rows @ span
    squares, vectors = torch.linalg.eigh(inner.T @ inner)
    return squares.flip(0).clamp(min=0).sqrt(), (span @ vectors.flip(1)).T
