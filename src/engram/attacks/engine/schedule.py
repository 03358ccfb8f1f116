"""When the engine does what: short trials that choose the prior, then the restarts.

The prior's strength is chosen blind by cross-validation over neurons: a trial fits three quarters of the first
layer's equations and is judged by how well its candidates explain the others. Too little prior fits noise, too
much blurs; both show in neurons that were left out. Of strengths that predict about equally well the largest is
taken: the smoothest images among equals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch

from engram.attacks.settings import EngineSettings

PRIOR_GRID = (1.3, 1.95, 2.925, 4.3875)
"""Each one and a half times the one before. Weaker ones explain left-out neurons better, by what training left
beside its images in weak directions, and cost CIFAR-10 up to a third of its images, where MNIST gains a few:
docs/engine-log.md."""
CLASSES_PRIOR = 3.2
"""With several classes there are no trials: those of 75 steps take the weakest prior, and only at 250, the length
of a start, do they take this one."""
TRIAL_SHARE, LONGEST_TRIAL = 0.25, 75
"""Length of a trial as a share of a restart, and the most steps of one: longer trials take ever weaker priors,
since candidates go on to explain what training left beside its images; see docs/engine-log.md."""
LEFT_OUT = 4
"""Every fourth neuron is left out of a trial."""
TOLERANCE = 0.02
"""Strengths within this share of the best count as equal."""
FINE = 301
"""Strengths that are looked at, evenly spaced in the logarithm."""


@dataclass(frozen=True)
class Phase:
    """Where a step lies: in a trial or a restart (`index`), at `step` of `length`."""

    is_trial: bool
    index: int
    step: int
    length: int

    @property
    def is_last(self) -> bool:
        return self.step + 1 == self.length


@dataclass(frozen=True)
class Schedule:
    """`trials` of `trial_steps`, then `restarts` of `steps`.

    >>> plan = Schedule(trials=2, trial_steps=3, restarts=4, steps=10)
    >>> plan.total, plan.phase(4), plan.phase(17).index, plan.finished_restarts(26)
    (46, Phase(is_trial=True, index=1, step=1, length=3), 1, 2)
    """

    trials: int
    trial_steps: int
    restarts: int
    steps: int

    @property
    def total(self) -> int:
        return self.trials * self.trial_steps + self.restarts * self.steps

    def phase(self, step: int) -> Phase:
        """The phase of step 0, 1, ..."""
        rest = step - self.trials * self.trial_steps
        if rest < 0:
            index, within = divmod(step, self.trial_steps)
            return Phase(True, index, within, self.trial_steps)
        index, within = divmod(rest, self.steps)
        return Phase(False, index, within, self.steps)

    def share_of_running(self, step: int) -> float:
        """How much of the running restart is done after `step` steps; 0 between restarts and before the first.

        >>> Schedule(trials=1, trial_steps=3, restarts=2, steps=10).share_of_running(10)
        0.7
        """
        rest = max(0, step - self.trials * self.trial_steps)
        return rest % self.steps / self.steps

    def finished_restarts(self, step: int) -> int:
        """How many restarts are complete after `step` steps."""
        return max(0, step - self.trials * self.trial_steps) // self.steps


def make_schedule(settings: EngineSettings, *, tries: bool) -> Schedule:
    """With trials of the prior's strengths, or without."""
    trials = len(PRIOR_GRID) if tries else 0
    return Schedule(trials, trial_length(settings.steps), settings.restarts, settings.steps)


def trial_length(steps: int) -> int:
    """Steps of a trial beside starts of `steps`.

    >>> trial_length(200), trial_length(1000)
    (50, 75)
    """
    return min(LONGEST_TRIAL, max(1, int(TRIAL_SHARE * steps)))


def longest_start(affordable: int, *, trials: int, restarts: int) -> int:
    """Steps of a start, such that `restarts` of them and the trials take `affordable` steps.

    >>> longest_start(650, trials=5, restarts=2), longest_start(2300, trials=4, restarts=4)
    (200, 500)
    """
    with_short_trials = affordable / (restarts + trials * TRIAL_SHARE)
    return int(max(with_short_trials, (affordable - trials * LONGEST_TRIAL) / restarts))


@lru_cache(maxsize=8)
def choose_prior(left_unexplained: tuple[float, ...]) -> float:
    """The largest strength whose residual on left-out neurons, one for each of `PRIOR_GRID`, is near the best.

    From one random start to the next such residuals move by two percent or so, as much as they differ between
    neighbours on the grid; a parabola over the strength's logarithm through all of them is steadier.

    >>> choose_prior((0.21, 0.20, 0.21, 0.24)), choose_prior((0.20, 0.22, 0.25, 0.3))
    (2.518, 1.474)
    """
    places = torch.arange(len(PRIOR_GRID), dtype=torch.float64)
    fine = torch.linspace(0, len(PRIOR_GRID) - 1, FINE, dtype=torch.float64)
    powers = torch.arange(3)
    residuals = torch.tensor(left_unexplained, dtype=torch.float64)
    fitted = torch.linalg.lstsq(places[:, None] ** powers, residuals[:, None]).solution
    smooth = (fine[:, None] ** powers @ fitted).flatten()
    chosen = float(fine[(smooth <= (1 + TOLERANCE) * smooth.min()).nonzero().max()])
    return round(PRIOR_GRID[0] * math.pow(PRIOR_GRID[1] / PRIOR_GRID[0], chosen), 3)
