"""The engine's objective: stationarity of the first layer under its metric, margin, and a prior.

The prior is total variation for images, and the distance from corners for the one-hot values of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from engram.attacks.engine.closed_form import (
    ARRAYS,
    Groups,
    Metric,
    Pass,
    Passes,
    chunks,
    first_gates,
    inverse_covariances,
    parameters,
    run_pass,
    with_constant,
)
from engram.attacks.engine.image_prior import TOTAL_VARIATION, PriorMix
from engram.attacks.engine.self_tuning import RIDGE, Scales
from engram.attacks.settings import EngineSettings
from engram.core.loop import State
from engram.models.tasks import Task

LEVEL = 0.15
"""Quantile of the candidates' pixels that is taken for the background."""
TOWARDS, BELOW, SMOOTHER = 1.0, 4.0, 0.7
"""How strongly pixels are pulled to the background, how much more if they lie below it, and the share of total
variation that is left; see docs/engine-log.md."""
NEAR = 0.02
"""Pixels this near to the background are pulled ever less: a fiftieth of the pixel range."""


def background_level(images: Tensor, weights: Tensor) -> Tensor:
    """The background [d] of images [m, d] in network coordinates, minus the unknown mean: a weighted quantile.

    >>> background_level(torch.tensor([[0.0, -1.0], [5.0, -1.0], [0.0, 4.0]]), torch.ones(3)).tolist()
    [0.0, -1.0]
    """
    values, order = images.sort(dim=0)
    below = weights[order].cumsum(0) < LEVEL * weights.sum()
    return values.gather(0, below.sum(0, keepdim=True).clamp(max=len(images) - 1))[0]


