"""AttackerView: everything an attack may read. Training data can't be reached from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Generic

import torch

from engram.core.errors import ConfigError, UnsupportedModelError
from engram.models.networks import SUPPORTED, ConvNetwork, DenseNetwork, N, N_co
from engram.models.tasks import Task


@dataclass(frozen=True, eq=False)
class AttackerView(Generic[N_co]):
    """The released weights, and what an attacker knows about the inputs: their shape and pixel range."""

    network: N_co
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
        elif self.network.input_shape not in (None, tuple(self.input_shape)):
            given, own = (
                "x".join(map(str, shape)) for shape in (self.input_shape, self.network.input_shape or ())
            )
            problems.append(f"input shape {given} differs from the {own} of the network's layers; use {own}")
        if outputs != self.task.outputs:
            problems.append(
                f"the network has {outputs} outputs, but a {self.task.name} task has {self.task.outputs}"
            )
        if any(not bool(value.isfinite().all()) for value in self.network.params.values()):
            problems.append("some weights are NaN or infinite; the training diverged or the file is damaged")
        if problems:
            raise UnsupportedModelError(problems, supported=SUPPORTED)

    def to(self, device: torch.device | str) -> AttackerView[N_co]:
        """The same view with the weights on a device."""
        return replace(self, network=self.network.to(device=device))

    @property
    def dense(self) -> AttackerView[DenseNetwork] | None:
        """The same function as a fully-connected network, or None if there is none.

        Kernels as large as their input are rows of a fully-connected layer.
        """
        network = self.network.dense_equivalent if isinstance(self.network, ConvNetwork) else self.network
        if not isinstance(network, DenseNetwork):
            return None
        return AttackerView(network, self.input_shape, self.task, self.pixel_range)

    def narrowed(self, kind: type[N]) -> AttackerView[N]:
        """This view, for code that supports only one kind of network; another kind is an error."""
        if not isinstance(self.network, kind):
            raise ConfigError(
                f"{self.network.name} can't be read here: only a {kind.__name__} is supported; "
                "`engram audit` and `engram reconstruct` also support convolutions"
            )
        return AttackerView(self.network, self.input_shape, self.task, self.pixel_range)
