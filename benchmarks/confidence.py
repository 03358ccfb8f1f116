"""Fit the blind confidence: how well does the agreement of restarts predict that a candidate is real?

Run: python -m benchmarks.confidence [--data-root DIR]

Targets: faces and, if CIFAR-10 is there, photographs, chosen by seeds that nothing else uses. Prints the two
constants of `engine/consensus.py` and a reliability table in which every target is judged by the others.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from engram.attacks.engine.consensus import INTERCEPT, SLOPE
from engram.attacks.engine.dense import Engine
from engram.attacks.settings import EngineSettings
from engram.core.errors import DataError
from engram.core.loop import Budget, run
from engram.data.choice import DataChoice
from engram.data.sets import centred
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.pipeline import build_target
from engram.scoring.metrics import ncc
from engram.training.recipe import MLPSpec, Recipe

TARGETS = (
    DataChoice(name="faces", labels="gate", n=50, seed=11),
    DataChoice(name="cifar10", labels="vehicles-animals", n=100, seed=11),
    DataChoice(name="faces", labels="gate", n=40, seed=12),
    DataChoice(name="cifar10", labels="vehicles-animals", n=60, seed=12),
)


def pairs(choice: DataChoice, root: Path | None) -> tuple[Tensor, Tensor]:
    """Evidence -log(1 - agreement) and whether it is real, for every candidate of one target."""
    data = choice.load(root)
    spec = MLPSpec(inputs=data.train.images[0].numel())
    target = build_target(choice, spec, Recipe(lr=0.02, epochs=3000), Binary(), root=root)
    engine = Engine(
        AttackerView(target.network, data.train.shape, Binary()), EngineSettings(restarts=3, steps=400)
    )
    found = engine.reconstruction(run(engine, Budget(steps=engine.total_steps)).state)
    assert found.scores is not None
    evidence = (torch.logit(found.scores.double()) - INTERCEPT) / SLOPE
    real = ncc(found.images, centred(data.train.images, data.mean)).amax(1) > 0.8
    print(f"{choice}: {len(found)} candidates, {int(real.sum())} real", flush=True)
    return evidence, real


def fit(evidence: Tensor, real: Tensor) -> tuple[float, float]:
    """Logistic regression in one variable by Newton's method."""
    design = torch.stack([torch.ones_like(evidence), evidence], 1)
    weights = torch.zeros(2, dtype=torch.float64)
    for _ in range(30):
        chance = torch.sigmoid(design @ weights)
        curvature = design.T @ (design * (chance * (1 - chance))[:, None])
        weights = weights + torch.linalg.solve(curvature, design.T @ (real.double() - chance))
    return float(weights[0]), float(weights[1])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    root = parser.parse_args(arguments).data_root
    collected = []
    for choice in TARGETS:
        try:
            collected.append(pairs(choice, root))
        except DataError as error:
            print(f"left out: {error}")
    intercept, slope = fit(*(torch.cat(column) for column in zip(*collected, strict=True)))
    print(f"fit to all: INTERCEPT, SLOPE = {intercept:.2f}, {slope:.2f} (in use: {INTERCEPT}, {SLOPE})")
    if len(collected) < 2:
        return
    # Reliability: every target judged by constants that were fitted to the others.
    predicted, observed = [], []
    for index, (evidence, real) in enumerate(collected):
        others = [one for place, one in enumerate(collected) if place != index]
        intercept, slope = fit(*(torch.cat(column) for column in zip(*others, strict=True)))
        predicted.append(torch.sigmoid(intercept + slope * evidence))
        observed.append(real.double())
    chance, outcome = torch.cat(predicted), torch.cat(observed)
    for low, high in ((0, 0.1), (0.1, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1.01)):
        inside = (chance >= low) & (chance < high)
        if bool(inside.any()):
            shares = [float(column[inside].mean()) for column in (chance, outcome)]
            print(f"  {int(inside.sum()):4d} candidates: predicted {shares[0]:.2f}, observed {shares[1]:.2f}")


if __name__ == "__main__":
    main()
