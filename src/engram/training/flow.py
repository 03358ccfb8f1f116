"""Training along the gradient flow in large steps: the path of plain descent, in a hundredth of its epochs.

    theta' = -grad log L        (with weight decay w: theta' = -grad L - w theta)

is the flow of the loss L on the clock of its logarithm: late in training, where plain descent crawls, log L falls
at a steady pace. Samples with equal margins make the flow stiff, so steps are those of the stabilised
Runge-Kutta-Chebyshev method of second order (Sommeijer et al. 1998), as large as its own error estimate allows in
every layer. Until the loss is below `Flow.below`, descent is plain: on the plateau before, neurons turn on and off
with every step, and the outcome depends on the rate itself, so the recipe's own rate is used there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Generic

import torch
from torch import Tensor

from engram.core.loop import Metrics, State, Values
from engram.models.networks import N
from engram.training.descent import GradientDescent, Slope, begin_drift, record_drift
from engram.training.recipe import Flow

DAMPING = 2 / 13
LEAST_STAGES = 2


@dataclass(frozen=True)
class Stage:
    """d_j = mu d_{j-1} + nu d_{j-2} - slope h g(y + d_{j-1}) - drift h g(y)."""

    mu: float
    nu: float
    slope: float
    drift: float


def reach(count: int) -> float:
    """The stability interval of `count` stages: the limit on the step times the largest curvature.

    >>> reach(2), reach(10)  # five times the stages, 33 times the interval
    (1.959, 64.647)
    """
    return round(0.653 * (count**2 - 1), 6)


def stages_for(stiffness: float) -> int:
    """The smallest number of stages whose interval covers `stiffness`, the step times the largest curvature.

    >>> stages_for(1.0), stages_for(64.0)
    (2, 10)
    """
    return max(LEAST_STAGES, math.ceil(math.sqrt(1 + stiffness / 0.653)))


@cache
def stages(count: int) -> tuple[Stage, ...]:
    """The coefficients of a step of `count` stages.

    >>> len(stages(4))
    4
    """
    w0 = 1 + DAMPING / count**2
    chebyshev = list(_chebyshev(count, w0))
    w1 = chebyshev[count][1] / chebyshev[count][2]
    b = [second / first**2 if order > 1 else 0.0 for order, (_, first, second) in enumerate(chebyshev)]
    b[0] = b[1] = b[2]
    found = [Stage(0.0, 0.0, b[1] * w1, 0.0)]
    for j in range(2, count + 1):
        slope = 2 * b[j] * w1 / b[j - 1]
        drift = -(1 - b[j - 1] * chebyshev[j - 1][0]) * slope
        found.append(Stage(2 * b[j] * w0 / b[j - 1], -b[j] / b[j - 2], slope, drift))
    return tuple(found)


def advance(gradient: Callable[[State], State], first: State, size: float, count: int) -> State:
    """The displacement of one step of `size` from y; `gradient` takes d to g(y + d), and `first` is g(y)."""
    plan = stages(count)
    before = {name: 0 * value for name, value in first.items()}
    last = {name: -plan[0].slope * size * value for name, value in first.items()}
    for stage in plan[1:]:
        here = gradient(last)
        before, last = (
            last,
            {
                name: stage.mu * last[name]
                + stage.nu * before[name]
                - size * (stage.slope * here[name] + stage.drift * first[name])
                for name in last
            },
        )
    return last


def _chebyshev(order: int, x: float) -> Iterator[tuple[float, float, float]]:
    """T_j(x), T_j'(x), T_j''(x) for j = 0, ..., order."""
    before, last = (1.0, 0.0, 0.0), (x, 1.0, 0.0)
    yield before
    for _ in range(order):
        yield last
        value = 2 * x * last[0] - before[0]
        first = 2 * last[0] + 2 * x * last[1] - before[1]
        second = 4 * last[1] + 2 * x * last[2] - before[2]
        before, last = last, (value, first, second)


SAFETY, SHRINK, GROW = 0.8, 0.2, 2.0
MOST_STAGES = 50
CURVATURE_MARGIN = 1.25  # power iteration approaches the largest curvature from below
PROBE = 0.3  # length of its finite difference, as a share of the step: shorter ones see only neurons' edges


