"""The entry point for attacks: recipes by name, their settings, and `make_attack`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from engram.attacks.engine.convolutional import ConvEngine
from engram.attacks.engine.dense import Engine
from engram.attacks.engine.image_prior import LARGEST, fits
from engram.attacks.engine.iteration import EngineIteration, fit_to_budget
from engram.attacks.published import PublishedScheme
from engram.attacks.reconstruction import Attack
from engram.attacks.settings import KNOWN_SETTINGS, Buzaglo2023, EngineSettings, Haim2022, default_settings
from engram.core.errors import ConfigError, machine_memory, require, require_memory
from engram.core.runs import RunDirectory, read_record, read_settings, recorded_recipe, refuse_difference
from engram.models.networks import Network
from engram.models.tasks import Task
from engram.models.view import AttackerView

Settings = EngineSettings | Haim2022
RECIPES: Mapping[str, type[Settings]] = {
    "engine": EngineSettings,
    "haim2022": Haim2022,
    "buzaglo2023": Buzaglo2023,
}
"""Attacks by name, each with its settings, a frozen dataclass with defaults."""
PLANNED = ("steps", "restarts", "seconds")
"""Settings that a budget determines."""


def make_attack(
    view: AttackerView[Network],
    recipe: str | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    budget: float | None = None,
    resume_from: Path | None = None,
) -> Attack:
    """The attack on a view.

    recipe       one of `RECIPES`; the engine by default
    settings     the recipe's own dataclass, or by name those that differ from the task's defaults
    budget       seconds that the engine plans its steps and restarts for; the published schemes keep their steps
    resume_from  directory of a run: recipe and settings come from its run.json, if there is one, and given ones
                 that differ are refused by name
    """
    require(
        all(bool(weight.any()) for weight in view.network.weights),
        "model",
        "must have a weight other than 0 in every layer",
        "a layer of zeros",
        "nothing can be read out of it; check the file",
    )
    if resume_from is not None and RunDirectory(resume_from).record.exists():
        return _resumed(view, recipe, settings, budget, resume_from)
    if isinstance(settings, EngineSettings | Haim2022):
        require(recipe in (None, settings.recipe), "settings", f"must be those of {recipe}", settings.recipe)
        attack = _built(view, settings)
    else:
        named, recipe = settings or {}, recipe or EngineSettings.recipe
        require(recipe in RECIPES, "recipe", f"must be one of {', '.join(RECIPES)}", recipe)
        attack = _built(view, choose_settings(recipe, view.task, named))
        if budget is not None and recipe == EngineSettings.recipe and any(name in named for name in PLANNED):
            raise ConfigError("a budget determines steps and restarts; give either the budget or those")
    return fit_to_budget(attack, budget) if budget is not None and isinstance(attack, EngineIteration) else attack


def choose_settings(recipe: str, task: Task, given: Mapping[str, Any], *, known: str | None = None) -> Settings:
    """Settings of a recipe: those given, else the result of the authors' search, by its name or by task."""
    kind = RECIPES[recipe]
    names = [field.name for field in fields(kind)]
    for name in given:
        require(name in names, "settings", f"of {recipe} are {', '.join(names)}", name)
    if kind is EngineSettings:
        return EngineSettings(**given)
    require(known in (None, *KNOWN_SETTINGS), "--settings", f"must be one of {', '.join(KNOWN_SETTINGS)}", known)
    chosen = asdict(KNOWN_SETTINGS[known or default_settings(task)])
    if "candidates" not in given:  # equally many of each label, whatever the number of labels
        chosen["candidates"] += -chosen["candidates"] % task.label_count
    return kind(**{**chosen, **given})


def setting_names(recipe: str) -> tuple[str, ...]:
    """The settings that can be chosen by name; seed and jobs have their own options."""
    return tuple(field.name for field in fields(RECIPES[recipe]) if field.name not in ("seed", "jobs"))


def parse_setting(recipe: str, text: str) -> tuple[str, Any]:
    """NAME=VALUE as the command line gives it.

    >>> parse_setting("haim2022", "steps=3000"), parse_setting("engine", "prior=0.8")
    (('steps', 3000), ('prior', 0.8))
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set must be NAME=VALUE, got {text!r}; for example --set steps=3000")
    names = setting_names(recipe)
    require(name in names, "--set", f"must name one of {', '.join(names)}", name)
    try:
        return name, TypeAdapter(get_type_hints(RECIPES[recipe])[name]).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"--set {text} can't be read: {error.errors()[0]['msg']}") from error


COPIES = 4
"""Of the candidates that an attack holds at once: themselves, two for the optimiser, and their gradient."""


def _require_room(view: AttackerView[Network], settings: Settings) -> None:
    """The candidates that were asked for must fit in memory, those of all restarts too."""
    values = view.network.sizes[0] + view.task.label_count
    each = settings.torch_dtype.itemsize * values
    if settings.candidates is not None:
        fits = max(2, machine_memory() // (COPIES * each))
        cure = f"at most {fits:,} fit"
        require_memory(COPIES * each * settings.candidates, "candidates", settings.candidates, cure)
    if isinstance(settings, EngineSettings):
        start = settings.torch_dtype.itemsize * (settings.candidates or 2)
        fits = max(1, machine_memory() // start)
        require_memory(start * settings.restarts, "restarts", settings.restarts, f"at most {fits:,} fit")


def _built(view: AttackerView[Network], settings: Settings) -> Attack:
    _require_room(view, settings)
    if isinstance(settings, Haim2022):
        if view.features is not None:
            raise ConfigError(f"--columns can't be used with --recipe {settings.recipe}; leave it out")
        return PublishedScheme(view, settings)
    if settings.prior == "learned" and (view.dense is None or not fits(view.input_shape)):
        raise ConfigError(
            f"--prior learned knows grey and coloured pictures of at most {LARGEST} pixels a side, in "
            "fully-connected networks; leave it out"
        )
    return Engine(view, settings) if view.dense is not None else ConvEngine(view, settings)


def _resumed(
    view: AttackerView[Network],
    recipe: str | None,
    settings: Settings | Mapping[str, Any] | None,
    budget: float | None,
    directory: Path,
) -> Attack:
    """The attack of an existing run, unless something else was asked for."""
    where, record = RunDirectory(directory).record, read_record(directory)
    known = view.normalization
    for name, here in (
        ("activation", str(view.network.activation)),
        ("normalization", None if known is None else known.text),
        ("columns", None if view.features is None else list(view.features.columns)),
        ("head", view.head),
        ("base", view.base),
    ):
        if here != record.get(name, here):
            refuse_difference(name, here, record[name], where)
    if record.get("weights_sha256") != view.network.digest():
        raise ConfigError(
            f"the model's weights differ from those of the run recorded in {where} ({record.get('model')}); "
            "give that model, or start again in another directory with -o"
        )
    shape = "x".join(map(str, view.input_shape))
    there_shape = record.get("input_shape")
    recorded_shape = "x".join(map(str, there_shape)) if isinstance(there_shape, list) else str(there_shape)
    for name, here, there in (
        ("input_shape", shape, recorded_shape),
        ("task", view.task.name, record.get("task")),
    ):
        if here != there:
            refuse_difference(name, here, there, where)
    stored = read_settings(directory, RECIPES[recorded_recipe(directory, recipe, known=tuple(RECIPES))])
    given = asdict(settings) if isinstance(settings, EngineSettings | Haim2022) else settings or {}
    for name, value in given.items():
        planned = budget is not None and name in PLANNED
        if not planned and value != getattr(stored, name, None):
            refuse_difference(name, value, getattr(stored, name, None), where)
    return _built(view, stored)
