"""SSIM as both papers measure it: a Gaussian 3x3 window of sigma 1.5 and pixels in [0, 1]."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from engram.errors import require
from engram.matching.distances import require_same_shape

C1 = 0.01**2
C2 = 0.03**2
SIGMA = 1.5
PAIRS_AT_ONCE = 64
"""So few that the maps of a batch stay in the cache; 1024 take twice as long."""


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Mean structural similarity of each pair of images in [0, 1]: [n, C, H, W] twice -> [n].

    >>> x = torch.linspace(0, 1, 16).view(1, 1, 4, 4)
    >>> bool(torch.isclose(ssim(x, x), torch.ones(1)))
    True
    >>> black, white = torch.zeros(1, 1, 4, 4), torch.ones(1, 1, 4, 4)
    >>> bool(torch.isclose(ssim(black, white), torch.tensor(C1 / (1 + C1))))
    True
    """
    require_same_shape(a, b)
    require(len(a) == len(b), "a and b", "must hold as many images", (tuple(a.shape), tuple(b.shape)))
    if not len(a):
        return a.new_zeros(0)
    blocks = [slice(start, start + PAIRS_AT_ONCE) for start in range(0, len(a), PAIRS_AT_ONCE)]
    return torch.cat([ssim_map(a[block], b[block]).mean((1, 2, 3)) for block in blocks])


def ssim_map(a: Tensor, b: Tensor) -> Tensor:
    """SSIM at every pixel and channel, [n, C, H, W] twice -> [n, C, H, W].

    (2 mu_a mu_b + C1)(2 s_ab + C2) / ((mu_a² + mu_b² + C1)(s_aa + s_bb + C2)), where mu = w * x and
    s_xy = w * (x y) - mu_x mu_y under the window w. The border is mirrored without repeating the edge pixel
    (torch's 'reflect'); scikit-image repeats it, so the two agree only away from the border.
    """
    require_same_shape(a, b)
    large_enough = a.ndim == 4 and min(a.shape[2:]) >= 2
    require(large_enough, "images", "must be [n, C, H, W] with H and W at least 2", tuple(a.shape))
    dtype = torch.promote_types(a.dtype, b.dtype)
    a, b = a.to(dtype), b.to(dtype)
    mean_a, mean_b = _blurred(a), _blurred(b)
    variance_a = _blurred(a * a) - mean_a**2
    variance_b = _blurred(b * b) - mean_b**2
    covariance = _blurred(a * b) - mean_a * mean_b
    alike = (2 * mean_a * mean_b + C1) * (2 * covariance + C2)
    return alike / ((mean_a**2 + mean_b**2 + C1) * (variance_a + variance_b + C2))


def _blurred(images: Tensor) -> Tensor:
    """Gaussian 3x3 window at every pixel; the window is separable: a row (w1, w0, w1), then a column."""
    falloff = math.exp(-1 / (2 * SIGMA**2))  # the neighbour's weight for a centre of 1
    side, centre = falloff / (1 + 2 * falloff), 1 / (1 + 2 * falloff)
    padded = pad(images, (1, 1, 1, 1), mode="reflect")
    across: Tensor = centre * padded[..., 1:-1] + side * (padded[..., :-2] + padded[..., 2:])
    blurred: Tensor = centre * across[..., 1:-1, :] + side * (across[..., :-2, :] + across[..., 2:, :])
    return blurred
