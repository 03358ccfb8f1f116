"""A head on a real backbone, audited from images: embeddings that come back, and pictures that illustrate them.

    python -m benchmarks.backbone [--n 50] [--seeds 0,1,2] [--starts small,standard] [--out runs/backbone]

EfficientNet-Lite0 as others trained it on ImageNet is frozen (at 112 pixels a side); a head 1280-500-10 learns n
CIFAR-10 images of ten classes, from the small start or from PyTorch's. `engram.audit(head, ..., embed=backbone)`
attacks it for 60 s. Prints embeddings back (NCC > 0.8) and members identified, with the control, and how near the
pictures are to their records, by NCC, and the control's to theirs. OUT/SEED-START/report.html shows them.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import engram
from benchmarks.membership import DATA
from benchmarks.membership_targets import Backbone
from engram.core import files
from engram.core.runs import versions
from engram.models.tasks import Multiclass
from engram.scoring.metrics import ncc
from engram.training.recipe import MLPSpec, Recipe
from engram.training.target import train

SECONDS = 60.0
STARTS = {"small": 1e-4, "standard": None}


def nearness(made: Tensor, records: Tensor) -> list[float]:
    """NCC of each picture with the record that it illustrates."""
    return [round(value, 2) for value in ncc(made, records).diagonal().tolist()]


def measured(n: int, seed: int, start: str, backbone: nn.Module, out: Path) -> dict[str, Any]:
    data = engram.DataChoice(name="cifar10", labels="identity", n=n, seed=seed).load(DATA)
    with torch.no_grad():
        inputs = backbone(data.train.images)
    mean = inputs.mean(0)
    spec = MLPSpec(inputs=inputs.shape[1], widths=(500,), outputs=10, first_layer_std=STARTS[start])
    head, _ = train(spec, Recipe(epochs=4000, seed=seed), Multiclass(10), inputs - mean, data.train.labels)
    started = time.perf_counter()
    record = engram.audit(
        head,
        train=(data.train.images, data.train.labels),
        held_out=(data.held_out.images, data.held_out.labels),
        embed=backbone,
        mean=mean,
        seconds=SECONDS,
        baselines="none",
    )
    files.prepare_directory(out / f"{seed}-{start}")
    record.save(out / f"{seed}-{start}")
    comparison, shown = record.comparison, record.illustration
    assert comparison is not None
    assert comparison.membership is not None
    return {
        "seed": seed,
        "start": start,
        "embeddings_back": comparison.count.train,
        "held_out": comparison.count.held_out,
        "members_identified": comparison.membership["combined"].roc.at(0),
        "pictures": None if shown is None else nearness(shown.made, shown.records),
        "pictures_of_the_control": None if shown is None else nearness(shown.held_out_made, shown.held_out),
        "seconds": round(time.perf_counter() - started),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=50)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--starts", default=",".join(STARTS))
    parser.add_argument("--out", type=Path, default=Path("runs/backbone"))
    given = parser.parse_args()
    backbone, rows = Backbone(side=112), []
    for seed in map(int, given.seeds.split(",")):
        for start in given.starts.split(","):
            rows.append(measured(given.n, seed, start, backbone, given.out))
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    files.write_json(given.out / "backbone.json", {"n": given.n, "rows": rows, "versions": versions()})


if __name__ == "__main__":
    main()
