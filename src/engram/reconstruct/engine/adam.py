"""Adam (Kingma & Ba 2015) in place, its moments beside the value in the state, so that a snapshot holds them."""

from __future__ import annotations

import torch
from torch import Tensor

from engram.loop import State

BETAS = (0.9, 0.98)
"""The usual 0.999 remembers the first steps, whose gradients are ten times larger, for a whole start."""


def moments(name: str, value: Tensor) -> State:
    """The moments of a value that has not moved yet."""
    return {f"{name}_{moment}": torch.zeros_like(value) for moment in ("mean", "square")}


def adam(state: State, name: str, gradient: Tensor, rate: float | Tensor, step: int) -> None:
    """Step 1, 2, ... of `state[name]`: the first one has length `rate` wherever the gradient is not zero.

    >>> state = {"x": torch.zeros(2), **moments("x", torch.zeros(2))}
    >>> adam(state, "x", torch.tensor([3.0, -0.5]), 0.1, step=1)
    >>> state["x"]
    tensor([-0.1000,  0.1000])
    """
    mean, square = state[f"{name}_mean"], state[f"{name}_square"]
    mean.lerp_(gradient, 1 - BETAS[0])
    square.lerp_(gradient.square(), 1 - BETAS[1])
    spread = (square / (1 - BETAS[1] ** step)).sqrt_().add_(1e-12)
    state[name].sub_(mean.div(spread).mul_(rate / (1 - BETAS[0] ** step)))
