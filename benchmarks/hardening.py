"""What it costs to mend a model that leaks, and whether a long attack finds more than a short one.

    python -m benchmarks.hardening [--targets gate,cifar] [--seeds 1,2,3] [--budget 60] [--long 600]
    python -m benchmarks.hardening --ladder --targets cifar --seeds 1

`gate` is the demo's classifier of 50 faces, `cifar` an ordinary ten-class MLP of 500 images trained with Adam,
`cnn` the CNN with batch norm of `engram defend` (no images come back from it, so ask about members alone:
--long 0), `head` a head on 100 embeddings.
Each is mended by `engram.harden` with its default wish; then the mended model is attacked once more, for --long
seconds (0 for not at all). Prints before and after for every seed, and writes both as JSON. A run that was killed
continues.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import engram
from benchmarks.membership import DATA
from benchmarks.membership_targets import embeddings
from benchmarks.ordinary import SCRIPTS
from engram.core import files
from engram.core.runs import versions
from engram.data.sets import ImageSet, split
from engram.defences.exposure import Opened
from engram.defences.harden import Untouched, harden
from engram.defences.mends import families
from engram.defences.record import Parts
from engram.defences.training import DEFENCES, SCENARIOS, fitted
from engram.defences.weights import Public
from engram.models.open.door import Model
from engram.models.tasks import Binary, Multiclass
from engram.training.presets import GATE

PUBLIC, CONTROLS = 500, 1000


def target(name: str, seed: int, root: Path) -> tuple[nn.Module | Model, ImageSet, ImageSet, ImageSet | None]:
    """The model, its training records, held-out records, and public ones where there are enough."""
    if name == "gate":
        choice = replace(GATE.data, seed=seed)
        data = choice.load()
        built = engram.build_target(choice, GATE.network, replace(GATE.recipe, seed=seed), Binary(), data=data)
        return built.network, data.train, data.held_out, None
    if name == "head":
        return head(seed, root)
    script = SCRIPTS["adam"]
    choice = engram.DataChoice(name="cifar10", labels=script.labels, n=script.n, seed=seed)
    data = choice.load(root, held_out=PUBLIC + CONTROLS)
    order = torch.randperm(PUBLIC + CONTROLS, generator=torch.Generator().manual_seed(seed))
    public, control = (data.held_out.take(some.sort().values) for some in (order[:PUBLIC], order[PUBLIC:]))
    inputs, labels = data.train.images - data.mean, data.train.labels
    if name == "cnn":
        return as_defended("cnn", inputs, labels, seed), data.train, control, public
    return dict(script.trained(inputs, labels, seed).state_dict()), data.train, control, public


def as_defended(name: str, inputs: torch.Tensor, labels: torch.Tensor, seed: int) -> nn.Module:
    """A target of `engram defend` without a defence, ten classes."""
    scenario = SCENARIOS[name]
    start = scenario.network(tuple(inputs.shape[1:]), 10, DEFENCES["none"], seed).train()
    return fitted(start, inputs, labels, Multiclass(10), replace(scenario.fit, seed=seed)).eval()


def head(seed: int, root: Path) -> tuple[Model, ImageSet, ImageSet, None]:
    """A head on 100 of 400 embeddings of an ImageNet network, as `engram defend head` trains it."""
    images = engram.DataChoice(name="cifar10", labels="identity", n=200, seed=1).load(root)
    both = [images.train, images.held_out]
    vectors = embeddings(torch.cat([one.images for one in both]), Path("runs/membership/embeddings.safetensors"))
    known = ImageSet(vectors, torch.cat([one.labels for one in both]), "embeddings", images.train.classes)
    data = split(known, 100, held_out=300, seed=seed)
    network = as_defended("head", data.train.images - data.mean, data.train.labels, seed)
    return dict(network.state_dict()), data.train, data.held_out, None


def measure(name: str, seed: int, chosen: argparse.Namespace) -> dict[str, Any]:
    model, train, held_out, public = target(name, seed, chosen.data_root)
    found = harden(
        model,
        train,
        held_out,
        public=public,
        seconds=chosen.budget,
        seed=seed,
        accept=chosen.accept,
        only=chosen.only,
        activation="relu",
    )
    row = found.to_json()
    row["points"] = [point for point in row["points"] if point["whole"] or point["mend"] in row["frontier"]]
    if found.model is not None and chosen.long:
        record = engram.audit(
            dict(found.model.state_dict()),
            input_shape=train.shape,
            activation="relu",
            train=train,
            held_out=found.parts.judging,
            mean=found.preprocessing.mean,
            seconds=chosen.long,
            baselines="none",
        )
        assert record.comparison is not None
        assert record.comparison.membership is not None
        count = record.comparison.count
        row["long"] = {
            "seconds": record.attack.seconds,
            "images": count.train,
            "held_out_images": count.held_out,
            "members": record.comparison.membership["combined"].roc.at(0),
        }
    return row


def ladder(name: str, seed: int, chosen: argparse.Namespace) -> list[str]:
    """Every second strength of every kind: who is identified in the weights as they are, and by one who knows."""
    model, train, held_out, public = target(name, seed, chosen.data_root)
    opened = Opened.of(model, train.shape, task=None, arch=None, activation="relu", normalize=None, head=None)
    subject = opened.subject(train, held_out, None, "auto")
    parts = Parts.of(held_out, public, seed)
    known = Public(subject.inputs(parts.public), parts.public.labels, subject.task)
    rows = [
        "| mend | held-out accuracy | training accuracy | as it is | by one who knows | AUC, the higher |",
        RULE,
    ]
    for mend in [Untouched(), *(one for _, rungs in families() for one in rungs[::2])]:
        readings = mend.apply(opened.module, known, seed).readings()
        seen = [subject.members(one, parts.judging) for one in readings]
        first, informed = seen[0], max((one.members for one in seen[1:]), default=None)
        rows.append(
            f"| {mend.text} | {first.accuracy:.2f} | {first.train_accuracy:.2f} | {first.members:.2f} | "
            f"{'' if informed is None else f'{informed:.2f}'} | {max(one.auc for one in seen):.2f} |"
        )
        print(rows[-1], flush=True)
    return rows


RULE = "|---|---|---|---|---|---|"


def told(name: str, row: dict[str, Any]) -> str:
    before, after, long = row["before"], row["after"], row.get("long")
    if after is None:
        return f"| {name} | {row['mend']} | not reached |"
    cells = [
        f"{before[key]:.3f} -> {after[key]:.3f}"
        for key in ("members", "members_at_1", "accuracy", "train_accuracy")
    ]
    images = f"{before['images']} ({before['held_out_images']}) -> {after['images']} ({after['held_out_images']})"
    tail = "" if long is None else f"{long['images']} ({long['held_out_images']}) in {long['seconds']:.0f} s"
    return f"| {name} | {row['mend']} | {' | '.join(cells)} | {images} | {tail} |"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default="gate,cifar")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--long", type=float, default=600.0)
    parser.add_argument("--accept", default="members identified <= 5%, images = 0")
    parser.add_argument("--only", help="kinds of mends; default: all")
    parser.add_argument("--data-root", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=Path("runs/hardening"))
    parser.add_argument("--ladder", action="store_true", help="every strength of every mend, by membership alone")
    chosen = parser.parse_args(arguments)
    files.prepare_directory(chosen.out)
    if chosen.ladder:
        for name in chosen.targets.split(","):
            lines = ladder(name, int(chosen.seeds.split(",")[0]), chosen)
            files.write_bytes(chosen.out / f"ladder-{name}.md", ("\n".join(lines) + "\n").encode())
        return
    path = chosen.out / "hardening.json"
    rows: dict[str, Any] = files.read_json(path)["rows"] if path.exists() else {}
    for name in chosen.targets.split(","):
        for seed in map(int, chosen.seeds.split(",")):
            key = f"{name}-{seed}"
            if key not in rows:
                rows[key] = measure(name, seed, chosen)
                files.write_json(path, {"versions": versions(), "rows": rows})
            print(told(key, rows[key]), flush=True)


if __name__ == "__main__":
    main()
