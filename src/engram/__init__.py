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

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Threads of one operation wait for each other by spinning, and where another program holds a core they spin for
# as long as it does: a step of the engine took 1,100 ms instead of 50. So they spin briefly and then sleep. OpenMP
# reads this once, when torch is first loaded; whoever has set a policy keeps it.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

if TYPE_CHECKING:
    from engram.attacks.engine.dense import Engine as Engine
    from engram.attacks.published import PublishedScheme as PublishedScheme
    from engram.attacks.reconstruction import Reconstruction as Reconstruction
    from engram.attacks.settings import Buzaglo2023 as Buzaglo2023
    from engram.attacks.settings import EngineSettings as EngineSettings
    from engram.attacks.settings import Haim2022 as Haim2022
    from engram.auditing.record import AuditRecord as AuditRecord
    from engram.auditing.run import audit as audit
    from engram.data.choice import DataChoice as DataChoice
    from engram.models.tasks import Binary as Binary
    from engram.models.tasks import Multiclass as Multiclass
    from engram.models.tasks import MulticlassPairs as MulticlassPairs
    from engram.models.tasks import Regression as Regression
    from engram.models.view import AttackerView as AttackerView
    from engram.pipeline import attack as attack
    from engram.pipeline import build_target as build_target
    from engram.pipeline import compare as compare
    from engram.training.recipe import Recipe as Recipe
    from engram.training.spec import ConvSpec as ConvSpec
    from engram.training.spec import MLPSpec as MLPSpec
    from engram.training.target import open_target as open_target

_HOMES = {
    "AttackerView": "engram.models.view",
    "AuditRecord": "engram.auditing.record",
    "Binary": "engram.models.tasks",
    "Buzaglo2023": "engram.attacks.settings",
    "ConvSpec": "engram.training.spec",
    "DataChoice": "engram.data.choice",
    "Engine": "engram.attacks.engine.dense",
    "EngineSettings": "engram.attacks.settings",
    "Haim2022": "engram.attacks.settings",
    "MLPSpec": "engram.training.spec",
    "Multiclass": "engram.models.tasks",
    "MulticlassPairs": "engram.models.tasks",
    "Recipe": "engram.training.recipe",
    "Regression": "engram.models.tasks",
    "PublishedScheme": "engram.attacks.published",
    "Reconstruction": "engram.attacks.reconstruction",
    "attack": "engram.pipeline",
    "audit": "engram.auditing.run",
    "build_target": "engram.pipeline",
    "compare": "engram.pipeline",
    "open_target": "engram.training.target",
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'engram' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
