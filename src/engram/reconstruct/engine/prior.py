"""The mild image prior: smoothed total variation, which decides between near-equal solutions."""

from __future__ import annotations

import torch
from torch import Tensor

SMOOTHING = 0.01
"""Pixel differences below this count quadratically: a hundredth of the pixel range."""


def total_variation(images: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of sqrt(difference² + eps²) over neighbouring pixels, a mean over pixels, and its gradient.

    images [m, C, H, W] -> values [m], gradients [m, C, H, W].

    >>> values, _ = total_variation(torch.tensor([[[[0.0, 3.0]]]], dtype=torch.float64))
    >>> round(values.item(), 4)
    1.5
    """
    gradient = torch.zeros_like(images)
    values = images.new_zeros(len(images))
    pixels = images[0].numel()
    for axis in (2, 3):
        length = images.shape[axis] - 1
        ahead, behind = images.narrow(axis, 1, length), images.narrow(axis, 0, length)
        difference = ahead - behind
        size = (difference.square() + SMOOTHING**2).sqrt()
        values += size.flatten(1).sum(1) / pixels
        slope = difference / size / pixels
        gradient.narrow(axis, 1, length).add_(slope)
        gradient.narrow(axis, 0, length).sub_(slope)
    return values, gradient
