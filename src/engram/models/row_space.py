"""The row space of the first layer: the input directions that training has written into it.

From a small start W = U_0 + sum_i u_i x_iᵀ, the part of an input outside the span of the training images meets
only the noise U_0 of the initialisation. The singular values of that noise end at sigma (sqrt h + sqrt d);
anything above is signal. Writing x = Vᵀ z with V [r, d] is a rotation: nothing is approximated inside the span.

If the inputs are images, more can be found. The noise of the initialisation is spread evenly over all d
frequencies; images are not. Among the k frequencies with most of the power of photographs, the noise ends at
sigma (sqrt h + sqrt k) instead of sigma (sqrt h + sqrt d), and directions stand out that are hidden in the whole
spectrum. So

1. of several bands k, choose the one that resolves the directions above the noise best, and take the
   corresponding patterns of the neurons, u_j (left singular vectors);
2. read each direction over all frequencies, u_jᵀ W, and in every shell of frequencies keep the share that is
   signal (Wiener): E - sigma² k out of its energy E there.

From a small start this keeps fine detail and adds weak directions. From a standard start, whose noise hides all
but a few directions, it makes an attack possible in the first place. Numbers are in docs/engine-log.md.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

SAFETY = 1.05
"""Signal directions start this factor above the noise edge, beyond the noise's own fluctuations, which are of the
order of h^(-2/3), 1 % for 1,000 neurons."""
SMALLEST = 1e-7
"""Share of the largest singular value below which `decompose` is not accurate."""

FAINT_BELOW = 4.0
"""Times the noise edge: weaker directions reach less far; see `RowSpace.contrast`."""


@dataclass(frozen=True, eq=False)
class RowSpace:
    """Orthonormal directions V [r, d] with W's strength along each [r], all singular values of W [min(h, d)], and
    where their noise ends. `detected` directions are above it; at least one direction is kept in any case."""

    basis: Tensor
    strengths: Tensor
    detected: int
    singular_values: Tensor
    noise_std: float
    edge: float

    @property
    def rank(self) -> int:
        return len(self.basis)

    def scaled(self, factor: float) -> RowSpace:
        """The row space of factor W."""
        return replace(
            self,
            strengths=factor * self.strengths,
            singular_values=factor * self.singular_values,
            noise_std=factor * self.noise_std,
            edge=factor * self.edge,
        )

    @property
    def contrast(self) -> Tensor:
        """How far images reach along each direction, relative to their mean square, [r].

        Photographs differ most along the directions that are strong in W. s / (s + 4 edge) is close enough, and
        keeps the last ones, which are half noise, from filling up with noise.
        """
        shares = self.strengths / (self.strengths + FAINT_BELOW * self.edge)
        return shares / shares.square().mean().sqrt()


def find_row_space(weight: Tensor, noise_std: float | None = None) -> RowSpace:
    """Directions of W [h, d] above the noise edge; at least one is kept. A noise level that is not known is taken
    from the spectrum's lower end."""
    values, directions = decompose(weight.double())
    noise_std = noise_level(values, *weight.shape) if noise_std is None else noise_std
    edge = max(noise_edge(noise_std, *weight.shape), floor_of_rounding(values, weight.dtype))
    detected = int((values > SAFETY * edge).sum())
    rank = max(1, detected)
    return RowSpace(directions[:rank].to(weight.dtype), values[:rank], detected, values, noise_std, edge)


def whole_row_space(weight: Tensor) -> RowSpace:
    """Every direction of W [h, d], down to rounding: for layers too small to separate noise from signal."""
    _, values, directions = torch.linalg.svd(weight.double(), full_matrices=False)
    kept = values > max(weight.shape) * torch.finfo(weight.dtype).eps * values[0]
    rank = int(kept.sum())
    return RowSpace(directions[:rank].to(weight.dtype), values[:rank], rank, values, 0.0, 0.0)


def noise_edge(std: float, rows: int, columns: int) -> float:
    """Where the singular values of noise [rows, columns] end."""
    return std * (math.sqrt(rows) + math.sqrt(columns))


def floor_of_rounding(values: Tensor, dtype: torch.dtype) -> float:
    """Weight decay can remove all noise; what is left far below the largest value is then rounding, not signal."""
    return float(values[0]) * max(torch.finfo(dtype).eps, SMALLEST)


