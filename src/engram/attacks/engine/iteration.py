"""What all engines share: Adam on candidates and their duals, start after start, trials first.

An engine names what it moves (`moved`: latents or images) and defines how to draw it, its gradients, its
coordinates in the row space and its images. Steps, metric, pool, scoring and time budgets are implemented here."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from engram.attacks.engine.consensus import consensus
from engram.attacks.engine.metric import Metric
from engram.attacks.engine.objective import Objective
from engram.attacks.engine.self_tuning import (
    CLASSES_PRIOR,
    LEFT_OUT,
    PRIOR_GRID,
    Phase,
    Scales,
    Schedule,
    choose_prior,
    longest_start,
    make_schedule,
    trial_length,
)
from engram.attacks.reconstruction import Attack, Reconstruction
from engram.attacks.settings import EngineSettings
from engram.core.loop import Metrics, State
from engram.models.networks import N, Network
from engram.models.view import AttackerView

BETAS = (0.9, 0.98)
"""The usual 0.999 would remember the first steps, whose gradients are ten times larger, for a whole start."""


def moments(name: str, value: Tensor) -> State:
    """The moments of a value that has not moved yet."""
    return {f"{name}_{moment}": torch.zeros_like(value) for moment in ("mean", "square")}


def adam(state: State, name: str, gradient: Tensor, rate: float | Tensor, step: int) -> None:
    """Step 1, 2, ... of `state[name]`; the first one has length `rate` wherever the gradient is not zero.

    >>> state = {"x": torch.zeros(2), **moments("x", torch.zeros(2))}
    >>> adam(state, "x", torch.tensor([3.0, -0.5]), 0.1, step=1)
    >>> state["x"]
    tensor([-0.1000,  0.1000])
    """
    mean, square = state[f"{name}_mean"], state[f"{name}_square"]
    mean.lerp_(gradient, 1 - BETAS[0])
    square.lerp_(gradient.square(), 1 - BETAS[1])
    spread = (square / (1 - BETAS[1] ** step)).sqrt_().add_(1e-12)
    state[name].sub_(mean.div(spread).mul_(rate / (1 - BETAS[0] ** step)))


DUAL_RATE = 0.05
"""Adam's rate as a share of the mean dual."""
HELD_DUALS = 0.2
"""With several classes, the share of a start during which the duals are held constant."""
FIRST_PRIOR = 4.0
"""With several classes the prior starts at this many times its strength and falls: smooth images first."""
NEARLY_DONE = 0.7
"""A start that has done this share of its steps hardly moves any more: it is kept when time runs out."""
UNJUDGED = torch.finfo(torch.float64).max
"""Placeholder for the residual of a trial that has not ended."""


