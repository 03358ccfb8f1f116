"""As people train: optimiser, initialisation, augmentation, number of images, activation. What comes back of each?

    python -m benchmarks.ordinary [--only adam,gelu] [--budget 45] [--out runs/ordinary]

Every row is a network of CIFAR-10 trained by an ordinary script (default initialisation and biases unless the row
says otherwise, mini-batches of 50), then audited from its state_dict. Prints images back with the same count on
held-out images in brackets, and members identified without a false alarm; writes both as JSON and Markdown. A run
that was killed continues with the rows that are missing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import engram
from benchmarks.membership import DATA
from benchmarks.membership_targets import augmented
from engram.core import files
from engram.core.runs import versions

BATCH = 50


@dataclass(frozen=True)
class Script:
    """A training script; `small` scales the first layer down to a hundredth, as the papers do."""

    says: str
    n: int
    classes: int = 10
    optimiser: str = "adam"
    decay: float = 0.0
    epochs: int = 60
    widths: tuple[int, ...] = (512, 256)
    activation: Callable[[], nn.Module] = nn.ReLU
    name: str = "relu"
    small: bool = False
    augmented: bool = False
    norm: bool = False
    """Batch norm after the first layer."""
    normal: bool = False
    """Whether the first layer starts normal instead of uniform, equally wide."""
    known_seed: bool = False
    """Whether the attacker knows the seed of the start."""

    @property
    def labels(self) -> str:
        return "vehicles-animals" if self.classes == 2 else "identity"

    def network(self) -> nn.Sequential:
        layers: list[nn.Module] = [nn.Flatten()]
        sizes = (3072, *self.widths)
        for before, after in pairwise(sizes):
            # from a small start only the first layer has a bias, as in the papers
            layers.append(nn.Linear(before, after, bias=not self.small or before == 3072))
            layers += [nn.BatchNorm1d(after)] if self.norm and before == 3072 else []
            layers.append(self.activation())
        outputs = 1 if self.classes == 2 else self.classes
        network = nn.Sequential(*layers, nn.Linear(sizes[-1], outputs, bias=not self.small))
        with torch.no_grad():
            for value in network[1].parameters():
                value.mul_(0.01 if self.small else 1)
                if self.normal:
                    value.normal_(0, (3 * 3072) ** -0.5)
        return network

    def trained(self, inputs: Tensor, labels: Tensor, seed: int) -> nn.Sequential:
        torch.manual_seed(seed)
        network = self.network()
        optimiser: torch.optim.Optimizer = torch.optim.Adam(network.parameters(), 1e-3, weight_decay=self.decay)
        if self.optimiser == "sgd":
            optimiser = torch.optim.SGD(network.parameters(), 0.02, momentum=0.9, weight_decay=self.decay)
        for _ in range(self.epochs):
            for some in torch.split(torch.randperm(len(inputs)), BATCH):
                outputs = network(augmented(inputs[some]) if self.augmented else inputs[some])
                outputs = torch.cat([torch.zeros_like(outputs), outputs], 1) if self.classes == 2 else outputs
                optimiser.zero_grad()
                functional.cross_entropy(outputs, labels[some]).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        return network.eval()


WIDE = (1000, 1000)
SCRIPTS = {
    "adam": Script("Adam", 500),
    "sgd": Script("SGD with momentum", 500, optimiser="sgd"),
    "sgd-normal": Script("SGD with momentum, normal start", 500, optimiser="sgd", normal=True),
    "sgd-decay": Script("SGD with momentum and weight decay 1e-3", 500, optimiser="sgd", decay=1e-3, epochs=200),
    "adam-augmented": Script("Adam, flips and shifts", 500, augmented=True, epochs=200),
    "adam-100": Script("Adam", 100, epochs=150),
    "adam-100-norm": Script("Adam, batch norm after the first layer", 100, epochs=150, norm=True),
    "adam-2000": Script("Adam", 2000, epochs=40),
    "binary-sgd": Script("SGD with momentum", 50, 2, "sgd", epochs=300),
    "binary-sgd-normal": Script("SGD with momentum, normal start", 50, 2, "sgd", epochs=300, normal=True),
    "binary-decay": Script("SGD with momentum and weight decay 5e-3", 50, 2, "sgd", 5e-3, 1000),
    "binary-adam": Script("Adam", 50, 2, epochs=200),
    "binary-100": Script("SGD with momentum and weight decay 1e-3", 100, 2, "sgd", 1e-3, 300),
    "binary-100-seed": Script("the same, and the seed is known", 100, 2, "sgd", 1e-3, 300, known_seed=True),
    "relu": Script("SGD with momentum, small start", 50, 2, "sgd", epochs=1500, widths=WIDE, small=True),
    "leaky": Script("SGD with momentum, small start", 50, 2, "sgd", epochs=1500, widths=WIDE, small=True,
                    activation=lambda: nn.LeakyReLU(0.01), name="leaky:0.01"),
    "gelu": Script("SGD with momentum, small start", 50, 2, "sgd", epochs=1500, widths=WIDE, small=True,
                   activation=nn.GELU, name="gelu"),
    "tanh": Script("SGD with momentum, small start", 50, 2, "sgd", epochs=1500, widths=WIDE, small=True,
                   activation=nn.Tanh, name="tanh"),
}  # fmt: skip


def measure(script: Script, seconds: float, root: Path, seed: int = 41) -> dict[str, Any]:
    data = engram.DataChoice(name="cifar10", labels=script.labels, n=script.n, seed=seed).load(root)
    network = script.trained(data.train.images - data.mean, data.train.labels, seed)
    record = engram.audit(
        dict(network.state_dict()),
        input_shape=(3, 32, 32),
        activation=script.name,
        train=data.train,
        held_out=data.held_out,
        seconds=seconds,
        baselines="none",
        base_seed=seed if script.known_seed else None,
    )
    found = record.comparison
    assert found is not None
    assert found.membership is not None
    with torch.no_grad():
        unseen = network(data.held_out.images - data.mean)
    return {
        "says": script.says,
        "activation": script.name,
        "n": script.n,
        "classes": script.classes,
        "accuracy": found.accuracy,
        "held_out_accuracy": float(record.view.task.correct(unseen, data.held_out.labels).double().mean()),
        "images": found.count.train,
        "held_out_images": found.count.held_out,
        "members": found.membership["combined"].roc.at(0),
        "auc": found.membership["combined"].roc.auc,
        "seconds": record.attack.seconds,
        "outcome": record.verdict.outcome,
        "samples_by_base": None if record.view.update is None else record.view.update.samples,
    }


def table(rows: dict[str, Any]) -> str:
    lines = [
        "| training | n, classes | activation | accuracy, held-out | images (held-out) | members identified |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['says']} | {row['n']}, {row['classes']} | {row['activation']} | {row['accuracy']:.2f}, "
        f"{row['held_out_accuracy']:.2f} | {row['images']} ({row['held_out_images']}) | {row['members']:.0%} |"
        for row in rows.values()
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SCRIPTS), help=f"some of {', '.join(SCRIPTS)}")
    parser.add_argument("--budget", type=float, default=45.0)
    parser.add_argument("--data-root", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=Path("runs/ordinary"))
    chosen = parser.parse_args(arguments)
    files.prepare_directory(chosen.out)
    path = chosen.out / "ordinary.json"
    rows: dict[str, Any] = files.read_json(path)["rows"] if path.exists() else {}
    for name in chosen.only.split(","):
        if name not in rows:
            rows[name] = measure(SCRIPTS[name], chosen.budget, chosen.data_root)
            print(name, rows[name], flush=True)
            files.write_json(path, {"versions": versions(), "budget": chosen.budget, "rows": rows})
    text = table({name: rows[name] for name in SCRIPTS if name in rows})
    print(text)
    files.write_bytes(chosen.out / "ordinary.md", (text + "\n").encode())


if __name__ == "__main__":
    main()
