"""What a sweep is: which settings it varies, how they are drawn, how many trials, and which trials are hopeless.

Draws and pruning depend only on the sweep's seed and the trial's number. The first `WARM_UP` trials run to their
end. At each checkpoint a later trial must explain the weights as well as the best `keep` share of them did at the
same point. A rule based on whatever has finished so far would give different results after every kill and
for every number of workers."""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial
from pydantic import ConfigDict, TypeAdapter, ValidationError

from engram.attacks.registry import RECIPES, setting_names
from engram.attacks.settings import Haim2022
from engram.core.errors import ConfigError, require, require_numbers, require_path
from engram.models.tasks import Task

if TYPE_CHECKING:
    from optuna.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Range:
    """Uniform in [low, high]; with `log` uniform in the logarithm, with `integer` only whole numbers."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    low: float
    high: float
    log: bool = False
    integer: bool = False

    def __post_init__(self) -> None:
        require_numbers(self)
        require(self.low < self.high, "low", f"must be below high ({self.high:g})", self.low)
        require(not self.log or self.low > 0, "low", "must be positive for a range with log", self.low)

    @property
    def first(self) -> float:
        return int(self.low) if self.integer else self.low

    def suggest(self, trial: Trial, name: str) -> float:
        if self.integer:
            return trial.suggest_int(name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One of a few values, all equally likely."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    choices: tuple[str | bool | int | float | None, ...]

    def __post_init__(self) -> None:
        require(len(self.choices) > 0, "choices", "must not be empty", self.choices)

    @property
    def first(self) -> str | bool | int | float | None:
        return self.choices[0]

    def suggest(self, trial: Trial, name: str) -> str | bool | int | float | None:
        return trial.suggest_categorical(name, self.choices)


@dataclass(frozen=True, kw_only=True)
class Space:
    """`search` is drawn for every trial, `fixed` is the same for all; the rest are the recipe's defaults.

    A trial's seed is neither: it is derived from the sweep's seed and the trial's number.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    recipe: str = "haim2022"
    search: Mapping[str, Range | Choice] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.recipe in RECIPES, "recipe", f"must be one of {', '.join(RECIPES)}", self.recipe)
        names = setting_names(self.recipe)
        for name in (*self.search, *self.fixed):
            cure = "set the sweep's seed with --seed" if name == "seed" else ""
            require(name in names, "space", f"can set {', '.join(names)}", name, cure)
        both = sorted(set(self.search) & set(self.fixed))
        require(not both, "space", "must not both search and fix a setting", both)
        RECIPES[self.recipe](**self.fixed)  # checks them before any trial runs

    def fixing(self, values: Mapping[str, Any]) -> Space:
        """The same space with some settings fixed."""
        search = {name: one for name, one in self.search.items() if name not in values}
        return replace(self, search=search, fixed={**self.fixed, **values})

    def for_task(self, task: Task) -> Space:
        """The settings that matter for a task: duals of either sign have no floor to search."""
        if not task.has_signed_duals or "dual_floor" not in self.search:
            return self
        return replace(self, search={name: one for name, one in self.search.items() if name != "dual_floor"})

    def corner(self) -> dict[str, Any]:
        """One point of the space: the fixed settings, the low end of every range, the first of every choice."""
        return {**self.fixed, **{name: one.first for name, one in self.search.items()}}

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "search": {name: asdict(one) for name, one in self.search.items()},
            "fixed": dict(self.fixed),
        }


PRESETS: Mapping[str, Space] = {
    # Haim et al. 2022, appendix B.2: one learning rate there, one for images and one for duals in their runs.
    "haim2022": Space(
        search={
            "lr_images": Range(low=1e-5, high=1.0, log=True),
            "lr_duals": Range(low=1e-5, high=1.0, log=True),
            "image_std": Range(low=1e-6, high=1.0, log=True),
            "dual_floor": Range(low=1e-4, high=1.0, log=True),
            "relu_slope": Range(low=10.0, high=500.0),
        }
    ),
    # Buzaglo et al. 2023, appendix B.
    "buzaglo2023": Space(
        recipe="buzaglo2023",
        search={
            "lr_images": Range(low=1e-5, high=1.0, log=True),
            "lr_duals": Range(low=1e-5, high=1.0, log=True),
            "image_std": Range(low=1e-6, high=0.1, log=True),
            "dual_floor": Range(low=0.01, high=0.5),
            "relu_slope": Range(low=10.0, high=500.0),
        },
    ),
    # The engine needs no tuning: its sweep is many starts, varying the few settings that are not derived.
    "engine": Space(
        recipe="engine",
        search={
            "prior": Range(low=0.2, high=8.0, log=True),
            "ridge": Range(low=1e-3, high=0.1, log=True),
            "margin_weight": Range(low=0.02, high=2.0, log=True),
            "candidates": Choice(choices=(None, 100, 200, 400)),
        },
        fixed={"restarts": 1},
    ),
}