@dataclass(frozen=True, eq=False)
class EngineIteration(Attack, Generic[N]):
    """The iteration, on m candidates of the shape `shape`."""

    moved: ClassVar[str]

    view: AttackerView[Network]
    settings: EngineSettings
    _metric: dict[int, Metric] = field(default_factory=dict, init=False, repr=False)

    @property
    @abstractmethod
    def posed(self) -> AttackerView[N]:
        """The view to solve; `view` is the one that the caller gave, used in records and snapshots."""

    @property
    @abstractmethod
    def scales(self) -> Scales: ...

    @property
    @abstractmethod
    def objective(self) -> Objective: ...

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of one candidate as it is moved."""

    @property
    @abstractmethod
    def rate(self) -> float | Tensor:
        """Adam's rate for what is moved, at the beginning of a start: one rate, or one per entry of a row."""

    @abstractmethod
    def draw(self, seed: int) -> Tensor:
        """Random candidates, [m, *shape]."""

    @abstractmethod
    def gradients(self, state: State, metric: Metric, prior: float) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The terms of F, and its gradients with respect to what is moved [m, *shape] and the duals."""

    @abstractmethod
    def latents(self, moved: Tensor) -> Tensor:
        """Coordinates in the row space, [m, r]."""

    @abstractmethod
    def images(self, moved: Tensor) -> Tensor:
        """[m, *input_shape]."""

    def shown(self, moved: Tensor, duals: Tensor, labels: Tensor) -> Tensor:
        """The images [m, *input_shape] at the end of a start."""
        return self.images(moved)

    @cached_property
    def schedule(self) -> Schedule:
        """Trials only if there is a prior to choose: images, two classes, no strength given."""
        given = self.settings.prior is not None
        return make_schedule(self.settings, tries=self.uses_prior and not given and not self.several_classes)

    @property
    def several_classes(self) -> bool:
        """More than two classes, so that a sample has several constraints."""
        return self.posed.task.label_count > 2

    @property
    def uses_prior(self) -> bool:
        """Whether the inputs are images and the prior is not switched off."""
        return len(self.view.input_shape) == 3 and self.settings.prior != 0

    @property
    def total_steps(self) -> int:
        return self.schedule.total

    def init(self) -> State:
        like, restarts = self.scales.network.weights[0], self.settings.restarts
        labels = self._labels()
        duals = self.posed.task.equal_duals(labels, self.scales.dual)
        return {
            f"pool_{self.moved}": like.new_zeros(restarts, len(labels), *self.shape),
            "pool_duals": like.new_zeros(restarts, *duals.shape),
            "labels": labels.to(like.device),
            "step": torch.tensor(0),
            # No result yet; finite, since a state with infinities counts as diverged.
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
        if not self.posed.task.has_signed_duals:
            state["duals"].clamp_(min=0)
        if phase.is_last:
            self._keep(state, phase)
        state["step"] += 1
        strength = torch.tensor(prior)
        return {**losses, "loss": torch.stack(list(losses.values())).sum(), "prior_strength": strength}

    def hint(self) -> str:
        return "this should not happen: please report the model's layers as `engram inspect` shows them"

    def reconstruction(self, state: State) -> Reconstruction:
        """The candidates of all finished restarts, merged, scored and sorted.

        The current one counts if it is nearly done, or if there is no other.
        """
        steps = int(state["step"])
        done = self.schedule.finished_restarts(steps)
        moved, duals = (state[f"pool_{name}"][:done] for name in (self.moved, "duals"))
        if done == 0 or self.schedule.share_of_running(steps) >= NEARLY_DONE:
            moved = torch.cat([moved, state[self.moved][None]])
            duals = torch.cat([duals, state["duals"][None]])
        task, starts, pool_duals, duals = self.posed.task, len(moved), duals, duals.flatten(0, 1)
        labels = task.sample_labels(state["labels"].repeat(starts), duals)
        images = torch.cat([self.shown(*start, state["labels"]) for start in zip(moved, pool_duals, strict=True)])
        pool = Reconstruction(images.cpu(), task.sample_duals(duals).abs().cpu(), labels.cpu())
        return consensus(pool, starts, self.settings.room)

    def _labels(self) -> Tensor:
        return torch.arange(self.scales.candidates) % self.posed.task.label_count

    def _fresh_start(self, phase: Phase) -> State:
        """Random candidates; all trials start from the same ones, so that only the prior differs."""
        drawn = self.settings.restarts if phase.is_trial else phase.index
        moved = self.draw(self.settings.seed * 1_000_003 + drawn).to(self.scales.network.weights[0])
        duals = self.posed.task.equal_duals(self._labels(), self.scales.dual).to(moved)
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
        """With several classes the duals wait: while most margins are negative, they would all fall to zero."""
        return not self.several_classes or phase.step >= HELD_DUALS * phase.length

    def _keep(self, state: State, phase: Phase) -> None:
        """At the end of a start, score a trial on the left-out neurons, or add a restart to the pool."""
        if phase.is_trial:
            left = self.objective.unexplained({**state, "latents": self.latents(state[self.moved])})
            state["left_unexplained"][phase.index] = left[::LEFT_OUT].mean()
            return
        for name in (self.moved, "duals"):
            state[f"pool_{name}"][phase.index] = state[name]

    def _current_metric(self, state: State, phase: Phase) -> Metric:
        """From stored copies, so that a resumed run has the same metric; zero for neurons left out of a trial."""
        if 0 not in self._metric:
            latents = self.latents(state[f"metric_{self.moved}"])
            metric = self.objective.metric(latents, state["metric_duals"])
            self._metric[0] = metric.without(LEFT_OUT) if phase.is_trial else metric
        return self._metric[0]


E = TypeVar("E", bound=EngineIteration[Any])

USED = 0.8
"""Share of a budget that is planned, at least; the rest is for scoring, files and other load."""
LARGE_USED, KEPT_BACK = 0.95, 12.0
"""For a large budget, this share minus some seconds, since the rest hardly grows with the budget."""
FEWEST_STEPS, MOST_STEPS = 40, 500
"""Steps of a start; in longer ones candidates fit residue of training, not images (docs/engine-log.md)."""
MOST_RESTARTS = 24
"""A longer budget ends early; on CIFAR-10, n=100, ten starts found no more than four (docs/engine-log.md)."""
WARM_UP, FEWEST_MEASURED, MOST_MEASURED = 4, 4, 40
MEASURING = 0.5
"""Seconds to measure steps for, within those limits on their number."""


def fit_to_budget(engine: E, seconds: float) -> E:
    """The engine with a schedule of about `seconds`: longer starts first, then more of them.

    Two short starts beat one long start, since only their agreement shows what is real.
    """
    affordable = int(planned_seconds(seconds) / seconds_per_step(engine))
    return replace(engine, settings=plan(engine.settings, engine.schedule.trials, affordable))


def planned_seconds(budget: float) -> float:
    """How much of a budget to plan, in seconds.

    >>> planned_seconds(60), planned_seconds(240)
    (48.0, 216.0)
    """
    return max(USED * budget, LARGE_USED * budget - KEPT_BACK)


def seconds_per_step(engine: EngineIteration[Any]) -> float:
    """Measured on a few steps; the first step of a start shows the cost of the metric."""
    state = engine.init()
    for _ in range(WARM_UP):
        engine.step(state)
    each = _mean_seconds(lambda: engine.step(state))
    started = time.monotonic()
    engine.step(engine.init())
    return each + max(0.0, time.monotonic() - started - each) / engine.settings.metric_every


def _mean_seconds(step: Callable[[], object]) -> float:
    started, steps = time.monotonic(), 0
    while steps < FEWEST_MEASURED or (steps < MOST_MEASURED and time.monotonic() - started < MEASURING):
        step()
        steps += 1
    return (time.monotonic() - started) / steps


def plan(settings: EngineSettings, trials: int, affordable: int) -> EngineSettings:
    """Split `affordable` steps over the trials and two or more restarts, as few as `MOST_STEPS` allows.

    Steps beyond `MOST_RESTARTS` restarts are left unused.

    >>> short = plan(EngineSettings(), 5, 650)
    >>> short.steps, short.restarts
    (200, 2)
    >>> long = plan(EngineSettings(), 4, 1900)
    >>> long.steps, long.restarts
    (400, 4)
    """
    after_trials = affordable - trials * trial_length(MOST_STEPS)
    restarts = min(max(2, math.ceil(after_trials / MOST_STEPS)), MOST_RESTARTS)
    steps = longest_start(affordable, trials=trials, restarts=restarts)
    return replace(settings, steps=min(max(FEWEST_STEPS, steps), MOST_STEPS), restarts=restarts)
