"""The smoothed ReLU of the papers: exact forward, sigmoid-gated backward, differentiable twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _SmoothedReLU(torch.autograd.Function):
    """y = max(z, 0) and dy/dz := sigmoid(slope z).

    `backward` is made of differentiable operations, so autograd differentiates it again and the second
    derivative goes through the sigmoid: d²y/dz² := slope sigmoid(slope z) (1 - sigmoid(slope z)).
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, slope: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.slope = slope
        return z.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (z,) = ctx.saved_tensors
        return gradients[0] * torch.sigmoid(ctx.slope * z), None


def smoothed_relu(slope: float) -> Callable[[Tensor], Tensor]:
    """The activation with that slope (the papers' alpha).

    >>> z = torch.tensor([0.0], dtype=torch.float64, requires_grad=True)
    >>> (gradient,) = torch.autograd.grad(smoothed_relu(8.0)(z), z, create_graph=True)
    >>> gradient.item(), torch.autograd.grad(gradient, z)[0].item()
    (0.5, 2.0)
    """

    def activation(z: Tensor) -> Tensor:
        return _SmoothedReLU.apply(z, slope)  # type: ignore[no-any-return,no-untyped-call]

    return activation
