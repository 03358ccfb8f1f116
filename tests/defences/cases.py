"""A small network that has learnt its records by heart, in a second."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engram.defences.training import Fit, fitted, started
from engram.models.tasks import Multiclass

SHAPE = (1, 8, 8)
CLASSES = 4
Samples = tuple[Tensor, Tensor]


def samples(n: int, seed: int) -> Samples:
    """Images [n, 1, 8, 8]: one of four patterns, a smooth part of their own, and noise."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.rand(CLASSES, *SHAPE, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(n) % CLASSES
    own = torch.rand(n, *SHAPE, generator=generator)
    return (0.35 * patterns[labels] + 0.65 * own).clamp(0, 1), labels


def build() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def trained(train: Samples, seed: int = 0, epochs: int = 150) -> nn.Module:
    inputs = train[0] - train[0].mean(0)
    return fitted(started(build, seed), inputs, train[1], Multiclass(CLASSES), Fit(epochs=epochs, batch=10))