def off_background(images: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Mean distance of the pixels from the background, more if they lie below it, and its gradient.

    images [m, d], level [d] -> values [m], gradients [m, d]. Pixels have a floor, and most lie on it.
    """
    difference = images - level
    size = (difference.square() + NEAR**2).sqrt()
    weight = torch.where(difference < 0, BELOW, 1.0) / images.shape[1]
    return (weight * size).sum(1), weight * difference / size


@dataclass(frozen=True, eq=False)
class Corners:
    """The one-hot values of a table, in the coordinates of the candidates.

    A record has one column of each group at floor + gap and the others at floor.
    """

    places: Tensor
    """[groups, longest]: the columns of each group; a shorter one repeats its first."""
    gap: Tensor
    """[d]: how far apart 0 and 1 are."""
    floor: Tensor | None = None
    """[d]: where 0 is; None if the mean subtracted from the records is unknown."""

    @classmethod
    def of(cls, groups: Sequence[Sequence[int]], gap: Tensor, floor: Tensor | None = None) -> Corners:
        longest = max(map(len, groups))
        padded = [[*group, *[group[0]] * (longest - len(group))] for group in groups]
        return cls(torch.tensor(padded, device=gap.device), gap, floor)

    @cached_property
    def members(self) -> Tensor:
        """[d]: 1 for the columns of a group, 0 for others."""
        return torch.zeros_like(self.gap).index_fill_(0, self.places.flatten(), 1.0)

    @cached_property
    def energy(self) -> float:
        """The energy of a record's groups around their mean if all values are equally frequent: a group of k
        columns has 1 - 1/k."""
        sizes = [len(set(group)) for group in self.places.tolist()]
        return sum(1 - 1 / size for size in sizes)


def off_corners(rows: Tensor, weights: Tensor, corners: Corners) -> tuple[Tensor, Tensor]:
    """Squared distance of each row's groups from their nearest corners, as a share of the groups' energy.

    rows [m, d], weights [m] of sum 1 -> values [m], gradients [m, d] of the weighted sum, per weight. With e(x)
    the corner whose column is largest,

        sum_i w_i ||(x_i - f) / gap - e(x_i)||² / energy

    If the floor f is unknown, it is the one that minimises this: the mean of x - gap e(x). Columns are then
    compared less their means: where a share p is 1, a 1 lies 1 - p above the mean and a 0 lies p below.

    >>> pair = Corners.of([(0, 1)], torch.ones(2), torch.zeros(2))
    >>> [one.tolist() for one in off_corners(torch.tensor([[0.5, 0.0]]), torch.ones(1), pair)]
    [[0.5], [[-2.0, 0.0]]]
    """
    known, units = corners.floor is not None, rows / corners.gap
    shift = corners.floor / corners.gap if corners.floor is not None else weights @ units
    centred = units - shift
    largest = centred[:, corners.places].argmax(2, keepdim=True)  # [m, groups, 1]
    chosen = corners.places.expand(len(rows), -1, -1).gather(2, largest)[..., 0]
    corner = torch.zeros_like(rows).scatter_(1, chosen, 1.0)
    if not known:
        corner = corner - weights @ corner
    off = (centred - corner) * corners.members
    return off.square().sum(1) / corners.energy, 2 * off / corners.gap / corners.energy


GAIN_RIDGE = 0.3
"""How strongly a neuron's gain is held at 1."""
FAINT = 0.1
"""Neurons with less than this share of the median energy are treated as if they had this share."""

PRIOR_BYTES = 10_000_000
"""Memory for images and their differences: 2,000 candidates take 0.10 s in such chunks but 0.18 s in one piece,
which fits in no cache and is allocated again each time."""

METRICS, METRIC_BYTES = 100, 150_000_000
"""A step reads all metrics, and computing them takes time too; beyond this, similar neurons share theirs. With 100
for 1,000 neurons a step takes half the time at rank 144 and 190, and finds as many images."""


def row_energies(weights: Tensor) -> Tensor:
    """||w_k||² [h], but at least a share of the median: neurons that never learnt carry no information, and
    dividing by their norm would give them the most weight.

    >>> row_energies(torch.tensor([[1.0], [2.0], [0.0]]))
    tensor([1.0000, 4.0000, 0.1000])
    """
    energies = weights.square().sum(1)
    return energies.clamp(min=FAINT * float(energies.median()))


def gains(overlap: Tensor, predicted: Tensor, energies: Tensor) -> Tensor:
    """s_k that minimises (w - s p)ᵀ M (w - s p) + GAIN_RIDGE (s - 1)² wᵀ M w, from wᵀMp, pᵀMp and wᵀMw [h].

    A neuron's outgoing signal changed while the samples were learnt; what all samples have in common is one factor
    per neuron.

    >>> gains(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 4.0]), torch.ones(3))
    tensor([1.0000, 1.0000, 0.5349])
    """
    tiny = torch.finfo(energies.dtype).tiny
    return (overlap + GAIN_RIDGE * energies + tiny) / (predicted + GAIN_RIDGE * energies + tiny)


@dataclass(frozen=True, eq=False)
class Objective:
    """Values and gradients for latents [m, r], labels [m] and duals in the task's form."""

    scales: Scales
    settings: EngineSettings
    task: Task
    input_shape: tuple[int, ...]
    corners: Corners | None = None
    """Of a table with one-hot values; they are its prior."""
    ridge: float = RIDGE
    """Of the metric, as a share of its largest eigenvalue."""
    mix: PriorMix = TOTAL_VARIATION
    """What the prior of images consists of."""

    def __call__(
        self, state: State, metric: Metric, prior: float, *, moving: bool = False
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The terms of F, and its gradients with respect to latents [m, r] and duals. If the metric is `moving`
        with the candidates, the gradient in the latents is that of both."""
        passes = self.passes(state["latents"], state["duals"], state["labels"])
        return self.from_passes(state, passes, metric, prior, moving=moving)

    def from_passes(
        self, state: State, passes: Passes, metric: Metric, prior: float, *, moving: bool = False
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The same, from passes of the state's latents, duals and labels."""
        latents, duals, labels = state["latents"], state["duals"], state["labels"]
        stationarity, by_residual = self.stationarity(passes.explained, metric)
        sides = self.task.sides(labels, duals, passes.outputs)
        margin, by_margin = self.margin((sides * passes.outputs).sum(1), duals)

        def deviations(done: Pass, part: slice, by_signal: Tensor) -> Tensor:
            return self.deviations(metric, done, self.task.sample_duals(duals[part]), by_signal)

        by_latents, by_coefficients = passes.pull_back(
            self.scales.network,
            self.scales.slope,
            {0: by_residual},
            by_margin[:, None] * sides,
            deviations if moving else None,
        )
        losses = {"stationarity": stationarity, "margin": margin}
        if prior > 0:
            variation, by_variation = self.variation(latents, duals, state.get("background"))
            losses["variation"] = prior * variation
            by_latents = by_latents + prior * by_variation
        return losses, by_latents, self.by_duals(duals, labels, passes.outputs, by_coefficients)

    def deviations(self, metric: Metric, done: Pass, sizes: Tensor, by_signal: Tensor) -> Tensor:
        """`Metric.deviations` of a pass whose samples have duals of these sizes [m]."""
        return metric.deviations(by_signal, done.arriving[0], self._spread(sizes, done.gates[0]))

    def _spread(self, sizes: Tensor, gates: Tensor) -> Tensor:
        """v_ik without one gate: a gate of 0 or 1 is its own square."""
        squares = sizes.square()[:, None]
        return squares if self.scales.network.activation.has_kink else squares * gates

    def passes(self, latents: Tensor, duals: Tensor, labels: Tensor) -> Passes:
        """All candidates, in chunks that fit in memory."""

        def run(part: slice) -> Pass:
            return self.run(latents[part], duals[part], labels[part])

        return Passes.over(run, self.chunks(len(latents)))

    def chunks(self, candidates: int) -> list[slice]:
        """Chunks of the candidates whose passes fit in memory."""
        each = self.settings.torch_dtype.itemsize * ARRAYS * sum(self.scales.network.sizes)
        return chunks(candidates, each, self.settings.room)

    def run(self, latents: Tensor, duals: Tensor, labels: Tensor) -> Pass:
        weigh = partial(self.task.output_weights, labels, duals)
        return run_pass(self.scales.network, latents, weigh, self.scales.slope)

    def by_duals(self, duals: Tensor, labels: Tensor, outputs: Tensor, by_coefficients: Tensor) -> Tensor:
        """The gradient with respect to the duals, through the task's coefficients, which are linear in them."""
        with torch.enable_grad():
            leaf = duals.detach().requires_grad_()
            coefficients = self.task.output_weights(labels, leaf, outputs)
            (gradient,) = torch.autograd.grad(coefficients, leaf, by_coefficients)
        return gradient

    def shares(self, duals: Tensor) -> Tensor:
        """The share of each candidate in the duals, [m]; the shares add up to 1."""
        sizes = self.task.sample_duals(duals).abs()
        return sizes / self.total(sizes)

    def total(self, sizes: Tensor) -> Tensor:
        return sizes.sum().clamp(min=1e-12 * self.scales.dual)

    def stationarity(self, predicted: Tensor, metric: Metric) -> tuple[Tensor, Tensor]:
        """sum_k min_s of the residual of neuron k (`gains`), and its gradient in the residual w - p, p [h, k].

        At its minimum in s the value depends on p only through the residual: dF/dp = -2 s M (w - s p).
        """
        pulled = metric(predicted)
        weights = self.scales.target
        overlap, square = (pulled * weights).sum(1), (pulled * predicted).sum(1)
        gain = gains(overlap, square, metric.energies)
        value = metric.energies - 2 * gain * overlap + gain.square() * square
        value = value + GAIN_RIDGE * (gain - 1).square() * metric.energies
        return value.sum(), 2 * gain[:, None] * (metric.pulled - gain[:, None] * pulled)

    def metric(self, latents: Tensor, duals: Tensor) -> Metric:
        """Scaled so that candidates that explain nothing have loss 1."""
        network, room = self.scales.network, self.settings.room
        weights = self.scales.target
        entering = with_constant(latents, network.biases[0])
        gates = first_gates(network, latents, self.scales.slope)
        used = gates.mul_(self._spread(self.task.sample_duals(duals), gates))
        affordable = min(room, METRIC_BYTES) // (weights.element_size() * weights.shape[1] ** 2)
        groups = Groups.alike(used, max(1, min(METRICS, affordable)))
        inverses = inverse_covariances(entering, groups.summed(used), self.ridge, room=room)
        return Metric.of(inverses, groups, 1 / row_energies(weights), weights)

    def margin(self, margins: Tensor, duals: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distance of margin / gamma from [1 - tolerance, 1 + tolerance], weighted by the duals.

        gamma = ||[W_1 b_1]||² / sum lambda, as the outputs are linear in the first layer. Value, and gradient in
        margins [m].
        """
        sizes = self.task.sample_duals(duals).abs()
        own, update = parameters(self.scales.network, 0), self.scales.update
        gamma = (own.square().sum() if update is None else (own * update).sum().abs()) / self.total(sizes)
        excess = margins / gamma - 1
        outside = excess - excess.clamp(-self.settings.margin_tolerance, self.settings.margin_tolerance)
        share = self.settings.margin_weight * self.shares(duals)
        return (share * outside.square()).sum(), 2 * share * outside / gamma

    def background(self, latents: Tensor, duals: Tensor) -> Tensor:
        """The background of the candidates, [d]."""
        images = latents @ self.scales.space.basis.to(latents.dtype)
        return background_level(images, self.shares(duals))

    def variation(self, latents: Tensor, duals: Tensor, background: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Total variation of the images, weighted by the duals, and its gradient in the latents [m, r]; with a
        background [d], their distance from it too. Of a table, the distance from the corners instead."""
        basis = self.scales.space.basis.to(latents.dtype)
        if self.corners is not None:
            share = self.shares(duals)
            distances, by_rows = off_corners(latents @ basis, share, self.corners)
            return (share * distances).sum(), share[:, None] * (by_rows @ basis.T)
        values, gradients = [], []
        each = ARRAYS * basis.shape[1] * latents.element_size()
        for part in chunks(len(latents), each, min(self.settings.room, PRIOR_BYTES)):
            images = latents[part] @ basis
            value, by_pixels = self.mix.of(images.view(-1, *self.input_shape))
            by_pixels = by_pixels.flatten(1)
            if background is not None:
                distance, by_distance = off_background(images, background)
                value = SMOOTHER * value + TOWARDS * distance
                by_pixels = SMOOTHER * by_pixels + TOWARDS * by_distance
            values.append(value)
            gradients.append(by_pixels @ basis.T)
        share = self.shares(duals)
        return (share * torch.cat(values)).sum(), share[:, None] * torch.cat(gradients)
