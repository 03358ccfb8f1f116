"""Points on the unit circle: the papers' two-dimensional illustration."""

from __future__ import annotations

import math

import torch

from engram.data.image_set import ImageSet
from engram.errors import require


def load_circle(points: int = 20) -> ImageSet:
    """x_k = (cos 2 pi k / n, sin 2 pi k / n) with labels k mod 2; images [n, 2].

    >>> load_circle(4).labels.tolist()
    [0, 1, 0, 1]
    >>> load_circle(4).images.norm(dim=1).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    require(points >= 2 and points % 2 == 0, "points", "must be even, so that the colours alternate", points)
    which = torch.arange(points)
    angle = which * (2 * math.pi / points)
    images = torch.stack([angle.cos(), angle.sin()], dim=1)
    return ImageSet(images, which % 2, "circle", ("blue", "red"))
