"""From options to the engine that reads a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engram.attacker import AttackerView
    from engram.reconstruct.attack import Attack
    from engram.reconstruct.engine.settings import EngineSettings
    from engram.targets.networks import Network


def engine_scheme(
    view: AttackerView[Network], given: dict[str, Any], seconds: float | None, resumed: Path | None
) -> Attack:
    """A budget becomes a plan once; a resumed run keeps the plan in its run.json."""
    from engram.errors import ConfigError
    from engram.reconstruct.engine.settings import EngineSettings
    from engram.runs import read_settings

    make, fit_to_budget = _kind(view)
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = EngineSettings(**chosen)
    if resumed is not None:
        return make(read_settings(resumed, EngineSettings))
    if seconds is None:
        return make(settings)
    if "steps" in chosen or "restarts" in chosen:
        raise ConfigError("--budget plans --steps and --restarts itself; give one or the other")
    return make(fit_to_budget(settings, seconds))


def _kind(
    view: AttackerView[Network],
) -> tuple[Callable[[EngineSettings], Attack], Callable[[EngineSettings, float], EngineSettings]]:
    """The engine for the network of a view, and its way to plan."""
    from functools import partial

    from engram.targets.convolutional import ConvNetwork
    from engram.targets.networks import DenseNetwork

    if isinstance(view.network, ConvNetwork):
        from engram.reconstruct.engine_conv.budget import fit_to_budget as fit_convolutional
        from engram.reconstruct.engine_conv.solver import ConvEngine

        convolutional = view.narrowed(ConvNetwork)
        return partial(ConvEngine, convolutional), partial(fit_convolutional, convolutional)
    from engram.reconstruct.engine.budget import fit_to_budget
    from engram.reconstruct.engine.solver import Engine

    dense = view.narrowed(DenseNetwork)
    return partial(Engine, dense), partial(fit_to_budget, dense)
