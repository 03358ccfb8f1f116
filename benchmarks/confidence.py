"""Fit the blind confidence: how well do agreement and strength predict that a candidate is real?

Run: python -m benchmarks.confidence [--data-root DIR]

Targets: faces and, if they are there, photographs and digits, two and ten classes, chosen by seeds that nothing
else uses. Prints the constants of `engine/consensus.py` and a reliability table in which every target is judged by
the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engram.attacks.engine.consensus import CONSTANTS, Likeness, consensus, evidence
from engram.attacks.engine.dense import Engine
from engram.attacks.reconstruction import Reconstruction
from engram.attacks.settings import EngineSettings
from engram.core.errors import DataError
from engram.core.loop import Budget, run
from engram.data.choice import DataChoice
from engram.data.sets import centred
from engram.models.tasks import Binary, Multiclass
from engram.models.view import AttackerView
from engram.pipeline import build_target
from engram.scoring.metrics import ncc
from engram.training.recipe import MLPSpec, Recipe

TARGETS = (
    DataChoice(name="faces", labels="gate", n=50, seed=11),
    DataChoice(name="cifar10", labels="vehicles-animals", n=100, seed=11),
    DataChoice(name="mnist", labels="odd-even", n=200, seed=11),
    DataChoice(name="cifar10", labels="identity", n=200, seed=11),
    DataChoice(name="faces", labels="gate", n=40, seed=12),
    DataChoice(name="cifar10", labels="vehicles-animals", n=60, seed=12),
    DataChoice(name="mnist", labels="odd-even", n=300, seed=12),
    DataChoice(name="cifar10", labels="identity", n=300, seed=12),
)
ROOM, REAL = 10**9, 0.8
BINS = ((0, 0.1), (0.1, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.85), (0.85, 1.01))


@dataclass(frozen=True, eq=False)
class Judged:
    """The pool of a target's restarts, with the evidence for each candidate [m, 2] and whether it is real [m]."""

    name: str
    pool: Reconstruction
    restarts: int
    evidence: Tensor
    real: Tensor
    images: Tensor

    def merged(self, constants: tuple[float, float, float]) -> tuple[Tensor, Tensor]:
        """Confidence under these constants, and whether it is real, for the candidates that a user sees."""
        found = consensus(self.pool, self.restarts, ROOM, constants)
        assert found.scores is not None
        return found.scores.double(), is_real(found.images, self.images).double()


def is_real(candidates: Tensor, images: Tensor) -> Tensor:
    return ncc(candidates, images).amax(1) > REAL


def judged(choice: DataChoice, root: Path | None) -> Judged:
    """Train a target, attack it with three starts, and look at every candidate."""
    data = choice.load(root)
    classes = len(data.train.classes)
    several = classes > 2
    task = Multiclass(classes) if several else Binary()
    spec = MLPSpec(inputs=data.train.images[0].numel(), outputs=classes if several else 1)
    target = build_target(choice, spec, Recipe(lr=0.1 if several else 0.02, epochs=3000), task, root=root)
    engine = Engine(AttackerView(target.network, data.train.shape, task), EngineSettings(restarts=3, steps=400))
    pool, restarts = engine.pooled(run(engine, Budget(steps=engine.total_steps)).state)
    images = centred(data.train.images, data.mean)
    spoken = evidence(pool, restarts, Likeness.of(pool, ROOM)).double()
    result = Judged(str(choice), pool, restarts, spoken, is_real(pool.images, images), images)
    print(f"{choice}: {len(pool)} candidates, {int(result.real.sum())} real", flush=True)
    return result


def fit(targets: Sequence[Judged]) -> tuple[float, float, float]:
    """Logistic regression by Newton's method; every target has the same weight."""
    design = torch.cat([torch.cat([torch.ones(len(one.real), 1), one.evidence], 1) for one in targets]).double()
    real = torch.cat([one.real for one in targets]).double()
    share = torch.cat([torch.full((len(one.real),), 1 / len(one.real)) for one in targets]).double()
    weights = torch.zeros(3, dtype=torch.float64)
    for _ in range(40):
        chance = torch.sigmoid(design @ weights)
        curvature = design.T @ (design * (share * chance * (1 - chance))[:, None])
        weights = weights + torch.linalg.solve(curvature, design.T @ (share * (real - chance)))
    return float(weights[0]), float(weights[1]), float(weights[2])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    root = parser.parse_args(arguments).data_root
    collected: list[Judged] = []
    for choice in TARGETS:
        try:
            collected.append(judged(choice, root))
        except DataError as error:
            print(f"left out: {error}")
    constants = fit(collected)
    print(f"fit to all: CONSTANTS = {tuple(round(one, 2) for one in constants)} (in use: {CONSTANTS})")
    if len(collected) < 2:
        return
    # Reliability: every target judged by constants that were fitted to the others.
    outcomes = []
    for index, one in enumerate(collected):
        chance, real = one.merged(fit([other for place, other in enumerate(collected) if place != index]))
        best = real[chance.argsort(descending=True)[:20]].mean()
        sure = chance >= BINS[-1][0]
        said = (
            f", {int(sure.sum())} above {BINS[-1][0]}: observed {float(real[sure].mean()):.2f}"
            if sure.any()
            else ""
        )
        print(f"  {one.name}: precision of the 20 most confident {float(best):.2f}; {said}")
        outcomes.append((chance, real))
    chance, real = (torch.cat(column) for column in zip(*outcomes, strict=True))
    for low, high in BINS:
        inside = (chance >= low) & (chance < high)
        if bool(inside.any()):
            shares = [float(column[inside].mean()) for column in (chance, real)]
            print(f"  {int(inside.sum()):4d} candidates: predicted {shares[0]:.2f}, observed {shares[1]:.2f}")


if __name__ == "__main__":
    main()
