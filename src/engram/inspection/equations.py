"""Equations against unknowns: how many samples the weights could determine at all."""

from __future__ import annotations

from dataclasses import dataclass

from engram.targets.networks import DenseNetwork


@dataclass(frozen=True, kw_only=True)
class Equations:
    """Counts for n samples of d values; those that need n are None where it is not known.

    Each parameter is one equation of stationarity: p against n d. In the row space of rank r the first layer's
    h neurons give h (r + 1) equations, its bias included, for the r coordinates and the dual of each sample.
    """

    samples: int | None
    equations: int
    unknowns: int | None
    most_samples: int
    """The n at which p = n d."""
    row_space_equations: int
    row_space_unknowns: int | None
    row_space_most_samples: int
    """The n at which the first layer has as many equations as unknowns."""


def count_equations(network: DenseNetwork, rank: int, samples: int | None) -> Equations:
    """Both counts for a network whose first layer has `rank` directions."""
    inputs, neurons = network.sizes[0], network.sizes[1]
    parameters = sum(value.numel() for value in network.params.values())
    columns = rank + (network.biases[0] is not None)
    return Equations(
        samples=samples,
        equations=parameters,
        unknowns=None if samples is None else samples * inputs,
        most_samples=parameters // inputs,
        row_space_equations=neurons * columns,
        row_space_unknowns=None if samples is None else samples * (rank + 1),
        row_space_most_samples=neurons * columns // (rank + 1),
    )
