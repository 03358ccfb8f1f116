"""Baselines in an audit: what model inversion and the bare weights recover by the same scoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torch import Tensor

from engram.attacker import AttackerView
from engram.auditing.samples import AuditData
from engram.baselines import InversionSettings, first_layer_images, invert
from engram.errors import require
from engram.loop import Observer
from engram.matching import ScoreReport
from engram.pipeline import compare
from engram.reconstruct.candidates import Reconstruction

Scale = Literal["none", "quick", "full"]
SCALES: dict[str, InversionSettings | None] = {
    "none": None,
    "quick": InversionSettings(),
    "full": InversionSettings(images=40_000, steps=1000),
}


def inversion_settings(scale: str, images: int | None = None) -> InversionSettings | None:
    """The model inversion of a scale, None for no baselines; `images` says how many starts instead."""
    require(scale in SCALES, "baselines", f"must be one of {', '.join(SCALES)}", scale)
    chosen = SCALES[scale]
    if images is None or chosen is None:
        require(images is None, "images", "says nothing without baselines", images, "choose quick or full")
        return chosen
    return replace(chosen, images=images)


@dataclass(frozen=True, eq=False)
class Baseline:
    """Images [m, *shape] in network coordinates, outputs [m] where they mean something, the score with data."""

    name: str
    images: Tensor
    outputs: Tensor | None
    score: ScoreReport | None
    settings: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        score = None if self.score is None else self.score.to_json()
        return {"name": self.name, "images": len(self.images), "settings": self.settings, "scores": score}


def run_baselines(
    view: AttackerView,
    settings: InversionSettings | None,
    data: AuditData | None,
    *,
    observers: Sequence[Observer] = (),
) -> tuple[Baseline, ...]:
    """Both baselines, or none."""
    if settings is None:
        return ()
    inverted = invert(view, settings, observers=observers)
    weights = first_layer_images(view)
    return (
        Baseline(
            "model inversion", inverted.images, inverted.outputs, _scored(inverted.images, data), asdict(settings)
        ),
        Baseline("first-layer weights", weights, None, _scored(weights, data), {}),
    )


def _scored(images: Tensor, data: AuditData | None) -> ScoreReport | None:
    if data is None:
        return None
    nothing = images.new_zeros(len(images))
    return compare(Reconstruction(images.cpu().float(), nothing, nothing.long()), data.split)
