"""From a time to a plan, as for the engine of fully-connected networks."""

from __future__ import annotations

import time

from engram.attacker import AttackerView
from engram.reconstruct.engine.budget import MEASURED, USED, WARM_UP, plan
from engram.reconstruct.engine.settings import EngineSettings
from engram.reconstruct.engine_conv.solver import ConvEngine
from engram.targets.convolutional import ConvNetwork


def fit_to_budget(view: AttackerView[ConvNetwork], settings: EngineSettings, seconds: float) -> EngineSettings:
    """Settings whose whole schedule takes about `seconds`, by the time that a few steps take here."""
    engine = ConvEngine(view, settings)
    state = engine.init()
    for _ in range(WARM_UP):
        engine.step(state)
    started = time.monotonic()
    for _ in range(MEASURED):
        engine.step(state)
    each = (time.monotonic() - started) / MEASURED
    started = time.monotonic()
    engine.step(engine.init())  # the first step also makes the metric, which later ones do now and then
    each += max(0.0, time.monotonic() - started - each) / settings.metric_every
    schedule = engine.schedule
    trials = schedule.trials * schedule.trial_steps / schedule.steps
    return plan(settings, trials, int(USED * seconds / each))
