"""The candidates a chunk at a time, so that no pass holds more than there is room for.

A pass keeps some arrays [m, h] of every hidden layer. The residual needs all candidates at once, but only their
sum, so chunks are run once for the sum and, where several were needed, once more for the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engram.reconstruct.engine.closed_form import Pass, explained, pull_back
from engram.targets.networks import DenseNetwork

ARRAYS = 12
"""Values for every neuron and candidate that a pass and its pulling back hold at the same time."""


def chunks(count: int, each: int, room: int) -> list[slice]:
    """0, ..., count - 1 in as few equal chunks as fit into `room` bytes at `each` bytes an item.

    >>> chunks(10, 8, 40), chunks(3, 8, 1)
    ([slice(0, 5, None), slice(5, 10, None)], [slice(0, 1, None), slice(1, 2, None), slice(2, 3, None)])
    """
    size = max(1, room // each)
    parts = -(-count // size)
    return [slice(part * count // parts, (part + 1) * count // parts) for part in range(parts)]


@dataclass(frozen=True, eq=False)
class Passes:
    """What all candidates predict for the first layer [h, k], their outputs [m, C], and the way to gradients."""

    run: Callable[[slice], Pass]
    parts: Sequence[slice]
    explained: Tensor
    outputs: Tensor
    kept: Pass | None
    """The pass itself, if one chunk holds everything."""

    @classmethod
    def over(cls, run: Callable[[slice], Pass], parts: Sequence[slice]) -> Passes:
        done = run(parts[0])
        total, outputs = explained(done, 0), [done.outputs]
        kept = done if len(parts) == 1 else None
        for part in parts[1:]:
            del done  # before the next one is made
            done = run(part)
            total += explained(done, 0)
            outputs.append(done.outputs)
        return cls(run, parts, total, torch.cat(outputs), kept)

    def pull_back(
        self, network: DenseNetwork, slope: float, by_residual: Mapping[int, Tensor], by_output: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients by inputs [m, r] and coefficients [m, C], as `closed_form.pull_back` has them."""

        def pulled(part: slice) -> tuple[Tensor, Tensor]:  # whose pass is gone before the next one is made
            done = self.run(part) if self.kept is None else self.kept
            return pull_back(network, done, slope, by_residual, by_output[part])

        by_inputs, by_coefficients = zip(*map(pulled, self.parts), strict=True)
        return torch.cat(by_inputs), torch.cat(by_coefficients)
