"""From options to the engine that reads a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engram.attacker import AttackerView
    from engram.reconstruct.attack import Attack
    from engram.reconstruct.engine.iteration import EngineIteration
    from engram.reconstruct.engine.settings import EngineSettings
    from engram.targets.networks import Network


def engine_scheme(
    view: AttackerView[Network], given: dict[str, Any], seconds: float | None, resumed: Path | None
) -> Attack:
    """A budget becomes a plan once; a resumed run keeps the plan in its run.json."""
    from engram.errors import ConfigError
    from engram.reconstruct.engine.budget import fit_to_budget
    from engram.reconstruct.engine.settings import EngineSettings
    from engram.runs import read_settings

    chosen = {name: value for name, value in given.items() if value is not None}
    settings = EngineSettings(**chosen) if resumed is None else read_settings(resumed, EngineSettings)
    engine = _engine(view, settings)
    if seconds is None or resumed is not None:
        return engine
    if "steps" in chosen or "restarts" in chosen:
        raise ConfigError("--budget plans --steps and --restarts itself; give one or the other")
    return fit_to_budget(engine, seconds)


def _engine(view: AttackerView[Network], settings: EngineSettings) -> EngineIteration[Any]:
    """The engine for the network of a view."""
    from engram.targets.convolutional import ConvNetwork
    from engram.targets.networks import DenseNetwork

    if isinstance(view.network, ConvNetwork):
        from engram.reconstruct.engine_conv.solver import ConvEngine

        return ConvEngine(view.narrowed(ConvNetwork), settings)
    from engram.reconstruct.engine.solver import Engine

    return Engine(view.narrowed(DenseNetwork), settings)
