"""engram: measure which training images a stranger could read out of a classifier's weights.

The flow, and where each stage lives:

    data -> targets ............ the owner's side: images, a network, its training
    targets -> AttackerView .... what is released: weights, input shape, task
    AttackerView -> reconstruct  the attack: candidates, duals, labels; no data
    reconstruct -> matching .... what was recovered, beside its null counts
    matching -> report ......... numbers and pictures
    auditing ................... all of it in one call, `engram.audit`, with one report

`engram.pipeline` calls the stages in this order. Names below are loaded when first used, so that importing
engram is instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engram.attacker import AttackerView as AttackerView
    from engram.auditing.record import AuditRecord as AuditRecord
    from engram.auditing.run import audit as audit
    from engram.data.choice import DataChoice as DataChoice
    from engram.pipeline import attack as attack
    from engram.pipeline import build_target as build_target
    from engram.pipeline import compare as compare
    from engram.reconstruct.candidates import Reconstruction as Reconstruction
    from engram.reconstruct.engine.settings import EngineSettings as EngineSettings
    from engram.reconstruct.engine.solver import Engine as Engine
    from engram.reconstruct.published.scheme import PublishedScheme as PublishedScheme
    from engram.reconstruct.published.settings import Buzaglo2023 as Buzaglo2023
    from engram.reconstruct.published.settings import Haim2022 as Haim2022
    from engram.targets.checkpoint import open_target as open_target
    from engram.targets.recipe import Recipe as Recipe
    from engram.targets.spec import ConvSpec as ConvSpec
    from engram.targets.spec import MLPSpec as MLPSpec
    from engram.task import Binary as Binary
    from engram.task import Multiclass as Multiclass
    from engram.task import MulticlassPairs as MulticlassPairs
    from engram.task import Regression as Regression

_HOMES = {
    "AttackerView": "engram.attacker",
    "AuditRecord": "engram.auditing.record",
    "Binary": "engram.task",
    "Buzaglo2023": "engram.reconstruct.published.settings",
    "ConvSpec": "engram.targets.spec",
    "DataChoice": "engram.data.choice",
    "Engine": "engram.reconstruct.engine.solver",
    "EngineSettings": "engram.reconstruct.engine.settings",
    "Haim2022": "engram.reconstruct.published.settings",
    "MLPSpec": "engram.targets.spec",
    "Multiclass": "engram.task",
    "MulticlassPairs": "engram.task",
    "Recipe": "engram.targets.recipe",
    "Regression": "engram.task",
    "PublishedScheme": "engram.reconstruct.published.scheme",
    "Reconstruction": "engram.reconstruct.candidates",
    "attack": "engram.pipeline",
    "audit": "engram.auditing.run",
    "build_target": "engram.pipeline",
    "compare": "engram.pipeline",
    "open_target": "engram.targets.checkpoint",
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'engram' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
