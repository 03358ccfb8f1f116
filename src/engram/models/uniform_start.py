"""What training added to a layer that started uniform, read off the edges of its weights.

Frameworks draw a layer uniformly from [-a, a] unless told otherwise: PyTorch with a = 1 / sqrt(inputs). Training
adds D, usually much smaller than a, so W = W(0) + D looks like noise of standard deviation a / sqrt(3). But noise
that is uniform ends abruptly. Inside, a weight says nothing of what was added to it; near an edge it says nearly
everything: a weight beyond a was certainly raised, and by at least what it exceeds a.

For D of spread t around zero, the score of a weight (minus the slope of its log-density) is, near the upper edge
and mirrored at the lower one,

    s(w) = phi(u) / (t Phi(-u)),    u = (|w| - a) / t

and its Fisher information is KAPPA / (a t), where a straight sum of weights has 3 / a². So s / information is D
with noise of variance a t / KAPPA: for t = 0.07 a, four times less than in W itself. Matrices of low rank stand
out of it that W hides (such a transformation of the entries is optimal for that: Perry, Wein, Bandeira and Moitra
2018). What stands out is subtracted, which leaves a smaller t, and the edges are read again. With t above
KAPPA a / 3 the weights themselves say more, so what stands out of them is subtracted before anything is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engram.models.row_space import RowSpace, first_layer_space, standing_out

KAPPA = 0.9032
"""The integral of phi² / Phi: the Fisher information of an edge that is blurred by 1, for a density of 1."""
ROUNDS = 2
"""How often what stands out is subtracted; a third time changes nothing (docs/engine-log.md)."""
LEAST_SPREAD = 0.01
"""Of the bound: D of an entry is never known better."""
BINS, MOST_BINS = 40, 400
FLAT = 0.9
"""Between half and three quarters of the way to the edge, a uniform density has at least this share of its height
near zero; a normal one has 0.77."""
CLOSE = 0.01
"""A bound is told to within this share of it."""
LEAST_NOISE = 0.1
"""Share of noise in a layer's energy below which there is nothing to gain."""
WORTHWHILE = 1.5
"""Times the information of the weights themselves, at least, in the median row."""
FEWEST = 10_000
"""Weights that show a density."""


@dataclass(frozen=True, eq=False)
class EdgeReading:
    """What training added to a layer, D, as the edges of its uniform start show it."""

    bound: float
    """a: where the start ends."""
    rows: Tensor
    """D with noise, [h, d]."""
    bias: Tensor | None
    """The same of the bias, [h]; as it is if it did not start uniform."""
    noise: Tensor
    """Standard deviation of the noise in each row, [h]."""
    space: RowSpace
    """Of the rows divided by their noise."""

    @property
    def even(self) -> Tensor:
        """The rows divided by their noise, [h, d]."""
        return self.rows / self.noise[:, None]

    def scaled(self, factor: float) -> EdgeReading:
        """Of a layer with factor W; its bias stays."""
        return replace(self, bound=factor * self.bound, rows=factor * self.rows, noise=factor * self.noise)


def read_edges(
    weight: Tensor, bias: Tensor | None, shape: tuple[int, ...], noise_std: float
) -> EdgeReading | None:
    """D of a layer W [h, d] with noise of this level, for inputs of that shape; None if its start shows no edges,
    or if they say little more than the weights themselves."""
    rows = weight.double()
    if float(rows.square().mean()) > noise_std**2 / LEAST_NOISE:
        return None
    known = standing_out(rows, shape, noise_std)
    bound = uniform_bound(rows - known)
    if bound is None or shares_of_spread(rows - known, bound)[0].median() > KAPPA / 3 / WORTHWHILE:
        return None
    seen, noise = _read(rows, known, bound)
    for _ in range(ROUNDS):
        known = noise[:, None] * standing_out(seen / noise[:, None], shape, 1.0)
        seen, noise = _read(rows, known, bound)
    space = first_layer_space(seen / noise[:, None], shape, 1.0)
    return EdgeReading(bound, seen, None if bias is None else _read_bias(bias.double(), rows, bound), noise, space)


