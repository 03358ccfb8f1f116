"""From a time to a plan: how many steps and restarts fit, measured on this machine and this target."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, TypeVar

from engram.reconstruct.engine.iteration import EngineIteration
from engram.reconstruct.engine.settings import EngineSettings

E = TypeVar("E", bound=EngineIteration[Any])

USED = 0.8
"""Share of a budget that is planned at least; the rest is for scoring, files and a machine that others use too."""
LARGE_USED, KEPT_BACK = 0.95, 12.0
"""Of a large one so much but for some seconds, since what the rest is for hardly grows with it."""
FEWEST_STEPS, MOST_STEPS = 40, 1000
WARM_UP, MEASURED = 2, 4


def fit_to_budget(engine: E, seconds: float) -> E:
    """The engine whose whole schedule takes about `seconds`: longer starts first, then more of them.

    Two short starts beat a long one, since only their agreement tells what is real; beyond `MOST_STEPS` a start
    gains little, and the time goes into further restarts.
    """
    schedule, settings = engine.schedule, engine.settings
    trials = schedule.trials * schedule.trial_steps / schedule.steps
    affordable = int(planned_seconds(seconds) / seconds_per_step(engine))
    return replace(engine, settings=plan(settings, trials, affordable))


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
    started = time.monotonic()
    for _ in range(MEASURED):
        engine.step(state)
    each = (time.monotonic() - started) / MEASURED
    started = time.monotonic()
    engine.step(engine.init())
    return each + max(0.0, time.monotonic() - started - each) / engine.settings.metric_every


def plan(settings: EngineSettings, trials: float, affordable: int) -> EngineSettings:
    """Split `affordable` steps over at least two restarts and the trials, given in steps for each of a restart.

    >>> short = plan(EngineSettings(), 1.25, 650)
    >>> short.steps, short.restarts
    (200, 2)
    >>> long = plan(EngineSettings(), 1.25, 20_000)
    >>> long.steps, long.restarts
    (1000, 18)
    """
    for restarts in (4, 3, 2):
        steps = int(affordable / (restarts + trials))
        if steps >= settings.steps or restarts == 2:
            break
    if steps >= MOST_STEPS:
        steps = MOST_STEPS
        restarts = int(affordable / steps - trials)
    return replace(settings, steps=max(FEWEST_STEPS, steps), restarts=restarts)
