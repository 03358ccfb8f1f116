"""AttackerView: everything an attack may read. Training data can't be reached from it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engram.errors import UnsupportedModelError
from engram.targets.networks import DenseNetwork
from engram.targets.state_dict import SUPPORTED
from engram.task import Task


@dataclass(frozen=True, eq=False)
class AttackerView:
    """The released weights, and what a stranger knows of the inputs: their shape and pixel range."""

    network: DenseNetwork
    input_shape: tuple[int, ...]
    task: Task
    pixel_range: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        inputs, outputs = self.network.sizes[0], self.network.sizes[-1]
        problems = []
        if math.prod(self.input_shape) != inputs:
            shape = "x".join(map(str, self.input_shape))
            problems.append(
                f"input shape {shape} has {math.prod(self.input_shape):,} values, "
                f"but the first layer takes {inputs:,}; give the shape of one input, e.g. 3x32x32"
            )
        if outputs != self.task.outputs:
            problems.append(
                f"the network has {outputs} outputs, but a {self.task.name} task has {self.task.outputs}"
            )
        if any(not bool(value.isfinite().all()) for value in self.network.params.values()):
            problems.append("some weights are NaN or infinite; the training diverged or the file is damaged")
        if problems:
            raise UnsupportedModelError(problems, supported=SUPPORTED)
