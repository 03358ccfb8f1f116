"""Samplers whose draws depend on the sweep's seed and the trial's number, not on which process asks when."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial

SAMPLERS: Mapping[str, Callable[[int], BaseSampler]] = {
    "random": lambda seed: RandomSampler(seed=seed),
    "tpe": lambda seed: TPESampler(seed=seed),
    "gp": lambda seed: GPSampler(seed=seed),
}


def derived_seed(seed: int, *what: object) -> int:
    """A seed below 2³¹ for one purpose.

    >>> derived_seed(0, 17, "attack") == derived_seed(0, 17, "attack") != derived_seed(0, 18, "attack")
    True
    """
    digest = hashlib.sha256(repr((seed, *what)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


class NumberedSampler(BaseSampler):
    """A fresh sampler of its kind for every trial and setting: `random` then needs nothing but the number.

    `tpe` and `gp` also look at the trials that have finished, hence at the order of events.
    """

    def __init__(self, kind: str, seed: int) -> None:
        self._make, self._seed = SAMPLERS[kind], seed

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._fresh(trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._fresh(trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        # Seeded by the name too: a trial taken over with some settings drawn gets the others as it would have.
        fresh = self._fresh(trial, param_name)
        return fresh.sample_independent(study, trial, param_name, param_distribution)

    def _fresh(self, trial: FrozenTrial, name: str = "") -> BaseSampler:
        return self._make(derived_seed(self._seed, trial.number, name))