@dataclass(frozen=True, eq=False)
class FlowDescent(Generic[N]):
    """The flow in the coordinates of `descent`; each step is a Runge-Kutta step and counts its evaluations."""

    descent: GradientDescent[N]
    flow: Flow

    def init(self) -> State:
        return self.descent.init()

    def step(self, state: State) -> Metrics:
        if "_size" in state:
            return self._follow(state)
        metrics = self.descent.step(state)
        if float(metrics["loss"]) < self.flow.below:
            self._enter(state)
        return metrics

    def finished(self, metrics: Values) -> bool:
        return self.descent.finished(metrics)

    def fingerprint(self) -> str:
        return self.descent.fingerprint()

    def hint(self) -> str:
        return self.descent.hint()

    def network(self, state: State) -> N:
        return self.descent.network(state)

    def _enter(self, state: State) -> None:
        """Start with the plain step: lr on the clock of the loss is lr L on the clock of its logarithm."""
        self._stand(state, self._slope(self._part(state)))
        rate = self.descent.recipe.lr
        state["_size"] = _number(rate * math.exp(float(state["_log_loss"])) if self._log_clock else rate)
        state["_curvature"] = _number(0.0)
        state.update({f"_probe.{name}": value for name, value in self._part(state, "_gradient.").items()})
        self._measure_curvature(state)
        if "_epochs" in state:  # the clock changes here
            state.update(begin_drift(self._part(state), int(state["_epochs"])))

    def _follow(self, state: State) -> Metrics:
        point, gradient, curvature = self._part(state), self._part(state, "_gradient."), float(state["_curvature"])
        size = min(float(state["_size"]), reach(MOST_STAGES) / curvature)
        stages = stages_for(size * curvature)
        moved = advance(lambda by: self._slope(_sum(point, by)).gradient, gradient, size, stages)
        reached = _sum(point, moved)
        slope = self._slope(reached)
        error = self._error(moved, gradient, slope.gradient, size, reached)
        factor = SAFETY * math.cbrt(self.flow.tolerance / max(error, 1e-12)) if math.isfinite(error) else SHRINK
        state["_size"] = _number(size * min(max(factor, SHRINK), GROW))
        accepted = error <= self.flow.tolerance
        if accepted:
            state.update(reached)
            self._stand(state, slope)
        if "_epochs" in state:
            record_drift(state, size * accepted, stages + 1, self.descent.layer_squares)
        self._measure_curvature(state)
        metrics = {
            "loss": state["_log_loss"].exp(),
            "accuracy": state["_accuracy"],
            "steps": _number(stages + 1),
            "rate": _number(size),
        }
        return {**metrics, **self._gradient_metric(state)}

    @property
    def _log_clock(self) -> bool:
        """Whether to use the clock of log L; with weight decay L does not vanish, and its own clock suffices."""
        return not self.descent.recipe.weight_decay

    def _slope(self, point: State) -> Slope:
        return self.descent.slope(point, log=self._log_clock)

    def _stand(self, state: State, slope: Slope) -> None:
        """Store what is known about the point that was reached."""
        state.update({f"_gradient.{name}": value for name, value in slope.gradient.items()})
        loss = slope.loss.double()
        state["_log_loss"] = loss if self._log_clock else loss.log()
        state["_accuracy"] = slope.correct.double().mean()

    def _part(self, state: State, prefix: str = "") -> State:
        return {name: state[prefix + name] for name in self.descent.names}

    def _norm(self, vector: State) -> float:
        return float(self.descent.layer_squares(vector).sum().sqrt())

    def _gradient_metric(self, state: State) -> dict[str, Tensor]:
        if "_drift" not in state:
            return {}
        return {"gradient": state["_drift"] * state["_log_loss"].exp() if self._log_clock else state["_drift"]}

    def _error(self, moved: State, before: State, after: State, size: float, reached: State) -> float:
        """The method's estimate of its local error relative to a layer's weights, for the worst layer."""
        missed = {name: 0.8 * moved[name] + 0.4 * size * (before[name] + after[name]) for name in moved}
        shares = self.descent.layer_squares(missed) / self.descent.layer_squares(reached)
        return math.sqrt(float(shares.max()))

    def _measure_curvature(self, state: State) -> None:
        """One power iteration: ||grad(theta + v) - grad(theta)|| / ||v||; the next v is the difference."""
        point, gradient, probe = (self._part(state, prefix) for prefix in ("", "_gradient.", "_probe."))
        length = PROBE * float(state["_size"]) * self._norm(gradient)
        scale = length / self._norm(probe)
        there = self._slope({name: point[name] + scale * probe[name] for name in point}).gradient
        change = {name: there[name] - gradient[name] for name in point}
        state.update({f"_probe.{name}": value for name, value in change.items()})
        found = CURVATURE_MARGIN * self._norm(change) / length
        state["_curvature"] = _number(max(found, 0.9 * float(state["_curvature"])))


def _sum(a: State, b: State) -> State:
    return {name: a[name] + b[name] for name in a}


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
