"""How far each neuron's equation can be trusted in each direction.

A training sample leaves lambda_i delta_{k,i} x_i in neuron k only to within about 30 % (gates and signals changed
while it was learnt), so neuron k's residual has covariance proportional to

    C_k = sum_{i active on k} lambda_i² [x_i; 1][x_i; 1]ᵀ

and its squared residual is weighted by (C_k / largest eigenvalue + ridge)⁻¹ / ||row_k||². One matrix per neuron is
[h, k, k]; if that is too much, neurons that are active on the same candidates share theirs (`Groups`). Two neurons
have the same covariance if they weight the candidates alike, so the neurons are split in two along the principal
axis of their weights on the candidates, then each half again, until there are enough groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SKETCH = 64
"""Directions onto which the weights on the candidates are projected before neurons are compared."""
AXIS_STEPS = 10


@dataclass(frozen=True, eq=False)
class Groups:
    """G groups of h neurons: `members` [G, s], shorter groups padded with their last neuron, and `places` [h], the
    index of each neuron in members.flatten()."""

    members: Tensor
    places: Tensor

    @classmethod
    def along(cls, order: Tensor, count: int) -> Groups:
        """`order` [h] split into `count` runs whose lengths differ by at most one.

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
        """Neurons with similar weights on the candidates, columns of [m, h]; one per group if count is h."""
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
    """An order of points [h, f] in which each of `count` equal runs contains points close to each other.

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
    """Coordinates along the direction of largest spread, by power iteration; [h, f] -> [h]."""
    centred = points - points.mean(0)
    coordinates = centred[:, centred.square().sum(0).argmax()]
    for _ in range(AXIS_STEPS):
        axis = centred.T @ coordinates
        coordinates = centred @ (axis / axis.norm().clamp(min=torch.finfo(points.dtype).tiny))
    return coordinates


def _sketch(weights: Tensor) -> Tensor:
    """Random projections of the columns of [m, h], which preserve distances well enough, [h, SKETCH]."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(len(weights), SKETCH, generator=generator, dtype=torch.float64)
    return weights.T @ directions.to(weights)


def _bounds(length: int, count: int) -> Tensor:
    """Where equal runs begin and end, [count + 1]."""
    return torch.arange(count + 1) * length // count


POWER_STEPS = 15
MOST_AT_ONCE = 250


@dataclass(frozen=True, eq=False)
class Metric:
    """M_k = scale_k A_g for the neurons k of group g: A [G, k, k], scale [h]; and its products with the weights,
    M w [h, k] and wᵀ M w [h]."""

    matrices: Tensor
    groups: Groups
    scale: Tensor
    pulled: Tensor
    energies: Tensor

    @classmethod
    def of(cls, matrices: Tensor, groups: Groups, scale: Tensor, weights: Tensor) -> Metric:
        """Scaled so that the weights [h, k] have a total energy of 1."""
        pulled = scale[:, None] * groups.apply(matrices, weights)
        energies = (pulled * weights).sum(1)
        total = energies.sum()
        return cls(matrices, groups, scale / total, pulled / total, energies / total)

    def __call__(self, rows: Tensor) -> Tensor:
        """M_k r_k for rows [h, k]."""
        return self.scale[:, None] * self.groups.apply(self.matrices, rows)


def inverse_covariances(entering: Tensor, weights: Tensor, ridge: float, *, room: int) -> Tensor:
    """(C_g / largest eigenvalue + ridge)⁻¹ [G, k, k], C_g = sum_i weights_ig x_i x_iᵀ, for entering [m, k].

    Besides the result, about `room` bytes are used. Positive definite, hence Cholesky: batched LU fails in some
    BLAS libraries at this size.
    """
    count, k = weights.shape[1], entering.shape[1]
    matrix = k * k * entering.element_size()
    chunk = max(1, min(MOST_AT_ONCE, room // (6 * matrix)))
    result = entering.new_empty(count, k, k)
    for start in range(0, count, chunk):
        part = result[start : start + chunk]
        _covariances(entering, weights[:, start : start + chunk], part, room // 2)
        part /= _largest_eigenvalue(part)[:, None, None]
        part.diagonal(dim1=1, dim2=2).add_(ridge)
        part.copy_(torch.cholesky_inverse(torch.linalg.cholesky(part)))
    return result


def _covariances(entering: Tensor, weights: Tensor, result: Tensor, room: int) -> None:
    """sum_i weights_ig x_i x_iᵀ into result [G, k, k], a few rows of all matrices at a time.

    Outer products of the rows [m, rows k] make it one product of large matrices.
    """
    m, k = entering.shape
    rows = max(1, min(k, room // (m * k * entering.element_size())))
    for start in range(0, k, rows):
        outer = entering[:, start : start + rows, None] * entering[:, None, :]
        result[:, start : start + rows] = (weights.T @ outer.flatten(1)).view(len(result), -1, k)


def _largest_eigenvalue(matrices: Tensor) -> Tensor:
    """By power iteration, [b, k, k] -> [b]; a rough value is enough for a scale. Zero matrices give 1."""
    vector = matrices.new_ones(matrices.shape[0], 1, matrices.shape[1])  # as a row: twice as fast in batches
    for _ in range(POWER_STEPS):
        vector = vector @ matrices
        vector = vector / vector.norm(dim=2, keepdim=True).clamp(min=torch.finfo(matrices.dtype).tiny)
    value = (vector @ matrices @ vector.transpose(1, 2)).flatten()
    return torch.where(value > 0, value, torch.ones_like(value))
