"""The engine for a network: one reads fully-connected ones, one those that begin with convolutions."""

from __future__ import annotations

from engram.attacker import AttackerView
from engram.reconstruct.attack import Attack
from engram.reconstruct.engine.budget import fit_to_budget
from engram.reconstruct.engine.settings import EngineSettings
from engram.reconstruct.engine.solver import Engine
from engram.reconstruct.engine_conv.budget import fit_to_budget as fit_convolutional
from engram.reconstruct.engine_conv.solver import ConvEngine
from engram.targets.convolutional import ConvNetwork
from engram.targets.networks import DenseNetwork, Network


def engine_for(view: AttackerView[Network], settings: EngineSettings, seconds: float | None = None) -> Attack:
    """The engine with these settings; with `seconds`, steps and restarts are planned for so long a run."""
    if isinstance(view.network, ConvNetwork):
        convolutional = view.narrowed(ConvNetwork)
        planned = settings if seconds is None else fit_convolutional(convolutional, settings, seconds)
        return ConvEngine(convolutional, planned)
    dense = view.narrowed(DenseNetwork)
    return Engine(dense, settings if seconds is None else fit_to_budget(dense, settings, seconds))
