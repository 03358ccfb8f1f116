"""From a time to a plan: how many steps and restarts fit, measured on this machine and this target."""

from __future__ import annotations

import time
from dataclasses import replace

from engram.attacker import AttackerView
from engram.reconstruct.engine.settings import EngineSettings
from engram.reconstruct.engine.solver import Engine

USED = 0.85
"""Share of the budget that is planned; the rest is for scoring, files and a machine that others use too."""
FEWEST_STEPS, MOST_STEPS = 40, 1000
WARM_UP, MEASURED = 2, 4


def fit_to_budget(view: AttackerView, settings: EngineSettings, seconds: float) -> EngineSettings:
    """Settings whose whole schedule takes about `seconds`: longer starts first, then more of them.

    Two short starts beat a long one, since only their agreement tells what is real; beyond `MOST_STEPS` a start
    gains little, and the time goes into further restarts.
    """
    engine = Engine(view, settings)
    state = engine.init()
    for _ in range(WARM_UP):
        engine.step(state)
    started = time.monotonic()
    for _ in range(MEASURED):
        engine.step(state)
    # The metric is recomputed every so many steps; its cost shows in the first step, so time that one too.
    each = (time.monotonic() - started) / MEASURED
    started = time.monotonic()
    engine.step(engine.init())
    each += max(0.0, time.monotonic() - started - each) / settings.metric_every
    return plan(settings, trial_steps_per_step(engine), int(USED * seconds / each))


def trial_steps_per_step(engine: Engine) -> float:
    """Steps of all trials together for each step of a restart."""
    return engine.schedule.trials * engine.schedule.trial_steps / engine.schedule.steps


def plan(settings: EngineSettings, trials: float, affordable: int) -> EngineSettings:
    """Split `affordable` steps over the trials and at least two restarts.

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
