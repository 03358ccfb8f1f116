"""Which attack an audit runs: the engine, or what a run that is gone on with began with."""

from __future__ import annotations

from pathlib import Path

from engram.attacker import AttackerView
from engram.errors import CheckpointError, require
from engram.reconstruct.attack import Attack
from engram.reconstruct.engine.settings import EngineSettings
from engram.reconstruct.engine.solver import Engine
from engram.reconstruct.engines import engine_for
from engram.reconstruct.published.scheme import PublishedScheme
from engram.reconstruct.published.settings import Buzaglo2023, Haim2022
from engram.runs import RunDirectory, read_record, read_settings
from engram.targets.networks import Network


def choose_scheme(
    view: AttackerView[Network],
    *,
    settings: EngineSettings | None = None,
    seconds: float | None = None,
    resumed: Path | None = None,
) -> Attack:
    """Planned for `seconds` if given; a resumed run keeps the plan in its run.json and takes no other."""
    if resumed is not None and RunDirectory(resumed).record.exists():
        stored = stored_scheme(view, resumed)
        require(
            settings in (None, stored.settings),
            "settings",
            f"must be those of the run that is gone on with ({stored.settings})",
            settings,
            "leave them out, or start anew in another directory",
        )
        return stored
    return engine_for(view, settings or EngineSettings(), seconds)


def stored_scheme(view: AttackerView[Network], run: Path) -> Attack:
    """The attack that a run directory records, with its settings."""
    recipe = read_record(run).get("recipe")
    if recipe == Engine.recipe:
        return engine_for(view, read_settings(run, EngineSettings))
    kinds = {kind.recipe: kind for kind in (Haim2022, Buzaglo2023)}
    if recipe not in kinds:
        raise CheckpointError(f"{RunDirectory(run).record} names no recipe that this version knows: {recipe!r}")
    return PublishedScheme(view, read_settings(run, kinds[recipe]))
