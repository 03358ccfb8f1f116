"""What every engine does alike: Adam on candidates and their duals, start after start, trials first.

An engine names what it moves (`moved`: latents or images) and says how it is drawn, what its gradients are, where
in the row space it lies and how it looks as images; steps, metric, pool and scoring are written here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Generic

import torch
from torch import Tensor

from engram.attacker import AttackerView
from engram.loop import Metrics, State, Values
from engram.reconstruct.candidates import Reconstruction
from engram.reconstruct.engine.adam import adam, moments
from engram.reconstruct.engine.consensus import consensus
from engram.reconstruct.engine.metric import Metric
from engram.reconstruct.engine.objective import Objective
from engram.reconstruct.engine.scales import Scales
from engram.reconstruct.engine.schedule import (
    CLASSES_PRIOR,
    LEFT_OUT,
    PRIOR_GRID,
    Phase,
    Schedule,
    choose_prior,
    make_schedule,
)
from engram.reconstruct.engine.settings import EngineSettings
from engram.targets.networks import N

DUAL_RATE = 0.05
"""Adam's rate as a share of the mean dual."""
HELD_DUALS = 0.2
"""Share of a start in which the duals of several classes stay as they are."""
FIRST_PRIOR = 4.0
"""With several classes the prior falls over a start from so many times its strength: smooth images first."""
NEARLY_DONE = 0.7
"""A start that has so much of its steps behind it moves little any more: time that runs out does not lose it."""
UNJUDGED = torch.finfo(torch.float64).max
"""Stands for the residual of a trial that has not ended."""


