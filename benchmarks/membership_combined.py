"""The audit's membership tests side by side: boundaries, layers, and both combined.

    python -m benchmarks.membership_combined [--seeds 1,2]

The demo's gate as it is and pruned, where boundary counts are chance, and small networks that learnt random
points, where they may say more than the layers. Prints true-positive rates at a false-positive rate of 0 with AUC.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.hardening import target
from engram.auditing.comparison import members_tested
from engram.data.sets import ImageSet, Split, numbered
from engram.defences.exposure import Opened
from engram.defences.mends import families
from engram.defences.weights import Public
from engram.members.kkt import Membership, dense_part
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.training.recipe import MLPSpec, Recipe
from engram.training.target import train

SMALL = ((10, 20, (100,)), (50, 20, (60, 20)), (12, 40, (300,)), (5, 15, (200,)), (30, 20, (1000,)))
"""Inputs, records and widths."""
TESTS = "boundaries", "layers", "combined"


def gates(seed: int) -> Iterator[tuple[str, Membership]]:
    model, own, held_out, _ = target("gate", seed, Path())
    opened = Opened.of(model, own.shape, task=None, arch=None, activation="relu", normalize=None, head=None)
    subject = opened.subject(own, held_out, None, "auto")
    known = Public(subject.inputs(held_out), held_out.labels, subject.task)
    modules = {"gate": opened.module}
    for mend in (one for _, rungs in families() for one in rungs if one.text.startswith("prune")):
        modules[f"gate, {mend.text}"] = mend.apply(opened.module, known, seed).readings()[0]
    for name, module in modules.items():
        view = subject.viewed(module)
        assert view is not None
        data = Split(own, held_out, subject.preprocessing.mean)
        yield name, members_tested(view, dense_part(view), data, module)[0]


def small(seed: int) -> Iterator[tuple[str, Membership]]:
    for place, (inputs, n, widths) in enumerate(SMALL):
        generator = torch.Generator().manual_seed(100 * seed + place)
        points = torch.randn(2 * n, inputs, generator=generator)
        labels = torch.randint(0, 2, (2 * n,), generator=generator)
        spec, recipe = MLPSpec(inputs=inputs, widths=widths), Recipe(lr=0.05, epochs=1500, seed=seed)
        learnt, _ = train(spec, recipe, Binary(), points[:n], labels[:n])
        own, others = (
            ImageSet(points[some], labels[some], "points", numbered(2)) for some in (slice(n), slice(n, None))
        )
        view = AttackerView(learnt, (inputs,), Binary())
        found, _ = members_tested(view, dense_part(view), Split(own, others, torch.zeros(inputs)))
        yield f"{n} points, {'-'.join(map(str, (inputs, *widths, 1)))}", found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2")
    chosen = parser.parse_args(arguments)
    for seed in map(int, chosen.seeds.split(",")):
        for made in (small, gates):
            for name, found in made(seed):
                cells = (f"{test} {found[test].roc.at(0):.2f} ({found[test].roc.auc:.2f})" for test in TESTS)
                print(f"seed {seed}, {name}: {'  '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
