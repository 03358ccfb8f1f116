"""Small synthetic image sets for the scoring tests."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def smooth_images(count: int, shape: tuple[int, int, int] = (3, 8, 8), seed: int = 0) -> Tensor:
    """Blurry random pictures in [0, 1], each different: [count, C, H, W] float64."""
    channels, height, width = shape
    coarse = torch.rand(count, channels, 4, 4, generator=generator(seed), dtype=torch.float64)
    return interpolate(coarse, size=(height, width), mode="bilinear")


def noisy_copies(images: Tensor, mean: Tensor, copies: int, level: float, seed: int = 1) -> Tensor:
    """Candidates in network coordinates: every image `copies` times, rescaled, with noise."""
    originals = (images - mean).repeat(copies, 1, 1, 1)
    noise = torch.randn(originals.shape, generator=generator(seed), dtype=originals.dtype)
    return 0.7 * originals + level * noise
