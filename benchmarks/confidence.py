"""Fit the blind confidence: how well do agreement and strength predict that a candidate is real?

Run: python -m benchmarks.confidence [--kinds clean,noisy,convolutional] [--seeds 15,16] [--data-root DIR]

Three kinds of first layer, which the engine tells apart by the weights alone: clean (a small start), noisy (as
people train) and convolutional. Targets: faces and, if they are there, photographs and digits, two and ten
classes, chosen by seeds that nothing else uses. Prints the constants of `engine/consensus.py` for each kind and a
reliability table in which every target is judged by the others of its kind.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.ordinary import SCRIPTS
from engram.attacks.engine.consensus import CLEAN, CONVOLUTIONAL, NOISY, Likeness, consensus, evidence
from engram.attacks.engine.iteration import EngineIteration
from engram.attacks.reconstruction import Reconstruction
from engram.attacks.registry import make_attack
from engram.attacks.settings import EngineSettings
from engram.core.errors import DataError
from engram.core.loop import Budget, run
from engram.data.choice import DataChoice
from engram.data.sets import Split, centred
from engram.models.networks import Network
from engram.models.open.door import open_view
from engram.models.tasks import Binary, Multiclass
from engram.models.view import AttackerView
from engram.pipeline import build_target
from engram.scoring.metrics import ncc
from engram.training.recipe import ConvSpec, Flow, MLPSpec, Recipe
from engram.training.target import measure

IN_USE = {"clean": CLEAN, "noisy": NOISY, "convolutional": CONVOLUTIONAL}
STEPS = {"clean": 400, "noisy": 300, "convolutional": 200}
"""Of each of three starts, about as many as a budget of a minute gives."""


PLAIN = Recipe(lr=0.02, epochs=3000)


@dataclass(frozen=True)
class Target:
    """Images and how a network learns them: by a recipe, with the layers of `arch` if it has convolutions, or by a
    script of `benchmarks.ordinary`."""

    kind: str
    data: DataChoice
    recipe: Recipe = PLAIN
    standard: bool = False
    arch: str | None = None
    script: str | None = None

    def __str__(self) -> str:
        how = self.script or self.arch or ("standard start" if self.standard else "small start")
        return f"{self.kind}, {self.data.n} of {self.data.name}, seed {self.data.seed}, {how}"

    def opened(self, root: Path | None) -> tuple[AttackerView[Network], Split]:
        data = self.data.load(root)
        classes, shape = len(data.train.classes), data.train.shape
        if self.script is not None:
            script = SCRIPTS[self.script]
            network = script.trained(data.train.images - data.mean, data.train.labels, self.data.seed or 0)
            return open_view(dict(network.state_dict()), input_shape=shape, activation=script.name), data
        several = classes > 2
        task = Multiclass(classes) if several else Binary()
        start = None if self.standard or self.arch else 1e-4
        if self.arch is not None:
            conv = ConvSpec(input_shape=shape, layers=self.arch, first_layer_std=start)
            target = build_target(self.data, conv, self.recipe, task, root=root)
            return AttackerView(target.network, shape, task), data
        outputs = classes if several else 1
        spec = MLPSpec(inputs=data.train.images[0].numel(), outputs=outputs, first_layer_std=start)
        recipe = replace(self.recipe, lr=0.1) if several else self.recipe
        return AttackerView(build_target(self.data, spec, recipe, task, root=root).network, shape, task), data


def _choice(name: str, labels: str, n: int, seed: int) -> DataChoice:
    return DataChoice(name=name, labels=labels, n=n, seed=seed)


LONG = Recipe(flow=Flow(), loss_threshold=1.5e-6)
SMALL_KERNELS = Recipe(weight_decay=1e-3, lr=0.6, epochs=4000, forget=3000)
TARGETS = (
    Target("clean", _choice("faces", "gate", 50, 11)),
    Target("clean", _choice("cifar10", "vehicles-animals", 100, 11)),
    Target("clean", _choice("mnist", "odd-even", 200, 11)),
    Target("clean", _choice("cifar10", "identity", 200, 11)),
    Target("clean", _choice("faces", "gate", 40, 12)),
    Target("clean", _choice("cifar10", "vehicles-animals", 60, 12)),
    Target("clean", _choice("mnist", "odd-even", 300, 12)),
    Target("clean", _choice("cifar10", "identity", 300, 12)),
    Target("noisy", _choice("cifar10", "identity", 500, 11), script="adam"),
    Target("noisy", _choice("cifar10", "identity", 250, 12), script="adam"),
    Target("noisy", _choice("cifar10", "vehicles-animals", 50, 11), LONG, standard=True),
    Target("noisy", _choice("cifar10", "vehicles-animals", 30, 12), LONG, standard=True),
    Target("noisy", _choice("cifar10", "vehicles-animals", 50, 13), script="binary-decay"),
    Target("noisy", _choice("cifar10", "identity", 100, 13), script="adam-100"),
    Target("noisy", _choice("cifar10", "identity", 500, 14), script="sgd"),
    Target("noisy", _choice("cifar10", "identity", 500, 15), script="sgd-decay"),
    Target("noisy", _choice("cifar10", "vehicles-animals", 50, 14), script="binary-sgd"),
    Target("noisy", _choice("cifar10", "vehicles-animals", 100, 15), script="binary-100"),
    Target("convolutional", _choice("cifar10", "vehicles-animals", 50, 11), SMALL_KERNELS,
           arch="conv3x16s2 relu flatten 300 relu 1"),
    Target("convolutional", _choice("cifar10", "vehicles-animals", 30, 12), SMALL_KERNELS,
           arch="conv5x16s2 relu flatten 300 relu 1"),
    Target("convolutional", _choice("faces", "gate", 30, 12), SMALL_KERNELS,
           arch="conv3x16 relu flatten 200 relu 1"),
    Target("convolutional", _choice("cifar10", "vehicles-animals", 40, 13), SMALL_KERNELS,
           arch="conv3x32s2 relu flatten 300 relu 1"),
    Target("convolutional", _choice("faces", "gate", 40, 13), SMALL_KERNELS,
           arch="conv5x16 relu flatten 200 relu 1"),
    Target("convolutional", _choice("mnist", "odd-even", 60, 13), SMALL_KERNELS,
           arch="conv3x16 relu flatten 200 relu 1"),
    Target("convolutional", _choice("cifar10", "identity", 50, 13), SMALL_KERNELS,
           arch="conv3x16s2 relu flatten 300 relu 10"),
    Target("convolutional", _choice("cifar10", "vehicles-animals", 60, 14), SMALL_KERNELS,
           arch="conv3x32s2 relu flatten 400 relu 1"),
    Target("convolutional", _choice("faces", "gate", 50, 14), SMALL_KERNELS,
           arch="conv3x32s2 relu flatten 300 relu 1"),
    Target("convolutional", _choice("mnist", "odd-even", 100, 14), SMALL_KERNELS,
           arch="conv5x16s2 relu flatten 300 relu 1"),
    Target("convolutional", _choice("cifar10", "identity", 30, 14), SMALL_KERNELS,
           arch="conv3x32s2 relu flatten 300 relu 10"),
    Target("convolutional", _choice("cifar10", "vehicles-animals", 50, 15), SMALL_KERNELS,
           arch="conv3x32s2 relu flatten 300 relu 1"),
    Target("convolutional", _choice("cifar10", "identity", 40, 15), SMALL_KERNELS,
           arch="conv3x16s2 relu flatten 300 relu 10"),
    Target("convolutional", _choice("faces", "gate", 40, 15), SMALL_KERNELS,
           arch="conv3x32s2 relu flatten 300 relu 1"),
    Target("convolutional", _choice("mnist", "odd-even", 80, 15), SMALL_KERNELS,
           arch="conv5x16s2 relu flatten 300 relu 1"),
    Target("convolutional", _choice("mnist", "odd-even", 60, 16), SMALL_KERNELS,
           arch="conv3x32s2 relu flatten 300 relu 1"),
)  # fmt: skip
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
    crowd: float

    def merged(self, constants: tuple[float, float, float]) -> tuple[Tensor, Tensor]:
        """Confidence under these constants, and whether it is real, for the candidates that a user sees."""
        found = consensus(self.pool, self.restarts, ROOM, constants, self.crowd)
        assert found.scores is not None
        return found.scores.double(), is_real(found.images, self.images).double()


def is_real(candidates: Tensor, images: Tensor) -> Tensor:
    return ncc(candidates, images).amax(1) > REAL


def judged(target: Target, root: Path | None) -> Judged:
    """Train a target, attack it with three starts, and look at every candidate."""
    view, data = target.opened(root)
    images = centred(data.train.images, data.mean)
    accuracy = measure(view.network, view.task, images, data.train.labels).accuracy
    assert accuracy == 1, f"{target} has learnt only {accuracy:.0%} of its images: no target"
    engine = make_attack(view, settings=EngineSettings(restarts=3, steps=STEPS[target.kind]))
    assert isinstance(engine, EngineIteration)
    assert engine.constants == IN_USE[target.kind], f"{target} is of another kind"
    pool, restarts = engine.pooled(run(engine, Budget(steps=engine.total_steps)).state)
    spoken = evidence(pool, restarts, Likeness.of(pool, ROOM), engine.crowd).double()
    result = Judged(str(target), pool, restarts, spoken, is_real(pool.images, images), images, engine.crowd)
    print(f"{target}: {len(pool)} candidates, {int(result.real.sum())} real", flush=True)
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
    parser.add_argument("--kinds", default=",".join(IN_USE))
    parser.add_argument("--seeds", help="only the targets of these data seeds")
    parser.add_argument("--data-root", type=Path)
    chosen = parser.parse_args(arguments)
    seeds = None if chosen.seeds is None else {int(seed) for seed in chosen.seeds.split(",")}
    some = [one for one in TARGETS if seeds is None or one.data.seed in seeds]
    for kind in chosen.kinds.split(","):
        collected: list[Judged] = []
        for target in (one for one in some if one.kind == kind):
            try:
                collected.append(judged(target, chosen.data_root))
            except DataError as error:
                print(f"left out: {error}")
        if collected:
            tell(kind, collected)


def tell(kind: str, collected: Sequence[Judged]) -> None:
    """The constants of a kind, and how reliable they are: every target is judged by those of the others."""
    constants = fit(collected)
    print(f"{kind}, fit to all: {tuple(round(one, 2) for one in constants)} (in use: {IN_USE[kind]})")
    if len(collected) < 2:
        return
    others = [fit([*collected[:index], *collected[index + 1 :]]) for index in range(len(collected))]
    for says, constants_of in (("the others", others), ("what is in use", [IN_USE[kind]] * len(collected))):
        print(f" judged by {says}:")
        outcomes = [one.merged(own) for one, own in zip(collected, constants_of, strict=True)]
        for one, (chance, real) in zip(collected, outcomes, strict=True):
            best, sure = real[chance.argsort(descending=True)[:20]].mean(), chance >= BINS[-1][0]
            said = (
                f"; {int(sure.sum())} above {BINS[-1][0]}: observed {float(real[sure].mean()):.2f}"
                if sure.any()
                else ""
            )
            print(f"  {one.name}: precision of the 20 most confident {float(best):.2f}{said}")
        chance, real = (torch.cat(column) for column in zip(*outcomes, strict=True))
        for low, high in BINS:
            inside = (chance >= low) & (chance < high)
            if bool(inside.any()):
                shares = [float(column[inside].mean()) for column in (chance, real)]
                print(f"  {int(inside.sum()):4d} candidates: predicted {shares[0]:.2f}, observed {shares[1]:.2f}")


if __name__ == "__main__":
    main()
