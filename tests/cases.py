"""Small targets and random networks for many tests."""

from __future__ import annotations

import torch
from torch import Tensor

from engram.models.networks import DenseNetwork
from engram.models.tasks import Binary, Multiclass, MulticlassPairs, Regression, Task, infer_task
from engram.models.view import AttackerView
from engram.training.recipe import BiasPolicy, MLPSpec

TASKS: tuple[Task, ...] = (
    Binary(),
    Multiclass(2),
    Multiclass(4),
    MulticlassPairs(4),
    Regression("l2"),
    Regression("l2.5"),
    Regression("huber"),
)


def network(
    *sizes: int, bias: BiasPolicy = "first", seed: int = 0, dtype: torch.dtype = torch.float64
) -> DenseNetwork:
    """A random network inputs-...-outputs with standard initialisation."""
    spec = MLPSpec(inputs=sizes[0], widths=sizes[1:-1], outputs=sizes[-1], bias=bias, first_layer_std=None)
    return spec.initialise(torch.Generator().manual_seed(seed), dtype)


def view(
    *sizes: int, shape: tuple[int, ...] | None = None, seed: int = 0, task: Task | None = None
) -> AttackerView:
    return AttackerView(network(*sizes, seed=seed), shape or (sizes[0],), task or infer_task(sizes[-1]))


def points(n: int, d: int, seed: int = 0, labels: int = 2) -> tuple[Tensor, Tensor]:
    """Random inputs [n, d] in float64 with alternating labels."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64), torch.arange(n) % labels
