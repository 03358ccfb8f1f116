"""Frequencies of images: an orthonormal basis in which photographs are large first, and noise everywhere alike."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

COLOUR = 0.15
"""Power of colour as a share of brightness, at the same frequency."""


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Cosines over channels, rows and columns of images [C, H, W], sorted by the power photographs have in them.

    That power falls as 1 / f², and differences between channels have little of it. Only the order is used, so a
    picture of another kind costs nothing but the advantage.
    """

    shape: tuple[int, int, int]
    order: Tensor
    """Of the C H W cosines, the one of most power first."""

    @classmethod
    def of(cls, shape: tuple[int, int, int]) -> Frequencies:
        channels, height, width = shape
        down = torch.arange(height, dtype=torch.float64) / height
        across = torch.arange(width, dtype=torch.float64) / width
        # A constant image has the power that half a period over the image would have.
        squares = down[:, None].square() + across.square() + (0.5 / max(height, width)) ** 2
        colours = torch.full((channels,), COLOUR, dtype=torch.float64)
        colours[0] = 1.0
        power = colours[:, None, None] / squares
        return cls(shape, power.flatten().argsort(descending=True, stable=True))

    def coefficients(self, rows: Tensor) -> Tensor:
        """Rows [n, C H W] of pixels as rows of cosines, those of most power first."""
        return self._turned(rows, [cosines(size).to(rows) for size in self.shape])[:, self.order.to(rows.device)]

    def pixels(self, coefficients: Tensor) -> Tensor:
        """The way back: the basis is orthonormal."""
        rows = torch.empty_like(coefficients)
        rows[:, self.order.to(rows.device)] = coefficients
        return self._turned(rows, [cosines(size).to(rows).T for size in self.shape])

    def _turned(self, rows: Tensor, matrices: list[Tensor]) -> Tensor:
        return torch.einsum("nchw,ac,bh,dw->nabd", rows.view(-1, *self.shape), *matrices).flatten(1)


def cosines(size: int) -> Tensor:
    """The orthonormal cosine transform (DCT-II), one frequency a row, [size, size].

    >>> cosines(2).mul(10).round().div(10).tolist()
    [[0.7, 0.7], [0.7, -0.7]]
    """
    places = torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi * places[:, None] * (places + 0.5) / size) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix
