"""Membership on CIFAR-10 targets trained by ordinary recipes: `engram.membership` beside a loss threshold.

    python -m benchmarks.membership [--targets mlp10,mlp1,cnn] [--seeds 1,2,3] [--out runs/membership]

Members and controls are disjoint and equally many. Every target has PyTorch's default start, biases and
mini-batches. Prints the true-positive rates at false-positive rates of 0 and 1 %, AUC and seconds, and writes them
as JSON.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import engram
from engram.core import files
from engram.core.runs import versions
from engram.scoring.curves import Roc

DATA = Path(__file__).parents[2] / "shared" / "data"


@dataclass(frozen=True)
class TargetPlan:
    """A network and how it is trained: n images, a batch size, epochs, an optimiser."""

    network: Callable[[], nn.Module]
    labels: str
    n: int
    batch: int
    epochs: int
    optimiser: Callable[[nn.Module], torch.optim.Optimizer]
    data: str = "cifar10"


def _mlp(outputs: int) -> nn.Module:
    hidden = nn.Linear(3072, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU()
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(256, outputs))


def _cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for entering, channels in ((3, 32), (32, 64), (64, 128)):
        layers += [
            nn.Conv2d(entering, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 256), nn.ReLU(), nn.Linear(256, 10))


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), 1e-3)


def _momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.02, momentum=0.9, weight_decay=5e-4)


TARGETS = {
    "mlp10": TargetPlan(lambda: _mlp(10), "identity", 500, 50, 60, _adam),
    "mlp1": TargetPlan(lambda: _mlp(1), "vehicles-animals", 100, 50, 300, _momentum),
    "cnn": TargetPlan(_cnn, "identity", 500, 50, 40, _adam),
}


def train(plan: TargetPlan, inputs: Tensor, labels: Tensor, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = plan.network().train()
    optimiser = plan.optimiser(model)
    for _ in range(plan.epochs):
        for some in torch.split(torch.randperm(len(inputs)), plan.batch):
            outputs = model(inputs[some])
            if outputs.shape[1] == 1:  # the logistic loss
                outputs = torch.cat([torch.zeros_like(outputs), outputs], 1)
            loss = nn.functional.cross_entropy(outputs, labels[some])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return model.eval()


def measure(name: str, seed: int, root: Path) -> dict[str, Any]:
    """Train one target and ask which records it has seen."""
    plan = TARGETS[name]
    data = engram.DataChoice(name=plan.data, labels=plan.labels, n=plan.n, seed=seed).load(root)
    members, controls = ((part.images - data.mean, part.labels) for part in (data.train, data.held_out))
    started = time.perf_counter()
    model = train(plan, *members, seed)
    seconds = time.perf_counter() - started
    found = engram.membership(model, members, controls)
    return {
        "target": name,
        "seed": seed,
        "records": plan.n,
        "engram": _rates(found.roc),
        "loss threshold": _rates(found.margin_roc),
        "layers": {f"{one.layer} {one.test}": _rates(one.roc) | {"weight": one.weight} for one in found.tests},
        "epsilon_lower": found.epsilon_lower,
        "training_seconds": seconds,
        "seconds": found.seconds,
    }


def _rates(curve: Roc) -> dict[str, float]:
    return {"tpr_at_0": curve.at(0), "tpr_at_1%": curve.at(0.01), "auc": curve.auc}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default=",".join(TARGETS), help=f"some of {', '.join(TARGETS)}")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--out", type=Path, default=Path("runs/membership"))
    parser.add_argument("--data-root", type=Path, default=DATA)
    chosen = parser.parse_args(arguments)
    rows = []
    for name in chosen.targets.split(","):
        for seed in map(int, chosen.seeds.split(",")):
            rows.append(row := measure(name, seed, chosen.data_root))
            for test in ("engram", "loss threshold"):
                rates = "  ".join(f"{rate} {value:.3f}" for rate, value in row[test].items())
                print(f"{name:6s} seed {seed}  {test:14s} {rates}", flush=True)
            print(
                f"       trained in {row['training_seconds']:.0f} s, asked in {row['seconds']:.1f} s", flush=True
            )
            files.prepare_directory(chosen.out)
            files.write_json(chosen.out / "membership.json", {"versions": versions(), "rows": rows})


if __name__ == "__main__":
    main()
