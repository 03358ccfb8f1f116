"""From a time for a whole sweep to the steps of a trial, by what steps cost where the trials will run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from engram.attacks.registry import RECIPES
from engram.core.errors import ConfigError, EngramError, require
from engram.models.view import AttackerView
from engram.sweep.executors import Executor, Job
from engram.sweep.space import SweepSpec
from engram.sweep.trial import TrialOrder

WARM_UP, MEASURED = 2, 12
"""Steps of a first order, which also starts the workers, and of the one whose time counts."""
USED = 0.9
"""Share of the time that is planned; the rest is for files, the study and pooling."""


@dataclass(frozen=True)
class StepPlan:
    """How long a trial may be: `steps` at `seconds_per_step`, with `slots` trials side by side."""

    steps: int
    seconds_per_step: float
    slots: int
    recipe_steps: int
    """As many as the recipe would take."""
    seconds: float
    trials: int

    @property
    def sentence(self) -> str:
        """What is cut, in words.

        >>> StepPlan(300, 0.09, 2, 50_000, 1500.0, 100).sentence
        'cut: 300 steps a trial instead of 50,000; 100 trials, 2 at a time, 0.090 s a step: about 25 minutes'
        """
        minutes = self.trials * self.steps * self.seconds_per_step / self.slots / USED / 60
        return (
            f"cut: {self.steps:,} steps a trial instead of {self.recipe_steps:,}; {self.trials} trials, "
            f"{self.slots} at a time, {self.seconds_per_step:.3f} s a step: about {minutes:.0f} minutes"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def plan_steps(view: AttackerView, spec: SweepSpec, executor: Executor, *, seconds: float) -> StepPlan:
    """Steps with which all trials of `spec` take about `seconds`, measured with the executor's slots all busy."""
    require(seconds > 0, "seconds", "must be positive", seconds)
    if "steps" in spec.space.fixed or "steps" in spec.space.search:
        raise ConfigError("a time for the sweep plans the steps of its trials; give one or the other")
    _run_everywhere(view, spec, executor, WARM_UP)
    each = _run_everywhere(view, spec, executor, MEASURED) / MEASURED
    slots = min(executor.slots, spec.trials)
    most = RECIPES[spec.space.recipe].settings(**spec.space.fixed).steps
    steps = max(1, min(most, int(USED * seconds * slots / (spec.trials * each))))
    return StepPlan(steps, each, slots, most, seconds, spec.trials)


def with_steps(spec: SweepSpec, steps: int) -> SweepSpec:
    """The sweep with trials of so many steps."""
    return replace(spec, space=spec.space.fixing({"steps": steps}))


def _run_everywhere(view: AttackerView, spec: SweepSpec, executor: Executor, steps: int) -> float:
    """Seconds of the slowest of as many short trials as run side by side."""
    waiting = executor.slots
    for number in range(waiting):
        settings = {**spec.space.corner(), "steps": steps, "seed": number}
        executor.submit(Job("plan", view, TrialOrder(number=number, recipe=spec.space.recipe, settings=settings)))
    slowest = 0.0
    while waiting:
        for _, ended in executor.collect(0.5):
            if ended.state != "complete":
                raise EngramError(f"a trial of {steps} steps to measure by was {ended.state}: {ended.reason}")
            slowest, waiting = max(slowest, ended.seconds), waiting - 1
    return slowest
