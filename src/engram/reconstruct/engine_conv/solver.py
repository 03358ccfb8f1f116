"""The iteration: Adam on pixels and duals, start after start.

    F = stationarity of the first fully-connected layer + margin + SPAN * share of features outside + prior * TV

The first two are the engine's objective at the features' coordinates in the row space; their gradients by the
pixels follow by one backward pass through the convolutions.
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
from engram.reconstruct.engine.prior import total_variation
from engram.reconstruct.engine.schedule import (
    LEFT_OUT,
    PRIOR_GRID,
    Phase,
    Schedule,
    choose_prior,
    make_schedule,
)
from engram.reconstruct.engine.settings import EngineSettings
from engram.reconstruct.engine.solver import DUAL_RATE, HELD_DUALS, UNJUDGED, _adam
from engram.reconstruct.engine_conv.problem import Problem, outside, pose, smooth_noise
from engram.targets.convolutional import ConvNetwork

PIXEL_RATE = 0.08
"""Adam's rate as a share of the pixels' spread."""
SPAN = 5.0
"""Weight of the features' share outside the row space, against a stationarity that begins at 1."""


@dataclass(frozen=True, eq=False)
class ConvEngine:
    """Stationarity of the first fully-connected layer, read through the convolutions below it."""

    recipe: ClassVar[str] = "engine"

    view: AttackerView[ConvNetwork]
    settings: EngineSettings
    _metric: dict[int, Metric] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def problem(self) -> Problem:
        return pose(self.view, self.settings)

    @cached_property
    def schedule(self) -> Schedule:
        return make_schedule(self.settings, self.view.input_shape)

    @cached_property
    def objective(self) -> Objective:
        return Objective(self.problem.scales, self.settings, self.view.task, (self.problem.scales.space.rank,))

    @property
    def total_steps(self) -> int:
        return self.schedule.total

    def init(self) -> State:
        m, restarts = self.problem.scales.candidates, self.settings.restarts
        like, task = self.problem.network.weights[0], self.view.task
        labels = torch.arange(m) % task.label_count
        shape = task.equal_duals(labels, self.problem.scales.dual).shape
        return {
            "pool_images": like.new_zeros(restarts, m, *self.view.input_shape),
            "pool_duals": like.new_zeros(restarts, *shape),
            "labels": labels.to(like.device),
            "step": torch.tensor(0),
            # Not yet judged; finite, since a state with infinities counts as diverged.
            "left_unexplained": torch.full((len(PRIOR_GRID),), UNJUDGED, dtype=torch.float64),
        }

    def step(self, state: State) -> Metrics:
        phase = self.schedule.phase(int(state["step"]))
        if phase.step == 0:
            state.update(self._fresh_start(phase))
        if phase.step % self.settings.metric_every == 0:
            state["metric_images"], state["metric_duals"] = state["images"].clone(), state["duals"].clone()
            self._metric.clear()
        prior = self._prior(state, phase)
        losses, by_images, by_duals = self.gradients(state, self._current_metric(state, phase), prior)
        decay = 0.5 * (1 + math.cos(math.pi * phase.step / phase.length))
        _adam(state, "images", by_images, PIXEL_RATE * self.problem.pixel_std * decay, phase.step + 1)
        if self._duals_move(phase):
            _adam(state, "duals", by_duals, DUAL_RATE * self.problem.scales.dual * decay, phase.step + 1)
        if not self.view.task.has_signed_duals:
            state["duals"].clamp_(min=0)
        if phase.is_last and phase.is_trial:
            left = self.objective.unexplained(self._in_row_space(state["images"], state))
            state["left_unexplained"][phase.index] = left[::LEFT_OUT].mean()
        elif phase.is_last:
            state["pool_images"][phase.index] = state["images"]
            state["pool_duals"][phase.index] = state["duals"]
        state["step"] += 1
        strength = torch.tensor(prior)
        return {**losses, "loss": torch.stack(list(losses.values())).sum(), "prior_strength": strength}

    def gradients(self, state: State, metric: Metric, prior: float) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The terms of F, and its gradients by images [m, C, H, W] and duals.

        Span and prior are weighed by the duals' shares, whose own gradient is left out: no dual should die only
        because its candidate is not yet in the span.
        """
        images = state["images"].detach().requires_grad_()
        features = self.problem.features(images)
        coordinates = self.problem.coordinates(features)
        inner = {**state, "latents": coordinates.detach()}
        losses, by_coordinates, by_duals = self.objective(inner, metric, 0.0)
        share = self.objective.shares(state["duals"])
        span = SPAN * (share * outside(features, coordinates)).sum()
        pulled = (coordinates * by_coordinates).sum() + span
        (by_images,) = torch.autograd.grad(pulled, images)
        losses = {**losses, "outside": span.detach()}
        if prior > 0:
            values, by_variation = total_variation(state["images"])
            losses["variation"] = prior * (share * values).sum()
            by_images = by_images + prior * share.view(-1, 1, 1, 1) * by_variation
        return losses, by_images, by_duals

    def finished(self, metrics: Values) -> bool:
        return False

    def fingerprint(self) -> str:
        return repr((self.settings, self.view.task, self.view.input_shape, self.view.network.digest()))

    def hint(self) -> str:
        return "this should not happen: please report the model's layers as `engram inspect` shows them"

    def reconstruction(self, state: State) -> Reconstruction:
        """The candidates of all finished restarts, merged, scored and sorted; of the running one if none has."""
        done = self.schedule.finished_restarts(int(state["step"]))
        images, duals = state["pool_images"][:done], state["pool_duals"][:done]
        if done == 0:
            images, duals = state["images"][None], state["duals"][None]
        task, starts, duals = self.view.task, len(images), duals.flatten(0, 1)
        labels = task.sample_labels(state["labels"].repeat(starts), duals)
        sizes = task.sample_duals(duals).abs()
        return consensus(Reconstruction(images.flatten(0, 1).cpu(), sizes.cpu(), labels.cpu()), starts)

    def _duals_move(self, phase: Phase) -> bool:
        """With several classes duals wait, as in the engine of fully-connected networks."""
        return self.view.task.outputs == 1 or phase.step >= HELD_DUALS * phase.length

    def _prior(self, state: State, phase: Phase) -> float:
        if self.settings.prior is not None:
            return self.settings.prior
        return PRIOR_GRID[phase.index] if phase.is_trial else choose_prior(state["left_unexplained"])

    def _fresh_start(self, phase: Phase) -> State:
        """Smooth random images; all trials begin alike, so that only the prior differs."""
        problem = self.problem
        draw = self.settings.restarts if phase.is_trial else phase.index
        seed = self.settings.seed * 1_000_003 + draw
        images = smooth_noise(problem.scales.candidates, self.view.input_shape, problem.pixel_std, seed)
        images = images.to(problem.network.weights[0])
        labels = torch.arange(len(images)) % self.view.task.label_count
        duals = self.view.task.equal_duals(labels, problem.scales.dual).to(images)
        moments = {
            f"{name}_{moment}": torch.zeros_like(value)
            for name, value in (("images", images), ("duals", duals))
            for moment in ("mean", "square")
        }
        return {"images": images, "duals": duals, **moments}

    @torch.no_grad()
    def _in_row_space(self, images: Tensor, state: State) -> State:
        """The state as the engine's objective reads it."""
        return {**state, "latents": self.problem.coordinates(self.problem.features(images))}

    def _current_metric(self, state: State, phase: Phase) -> Metric:
        """From stored copies, so that a resumed run has the same one; zero where a trial leaves neurons out."""
        if 0 not in self._metric:
            latents = self._in_row_space(state["metric_images"], state)["latents"]
            metric = self.objective.metric(latents, state["metric_duals"], state["labels"])
            self._metric[0] = metric.without(LEFT_OUT) if phase.is_trial else metric
        return self._metric[0]
