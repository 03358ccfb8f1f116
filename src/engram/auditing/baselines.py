"""Baselines of an audit: what model inversion and the raw weights recover, scored like the attack."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torch import Tensor

from engram.attacks.inversion import InversionSettings, first_layer_images, invert
from engram.attacks.reconstruction import Reconstruction
from engram.core.errors import require
from engram.core.progress import Progress, by_steps, silent
from engram.data.sets import Split
from engram.models.networks import Network
from engram.models.view import AttackerView
from engram.pipeline import compare, default_protocol
from engram.scoring.report import ScoreReport

Scale = Literal["none", "quick", "full"]
SCALES: dict[str, InversionSettings | None] = {
    "none": None,
    "quick": InversionSettings(),
    "full": InversionSettings(images=40_000, steps=1000),
}


def inversion_settings(scale: str, images: int | None = None) -> InversionSettings | None:
    """The model inversion at a scale, None for no baselines; `images` overrides the number of starts."""
    require(scale in SCALES, "baselines", f"must be one of {', '.join(SCALES)}", scale)
    chosen = SCALES[scale]
    if images is None or chosen is None:
        require(images is None, "images", "has no effect without baselines", images, "choose quick or full")
        return chosen
    return replace(chosen, images=images)


@dataclass(frozen=True, eq=False)
class Baseline:
    """Images [m, *shape] in network coordinates, outputs [m] where defined, and the score if there are data.

    Kernels [m, C, k, k] of a convolution are shown but not scored: they are smaller than an image.
    """

    name: Literal["model inversion", "first-layer weights", "first-layer kernels"]
    images: Tensor
    outputs: Tensor | None
    score: ScoreReport | None
    settings: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        score = None if self.score is None else self.score.to_json()
        return {"name": self.name, "images": len(self.images), "settings": self.settings, "scores": score}


def run_baselines(
    view: AttackerView[Network],
    settings: InversionSettings | None,
    data: Split | None,
    *,
    progress: Progress = silent,
) -> tuple[Baseline, ...]:
    """Both baselines, or none."""
    if settings is None:
        return ()
    found = invert(view, settings, observers=[by_steps(progress, "inverting", settings.steps)])
    score = _scored(found.images, data, view.network)
    return Baseline("model inversion", found.images, found.outputs, score, asdict(settings)), _weights(view, data)


def _weights(view: AttackerView[Network], data: Split | None) -> Baseline:
    if (dense := view.dense) is None:
        return Baseline("first-layer kernels", view.network.weights[0], None, None, {})
    images = first_layer_images(dense)
    return Baseline("first-layer weights", images, None, _scored(images, data, view.network), {})


def _scored(images: Tensor, data: Split | None, network: Network) -> ScoreReport | None:
    if data is None:
        return None
    nothing = images.new_zeros(len(images))
    found = Reconstruction(images.cpu().float(), nothing, nothing.long())
    return compare(found, data, protocol=default_protocol(data.train.images, network))
