"""The engine for fully-connected networks: candidates are latents in the row space of the first layer.

    F = sum_k min_s (w_k - s p_k)ᵀ M_k (w_k - s p_k) / sum_k w_kᵀ M_k w_k  +  margin  +  prior

with w_k neuron k's weights, p_k what the candidates predict for them, s near 1 and M_k the neuron's metric;
`margin` pulls every candidate in use to within a tolerance of the margin given by homogeneity, and `prior` is
total variation, or for a table the distance of its one-hot values from 0 and 1. `objective` has the terms,
`iteration` the steps. Two things are specific to this module:

Between refreshes the layers above the first are held (`HeldLayers`): a step then costs only products with the
first layer. With the gates above held, the network is linear in the first layer's output h_1, sample by sample,

    margin_i = b_i · h_1(z_i) + rest_i,    signal arriving at the first layer = lambda_i a_i,

with a_i and b_i the gradients with respect to h_1, at the refresh, of what the dual lambda_i weights and of the
margin; they are equal if a sample has one dual. What this omits from the gradient with respect to the latents
(the moving gates above, and the prior) hardly changes over a few steps; it is computed once and added as a
constant, `correction`. At the refresh itself the gradient is exact. If a sample has several duals, their
proportions are held too, and so is their gradient.

If most of the first layer is the noise of its initialisation, few directions are above it, and images in their
span are blurred. But W_1 = W_0 + sum_i delta_i x_iᵀ is linear in the images, and the candidates determine the
signals delta_i (`read_out`). In a shell of frequencies where images have power p and the candidates leave s² of a
weight unexplained, the posterior mean of all images X [m, shell] is

    (D Dᵀ / s² + 1 / p)⁻¹ D W / s²,    D [m, h] the signals

p is that of photographs, corrected once by what the weights show. Signals would follow from the new images, but to
repeat it is no gain: each round fits more of the noise. If the model's misfit outweighs the noise, as from a small
start, even one would do harm: docs/engine-log.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import ClassVar

import torch
from torch import Tensor

from engram.attacks.engine.closed_form import Metric, Pass, Passes, explained, run_pass, send_down, with_constant
from engram.attacks.engine.consensus import CLEAN, NOISY, Constants
from engram.attacks.engine.image_prior import (
    TOTAL_VARIATION,
    PriorMix,
    expected_power,
    extended,
    fits,
    learned_mix,
)
from engram.attacks.engine.iteration import EngineIteration
from engram.attacks.engine.objective import Corners, Objective
from engram.attacks.engine.self_tuning import (
    CLASSES_RIDGE,
    MOST_STEPS,
    MOSTLY_NOISE,
    NOISY_SHARE,
    NOISY_STEPS,
    PIXEL_STD,
    Scales,
    derive_scales,
    first_prior,
    sums_moved,
)
from engram.core.errors import ConfigError
from engram.core.loop import State
from engram.models.networks import DenseNetwork
from engram.models.row_space import Frequencies
from engram.models.view import AttackerView


@dataclass(frozen=True, eq=False)
class HeldLayers:
    """At the refresh: a and b [m, h], rest [m], correction [m, r], the gradient in the duals, and the prior."""

    arriving: Tensor
    holding: Tensor
    rest: Tensor
    correction: Tensor
    by_duals: Tensor
    variation: Tensor | None

    @classmethod
    def at(cls, objective: Objective, state: State, metric: Metric, prior: float) -> HeldLayers:
        """All the expensive parts, from the state's latents, duals and labels."""
        latents, labels = state["latents"], state["labels"]
        task, network, duals = objective.task, objective.scales.network, state["duals"]
        unit = objective.run(latents, task.unit_duals(duals), labels)
        sides, arriving = unit.signals[-1], unit.arriving[0]
        holding = arriving
        if duals.ndim > 1:
            sides = task.sides(labels, duals, unit.outputs)
            holding = send_down(network, unit.gates, sides)[0][0]
        hidden = unit.entering[1][:, : network.weights[1].shape[1]]
        rest = (sides * unit.outputs).sum(1) - (hidden * holding).sum(1)
        still = cls(arriving, holding, rest, torch.zeros_like(latents), duals, None)
        weighted = _weighted(unit, task.sample_duals(duals))
        passes = Passes.over(lambda _: weighted, [slice(len(latents))])
        losses, exact, by_duals = objective.from_passes(state, passes, metric, prior)
        _, near, _ = still.gradients(objective, state, metric)
        return cls(arriving, holding, rest, exact - near, by_duals, losses.get("variation"))

    def gradients(
        self, objective: Objective, state: State, metric: Metric, *, moving: bool = False
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The terms of F, and its gradients with respect to latents [m, r] and duals; `moving` as in
        `Objective`."""
        latents, duals, sizes = state["latents"], state["duals"], objective.task.sample_duals(state["duals"])
        done = self._pass(objective, latents, sizes)
        (entering,), (gates,), (arriving,), signals = done.entering, done.gates, done.arriving, done.signals
        (before,) = done.before or done.gates
        stationarity, by_residual = objective.stationarity(explained(done, 0), metric)
        sides = sizes.sign() if objective.task.has_signed_duals else torch.ones_like(sizes)
        margin, by_margin = objective.margin(sides * done.outputs[:, 0], duals)
        by_signal = -(entering @ by_residual.T)
        by_duals = (by_signal * gates * self.arriving).sum(1) if duals.ndim == 1 else self.by_duals
        network, slope = objective.scales.network, objective.scales.slope
        bend = network.activation.bend(before, gates, slope)
        by_gate, sent = by_signal * arriving, signals[0]
        if moving:
            actual = 1 + objective.deviations(metric, done, sizes, by_signal)
            by_gate, sent = actual * by_gate, actual * sent
        by_pre = by_gate * bend + (by_margin * sides)[:, None] * self.holding * gates
        weight = network.weights[0]
        by_latents = by_pre @ weight - (sent @ by_residual)[:, : weight.shape[1]] + self.correction
        losses = {"stationarity": stationarity, "margin": margin}
        if self.variation is not None:
            losses["variation"] = self.variation
        return losses, by_latents, by_duals

    def _pass(self, objective: Objective, latents: Tensor, sizes: Tensor) -> Pass:
        """The first layer as in `closed_form.run_pass`, with the margins [m, 1] instead of the outputs."""
        network = objective.scales.network
        weight, bias = network.weights[0], network.biases[0]
        pre = torch.nn.functional.linear(latents, weight, bias)
        gates = network.activation.gate(pre, objective.scales.slope)
        arriving = sizes[:, None] * self.arriving
        margins = (network.activation(pre) * self.holding).sum(1) + self.rest
        before = [] if network.activation.has_kink else [pre]
        return Pass(
            [with_constant(latents, bias)], [gates], [arriving], [gates * arriving], margins[:, None], before
        )


def _weighted(unit: Pass, sizes: Tensor) -> Pass:
    """The pass with weights sizes_i, from the pass with all weights 1: signals are linear in them."""
    arriving = [sizes[:, None] * one for one in unit.arriving]
    signals = [sizes[:, None] * one for one in unit.signals]
    return replace(unit, arriving=arriving, signals=signals)


IN_USE = 1e-3
"""Candidates whose signal is weaker than this share of the strongest stay unchanged: W has no trace of them."""
NARROWEST_SHELL, WIDER = 12, 1.35
"""Frequencies in the first shell, and how much further each one reaches than the one before."""


def read_out(
    images: Tensor,
    rows: Tensor,
    signals: Callable[[Tensor], Tensor],
    frequencies: Frequencies,
    pixel_std: float,
) -> Tensor:
    """Images [m, d] read out of W [h, d] over frequencies; `signals` maps images to signals [m, h], with duals."""
    found = frequencies.coefficients(images.double())
    power = expected_power(rows.shape[1], pixel_std).to(rows)
    sent = signals(images).double()
    strengths = sent.norm(dim=1)
    used = strengths > IN_USE * strengths.max()
    found[used] = posterior_mean(rows, found[used], sent[used], power)
    return frequencies.pixels(found).to(images.dtype)


def posterior_mean(rows: Tensor, found: Tensor, sent: Tensor, power: Tensor) -> Tensor:
    """Images [m, d] over frequencies from W [h, d], their signals [m, h] and their expected power [d].

    What `found`, the current images, leaves unexplained is the noise of each shell. The power there is replaced by
    the mean square of images that are like the expected ones and explain W: one step of expectation maximisation.
    """
    left = rows - sent.T @ found
    overlaps, patterns = torch.linalg.eigh(sent @ sent.T)
    overlaps, projected = overlaps.clamp(min=0), patterns.T @ (sent @ rows)
    result = torch.empty_like(found)
    for first, last in itertools.pairwise(shells(rows.shape[1])):
        noise = left[:, first:last].square().mean()
        shrunk = (overlaps + noise / power[first:last].mean())[:, None]
        shown = (projected[:, first:last] / shrunk).square().mean() + (noise / shrunk).mean()
        result[:, first:last] = patterns @ (projected[:, first:last] / (overlaps + noise / shown)[:, None])
    return result


def shells(inputs: int) -> list[int]:
    """Where shells of frequencies end, from 0 on; finer than octaves, since the power of images falls steeply.

    >>> shells(60)
    [0, 12, 16, 21, 28, 37, 49, 60]
    """
    ends = [0, min(NARROWEST_SHELL, inputs)]
    while ends[-1] < inputs:
        ends.append(min(inputs, int(WIDER * ends[-1])))
    return ends


LATENT_RATE, BARE_RATE, CLASSES_RATE = 0.15, 0.08, 0.3
"""Adam's rate as a share of the latents' own spread: for two classes, for two classes without a prior, and for
more classes; see docs/engine-log.md."""
METRIC_MOVES = 0.6
"""Share of a start after which the metric moves with the candidates: 50 faces instead of 47; from the very start,
16 photographs instead of 46 (docs/engine-log.md)."""
REFRESH = 4
"""Steps between exact gradients; see `HeldLayers`."""


@dataclass(frozen=True, eq=False)
class Engine(EngineIteration[DenseNetwork]):
    """Stationarity of the first layer, weights and bias: the layer that contains the images."""

    moved: ClassVar[str] = "latents"
    _held: dict[int, HeldLayers] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.posed.network.weights) < 2:
            raise ConfigError(
                "the engine needs a hidden layer; use `engram reconstruct --recipe haim2022` for a linear model"
            )
        if self.uses_corners:
            self._corners  # noqa: B018  # an error now, before anything is written

    @cached_property
    def posed(self) -> AttackerView[DenseNetwork]:
        """With one dual per pair of a sample and another class, the whole KKT condition: ten classes of 50 leave
        0.56 of the first layer's energy unexplained with the runner-up alone, 0.20 with all pairs.

        Kernels as large as the image are rows of a fully-connected layer, which this engine handles better:
        conv(32, 32)-300-1 on 50 images of CIFAR-10 gave 13 good ones in 25 s, and none as a convolution.
        """
        dense = self.view.dense
        if dense is None:
            raise ConfigError(f"{self.view.network.name} has convolutions; create the attack with `make_attack`")
        network, scale, update = dense.network.bare, self._scale, dense.update
        if scale != 1:
            network.edges(dense.input_shape)  # and the row space: found once, for the description too
            network, update = network.scaled(scale), None if update is None else update.scaled(scale)
        return replace(dense, network=network, update=update, task=dense.task.with_all_duals())

    @cached_property
    def _scale(self) -> float:
        """The mean of the inputs' gain. The problem is posed in inputs of this scale: like pixels, whatever the
        normalisation."""
        gain = self.view.network.gain
        return 1.0 if gain is None else float(gain.double().log().mean().exp())

    def _pixels(self, images: Tensor) -> Tensor:
        """Images as the problem is posed, in the coordinates of the view's inputs."""
        if self.view.network.gain is None:
            return images
        return self.view.network.leaving(self._scale * images.flatten(1)).view_as(images)

    @cached_property
    def scales(self) -> Scales:
        return derive_scales(self.posed, self.settings)

    @cached_property
    def objective(self) -> Objective:
        return Objective(
            self.scales,
            self.settings,
            self.posed.task,
            self.posed.input_shape,
            self._corners,
            self.ridge,
            self.mix,
        )

    @property
    def mix(self) -> PriorMix:
        """What the prior consists of. Unless it is asked for, the denoiser takes part only where it finds more in
        the same time: with two classes and on noisy layers further starts find as much (docs/engine-log.md), and a
        flat background is no photograph."""
        asked, left_open = self.settings.prior == "learned", self.settings.prior is None
        pays = self.several_classes and not self.is_noisy and not self.has_background
        if asked or (left_open and pays and fits(self.posed.input_shape)):
            return learned_mix(self.scales.space.rank, several_classes=self.several_classes, noisy=self.is_noisy)
        return TOTAL_VARIATION

    @cached_property
    def _corners(self) -> Corners | None:
        """The corners of the one-hot values as the problem is posed. A normalisation says where they are; without
        one, the weights may show that nothing was subtracted."""
        if not self.uses_corners or self.view.features is None:
            return None
        groups, known, update = self.view.features.groups, self.view.normalization, self.posed.update
        weight = self.posed.network.weights[0].to(self.settings.torch_dtype)
        if known is not None:
            gap = known.gain_of(self.view.input_shape).double() / self._scale
            floor = -known.mean_of(self.view.input_shape).double() * gap
            return Corners.of(groups, gap.to(weight), floor.to(weight))
        gap, space = torch.ones_like(weight[0]), self.posed.network.row_space(self.posed.input_shape)
        if update is None and sums_moved(weight, space.noise_std, groups):
            return Corners.of(groups, gap, torch.zeros_like(gap))
        if self.several_classes:
            raise ConfigError(
                "--columns with more than two classes needs the mean that is subtracted from the inputs; give "
                "--normalize MEAN/STD (none if they enter as they are), or leave --columns out"
            )
        return Corners.of(groups, gap)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.scales.space.rank,)

    @property
    def ridge(self) -> float:
        """Noise is what a ridge stands for."""
        trusted = self.several_classes and not self.is_noisy and self.settings.ridge is None
        return CLASSES_RIDGE if trusted else super().ridge

    @property
    def first_prior(self) -> float:
        """Not on a flat background, which is only seen once the candidates are sharp."""
        if self.several_classes or self.has_background:
            return super().first_prior
        return first_prior(self.scales.space.rank)

    @property
    def rate(self) -> Tensor:
        share = LATENT_RATE if self.uses_prior else BARE_RATE
        if self.several_classes:
            share = CLASSES_RATE
        return share * self.spread.to(self.settings.torch_dtype)

    @cached_property
    def spread(self) -> Tensor:
        """Standard deviation of images along each direction of the row space, [r]."""
        return self.scales.latent_std * self.scales.space.contrast

    def draw(self, seed: int) -> Tensor:
        """Images of natural contrast, in random directions of the row space."""
        generator = torch.Generator().manual_seed(seed)
        shape = (self.scales.candidates, *self.shape)
        return self.spread.cpu() * torch.randn(shape, generator=generator, dtype=torch.float64)

    def gradients(self, state: State, metric: Metric, prior: float) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Exact every `REFRESH` steps and whenever the metric is new; in between, the upper layers are held."""
        moving = not self.is_noisy and self.phase(state).share >= METRIC_MOVES
        if not self._can_hold:
            return self.objective(state, metric, prior, moving=moving)
        since_metric = self.phase(state).step % self.settings.metric_every
        if since_metric % REFRESH == 0:
            state.update({f"held_{name}": state[name].clone() for name in ("latents", "duals")})
            state["held_prior"] = torch.tensor(prior, dtype=torch.float64)
            self._held.clear()
        if 0 not in self._held:  # from stored copies, so that a resumed run computes the same
            stored = {name: state[f"held_{name}"] for name in ("latents", "duals")}
            self._held[0] = HeldLayers.at(self.objective, {**state, **stored}, metric, float(state["held_prior"]))
        return self._held[0].gradients(self.objective, state, metric, moving=moving)

    @property
    def has_background(self) -> bool:
        """Only where the network is given pixels as they are, less their mean."""
        return self.uses_prior and self.view.network.gain is None and self.scales.background

    @property
    def closing(self) -> float:
        """Reading out takes time for every start."""
        return super().closing if self._noisy_rows is None else 0.05

    @property
    def is_noisy(self) -> bool:
        """Whether much of the layer is noise, as where people train."""
        return self.scales.noise > NOISY_SHARE

    @property
    def longest(self) -> int:
        return NOISY_STEPS if self.is_noisy else MOST_STEPS

    @property
    def constants(self) -> Constants:
        return NOISY if self.is_noisy else CLEAN

    @property
    def _can_hold(self) -> bool:
        """Whether enough layers are above the first to pay off, and all candidates fit in memory at once."""
        deep = len(self.posed.network.weights) > 2
        return deep and len(self.objective.chunks(self.scales.candidates)) == 1

    def latents(self, moved: Tensor) -> Tensor:
        return moved

    def shown(self, moved: Tensor, duals: Tensor, labels: Tensor) -> Tensor:
        """In the row space. If noise leaves it few directions, with what they let expect of the others; if even
        fewer, read out over all frequencies."""
        images = self.images(moved)
        if self._noisy_rows is not None:
            frequencies, rows = self._noisy_rows
            signals = partial(self._signals, duals=duals, labels=labels)
            low, high = self.posed.pixel_range
            read = read_out(images.flatten(1), rows, signals, frequencies, PIXEL_STD * (high - low))
            images = read.view_as(images)
        elif self._extended is not None:
            images = (moved @ self._extended.to(moved.dtype)).view_as(images)
        return self._pixels(images)

    @cached_property
    def _noisy_rows(self) -> tuple[Frequencies, Tensor] | None:
        """The first layer over frequencies, computed once for all starts, if most of it is noise without edges."""
        frequencies = self._frequencies
        if frequencies is None or self.scales.noise <= MOSTLY_NOISE or self.scales.has_edges:
            return None
        return frequencies, frequencies.coefficients(self.posed.network.weights[0].double())

    @cached_property
    def _extended(self) -> Tensor | None:
        """The images [r, d] that belong to the directions of a noisy layer, computed once."""
        if self._frequencies is None or not self.is_noisy or not self.uses_prior:
            return None
        return extended(self.scales.space.basis, self._frequencies)

    @property
    def _frequencies(self) -> Frequencies | None:
        """Of images."""
        shape = self.posed.input_shape
        return Frequencies.of((shape[0], shape[1], shape[2])) if len(shape) == 3 else None

    def _signals(self, images: Tensor, duals: Tensor, labels: Tensor) -> Tensor:
        """What the candidates send to the first layer, [m, h]."""
        network = self.posed.network.to(dtype=images.dtype)

        def run(part: slice) -> Tensor:
            weigh = partial(self.posed.task.output_weights, labels[part], duals[part])
            return run_pass(network, images[part], weigh, self.scales.slope).signals[0]

        return torch.cat([run(part) for part in self.objective.chunks(len(images))])

    def images(self, moved: Tensor) -> Tensor:
        return (moved @ self.scales.space.basis.to(moved.dtype)).view(-1, *self.posed.input_shape)
