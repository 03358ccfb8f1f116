"""Runge-Kutta-Chebyshev steps of second order for y' = -g(y) with a symmetric Jacobian (Sommeijer et al. 1998)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from engram.loop import State

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
    """The stability interval of `count` stages: the step times the largest curvature may be as large.

    >>> reach(2), reach(10)  # five times the stages, 33 times the interval
    (1.959, 64.647)
    """
    return round(0.653 * (count**2 - 1), 6)


def stages_for(stiffness: float) -> int:
    """The least number of stages whose interval reaches `stiffness`, the step times the largest curvature.

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
