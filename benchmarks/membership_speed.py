"""How fast `engram.membership` reads records, beside plain inference of the same model in the same run.

    python -m benchmarks.membership_speed [--records 50000] [--jobs 1]

The model is a ResNet-20 with batch norm (270,000 parameters). The records are CIFAR-10 images, half of them
controls; where more are asked for than there are, shifted copies make up the rest. Prints records a second of
both, their ratio, and the peak of memory.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import torch
from torch import Tensor

import engram
from benchmarks.membership import DATA
from benchmarks.membership_targets import resnet
from engram.data.catalog import load
from engram.members.scores import Forked, in_process

BATCH = 64


def records(count: int, root: Path) -> tuple[Tensor, Tensor]:
    """Distinct images: those of the data set, then the same shifted by a pixel, by two, ..."""
    sets = [load("cifar10", root=root, train=part) for part in (True, False)]
    images, labels = torch.cat([one.images for one in sets]), torch.cat([one.labels for one in sets])
    found = torch.empty(count, *images.shape[1:])
    for start in range(0, count, len(images)):
        some = images[: count - start]
        found[start : start + len(some)] = some.roll(start // len(images), 3)
    return found, labels.repeat(-(-count // len(labels)))[:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--data-root", type=Path, default=DATA)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    model = resnet(3).eval()
    inputs, labels = records(chosen.records, chosen.data_root)
    half = len(inputs) // 2
    with torch.no_grad():
        model(inputs[:BATCH])
        started = time.perf_counter()
        for some in torch.split(inputs[:5000], BATCH):
            model(some)
        forward = (time.perf_counter() - started) / min(5000, len(inputs))
    run = in_process if chosen.jobs == 1 else Forked(chosen.jobs)
    started = time.perf_counter()
    engram.membership(model, (inputs[:half], labels[:half]), (inputs[half:], labels[half:]), batch=BATCH, run=run)
    asked = (time.perf_counter() - started) / len(inputs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{len(inputs):,} records: inference {1 / forward:,.0f} a second, membership {1 / asked:,.1f} a second "
        f"with {chosen.jobs} job(s), {asked / forward:.1f} times the cost of inference; peak {peak:.2f} GB"
    )


if __name__ == "__main__":
    main()
