"""What a sweep varies: ranges and choices for the settings of a recipe."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from engram.errors import ConfigError, require
from engram.sweep.recipes import RECIPES

if TYPE_CHECKING:
    from optuna.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Range:
    """Uniform in [low, high]; with `log` uniform in the logarithm, with `integer` whole numbers only."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    low: float
    high: float
    log: bool = False
    integer: bool = False

    def __post_init__(self) -> None:
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
    """One of a few values, each as likely."""

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
    """`search` is drawn anew for every trial, `fixed` is the same for all; the rest are the recipe's defaults.

    The seed of a trial is neither: it follows from the sweep's seed and the trial's number.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    recipe: str = "haim2022"
    search: Mapping[str, Range | Choice] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.recipe in RECIPES, "recipe", f"must be one of {', '.join(RECIPES)}", self.recipe)
        names = RECIPES[self.recipe].names
        for name in (*self.search, *self.fixed):
            cure = "the seed is the sweep's own: --seed" if name == "seed" else ""
            require(name in names, "space", f"can hold {', '.join(names)}", name, cure)
        both = sorted(set(self.search) & set(self.fixed))
        require(not both, "space", "must not both search and fix a setting", both)
        RECIPES[self.recipe].settings(**self.fixed)  # their own rules, before any trial runs

    def fixing(self, values: Mapping[str, Any]) -> Space:
        """The same space with some settings held fixed."""
        search = {name: one for name, one in self.search.items() if name not in values}
        return replace(self, search=search, fixed={**self.fixed, **values})

    def corner(self) -> dict[str, Any]:
        """One point of the space: what is fixed, the low end of every range, the first of every choice."""
        return {**self.fixed, **{name: one.first for name, one in self.search.items()}}

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "search": {name: asdict(one) for name, one in self.search.items()},
            "fixed": dict(self.fixed),
        }


PRESETS: Mapping[str, Space] = {
    # Haim et al. 2022, appendix B.2; one learning rate there, one for images and one for duals in their runs.
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
        search={
            "lr_images": Range(low=1e-5, high=1.0, log=True),
            "lr_duals": Range(low=1e-5, high=1.0, log=True),
            "image_std": Range(low=1e-6, high=0.1, log=True),
            "dual_floor": Range(low=0.01, high=0.5),
            "relu_slope": Range(low=10.0, high=500.0),
        }
    ),
    # The engine needs no tuning; its sweep is many starts, with the few choices that are not derived moved about.
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


def find_space(name: str) -> Space:
    """A preset, or the TOML file of that name."""
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if not path.exists():
        raise ConfigError(f"--space must be one of {', '.join(PRESETS)} or a TOML file, got {name!r}")
    return read_space(path)


def read_space(path: Path) -> Space:
    """A space from TOML: recipe, [fixed], [search] with tables of low, high, log, integer or of choices."""
    try:
        return TypeAdapter(Space).validate_python(tomllib.loads(path.read_text()))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg']}; see docs/sweeps.md") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is no readable TOML file: {error}") from error
