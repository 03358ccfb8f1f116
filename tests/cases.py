"""Small targets and random networks that many tests use."""

from __future__ import annotations

import torch
from torch import Tensor

from engram.attacker import AttackerView
from engram.targets.networks import DenseNetwork, initialise
from engram.targets.spec import BiasPolicy, MLPSpec
from engram.task import Binary


def network(
    *sizes: int, bias: BiasPolicy = "first", seed: int = 0, dtype: torch.dtype = torch.float64
) -> DenseNetwork:
    """A random network inputs-...-outputs with standard initialisation."""
    spec = MLPSpec(inputs=sizes[0], widths=sizes[1:-1], outputs=sizes[-1], bias=bias, first_layer_std=None)
    return initialise(spec, torch.Generator().manual_seed(seed), dtype)


def view(*sizes: int, shape: tuple[int, ...] | None = None, seed: int = 0) -> AttackerView:
    return AttackerView(network(*sizes, seed=seed), shape or (sizes[0],), Binary())


def points(n: int, d: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random inputs [n, d] in float64 with alternating labels."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64), torch.arange(n) % 2
