"""Shared by the training benchmarks: the papers' CIFAR-10 target, its options and its card."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from engram.core.loop import Observer
from engram.data.choice import DataChoice
from engram.models.tasks import Binary
from engram.pipeline import build_target
from engram.training.recipe import MLPSpec, Recipe
from engram.training.target import Card, Quality


def options(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every training benchmark."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("-n", type=int, default=500)
    parser.add_argument("--out", type=Path, help="Keep the trained target here.")
    return parser


def trained(arguments: argparse.Namespace, recipe: Recipe, observers: Sequence[Observer]) -> tuple[Card, Quality]:
    """Train vehicles against animals, d-1000-1000-1; returns the card and the quality on test images."""
    target = build_target(
        DataChoice(name="cifar10", labels="vehicles-animals", n=arguments.n),
        MLPSpec(inputs=3072),
        recipe,
        Binary(),
        root=arguments.data_root,
        directory=arguments.out,
        observers=observers,
    )
    assert target.card is not None
    assert target.card.test is not None
    return target.card, target.card.test
