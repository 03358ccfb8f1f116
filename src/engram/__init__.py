"""engram: measure which training images an attacker could read out of a classifier's weights.

The flow, and where each stage lives:

    data, training ............. the owner's side: images, a network, its training
    models ..................... what is released: `open_view` makes an AttackerView of any model
    attacks .................... `make_attack`, then `attack`: candidates, duals, labels; no data
    scoring .................... what was recovered, beside its null counts
    members .................... which records were in training, asked of the weights
    auditing ................... all of it in one call, `engram.audit`, with one report
    defences ................... what to do about a leak: `engram.harden`, `engram.defend`
    papers, sweep .............. many targets and many settings

`engram.pipeline` calls the stages in this order. Names below are loaded when first used, so that importing
engram is instant.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engram.attacks.reconstruction import Reconstruction as Reconstruction
    from engram.attacks.registry import make_attack as make_attack
    from engram.attacks.settings import Buzaglo2023 as Buzaglo2023
    from engram.attacks.settings import EngineSettings as EngineSettings
    from engram.attacks.settings import Haim2022 as Haim2022
    from engram.auditing.policy import Decision as Decision
    from engram.auditing.policy import Policy as Policy
    from engram.auditing.record import AuditRecord as AuditRecord
    from engram.auditing.run import audit as audit
    from engram.data.choice import DataChoice as DataChoice
    from engram.defences.defend import defend as defend
    from engram.defences.harden import harden as harden
    from engram.defences.record import Hardening as Hardening
    from engram.defences.table import DefenceTable as DefenceTable
    from engram.defences.training import Defence as Defence
    from engram.members.membership import MembershipRecord as MembershipRecord
    from engram.members.membership import membership as membership
    from engram.models.open.door import open_view as open_view
    from engram.models.tasks import Binary as Binary
    from engram.models.tasks import Multiclass as Multiclass
    from engram.models.tasks import MulticlassPairs as MulticlassPairs
    from engram.models.tasks import Regression as Regression
    from engram.models.view import AttackerView as AttackerView
    from engram.pipeline import attack as attack
    from engram.pipeline import build_target as build_target
    from engram.pipeline import compare as compare
    from engram.training.recipe import ConvSpec as ConvSpec
    from engram.training.recipe import MLPSpec as MLPSpec
    from engram.training.recipe import Recipe as Recipe
    from engram.training.target import open_target as open_target

_HOMES = {
    "AttackerView": "engram.models.view",
    "AuditRecord": "engram.auditing.record",
    "Binary": "engram.models.tasks",
    "Buzaglo2023": "engram.attacks.settings",
    "ConvSpec": "engram.training.recipe",
    "DataChoice": "engram.data.choice",
    "Decision": "engram.auditing.policy",
    "Defence": "engram.defences.training",
    "DefenceTable": "engram.defences.table",
    "EngineSettings": "engram.attacks.settings",
    "Haim2022": "engram.attacks.settings",
    "Hardening": "engram.defences.record",
    "MLPSpec": "engram.training.recipe",
    "MembershipRecord": "engram.members.membership",
    "Multiclass": "engram.models.tasks",
    "MulticlassPairs": "engram.models.tasks",
    "Policy": "engram.auditing.policy",
    "Recipe": "engram.training.recipe",
    "Reconstruction": "engram.attacks.reconstruction",
    "Regression": "engram.models.tasks",
    "attack": "engram.pipeline",
    "audit": "engram.auditing.run",
    "build_target": "engram.pipeline",
    "compare": "engram.pipeline",
    "defend": "engram.defences.defend",
    "harden": "engram.defences.harden",
    "make_attack": "engram.attacks.registry",
    "membership": "engram.members.membership",
    "open_target": "engram.training.target",
    "open_view": "engram.models.open.door",
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'engram' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
