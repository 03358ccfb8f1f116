"""From a time to a plan: how many steps and restarts fit, measured on this machine and this target."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from engram.reconstruct.engine.iteration import EngineIteration
from engram.reconstruct.engine.schedule import longest_start, trial_length
from engram.reconstruct.engine.settings import EngineSettings

E = TypeVar("E", bound=EngineIteration[Any])

USED = 0.8
"""Share of a budget that is planned at least; the rest is for scoring, files and a machine that others use too."""
LARGE_USED, KEPT_BACK = 0.95, 12.0
"""Of a large one so much but for some seconds, since what the rest is for hardly grows with it."""
FEWEST_STEPS, MOST_STEPS = 40, 500
"""Of a start; in longer ones candidates explain what training left beside its images (docs/engine-log.md)."""
MOST_RESTARTS = 24
"""A longer budget ends early; on CIFAR-10, n=100, ten starts found no more than four (docs/engine-log.md)."""
WARM_UP, FEWEST_MEASURED, MOST_MEASURED = 4, 4, 40
MEASURING = 0.5
"""Seconds to measure steps for, within those numbers of them."""


def fit_to_budget(engine: E, seconds: float) -> E:
    """The engine whose whole schedule takes about `seconds`: longer starts first, then more of them.

    Two short starts beat a long one, since only their agreement tells what is real.
    """
    affordable = int(planned_seconds(seconds) / seconds_per_step(engine))
    return replace(engine, settings=plan(engine.settings, engine.schedule.trials, affordable))


def planned_seconds(budget: float) -> float:
    """What is planned of a budget in seconds.

    >>> planned_seconds(60), planned_seconds(240)
    (48.0, 216.0)
    """
    return max(USED * budget, LARGE_USED * budget - KEPT_BACK)


def seconds_per_step(engine: EngineIteration[Any]) -> float:
    """Measured on a few steps; the metric is recomputed every so many, and the first step shows what it costs."""
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

    What is more than `MOST_RESTARTS` take is left over.

    >>> short = plan(EngineSettings(), 5, 650)
    >>> short.steps, short.restarts
    (200, 2)
    >>> long = plan(EngineSettings(), 4, 1900)
    >>> long.steps, long.restarts
    (400, 4)
    """
    beside_trials = affordable - trials * trial_length(MOST_STEPS)
    restarts = min(max(2, math.ceil(beside_trials / MOST_STEPS)), MOST_RESTARTS)
    steps = longest_start(affordable, trials=trials, restarts=restarts)
    return replace(settings, steps=min(max(FEWEST_STEPS, steps), MOST_STEPS), restarts=restarts)