def _read(rows: Tensor, known: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """D with noise [h, d], and the noise of each row [h], if `known` is what was found of D so far."""
    spread, of_rows = spreads(rows - known, bound)
    return known + seen_at_edges(rows - known, bound, spread), noise_at_edges(of_rows, bound)


def uniform_bound(rows: Tensor) -> float | None:
    """Where the density of the weights falls to half of its height, if it is flat up to there; else None.

    Whatever symmetric thing training added, the density at the edge is half of that inside.

    >>> generator = torch.Generator().manual_seed(0)
    >>> start = torch.empty(200, 200).uniform_(-3, 3, generator=generator)
    >>> round(uniform_bound(start + 0.1 * torch.randn(200, 200, generator=generator)) or 0.0, 1)
    3.0
    """
    sizes = rows.abs().flatten()
    if len(sizes) < FEWEST or float(sizes.max()) == 0:
        return None
    bins = int(min(max(math.sqrt(len(sizes)) / 4, BINS), MOST_BINS))
    most = 1.5 * float(sizes.mean()) * 2  # the mean of a uniform density is half its end
    counts = torch.histc(sizes, bins, 0.0, most)
    height = counts[: bins // 3].mean()
    (high,) = (counts >= height / 2).nonzero(as_tuple=True)
    last = int(high[-1])
    if last + 1 >= bins:
        return None
    here, there = counts[last], counts[last + 1]
    place = last + 0.5 + float((here - height / 2) / (here - there).clamp(min=1))
    bound = _usual(place * most / bins, *rows.shape)
    inside, outside = ((sizes / bound > low) & (sizes / bound < low + 0.25) for low in (0.0, 0.5))
    flat = float(outside.double().mean()) >= FLAT * float(inside.double().mean())
    return bound if flat else None


def _usual(bound: float, outputs: int, inputs: int) -> float:
    """The bound that frameworks use for a layer of this size, if it is as near as a density can tell: PyTorch's,
    Glorot's (Keras, scikit-learn) or He's. Weight decay leaves others."""
    usual = [inputs**-0.5, math.sqrt(6 / (inputs + outputs)), math.sqrt(6 / inputs)]
    nearest = min(usual, key=lambda one: abs(one - bound))
    return nearest if abs(nearest / bound - 1) < CLOSE else bound


def shares_of_spread(rest: Tensor, bound: float) -> tuple[Tensor, Tensor, Tensor]:
    """The spread of what was added, as a share of the bound: of rows [h], of columns [d], of all.

    Weights exceed the edge by t² / (4 a) on average.
    """
    beyond = (rest.abs() / bound - 1).clamp(min=0)
    means = (beyond.mean(1), beyond.mean(0), beyond.mean())
    rows, columns, whole = ((4 * mean).sqrt().clamp(min=LEAST_SPREAD) for mean in means)
    return rows, columns, whole


def spreads(rest: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """The spread of what was added to each weight [h, d], and in each row [h]."""
    rows, columns, whole = shares_of_spread(rest, bound)
    each = rows[:, None] * columns / whole
    return bound * each.clamp(min=LEAST_SPREAD), bound * rows


def seen_at_edges(rest: Tensor, bound: float, spread: Tensor) -> Tensor:
    """The score of each weight divided by its information: what was added, with noise of variance a t / KAPPA.

    Where the spread is too large for that, the weight itself, with noise of variance a² / 3.
    """
    beyond = (rest.abs() - bound) / (math.sqrt(2) * spread)
    scored = rest.sign() * (bound / KAPPA) * math.sqrt(2 / math.pi) / torch.special.erfcx(beyond)
    return torch.where(spread > KAPPA * bound / 3, rest, scored)


def noise_at_edges(spread: Tensor, bound: float) -> Tensor:
    """The standard deviation of that noise."""
    return (spread.clamp(max=KAPPA * bound / 3) * bound / KAPPA).sqrt()


def _read_bias(bias: Tensor, rows: Tensor, bound: float) -> Tensor:
    """What was added to the bias, if it started like the weights."""
    if float(bias.square().mean().sqrt()) < bound / 3:  # a uniform one has 0.58: this one started elsewhere
        return bias
    own, _, whole = shares_of_spread(rows, bound)
    _, column, _ = shares_of_spread(bias[:, None], bound)
    return seen_at_edges(bias, bound, bound * (own * column / whole).clamp(min=LEAST_SPREAD))
