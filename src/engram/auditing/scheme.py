"""Which attack an audit runs: the engine, or what a run that is gone on with began with."""

from __future__ import annotations

from pathlib import Path

from engram.attacker import AttackerView
from engram.errors import CheckpointError
from engram.reconstruct.attack import Attack
from engram.reconstruct.engine.budget import fit_to_budget
from engram.reconstruct.engine.settings import EngineSettings
from engram.reconstruct.engine.solver import Engine
from engram.reconstruct.published.scheme import PublishedScheme
from engram.reconstruct.published.settings import Buzaglo2023, Haim2022
from engram.runs import RunDirectory, read_record, read_settings


def choose_scheme(
    view: AttackerView,
    *,
    settings: EngineSettings | None = None,
    seconds: float | None = None,
    resumed: Path | None = None,
) -> Attack:
    """Planned for `seconds` if given; a resumed run keeps the plan in its run.json."""
    if resumed is not None and RunDirectory(resumed).record.exists():
        return stored_scheme(view, resumed)
    engine = Engine(view, settings or EngineSettings())
    return engine if seconds is None else fit_to_budget(engine, seconds)


def stored_scheme(view: AttackerView, run: Path) -> Attack:
    """The attack that a run directory records, with its settings."""
    recipe = read_record(run).get("recipe")
    if recipe == Engine.recipe:
        return Engine(view, read_settings(run, EngineSettings))
    kinds = {kind.recipe: kind for kind in (Haim2022, Buzaglo2023)}
    if recipe not in kinds:
        raise CheckpointError(f"{RunDirectory(run).record} names no recipe that this version knows: {recipe!r}")
    return PublishedScheme(view, read_settings(run, kinds[recipe]))