@dataclass(frozen=True, eq=False)
class EngineIteration(ABC, Generic[N]):
    """The iteration; m candidates, each of the shape that `shape` says."""

    recipe: ClassVar[str] = "engine"
    moved: ClassVar[str]

    view: AttackerView[N]
    settings: EngineSettings
    _metric: dict[int, Metric] = field(default_factory=dict, init=False, repr=False)

    @property
    @abstractmethod
    def scales(self) -> Scales: ...

    @property
    @abstractmethod
    def objective(self) -> Objective: ...

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Of one candidate as it is moved."""

    @property
    @abstractmethod
    def rate(self) -> float | Tensor:
        """Adam's rate for what is moved, at the beginning of a start; one for all, or for each entry of a row."""

    @abstractmethod
    def draw(self, seed: int) -> Tensor:
        """Random candidates, [m, *shape]."""

    @abstractmethod
    def gradients(self, state: State, metric: Metric, prior: float) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The terms of F, and its gradients by what is moved [m, *shape] and by the duals."""

    @abstractmethod
    def latents(self, moved: Tensor) -> Tensor:
        """Coordinates in the row space, [m, r]."""

    @abstractmethod
    def images(self, moved: Tensor) -> Tensor:
        """[m, *input_shape]."""

    def shown(self, moved: Tensor, duals: Tensor, labels: Tensor) -> Tensor:
        """The images of one start [m, *input_shape] at its end."""
        return self.images(moved)

    @cached_property
    def schedule(self) -> Schedule:
        """Trials only where there is a prior to choose: images, two classes, no strength given."""
        given = self.settings.prior is not None
        return make_schedule(self.settings, tries=self.uses_prior and not given and not self.several_classes)

    @property
    def several_classes(self) -> bool:
        """More than two, so that a sample has several constraints."""
        return self.view.task.label_count > 2

    @property
    def uses_prior(self) -> bool:
        """Images, and not asked to do without."""
        return len(self.view.input_shape) == 3 and self.settings.prior != 0

    @property
    def total_steps(self) -> int:
        return self.schedule.total

    def init(self) -> State:
        like, restarts = self.scales.network.weights[0], self.settings.restarts
        labels = self._labels()
        duals = self.view.task.equal_duals(labels, self.scales.dual)
        return {
            f"pool_{self.moved}": like.new_zeros(restarts, len(labels), *self.shape),
            "pool_duals": like.new_zeros(restarts, *duals.shape),
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
            state.update({f"metric_{name}": state[name].clone() for name in (self.moved, "duals")})
            self._metric.clear()
        prior = self._prior(state, phase)
        losses, by_moved, by_duals = self.gradients(state, self._current_metric(state, phase), prior)
        decay = 0.5 * (1 + math.cos(math.pi * phase.step / phase.length))
        adam(state, self.moved, by_moved, self.rate * decay, phase.step + 1)
        if self._duals_move(phase):
            adam(state, "duals", by_duals, DUAL_RATE * self.scales.dual * decay, phase.step + 1)
        if not self.view.task.has_signed_duals:
            state["duals"].clamp_(min=0)
        if phase.is_last:
            self._keep(state, phase)
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
        """The candidates of all finished restarts, merged, scored and sorted.

        The running one counts if it is nearly done, or if there is no other.
        """
        steps = int(state["step"])
        done = self.schedule.finished_restarts(steps)
        moved, duals = (state[f"pool_{name}"][:done] for name in (self.moved, "duals"))
        if done == 0 or self.schedule.share_of_running(steps) >= NEARLY_DONE:
            moved = torch.cat([moved, state[self.moved][None]])
            duals = torch.cat([duals, state["duals"][None]])
        task, starts, pool_duals, duals = self.view.task, len(moved), duals, duals.flatten(0, 1)
        labels = task.sample_labels(state["labels"].repeat(starts), duals)
        images = torch.cat([self.shown(*start, state["labels"]) for start in zip(moved, pool_duals, strict=True)])
        pool = Reconstruction(images.cpu(), task.sample_duals(duals).abs().cpu(), labels.cpu())
        return consensus(pool, starts, self.settings.room)

    def _labels(self) -> Tensor:
        return torch.arange(self.scales.candidates) % self.view.task.label_count

    def _fresh_start(self, phase: Phase) -> State:
        """Random candidates; all trials begin alike, so that only the prior differs."""
        drawn = self.settings.restarts if phase.is_trial else phase.index
        moved = self.draw(self.settings.seed * 1_000_003 + drawn).to(self.scales.network.weights[0])
        duals = self.view.task.equal_duals(self._labels(), self.scales.dual).to(moved)
        return {self.moved: moved, "duals": duals, **moments(self.moved, moved), **moments("duals", duals)}

    def _prior(self, state: State, phase: Phase) -> float:
        if not self.uses_prior:
            return 0.0
        if self.several_classes:
            strength = CLASSES_PRIOR if self.settings.prior is None else self.settings.prior
            return strength * math.pow(FIRST_PRIOR, 1 - phase.step / phase.length)
        if self.settings.prior is not None:
            return self.settings.prior
        return (
            PRIOR_GRID[phase.index] if phase.is_trial else choose_prior(tuple(state["left_unexplained"].tolist()))
        )

    def _duals_move(self, phase: Phase) -> bool:
        """With several classes duals wait: while most margins are negative they would all fall to zero."""
        return not self.several_classes or phase.step >= HELD_DUALS * phase.length

    def _keep(self, state: State, phase: Phase) -> None:
        """The end of a start: a trial is judged by the neurons that were left out, a restart goes to the pool."""
        if phase.is_trial:
            left = self.objective.unexplained({**state, "latents": self.latents(state[self.moved])})
            state["left_unexplained"][phase.index] = left[::LEFT_OUT].mean()
            return
        for name in (self.moved, "duals"):
            state[f"pool_{name}"][phase.index] = state[name]

    def _current_metric(self, state: State, phase: Phase) -> Metric:
        """From stored copies, so that a resumed run has the same one; zero where a trial leaves neurons out."""
        if 0 not in self._metric:
            latents = self.latents(state[f"metric_{self.moved}"])
            metric = self.objective.metric(latents, state["metric_duals"])
            self._metric[0] = metric.without(LEFT_OUT) if phase.is_trial else metric
        return self._metric[0]
