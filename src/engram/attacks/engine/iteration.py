"""What all engines share: Adam on candidates and their duals, start after start, as long as there is time.

An engine names what it moves (`moved`: latents or images) and defines how to draw it, its gradients, its
coordinates in the row space and its images. Steps, metric, pool, scoring and time budgets are implemented here."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor

from engram.attacks.engine.closed_form import Metric
from engram.attacks.engine.consensus import CLEAN, Constants, consensus, on_background
from engram.attacks.engine.objective import Objective
from engram.attacks.engine.self_tuning import (
    CLASSES_FIRST_PRIOR,
    CLASSES_PRIOR,
    CORNERS_PRIOR,
    MOST_RESTARTS,
    MOST_STEPS,
    PRIORS,
    RIDGE,
    Phase,
    Scales,
    next_length,
)
from engram.attacks.reconstruction import Attack, Reconstruction
from engram.attacks.settings import EngineSettings
from engram.core.loop import Metrics, State, Stopwatch, Values
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


DUAL_RATE, CLASSES_DUAL_RATE = 0.05, 0.025
"""Adam's rate as a share of the mean dual, for two classes and for more."""
HELD_DUALS = 0.2
"""With several classes, the share of a start during which the duals are held constant."""
NEARLY_DONE = 0.7
"""A start that has done this share of its steps hardly moves any more: it is kept when time runs out."""
BACKGROUND_FROM = 0.2
"""Share of a start after which its candidates show where a flat background lies."""
PROBED = 6
"""Steps of the first start after which its length is set: until then nothing is known about their speed."""


