"""From options to the engine that reads a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from engram.cli.resumed import same_settings

if TYPE_CHECKING:
    from engram.attacker import AttackerView
    from engram.reconstruct.attack import Attack
    from engram.targets.networks import Network


def engine_scheme(
    view: AttackerView[Network], given: dict[str, Any], seconds: float | None, resumed: Path | None
) -> Attack:
    """A budget becomes a plan once; a resumed run keeps the plan in its run.json."""
    from engram.errors import ConfigError
    from engram.reconstruct.engine.settings import EngineSettings
    from engram.reconstruct.engines import engine_for
    from engram.runs import read_settings

    chosen = {name: value for name, value in given.items() if value is not None}
    settings = EngineSettings(**chosen)
    if resumed is not None:
        stored = read_settings(resumed, EngineSettings)
        same_settings(resumed, stored, given)
        return engine_for(view, stored)
    if seconds is not None and ("steps" in chosen or "restarts" in chosen):
        raise ConfigError("--budget plans --steps and --restarts itself; give one or the other")
    return engine_for(view, settings, seconds)
