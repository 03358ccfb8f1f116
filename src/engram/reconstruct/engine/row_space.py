"""The row space of the first layer: the input directions that training has written into it.

From a small start W = U_0 + sum_i u_i x_iᵀ, the part of an input outside the span of the training images meets
only the noise U_0 of the initialisation. The singular values of that noise end at sigma (sqrt h + sqrt d); what
lies above is signal. Writing x = Vᵀ z with V [r, d] is a rotation: nothing is approximated inside the span.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SAFETY = 1.05
"""Signal directions start this factor above the noise edge, where the noise's own fluctuations have ended: they
are of the order of h^(-2/3), 1 % for 1,000 neurons."""
SMALLEST = 1e-7
"""Share of the largest singular value below which `decompose` gives none."""

FAINT_BELOW = 4.0
"""Times the noise edge: weaker directions reach less far; see `RowSpace.contrast`."""


@dataclass(frozen=True, eq=False)
class RowSpace:
    """Orthonormal directions V [r, d] with W's strength along each [r], all singular values of W [min(h, d)], and
    where their noise ends. `detected` directions stand above it; one is there in any case."""

    basis: Tensor
    strengths: Tensor
    detected: int
    singular_values: Tensor
    noise_std: float
    edge: float

    @property
    def rank(self) -> int:
        return len(self.basis)

    @property
    def contrast(self) -> Tensor:
        """How far images reach along each direction, relative to their mean square, [r].

        Photographs differ most along the directions that are strong in W. s / (s + 4 edge) is near enough, and
        keeps the last ones, which are half noise, from being filled with it.
        """
        shares = self.strengths / (self.strengths + FAINT_BELOW * self.edge)
        return shares / shares.square().mean().sqrt()


def find_row_space(weight: Tensor) -> RowSpace:
    """Directions of W [h, d] above the noise edge; the noise level is read off the spectrum's lower end.

    At least one direction is kept.
    """
    values, directions = decompose(weight.double())
    noise_std = noise_level(values, weight.shape[0], weight.shape[1])
    edge = max(noise_edge(noise_std, *weight.shape), floor_of_rounding(values, weight.dtype))
    detected = int((values > SAFETY * edge).sum())
    rank = max(1, detected)
    return RowSpace(directions[:rank].to(weight.dtype), values[:rank], detected, values, noise_std, edge)


def noise_edge(std: float, rows: int, columns: int) -> float:
    """Where the singular values of noise [rows, columns] end."""
    return std * (math.sqrt(rows) + math.sqrt(columns))


def floor_of_rounding(values: Tensor, dtype: torch.dtype) -> float:
    """Weight decay can take all noise away; what is left below the largest value is then rounding, no signal."""
    return float(values[0]) * max(torch.finfo(dtype).eps, SMALLEST)


def decompose(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values, descending [k], and right singular vectors [k, d], k = min(h, d), of a float64 matrix.

    A layer has fewer neurons than pixels, so the eigenvectors U of W Wᵀ [h, h] are quick to get, and
    V = diag(1/s) Uᵀ W. Squaring costs half the digits: float64 keeps values down to 1e-7 of the largest, far below
    any noise of an initialisation. Vectors of smaller values are not orthogonal, and no use is made of them.

    >>> values, directions = decompose(torch.tensor([[0.0, 3.0, 0.0], [2.0, 0.0, 0.0]]).double())
    >>> values.tolist(), directions.abs().tolist()
    ([3.0, 2.0], [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    """
    rows, columns = weight.shape
    if rows > columns:
        _, values, directions = torch.linalg.svd(weight, full_matrices=False)
        return values, directions
    squares, vectors = torch.linalg.eigh(weight @ weight.T)
    values = squares.flip(0).clamp(min=0).sqrt()
    directions = vectors.flip(1).T @ weight
    return values, torch.nn.functional.normalize(directions, dim=1)


def noise_level(values: Tensor, rows: int, columns: int, quantile: float = 0.2) -> float:
    """Standard deviation of the noise, from the lower `quantile` of the singular values (descending order).

    The singular values of pure noise follow the Marchenko-Pastur law; the lower ones are noise unless the
    data fill the whole space, and their place in the law tells sigma.
    """
    index = min(len(values) - 1, math.ceil(len(values) * (1 - quantile)))
    return float(values[index]) / marchenko_pastur_quantile(rows, columns, quantile)


def marchenko_pastur_quantile(rows: int, columns: int, quantile: float) -> float:
    """The singular value of unit-variance noise [rows, columns] below which that share of them lies.

    Density of the squared values t in [a, b], a, b = (sqrt rows -/+ sqrt columns)²: sqrt((t - a)(b - t)) / t.

    >>> round(marchenko_pastur_quantile(1000, 1000, 1.0), 3), round(2 * math.sqrt(1000), 3)
    (63.246, 63.246)
    """
    low = (math.sqrt(rows) - math.sqrt(columns)) ** 2
    high = (math.sqrt(rows) + math.sqrt(columns)) ** 2
    # In s = sqrt(t) the density is 2 sqrt((s² - a)(b - s²)) / s, without the pole that t has at a = 0.
    grid = torch.linspace(math.sqrt(low), math.sqrt(high), 20_001, dtype=torch.float64)
    density = ((grid.square() - low) * (high - grid.square())).clamp(min=0).sqrt() / grid.clamp(min=1e-9)
    total = torch.cumulative_trapezoid(density, grid)
    index = int(torch.searchsorted(total, quantile * total[-1]).clamp(max=len(grid) - 2))
    return float(grid[index + 1])
