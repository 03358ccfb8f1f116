"""The engine of fully-connected networks: candidates are latents in the row space of the first layer.

    F = sum_k min_s (w_k - s p_k)ᵀ M_k (w_k - s p_k) / sum_k w_kᵀ M_k w_k  +  margin  +  prior

with w_k neuron k's weights, p_k what the candidates predict for them, s near 1 and M_k the neuron's metric;
`margin` asks every candidate in use to lie within a tolerance of the margin that homogeneity gives, and `prior` is
total variation. `objective` holds the terms, `iteration` the steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar

import torch
from torch import Tensor

from engram.loop import State
from engram.reconstruct.engine.closed_form import run_pass
from engram.reconstruct.engine.frequencies import Frequencies
from engram.reconstruct.engine.frozen import Frozen
from engram.reconstruct.engine.iteration import EngineIteration
from engram.reconstruct.engine.metric import Metric
from engram.reconstruct.engine.objective import Objective
from engram.reconstruct.engine.readout import mostly_noise, read_out
from engram.reconstruct.engine.scales import PIXEL_STD, Scales, derive_scales
from engram.targets.networks import DenseNetwork

LATENT_RATE, BARE_RATE, CLASSES_RATE = 0.15, 0.08, 0.3
"""Adam's rate as a share of the latents' own spread: with two classes, the same without a prior, and with more
classes; see docs/engine-log.md."""
REFRESH = 4
"""Steps between exact gradients; see `frozen`."""


@dataclass(frozen=True, eq=False)
class Engine(EngineIteration[DenseNetwork]):
    """Stationarity of the first layer with its bias: the layer that carries the images."""

    moved: ClassVar[str] = "latents"
    _frozen: dict[int, Frozen] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def scales(self) -> Scales:
        return derive_scales(self.view, self.settings)

    @cached_property
    def objective(self) -> Objective:
        return Objective(self.scales, self.settings, self.view.task, self.view.input_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.scales.space.rank,)

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
        """Images of natural contrast, in any direction of the row space."""
        generator = torch.Generator().manual_seed(seed)
        shape = (self.scales.candidates, *self.shape)
        return self.spread.cpu() * torch.randn(shape, generator=generator, dtype=torch.float64)

    def gradients(self, state: State, metric: Metric, prior: float) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Exact every `REFRESH` steps and whenever the metric is new; in between the upper layers stand still."""
        if not self._can_freeze:
            return self.objective(state, metric, prior)
        since_metric = self.schedule.phase(int(state["step"])).step % self.settings.metric_every
        if since_metric % REFRESH == 0:
            state.update({f"frozen_{name}": state[name].clone() for name in ("latents", "duals")})
            state["frozen_prior"] = torch.tensor(prior, dtype=torch.float64)
            self._frozen.clear()
        if 0 not in self._frozen:  # from stored copies, so that a resumed run has the same
            stored = {name: state[f"frozen_{name}"] for name in ("latents", "duals")}
            self._frozen[0] = Frozen.at(self.objective, {**state, **stored}, metric, float(state["frozen_prior"]))
        return self._frozen[0].gradients(self.objective, state, metric)

    @property
    def _can_freeze(self) -> bool:
        """Layers above the first that are worth it, and room for all candidates at once."""
        deep = len(self.view.network.weights) > 2
        return deep and len(self.objective.chunks(self.scales.candidates)) == 1

    def latents(self, moved: Tensor) -> Tensor:
        return moved

    def shown(self, moved: Tensor, duals: Tensor, labels: Tensor) -> Tensor:
        """In the row space; where noise left it few directions, read out over all frequencies."""
        images = self.images(moved)
        if self._noisy_rows is None:
            return images
        frequencies, rows = self._noisy_rows
        signals = partial(self._signals, duals=duals, labels=labels)
        low, high = self.view.pixel_range
        return read_out(images.flatten(1), rows, signals, frequencies, PIXEL_STD * (high - low)).view_as(images)

    @cached_property
    def _noisy_rows(self) -> tuple[Frequencies, Tensor] | None:
        """The first layer over frequencies, once for all starts, where most of it is noise; else None."""
        weight, shape = self.view.network.weights[0], self.view.input_shape
        if len(shape) != 3 or not mostly_noise(weight, self.scales.space.noise_std):
            return None
        frequencies = Frequencies.of(shape)
        return frequencies, frequencies.coefficients(weight.double())

    def _signals(self, images: Tensor, duals: Tensor, labels: Tensor) -> Tensor:
        """What the candidates send to the first layer, [m, h]."""
        network = self.view.network.to(dtype=images.dtype)

        def run(part: slice) -> Tensor:
            weigh = partial(self.view.task.output_weights, labels[part], duals[part])
            return run_pass(network, images[part], weigh, self.scales.slope).signals[0]

        return torch.cat([run(part) for part in self.objective.chunks(len(images))])

    def images(self, moved: Tensor) -> Tensor:
        return (moved @ self.scales.space.basis.to(moved.dtype)).view(-1, *self.view.input_shape)