def default_space(task: Task) -> str:
    """The papers' search for a task.

    >>> from engram.models.tasks import Binary, Multiclass
    >>> default_space(Binary()), default_space(Multiclass(3))
    ('haim2022', 'buzaglo2023')
    """
    return "haim2022" if task.name == Haim2022.only_task else "buzaglo2023"


def find_space(name: str) -> Space:
    """A preset, or a TOML file."""
    if name in PRESETS:
        return PRESETS[name]
    path = require_path(name)
    if not path.exists():
        raise ConfigError(f"--space must be one of {', '.join(PRESETS)} or a TOML file, got {name!r}")
    return read_space(path)


def read_space(path: Path) -> Space:
    """A space from TOML: recipe, [fixed], [search] with tables of low, high, log and integer, or of choices."""
    try:
        return TypeAdapter(Space).validate_python(tomllib.loads(path.read_text()))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg']}; see docs/sweeps.md") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not a readable TOML file: {error}") from error


WARM_UP = 10
CHECKPOINTS = (0.1, 0.25, 0.5)
"""Shares of a trial's steps after which it is checked."""


def checkpoint_steps(total: int) -> tuple[int, ...]:
    """The steps of the checkpoints in a trial of `total` steps.

    >>> checkpoint_steps(1000), checkpoint_steps(2)
    ((100, 250, 500), (1, 1, 1))
    """
    return tuple(math.ceil(share * total) for share in CHECKPOINTS)


def limits(warm_up: Sequence[Sequence[float]], keep: float) -> tuple[float, ...]:
    """For each checkpoint, the largest unexplained share among the best `keep` of the warm-up trials.

    >>> limits([(0.9, 0.5), (0.8, 0.6), (1.0, 1.0), (0.7, 0.1)], keep=0.5)
    (0.8, 0.5)
    """
    kept = max(1, math.ceil(keep * len(warm_up)))
    return tuple(sorted(column)[kept - 1] for column in zip(*warm_up, strict=True))


def is_hopeless(values: Sequence[float], limited: Sequence[float]) -> bool:
    """Whether the value at any checkpoint reached is above its limit (those not reached are negative)."""
    return any(value > limit for value, limit in zip(values, limited, strict=False))


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
    """A fresh sampler for every trial and setting, so that `random` depends only on the trial's number.

    `tpe` and `gp` also look at finished trials, so they depend on the order in which trials finish.
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
        # Also seeded by the name: a trial taken over with some settings drawn gets the same others.
        fresh = self._fresh(trial, param_name)
        return fresh.sample_independent(study, trial, param_name, param_distribution)

    def _fresh(self, trial: FrozenTrial, name: str = "") -> BaseSampler:
        return self._make(derived_seed(self._seed, trial.number, name))


@dataclass(frozen=True, kw_only=True)
class SweepSpec:
    """`trials` in all; with the random sampler, `seed` and a trial's number determine its settings and seed.

    `keep` is the share of the warm-up trials that later trials are compared with; 1 prunes nothing. The objective
    is "blind", the unexplained share, or "oracle", good images counted with the training data.
    """

    space: Space = field(default_factory=lambda: PRESETS["haim2022"])
    trials: int = 100
    seed: int = 0
    sampler: str = "random"
    keep: float = 0.5
    objective: Literal["blind", "oracle"] = "blind"

    def __post_init__(self) -> None:
        require_numbers(self)
        require(self.trials >= 1, "trials", "must be at least 1", self.trials)
        require(self.sampler in SAMPLERS, "sampler", f"must be one of {', '.join(SAMPLERS)}", self.sampler)
        require(0 < self.keep <= 1, "keep", "must be in (0, 1]", self.keep, "1 prunes nothing")

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        return "minimize" if self.objective == "blind" else "maximize"

    def identity(self, weights_sha256: str) -> dict[str, Any]:
        """Everything the trials depend on; their number can be raised later."""
        return {
            "weights_sha256": weights_sha256,
            "space": self.space.to_json(),
            "seed": self.seed,
            "sampler": self.sampler,
            "keep": self.keep,
            "objective": self.objective,
        }

    def study_name(self, weights_sha256: str) -> str:
        text = json.dumps(self.identity(weights_sha256), sort_keys=True)
        return f"engram-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
