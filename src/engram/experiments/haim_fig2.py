"""haim/fig2: twenty points on the unit circle, read back out of a 1000-1000 network."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from engram.attacker import AttackerView
from engram.data.choice import DataChoice
from engram.data.sampling import Split
from engram.loop import Observer
from engram.pipeline import attack, build_target
from engram.reconstruct.candidates import Reconstruction
from engram.reconstruct.published.scheme import Haim2022, PublishedScheme
from engram.report.plane import PlanePanel, plane_figure
from engram.targets.cache import TargetCache
from engram.targets.checkpoint import Target
from engram.targets.recipe import Recipe
from engram.targets.spec import MLPSpec
from engram.task import Binary

DATA = DataChoice(name="circle", labels="identity", n=20)
NETWORK = MLPSpec(inputs=2, widths=(1000, 1000))
# Near the KKT point all twenty margins agree; a rate that follows the loss down gets there in minutes.
RECIPE = Recipe(lr=0.2, epochs=60_000, normalise_below=0.001, loss_threshold=3e-7)
# Training points come to lie on the boundaries of many neurons, so gates must be soft to be found: with a slope
# near 10 all points come back, from 30 on candidates straddle them. Along its radius a point can be shared by
# candidates nearer and farther without any change to stationarity; that all have one margin decides it. The floor
# keeps all in use.
ATTACK = Haim2022(
    candidates=100,
    steps=5_000,
    lr_images=3e-5,
    lr_duals=0.01,
    image_std=0.5,
    dual_floor=2.0,
    relu_slope=12.0,
    range_weight=0.0,  # the plane has no pixel range
    margin_weight=2000.0,
    dtype="float32",
)
DUAL_THRESHOLD = 2.4  # just above the floor: what only the floor holds up is not needed
SAME_POINT = 0.03


@dataclass(frozen=True, eq=False)
class Fig2:
    """All stages of the figure: data, network, start, result, pruned, de-duplicated."""

    data: Split
    target: Target
    start: Reconstruction
    found: Reconstruction
    pruned: Reconstruction
    final: Reconstruction
    seconds: float

    @property
    def distances(self) -> Tensor:
        """From each training point to the nearest point of the final reconstruction, [20]."""
        return torch.cdist(self.data.train.images, self.final.images.float()).min(1).values

    @property
    def summary(self) -> str:
        near, nearer = (int((self.distances < radius).sum()) for radius in (0.1, 0.05))
        return (
            f"{near} of {len(self.data.train)} points within 0.1 ({nearer} within 0.05) "
            f"of {len(self.final)} reconstructed ones"
        )

    def to_json(self) -> dict[str, Any]:
        card = self.target.card
        assert card is not None
        return {
            "experiment": "haim/fig2",
            "paper": "all 20 recovered",
            "recovered_within_0.1": int((self.distances < 0.1).sum()),
            "recovered_within_0.05": int((self.distances < 0.05).sum()),
            "distances": self.distances.tolist(),
            "points_after_pruning": len(self.pruned),
            "points_after_deduplication": len(self.final),
            "train_loss": card.train.loss,
            "smallest_margin": card.train.smallest_margin,
            "training_seconds": card.seconds,
            "attack_seconds": self.seconds,
            "recipe": asdict(card.recipe),
        }

    def figure(self) -> bytes:
        """Six panels: data, output of the network, start, result, without small duals, without duplicates."""
        images, labels = self.data.train.images, self.data.train.labels
        panels = [
            PlanePanel("a  training set", images, labels),
            PlanePanel("b  output of the network", images, labels, network=self.target.network),
        ]
        titles = ("c  start", "d  reconstruction", "e  without small duals", "f  without duplicates")
        stages = (self.start, self.found, self.pruned, self.final)
        panels += [
            PlanePanel(title, images, labels, candidates=stage.images, candidate_labels=stage.labels)
            for title, stage in zip(titles, stages, strict=True)
        ]
        return plane_figure(panels)


def run_fig2(
    seed: int,
    *,
    recipe: Recipe = RECIPE,
    settings: Haim2022 = ATTACK,
    training: Observer | None = None,
    attacking: Observer | None = None,
    cache: TargetCache | None = None,
) -> Fig2:
    """Train on the circle, attack, prune and de-duplicate."""
    recipe, settings = replace(recipe, seed=seed), replace(settings, seed=seed)
    target = build_target(DATA, NETWORK, recipe, Binary(), observers=[training] if training else [], cache=cache)
    view = AttackerView(target.network, (2,), Binary())
    scheme = PublishedScheme(view, settings)
    start = scheme.reconstruction(scheme.init())
    found, solution = attack(scheme, observers=[attacking] if attacking else [])
    pruned = found.pruned(DUAL_THRESHOLD)
    final = pruned.deduplicated(SAME_POINT, torch.Generator().manual_seed(seed))
    return Fig2(DATA.load(held_out=0), target, start, found, pruned, final, solution.seconds)