@dataclass(frozen=True, eq=False)
class EngineIteration(Attack, Generic[N]):
    """The iteration, on m candidates of the shape `shape`."""

    moved: ClassVar[str]

    view: AttackerView[Network]
    settings: EngineSettings
    first: int = 0
    """The first start that this process makes; the next one is `settings.jobs` later."""
    _metric: dict[int, Metric] = field(default_factory=dict, init=False, repr=False)
    _watch: Stopwatch = field(default_factory=Stopwatch, init=False, repr=False)

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

    @property
    def several_classes(self) -> bool:
        """More than two classes, so that a sample has several constraints."""
        return self.posed.task.label_count > 2

    @property
    def uses_prior(self) -> bool:
        """Whether the inputs are images and the prior is not switched off."""
        return len(self.view.input_shape) == 3 and self.settings.prior != 0

    @property
    def uses_corners(self) -> bool:
        """Whether the inputs are known to have one-hot values, and the prior is not switched off."""
        return self.view.features is not None and self.settings.prior != 0

    @property
    def has_background(self) -> bool:
        """Whether the weights show images on a flat background."""
        return False

    @property
    def closing(self) -> float:
        """Several processes make more starts, which take longer to merge."""
        return 0.02 * min(self.settings.jobs, 2)

    @property
    def longest(self) -> int:
        """Steps of a start beyond which it finds no more images."""
        return MOST_STEPS

    @property
    def constants(self) -> Constants:
        """Of the confidence."""
        return CLEAN

    @property
    def crowd(self) -> float:
        """More candidates alike in a start than this are no image that several found, but a collapse."""
        return math.inf

    @property
    def priors(self) -> tuple[float, ...]:
        """Strengths of the prior that the starts take in turn, with two classes."""
        return PRIORS

    @property
    def ridge(self) -> float:
        """Of the metric."""
        return RIDGE if self.settings.ridge is None else self.settings.ridge

    @property
    def first_prior(self) -> float:
        """How many times its strength the prior starts with."""
        return CLASSES_FIRST_PRIOR if self.several_classes else 1.0

    @property
    def total_steps(self) -> int:
        """The most steps; a run with a time limit takes as many as fit."""
        return self._starts * self.settings.steps

    @property
    def _starts(self) -> int:
        """How many starts this process makes, at most."""
        return len(range(self.first, self.settings.restarts, self.settings.jobs))

    @property
    def others(self) -> list[Self]:
        """One for each further process that has a start to make."""
        return [replace(self, first=j) for j in range(1, min(self.settings.jobs, self.settings.restarts))]

    def begun(self, seconds: float) -> None:
        self._watch.begun(seconds)

    def fingerprint(self) -> str:
        return f"{super().fingerprint()}, from start {self.first}" if self.first else super().fingerprint()

    def init(self) -> State:
        before = self._watch.lap()
        like = self.scales.network.weights[0]
        labels = self._labels()
        duals = self.posed.task.equal_duals(labels, self.scales.dual)
        spent = before + self._watch.lap() if self.settings.seconds else 0.0
        opening = torch.tensor(spent, dtype=torch.float64)
        return {
            f"pool_{self.moved}": like.new_zeros(0, len(labels), *self.shape),
            "pool_duals": like.new_zeros(0, *duals.shape),
            "labels": labels.to(like.device),
            "step": torch.tensor(0),
            "start_step": torch.tensor(0),
            "start_length": torch.tensor(self.settings.steps),
            "seconds": opening,
            "opening_seconds": opening.clone(),
            "first_step_seconds": torch.zeros_like(opening),
        }

    def phase(self, state: State) -> Phase:
        """The place of the step that comes next."""
        index = self.first + self.settings.jobs * len(state["pool_duals"])
        return Phase(index, int(state["start_step"]), int(state["start_length"]))

    def step(self, state: State) -> Metrics:
        if self.settings.seconds is not None:
            state["seconds"] += self._watch.lap()
            self._set_length(state, self.settings.seconds)
        phase = self.phase(state)
        if phase.step == 0:
            state.update(self._fresh_start(state, phase))
        if phase.step % self.settings.metric_every == 0:
            state.update({f"metric_{name}": state[name].clone() for name in (self.moved, "duals")})
            self._metric.clear()
            if self.has_background and phase.share >= BACKGROUND_FROM:
                state["background"] = self.objective.background(self.latents(state[self.moved]), state["duals"])
        prior = self._prior(phase)
        losses, by_moved, by_duals = self.gradients(state, self._current_metric(state), prior)
        decay = 0.5 * (1 + math.cos(math.pi * phase.share))
        adam(state, self.moved, by_moved, self.rate * decay, phase.step + 1)
        if self._duals_move(phase):
            share = CLASSES_DUAL_RATE if self.several_classes else DUAL_RATE
            adam(state, "duals", by_duals, share * self.scales.dual * decay, phase.step + 1)
        if not self.posed.task.has_signed_duals:
            state["duals"].clamp_(min=0)
        state["start_step"] += 1
        if phase.is_last:
            for name in (self.moved, "duals"):
                state[f"pool_{name}"] = torch.cat([state[f"pool_{name}"], state[name][None]])
            state["start_step"].zero_()
        state["step"] += 1
        done, total = len(state["pool_duals"]), torch.stack(list(losses.values())).sum()
        further = {"prior_strength": torch.tensor(prior), "starts": torch.tensor(done)}
        if self.settings.seconds is not None:
            further["seconds"] = state["seconds"]
        return {**losses, "loss": total, **further}

    def finished(self, metrics: Values) -> bool:
        """Starts that a time limit made shorter may leave steps unused."""
        return self.settings.seconds is not None and metrics["starts"] >= self._starts

    def share_done(self, step: int, metrics: Values) -> float:
        """Of the time if it is limited, else of the steps."""
        if self.settings.seconds is None:
            return super().share_done(step, metrics)
        return max(
            metrics.get("seconds", 0.0) / self.settings.seconds,
            metrics.get("starts", 0.0) / self._starts,
        )

    def hint(self) -> str:
        return "this should not happen: please report the model's layers as `engram inspect` shows them"

    def reconstruction(self, state: State) -> Reconstruction:
        """The candidates of all finished restarts, merged, scored and sorted."""
        pool, starts = self.pooled(state)
        found = consensus(pool, starts, self.settings.room, self.constants, self.crowd)
        return on_background(found, self.view.pixel_range) if self.has_background else found

    def joined(self, states: Sequence[State]) -> State:
        """The pool of all processes, start after start; steps are added up."""
        if len(states) == 1:
            return states[0]
        pools = [self._pool(state) for state in states]
        places = [(place, job) for job, (_, duals) in enumerate(pools) for place in range(len(duals))]
        state = {**states[0], "step": torch.stack([one["step"] for one in states]).sum()}
        state["start_step"] = torch.zeros_like(
            state["start_step"]
        )  # what is left of a start is in the pool, or lost
        for part, name in enumerate((self.moved, "duals")):
            state[f"pool_{name}"] = torch.stack([pools[job][part][place] for place, job in sorted(places)])
        return state

    def _pool(self, state: State) -> tuple[Tensor, Tensor]:
        """What is moved [R, m, ...] and the duals [R, m, ...] of the finished starts. The current one counts if it
        is nearly done, or if there is no other."""
        moved, duals = (state[f"pool_{name}"] for name in (self.moved, "duals"))
        if len(moved) == 0 or self.phase(state).share >= NEARLY_DONE:
            moved = torch.cat([moved, state[self.moved][None]])
            duals = torch.cat([duals, state["duals"][None]])
        return moved, duals

    def pooled(self, state: State) -> tuple[Reconstruction, int]:
        """The candidates of all finished restarts, one restart after another, and the number of restarts."""
        moved, duals = self._pool(state)
        task, starts, pool_duals, duals = self.posed.task, len(moved), duals, duals.flatten(0, 1)
        labels = task.sample_labels(state["labels"].repeat(starts), duals)
        images = torch.cat([self.shown(*start, state["labels"]) for start in zip(moved, pool_duals, strict=True)])
        return Reconstruction(images.cpu(), task.sample_duals(duals).abs().cpu(), labels.cpu()), starts

    def _labels(self) -> Tensor:
        return torch.arange(self.scales.candidates) % self.posed.task.label_count

    def _fresh_start(self, state: State, phase: Phase) -> State:
        """Random candidates."""
        state.pop("background", None)
        seed = (self.settings.seed * 1_000_003 + phase.index) % 2**64  # a large one wraps around, as in torch
        moved = self.draw(seed).to(self.scales.network.weights[0])
        duals = self.posed.task.equal_duals(self._labels(), self.scales.dual).to(moved)
        return {self.moved: moved, "duals": duals, **moments(self.moved, moved), **moments("duals", duals)}

    def _prior(self, phase: Phase) -> float:
        given = None if isinstance(self.settings.prior, str) else self.settings.prior
        if self.uses_corners:
            return CORNERS_PRIOR if given is None else given
        if not self.uses_prior:
            return 0.0
        usual = CLASSES_PRIOR if self.several_classes else self.priors[phase.index % len(self.priors)]
        strength = usual if given is None else given
        return strength * math.pow(self.first_prior, 1 - phase.share)

    def _duals_move(self, phase: Phase) -> bool:
        """With several classes the duals wait: while most margins are negative, they would all fall to zero."""
        return not self.several_classes or phase.step >= HELD_DUALS * phase.length

    def _current_metric(self, state: State) -> Metric:
        """From stored copies, so that a resumed run has the same metric."""
        if 0 not in self._metric:
            latents = self.latents(state[f"metric_{self.moved}"])
            self._metric[0] = self.objective.metric(latents, state["metric_duals"])
        return self._metric[0]

    def _set_length(self, state: State, limit: float) -> None:
        """Where a start begins, divide the time that is left among the starts to come. The first start gets its
        length after a few steps, since only they show how long a step takes."""
        steps, within, done = int(state["step"]), int(state["start_step"]), len(state["pool_duals"])
        seconds = float(state["seconds"]) - float(state["opening_seconds"])
        if steps == 1:
            state["first_step_seconds"].fill_(seconds)
        if within != (0 if done else PROBED):
            return
        each, first = seconds / steps, float(state["first_step_seconds"])
        if not done:  # the first step computed a metric, which lasts for many
            each = (seconds - first) / (steps - 1)
            each += max(0.0, first - each) / self.settings.metric_every
        each = max(each, 1e-9)  # a coarse clock may show none
        left = (1 - self.closing) * limit - float(state["seconds"])
        longest = min(self.longest, self.settings.steps)
        fewest = -(-2 // self.settings.jobs)
        state["start_length"].fill_(next_length(within + max(0.0, left) / each, done, longest, fewest))


E = TypeVar("E", bound=EngineIteration[Any])


def fit_to_budget(engine: E, seconds: float) -> E:
    """The engine that makes as many starts as fit into `seconds`, and plans each of them when it begins."""
    settings = replace(engine.settings, seconds=seconds, steps=MOST_STEPS, restarts=MOST_RESTARTS)
    return replace(engine, settings=settings)