def decompose(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values, descending [k], and right singular vectors [k, d], k = min(h, d), of a float64 matrix.

    A layer has fewer neurons than pixels, so the eigenvectors U of W Wᵀ [h, h] are cheap, and
    V = diag(1/s) Uᵀ W. Squaring costs half the digits: float64 keeps values down to 1e-7 of the largest, far below
    any noise of an initialisation. Vectors of smaller values are not orthogonal and are not used.

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
    data fill the whole space, and their place in the law determines sigma.
    """
    index = min(len(values) - 1, math.ceil(len(values) * (1 - quantile)))
    return float(values[index]) / marchenko_pastur_quantile(rows, columns, quantile)


def marchenko_pastur_quantile(rows: int, columns: int, quantile: float) -> float:
    """The given quantile of the singular values of unit-variance noise [rows, columns].

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


COLOUR = 0.15
"""Power of colour as a share of brightness, at the same frequency."""


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Cosines over channels, rows and columns of images [C, H, W], sorted by their power in photographs.

    That power falls as 1 / f², and differences between channels have little of it. Only the order is used, so
    images of another kind lose only the advantage.
    """

    shape: tuple[int, int, int]
    order: Tensor
    """Indices of the C H W cosines, most power first."""

    @classmethod
    def of(cls, shape: tuple[int, int, int]) -> Frequencies:
        channels, height, width = shape
        down = torch.arange(height, dtype=torch.float64) / height
        across = torch.arange(width, dtype=torch.float64) / width
        # The constant gets the power of half a period over the image.
        squares = down[:, None].square() + across.square() + (0.5 / max(height, width)) ** 2
        colours = torch.full((channels,), COLOUR, dtype=torch.float64)
        colours[0] = 1.0
        power = colours[:, None, None] / squares
        return cls(shape, power.flatten().argsort(descending=True, stable=True))

    def coefficients(self, rows: Tensor) -> Tensor:
        """Rows [n, C H W] of pixels as rows of cosine coefficients, most power first."""
        return self._turned(rows, [cosines(size).to(rows) for size in self.shape])[:, self.order.to(rows.device)]

    def pixels(self, coefficients: Tensor) -> Tensor:
        """The inverse: the basis is orthonormal."""
        rows = torch.empty_like(coefficients)
        rows[:, self.order.to(rows.device)] = coefficients
        return self._turned(rows, [cosines(size).to(rows).T for size in self.shape])

    def _turned(self, rows: Tensor, matrices: list[Tensor]) -> Tensor:
        return torch.einsum("nchw,ac,bh,dw->nabd", rows.view(-1, *self.shape), *matrices).flatten(1)


def cosines(size: int) -> Tensor:
    """The orthonormal cosine transform (DCT-II), one frequency per row, [size, size].

    >>> cosines(2).mul(10).round().div(10).tolist()
    [[0.7, 0.7], [0.7, -0.7]]
    """
    places = torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi * places[:, None] * (places + 0.5) / size) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix


NARROWEST = 32
"""Least number of frequencies in the narrowest band, also the first shell; each further band has twice as many."""


def find_image_space(weight: Tensor, shape: tuple[int, int, int], noise_std: float | None = None) -> RowSpace:
    """Directions of W [h, C H W] above the noise in the band that resolves them best; at least one is kept."""
    frequencies = Frequencies.of(shape)
    rows = frequencies.coefficients(weight.double())
    values = singular_values(rows)
    noise_std = noise_level(values, *rows.shape) if noise_std is None else noise_std
    rounding = floor_of_rounding(values, weight.dtype)
    detected, patterns = resolved_patterns(rows, values, noise_std, rounding)
    strengths, basis = rotated(rows, keep_signal(patterns.T @ rows, noise_std))
    return RowSpace(
        basis=frequencies.pixels(basis).to(weight.dtype),
        strengths=strengths,
        detected=detected,
        singular_values=values,
        noise_std=noise_std,
        edge=max(noise_edge(noise_std, *rows.shape), rounding),
    )


def resolved_patterns(rows: Tensor, values: Tensor, noise_std: float, rounding: float = 0.0) -> tuple[int, Tensor]:
    """How many directions of W [h, d] over frequencies stand out in the band that resolves them best, and their
    patterns of the neurons, [h, that many], at least one; `values` are the singular values of W."""
    neurons, inputs = rows.shape

    def edge_of(width: int) -> float:
        return max(noise_edge(noise_std, neurons, width), rounding)

    best = Band.of(values, neurons, inputs, edge_of(inputs))
    for width in bands(inputs)[1:]:
        narrow = Band.of(singular_values(rows[:, :width]), neurons, width, edge_of(width))
        best = narrow if narrow.overlap > best.overlap else best
    return best.detected, strongest_patterns(rows[:, : best.width], max(1, best.detected))


def standing_out(weight: Tensor, shape: tuple[int, ...], noise_std: float) -> Tensor:
    """What stands out of noise of this level in W [h, d], as far as noise leaves it."""
    if len(shape) != 3:
        values, directions = decompose(weight)
        above = values[values > SAFETY * noise_edge(noise_std, *weight.shape)]
        own = directions[: len(above)]
        kept = (1 - noise_std**2 * sum(weight.shape) / above.square()).clamp(min=0)
        return (weight @ own.T * kept) @ own
    frequencies = Frequencies.of((shape[0], shape[1], shape[2]))
    rows = frequencies.coefficients(weight)
    _, patterns = resolved_patterns(rows, singular_values(rows), noise_std)
    return frequencies.pixels(patterns @ keep_signal(patterns.T @ rows, noise_std))


@dataclass(frozen=True)
class Band:
    """The lowest `width` frequencies: how many directions stand out, and how well they are resolved in theory."""

    width: int
    detected: int
    overlap: float

    @classmethod
    def of(cls, values: Tensor, neurons: int, width: int, edge: float) -> Band:
        """From the singular values of W [h, width] in the band, and the edge of their noise."""
        standing_out = values[values > SAFETY * edge]
        if len(standing_out) == 0:  # and perhaps no noise to compare with
            return cls(width, 0, 0.0)
        found = overlaps(standing_out * noise_edge(1.0, neurons, width) / edge, neurons, width)
        return cls(width, len(standing_out), float(found.sum()))


def overlaps(values: Tensor, rows: int, columns: int) -> Tensor:
    """Sum of the squared cosines between the noisy and the noiseless singular vectors, left and right.

    For values above the edge of noise of variance 1 in [rows, columns] (Benaych-Georges and Nadakuditi 2012).
    It is 2 for strong directions and 0 at the edge.

    >>> overlaps(torch.tensor([1e6, 1e3, 88.0]).double(), 1000, 3072).mul(100).round().div(100).tolist()
    [2.0, 2.0, 0.52]
    """
    excess = values.square() - rows - columns
    strength = (excess + (excess.square() - 4 * rows * columns).clamp(min=0).sqrt()) / 2
    common = (strength.square() - rows * columns).clamp(min=0) / strength
    return common / (strength + rows) + common / (strength + columns)


def bands(inputs: int) -> list[int]:
    """The number of frequencies in each band, widest first.

    >>> bands(3072), bands(30)
    ([3072, 1536, 768, 384, 192, 96, 48], [30])
    """
    found = [inputs]
    while found[-1] // 2 >= NARROWEST:
        found.append(found[-1] // 2)
    return found


def singular_values(matrix: Tensor) -> Tensor:
    """Singular values of a float64 matrix, descending, from the smaller Gram matrix; see `decompose`."""
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
    """Strengths [r] and basis [r, d] of the directions' span, strongest in W first."""
    span = torch.linalg.qr(directions.T).Q
    inner = rows @ span
    squares, vectors = torch.linalg.eigh(inner.T @ inner)
    return squares.flip(0).clamp(min=0).sqrt(), (span @ vectors.flip(1)).T


def first_layer_space(weight: Tensor, input_shape: tuple[int, ...], noise_std: float | None = None) -> RowSpace:
    """What the first layer has learnt; for images, found among the frequencies in which images are strong."""
    if len(input_shape) != 3:
        return find_row_space(weight, noise_std)
    channels, height, width = input_shape
    return find_image_space(weight, (channels, height, width), noise_std)


@dataclass(frozen=True, eq=False)
class Update:
    """What training added to a first layer whose start is known: D = [W b] - c [W(0) b(0)].

    Plain descent adds a multiple of some [x_i; 1]ᵀ to every row at every step, and weight decay shrinks all of it,
    so D has one direction for every sample that training used, and nothing else. Adam's steps are not of this
    form.
    """

    kept: float
    """c: what weight decay left of the start."""
    rows: Tensor
    """[h, d]."""
    bias: Tensor | None
    """[h]."""
    samples: int
    """The rank of D: how many samples training used; of centred inputs without a bias one fewer is seen."""
    gap: float
    """How far the last direction stands above the next, which is rounding."""
    directions: Tensor
    """Orthonormal rows that span D, [samples, d (+1)]."""

    def to(self, device: torch.device | str) -> Update:
        moved = None if self.bias is None else self.bias.to(device)
        return replace(self, rows=self.rows.to(device), bias=moved, directions=self.directions.to(device))

    def scaled(self, factor: float) -> Update:
        """The update of a layer with factor W."""
        return replace(self, rows=factor * self.rows)

    @cached_property
    def space(self) -> RowSpace:
        """The span of the training inputs, exactly."""
        values, directions = decompose(self.rows.double())
        rounding = max(float(values[self.samples]), SMALLEST * float(values[0]))
        found = int((values[: self.samples] > CLEAR_GAP * rounding).sum())
        return RowSpace(directions[:found].to(self.rows.dtype), values[:found], found, values, 0.0, rounding)

    @property
    def parameters(self) -> Tensor:
        """D, with the bias as its last column if there is one."""
        return self.rows if self.bias is None else torch.cat([self.rows, self.bias[:, None]], 1)

    def outside(self, inputs: Tensor) -> Tensor:
        """The share of the energy of [x; 1] outside the span of the training samples, [n], for inputs [n, d]."""
        points = inputs.double()
        if self.bias is not None:
            points = torch.cat([points, points.new_ones(len(points), 1)], 1)
        inside = points @ self.directions.double().T
        energy = points.square().sum(1).clamp(min=torch.finfo(points.dtype).tiny)
        left = (points - inside @ self.directions.double()).square().sum(1)
        return left / energy


MOST_OF_A_LAYER = 0.5
"""Training is assumed to have used fewer samples than this share of a layer's rank."""
CLEAR_GAP = 5.0
"""The last direction of an update stands at least this many times above rounding."""
FITS = 4


def find_update(
    weight: Tensor, bias: Tensor | None, start: Tensor, start_bias: Tensor | None
) -> tuple[float, Update | None]:
    """c and D of a layer [h, d] from its start [h, d]; D is None if it is not of low rank, as after Adam.

    c is fitted where training wrote nothing: outside the strongest directions of D, on both sides.
    """
    now, then = (
        (part if vector is None else torch.cat([part, vector[:, None]], 1)).double()
        for part, vector in ((weight, bias), (start, start_bias))
    )
    kept = float((now * then).sum() / then.square().sum())
    for _ in range(FITS):
        left, _, right = torch.linalg.svd(now - kept * then, full_matrices=False)
        strong = int(MOST_OF_A_LAYER * len(right))
        left, right = left[:, :strong], right[:strong]
        quiet_now, quiet_then = (_without(one, left, right) for one in (now, then))
        kept = float((quiet_now * quiet_then).sum() / quiet_then.square().sum())
    update = now - kept * then
    values, directions = decompose(update)
    ratios = values[:-1] / values[1:].clamp(min=torch.finfo(values.dtype).tiny)
    ratios = ratios[: int(MOST_OF_A_LAYER * len(values))]
    samples, gap = int(ratios.argmax()) + 1, float(ratios.max())
    if gap < CLEAR_GAP:
        return kept, None
    rows, added = (update, None) if bias is None else (update[:, :-1].to(weight), update[:, -1].to(weight))
    return kept, Update(kept, rows.to(weight), added, samples, gap, directions[:samples])


def _without(matrix: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """A matrix without its part in the spans of orthonormal columns [h, k] and rows [k, d]."""
    matrix = matrix - left @ (left.T @ matrix)
    return matrix - (matrix @ right.T) @ right
