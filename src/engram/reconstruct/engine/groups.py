"""Neurons that share a metric: as many groups as there is room for, each of neurons active on the same candidates.

Two neurons have the same covariance when they weigh the candidates alike, so the neurons are cut in two along the
principal axis of their weights on the candidates, then each half again, until there are enough parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SKETCH = 64
"""Directions onto which the weights on the candidates are projected before neurons are compared."""
POWER_STEPS = 10


@dataclass(frozen=True, eq=False)
class Groups:
    """G groups of h neurons: `members` [G, s], shorter groups filled up with their last neuron, and `places` [h],
    where each neuron stands in members.flatten()."""

    members: Tensor
    places: Tensor

    @classmethod
    def along(cls, order: Tensor, count: int) -> Groups:
        """`order` [h] cut into that many runs of equal length, up to one.

        >>> Groups.along(torch.tensor([4, 0, 3, 1, 2]), 2).members
        tensor([[4, 0, 0],
                [3, 1, 2]])
        """
        bounds = _bounds(len(order), count).to(order.device)
        size = -(-len(order) // count)
        slots = torch.arange(size, device=order.device)
        members = order[torch.minimum(bounds[:-1, None] + slots, bounds[1:, None] - 1)]
        position = torch.arange(len(order), device=order.device)
        group = torch.searchsorted(bounds, position, right=True) - 1
        places = torch.empty_like(order)
        places[order] = group * size + position - bounds[group]
        return cls(members, places)

    @classmethod
    def alike(cls, weights: Tensor, count: int) -> Groups:
        """Of neurons whose weights on the candidates, columns of [m, h], are alike; each alone if count is h."""
        if count >= weights.shape[1]:
            return cls.along(torch.arange(weights.shape[1], device=weights.device), weights.shape[1])
        return cls.along(bisected(_sketch(weights), count), count)

    def __len__(self) -> int:
        return len(self.members)

    def summed(self, weights: Tensor) -> Tensor:
        """Sums over the neurons of each group, [m, h] -> [m, G]."""
        group = self.places // self.members.shape[1]
        return weights.new_zeros(len(weights), len(self)).index_add_(1, group, weights)

    def apply(self, matrices: Tensor, rows: Tensor) -> Tensor:
        """Each neuron's row times the symmetric matrix of its group: [G, k, k], [h, k] -> [h, k]."""
        return torch.bmm(rows[self.members], matrices).flatten(0, 1)[self.places]


def bisected(points: Tensor, count: int) -> Tensor:
    """An order of points [h, f] in which each of `count` equal runs holds points near each other.

    >>> bisected(torch.tensor([[5.0], [-1.0], [6.0], [0.0]]), 2).tolist() in ([1, 3, 0, 2], [0, 2, 1, 3])
    True
    """
    bounds = _bounds(len(points), count).tolist()
    order = torch.arange(len(points), device=points.device)
    open_parts = [(0, count)]
    while open_parts:
        first, last = open_parts.pop()
        if last - first == 1:
            continue
        middle = (first + last) // 2
        part = order[bounds[first] : bounds[last]]
        order[bounds[first] : bounds[last]] = part[_along_principal_axis(points[part]).argsort(stable=True)]
        open_parts += [(first, middle), (middle, last)]
    return order


def _along_principal_axis(points: Tensor) -> Tensor:
    """Coordinates on the direction of the largest spread, by power iteration; [h, f] -> [h]."""
    centred = points - points.mean(0)
    coordinates = centred[:, centred.square().sum(0).argmax()]
    for _ in range(POWER_STEPS):
        axis = centred.T @ coordinates
        coordinates = centred @ (axis / axis.norm().clamp(min=torch.finfo(points.dtype).tiny))
    return coordinates


def _sketch(weights: Tensor) -> Tensor:
    """Random projections of the columns of [m, h], which keep their distances well enough, [h, SKETCH]."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(len(weights), SKETCH, generator=generator, dtype=torch.float64)
    return weights.T @ directions.to(weights)


def _bounds(length: int, count: int) -> Tensor:
    """Where equal runs begin and end, [count + 1]."""
    return torch.arange(count + 1) * length // count
