"""The engine's iteration: Adam on candidates in the row space and their duals, start after start.

    F = sum_k min_s (w_k - s p_k)ᵀ M_k (w_k - s p_k) / sum_k w_kᵀ M_k w_k  +  margin  +  prior

with w_k neuron k's weights, p_k what the candidates predict for them, s near 1 and M_k the neuron's metric;
`margin` asks every candidate in use to lie within a tolerance of the margin that homogeneity gives, and `prior` is
total variation. `objective` holds the terms, `schedule` the order of trials and restarts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from engram.attacker import AttackerView
from engram.loop import Metrics, State, Values
from engram.reconstruct.candidates import Reconstruction
from engram.reconstruct.engine.consensus import consensus
from engram.reconstruct.engine.objective import Metric, Objective
from engram.reconstruct.engine.scales import Scales, derive_scales
from engram.reconstruct.engine.schedule import (
    LEFT_OUT,
    PRIOR_GRID,
    Phase,
    Schedule,
    choose_prior,
    make_schedule,
)
from engram.reconstruct.engine.settings import EngineSettings

LATENT_RATE = 0.08
"""Adam's rate as a share of the latents' own spread."""
DUAL_RATE = 0.05
"""Adam's rate as a share of the mean dual."""
BETAS = (0.9, 0.999)
HELD_DUALS = 0.2
"""Share of a start in which the duals of several classes stay as they are."""
UNJUDGED = torch.finfo(torch.float64).max
"""Stands for the residual of a trial that has not ended."""


@dataclass(frozen=True, eq=False)
class Engine:
    """Stationarity of the first layer with its bias: the layer that carries the images."""

    recipe: ClassVar[str] = "engine"

    view: AttackerView
    settings: EngineSettings
    _metric: dict[int, Metric] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def scales(self) -> Scales:
        return derive_scales(self.view, self.settings)

    @cached_property
    def schedule(self) -> Schedule:
        return make_schedule(self.settings, self.view.input_shape)

    @cached_property
    def objective(self) -> Objective:
        return Objective(self.scales, self.settings, self.view.task, self.view.input_shape)

    @property
    def total_steps(self) -> int:
        return self.schedule.total

    def init(self) -> State:
        scales, restarts = self.scales, self.settings.restarts
        device, dtype = scales.network.weights[0].device, self.settings.torch_dtype
        m, rank = scales.candidates, scales.space.rank
        labels = torch.arange(m) % self.view.task.label_count
        shape = self.view.task.equal_duals(labels, scales.dual).shape
        return {
            "pool_latents": torch.zeros(restarts, m, rank, device=device, dtype=dtype),
            "pool_duals": torch.zeros(restarts, *shape, device=device, dtype=dtype),
            "labels": labels.to(device),
            "step": torch.tensor(0),
            # Not yet judged; finite, since a state with infinities counts as diverged.
            "left_unexplained": torch.full((len(PRIOR_GRID),), UNJUDGED, dtype=torch.float64),
        }

    def step(self, state: State) -> Metrics:
        phase = self.schedule.phase(int(state["step"]))
        if phase.step == 0:
            state.update(self._fresh_start(phase))
        if phase.step % self.settings.metric_every == 0:
            state["metric_latents"], state["metric_duals"] = state["latents"].clone(), state["duals"].clone()
            self._metric.clear()
        prior = self._prior(state, phase)
        losses, by_latents, by_duals = self.objective(state, self._current_metric(state, phase), prior)
        decay = 0.5 * (1 + math.cos(math.pi * phase.step / phase.length))
        _adam(state, "latents", by_latents, LATENT_RATE * self.scales.latent_std * decay, phase.step + 1)
        if self._duals_move(phase):
            _adam(state, "duals", by_duals, DUAL_RATE * self.scales.dual * decay, phase.step + 1)
        if not self.view.task.has_signed_duals:
            state["duals"].clamp_(min=0)
        if phase.is_last and phase.is_trial:
            state["left_unexplained"][phase.index] = self.objective.unexplained(state)[::LEFT_OUT].mean()
        elif phase.is_last:
            state["pool_latents"][phase.index] = state["latents"]
            state["pool_duals"][phase.index] = state["duals"]
        state["step"] += 1
        strength = torch.tensor(prior)
        return {**losses, "loss": torch.stack(list(losses.values())).sum(), "prior_strength": strength}

    def finished(self, metrics: Values) -> bool:
        return False

    def fingerprint(self) -> str:
        return repr((self.settings, self.view.task, self.view.input_shape, self.view.network.digest()))

    def hint(self) -> str:
        return "this should not happen: please report the model's layers as `engram inspect` shows them"

    def reconstruction(self, state: State) -> Reconstruction:
        """The candidates of all finished restarts, merged, scored and sorted; of the running one if none has."""
        done = self.schedule.finished_restarts(int(state["step"]))
        latents, duals = (state[f"pool_{name}"][:done] for name in ("latents", "duals"))
        if done == 0:
            latents, duals = state["latents"][None], state["duals"][None]
        images = latents.flatten(0, 1) @ self.scales.space.basis.to(latents.dtype)
        task, duals = self.view.task, duals.flatten(0, 1)
        labels = task.sample_labels(state["labels"].repeat(len(latents)), duals)
        sizes = task.sample_duals(duals).abs()
        pool = Reconstruction(images.view(-1, *self.view.input_shape).cpu(), sizes.cpu(), labels.cpu())
        return consensus(pool, len(latents))

    def _duals_move(self, phase: Phase) -> bool:
        """With several classes duals wait: while most margins are negative they would all fall to zero."""
        return self.view.task.outputs == 1 or phase.step >= HELD_DUALS * phase.length

    def _prior(self, state: State, phase: Phase) -> float:
        if len(self.view.input_shape) != 3:
            return 0.0
        if self.settings.prior is not None:
            return self.settings.prior
        return PRIOR_GRID[phase.index] if phase.is_trial else choose_prior(state["left_unexplained"])

    def _fresh_start(self, phase: Phase) -> State:
        """Random candidates; all trials begin alike, so that only the prior differs."""
        scales = self.scales
        device, dtype = scales.network.weights[0].device, self.settings.torch_dtype
        draw = self.settings.restarts if phase.is_trial else phase.index
        generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + draw)
        shape = (scales.candidates, scales.space.rank)
        latents = scales.latent_std * torch.randn(shape, generator=generator, dtype=torch.float64)
        latents = latents.to(device=device, dtype=dtype)
        labels = torch.arange(scales.candidates) % self.view.task.label_count
        duals = self.view.task.equal_duals(labels, scales.dual).to(device=device, dtype=dtype)
        moments = {
            f"{name}_{moment}": torch.zeros_like(value)
            for name, value in (("latents", latents), ("duals", duals))
            for moment in ("mean", "square")
        }
        return {"latents": latents, "duals": duals, **moments}

    def _current_metric(self, state: State, phase: Phase) -> Metric:
        """From stored copies, so that a resumed run has the same one; zero where a trial leaves neurons out."""
        if 0 not in self._metric:
            metric = self.objective.metric(state["metric_latents"], state["metric_duals"], state["labels"])
            self._metric[0] = metric.without(LEFT_OUT) if phase.is_trial else metric
        return self._metric[0]


def _adam(state: State, name: str, gradient: Tensor, rate: float, step: int) -> None:
    """One step of Adam (Kingma & Ba) in place; the moments lie beside the value in the state."""
    mean, square = state[f"{name}_mean"], state[f"{name}_square"]
    mean.lerp_(gradient, 1 - BETAS[0])
    square.lerp_(gradient.square(), 1 - BETAS[1])
    spread = (square / (1 - BETAS[1] ** step)).sqrt_().add_(1e-12)
    state[name].addcdiv_(mean / (1 - BETAS[0] ** step), spread, value=-rate)
