"""What the engine brings back within a budget, on targets that nothing was tuned on.

    python -m benchmarks.engine [--only c100,digits] [--seeds 31,32,33] [--jobs 2] [--prior tv] [--out DIR]

Every row is a kind of target; each seed chooses other images and other random starts of the engine. Prints images
beyond held-out, the mean SSIM of the ten best, how many of the 20 most confident candidates are real (NCC > 0.8),
and the share of the budget used; writes engine.json and engine.md, their names with -N-jobs or -PRIOR if given.
Trained targets stay in OUT/targets, and a run that was killed continues with what is missing.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.machine import busy_note, machine
from benchmarks.membership import DATA
from benchmarks.ordinary import SCRIPTS
from engram.attacks.registry import make_attack
from engram.core import files
from engram.data.choice import DataChoice
from engram.data.sets import Split, centred
from engram.models.networks import Network
from engram.models.open.door import open_view
from engram.models.tasks import Binary, Multiclass, Task
from engram.models.view import AttackerView
from engram.pipeline import attack, build_target, compare
from engram.scoring.metrics import ncc
from engram.training.recipe import ConvSpec, Flow, MLPSpec, Recipe

CONFIDENT, REAL = 20, 0.8
PLAIN = Recipe(epochs=4000)


@dataclass(frozen=True)
class Row:
    """A kind of target: n images of a data set, how it is trained (by a script of `benchmarks.ordinary` if that is
    named), the attack's seconds and the threshold that counts."""

    says: str
    data: str
    labels: str
    n: int
    seconds: float
    recipe: Recipe = PLAIN
    standard: bool = False
    arch: str | None = None
    script: str | None = None
    counts: str = "ssim>0.4"

    @property
    def several(self) -> bool:
        return self.labels == "identity"

    def opened(self, seed: int, name: str, out: Path, root: Path) -> tuple[AttackerView[Network], Split]:
        choice = DataChoice(name=self.data, labels=self.labels, n=self.n, seed=seed)
        split = choice.load(root)
        if self.script is not None:
            return self._ordinary(seed, split, out / "targets" / f"{name}-{seed}.pt"), split
        where = out / "targets" / f"{name}-{seed}"
        if not (where / "card.json").exists():
            outputs = len(split.train.classes) if self.several else 1
            task: Task = Multiclass(outputs) if self.several else Binary()
            start = None if self.standard else 1e-4
            spec: MLPSpec | ConvSpec = MLPSpec(
                inputs=split.train.images[0].numel(), outputs=outputs, first_layer_std=start
            )
            if self.arch is not None:
                spec = ConvSpec(input_shape=split.train.shape, layers=self.arch, first_layer_std=start)
            build_target(choice, spec, self.recipe, task, root=root, directory=where, resume=where.exists())
        return open_view(where), split

    def _ordinary(self, seed: int, split: Split, path: Path) -> AttackerView[Network]:
        assert self.script is not None
        script = SCRIPTS[self.script]
        if not path.exists():
            files.prepare_directory(path.parent)
            trained = script.trained(split.train.images - split.mean, split.train.labels, seed)
            torch.save(trained.state_dict(), path)
        return open_view(path, input_shape=split.train.shape, activation=script.name)


LONG = Recipe(lr=0.5, flow=Flow(), loss_threshold=5e-6)
ROWS = {
    "c100": Row("CIFAR-10, two classes", "cifar10", "vehicles-animals", 100, 60),
    "c500": Row("CIFAR-10, two classes", "cifar10", "vehicles-animals", 500, 120, Recipe(epochs=10_000)),
    "ten": Row("CIFAR-10, ten classes", "cifar10", "identity", 500, 240, LONG),
    "digits": Row("MNIST, odd or even", "mnist", "odd-even", 500, 60, counts="ncc>0.8"),
    "adam": Row("CIFAR-10, ten classes, Adam", "cifar10", "identity", 500, 60, script="adam"),
    "standard": Row("CIFAR-10, standard start", "cifar10", "vehicles-animals", 50, 30,
                    Recipe(flow=Flow(), loss_threshold=1.5e-6), standard=True),
    "conv": Row("CIFAR-10, conv(3, 32)-1000-1", "cifar10", "vehicles-animals", 50, 240,
                Recipe(weight_decay=1e-3, lr=0.4, epochs=6000, forget=4500), standard=True,
                arch="conv3x32 relu flatten 1000 relu 1"),
    "gate": Row("50 faces at a door", "faces", "gate", 50, 15, Recipe(lr=0.02, epochs=4000), counts="ncc>0.8"),
}  # fmt: skip


def measure(row: Row, name: str, seed: int, given: dict[str, Any], out: Path, root: Path) -> dict[str, Any]:
    view, split = row.opened(seed, name, out, root)
    started = time.monotonic()
    chosen = make_attack(view, settings={"seed": seed, **given}, budget=row.seconds)
    found, solution = attack(chosen, seconds=row.seconds)
    took = time.monotonic() - started
    report = compare(found, split, network=view.network)
    real = ncc(found.images, centred(split.train.images, split.mean)).amax(1) > REAL
    return {
        "counts": {text: [count.train, count.held_out] for text, count in report.counts.items()},
        "top10": report.top10_mean,
        "precision": float(real[:CONFIDENT].float().mean()),
        "candidates": len(found),
        "steps": solution.steps,
        "starts": len(solution.state["pool_duals"]),
        "used": took / row.seconds,
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| target | n | seconds | counted by | found (held-out), by seed | mean | ten best | of 20 | used |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in ROWS.items():
        runs = [one for key, one in results.items() if key.rpartition("-")[0] == name]
        if not runs:
            continue
        pairs = [run["counts"][row.counts] for run in runs]
        each = ", ".join(f"{train} ({held})" for train, held in pairs)
        shares = [mean(run[key] for run in runs) for key in ("top10", "precision", "used")]
        lines.append(
            f"| {row.says} | {row.n} | {row.seconds:g} | {row.counts.upper().replace('>', ' > ')} | {each} | "
            f"{mean(train - held for train, held in pairs):.1f} | "
            f"{shares[0]:.3f} | {shares[1]:.2f} | {shares[2]:.0%} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(ROWS), help=f"some of {', '.join(ROWS)}")
    parser.add_argument("--seeds", default="31,32,33")
    parser.add_argument("--jobs", type=int, default=1, help="processes that make the starts")
    parser.add_argument("--prior", choices=("learned", "tv"), help="instead of the engine's own choice")
    parser.add_argument("--data-root", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=Path("runs/engine"))
    chosen = parser.parse_args(arguments)
    files.prepare_directory(chosen.out)
    kind = ("" if chosen.jobs == 1 else f"-{chosen.jobs}-jobs") + (f"-{chosen.prior}" if chosen.prior else "")
    path = chosen.out / f"engine{kind}.json"
    given = {"jobs": chosen.jobs, "prior": chosen.prior}
    results: dict[str, Any] = files.read_json(path)["results"] if path.exists() else {}
    if note := busy_note():
        print(note)
    for name in chosen.only.split(","):
        for seed in map(int, chosen.seeds.split(",")):
            key = f"{name}-{seed}"
            if key not in results:
                results[key] = measure(ROWS[name], name, seed, given, chosen.out, chosen.data_root)
                print(key, results[key], flush=True)
                files.write_json(path, {"machine": machine(), "results": results})
    text = table(results)
    print(text)
    files.write_bytes(path.with_suffix(".md"), (text + "\n").encode())


if __name__ == "__main__":
    main()
