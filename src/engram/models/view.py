"""AttackerView: everything an attack may read. Training data can't be reached from it.

What a network does with pixels before its first layer is public too: whoever uses it has to do the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, cast

import torch
from torch import Tensor

from engram.core.errors import ConfigError, UnsupportedModelError, require
from engram.models.networks import SUPPORTED, ConvNetwork, DenseNetwork, N, N_co
from engram.models.row_space import Update
from engram.models.tasks import Task


@dataclass(frozen=True)
class Normalization:
    """Inputs are (x - mean) / std of pixels x in [0, 1]: one value, one per channel, or one per pixel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            finite = len(values) > 0 and all(math.isfinite(value) for value in values)
            require(finite, name, "must be finite numbers", values, EXAMPLE)
        require(min(self.std) > 0, "std", "must be positive", min(self.std), EXAMPLE)

    @classmethod
    def parse(cls, text: str) -> Normalization:
        """'0.5/0.25', '0.49,0.48,0.45/0.25,0.24,0.26' or a name.

        >>> Normalization.parse("half")
        Normalization(mean=(0.5,), std=(0.5,))
        """
        if text in NORMALIZATIONS:
            return NORMALIZATIONS[text]
        try:
            means, stds = (tuple(float(value) for value in part.split(",")) for part in text.split("/"))
        except ValueError:
            known = ", ".join(NORMALIZATIONS)
            raise ConfigError(f"--normalize must be MEAN/STD or one of {known}, got {text!r}; {EXAMPLE}") from None
        return cls(means, stds)

    @classmethod
    def of(cls, given: Any) -> Normalization:
        """From text, from (mean, std), or from a transform with `mean` and `std`, such as torchvision's Normalize.

        >>> Normalization.of((0.5, [0.25, 0.5, 0.25])).std
        (0.25, 0.5, 0.25)
        """
        if isinstance(given, Normalization):
            return given
        if isinstance(given, str):
            return cls.parse(given)
        if (found := _transform(given)) is not None:
            given = found.mean, found.std
        if not isinstance(given, Sequence) or len(given) != 2:
            raise ConfigError(
                f"normalize must be text, (mean, std) or a transform with both, got a {type(given).__name__}; "
                f"{EXAMPLE}"
            )
        mean, std = (torch.as_tensor(part, dtype=torch.float64).flatten().tolist() for part in given)
        return cls(tuple(mean), tuple(std))

    @property
    def text(self) -> str:
        """As `parse` reads it; by name, if it has one."""
        name = next((name for name, one in NORMALIZATIONS.items() if one == self), None)
        return name or "/".join(",".join(repr(value) for value in values) for values in (self.mean, self.std))

    def mean_of(self, shape: tuple[int, ...]) -> Tensor:
        """The mean of inputs of that shape, [*shape]."""
        return self._spread("mean", self.mean, shape).float()

    def gain_of(self, shape: tuple[int, ...]) -> Tensor:
        """1 / std of inputs of that shape, [d]."""
        return (1 / self._spread("std", self.std, shape)).flatten().float()

    def _spread(self, name: str, values: tuple[float, ...], shape: tuple[int, ...]) -> Tensor:
        found = torch.tensor(values, dtype=torch.float64)
        if len(values) == 1:
            return found.expand(shape).clone()
        if len(values) == shape[0]:
            return found.view(-1, *(1 for _ in shape[1:])).expand(shape).clone()
        if len(values) == math.prod(shape):
            return found.view(shape)
        given = "x".join(map(str, shape))
        raise ConfigError(
            f"--normalize: {name} has {len(values)} values, but inputs of {given} take 1, {shape[0]} or "
            f"{math.prod(shape):,}; {EXAMPLE}"
        )


EXAMPLE = "for example 0.49,0.48,0.45/0.25,0.24,0.26"
NORMALIZATIONS = {
    "none": Normalization((0.0,), (1.0,)),
    "half": Normalization((0.5,), (0.5,)),
    "bytes": Normalization((0.0,), (1 / 255,)),
    "imagenet": Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": Normalization((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
    "cifar100": Normalization((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "mnist": Normalization((0.1307,), (0.3081,)),
    "fashion": Normalization((0.286,), (0.353,)),
}
"""What people's transforms contain; `bytes` is for networks that take pixels from 0 to 255."""


def _transform(given: Any) -> Any:
    """The step of a transform that has a mean and a std, or None."""
    steps = getattr(given, "transforms", [given])
    found = [step for step in steps if hasattr(step, "mean") and hasattr(step, "std") and not callable(step.mean)]
    return found[-1] if found else None


@dataclass(frozen=True)
class Features:
    """The names of a table's columns, as its header has them: `sex=F` and `sex=M` are one value, one-hot."""

    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        texts = all(isinstance(name, str) for name in self.columns)
        require(texts, "columns", "must be names", [type(name).__name__ for name in self.columns], COLUMNS_EXAMPLE)
        named = len(set(self.columns) - {""}) == len(self.columns)
        require(named, "columns", "must be different names", _shortened(self.columns), COLUMNS_EXAMPLE)
        rule = "must name a one-hot value, two or more columns NAME=VALUE"
        require(bool(self.groups), "columns", rule, _shortened(self.columns), COLUMNS_EXAMPLE)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The places of the columns of each one-hot value.

        >>> Features(("age", "sex=F", "sex=M", "smokes=yes")).groups
        ((1, 2),)
        """
        found: dict[str, list[int]] = {}
        for place, column in enumerate(self.columns):
            name, equals, _ = column.partition("=")
            if equals:
                found.setdefault(name, []).append(place)
        return tuple(tuple(places) for places in found.values() if len(places) > 1)


COLUMNS_EXAMPLE = "for example age,sex=F,sex=M"


def _shortened(names: Sequence[str]) -> str:
    text = ",".join(names)
    return text if len(text) <= 100 else f"{text[:100]}..."


@dataclass(frozen=True, eq=False)
class AttackerView(Generic[N_co]):
    """The released weights, and what an attacker knows about the inputs: their shape and pixel range."""

    network: N_co
    input_shape: tuple[int, ...]
    task: Task
    pixel_range: tuple[float, float] = (0.0, 1.0)
    normalization: Normalization | None = None
    """What is done to pixels before they enter; the network's gain is its scale. None: only a mean, which is
    unknown, may have been subtracted."""
    features: Features | None = None
    """What the columns of a table are, if their names are public."""
    head: str | None = None
    """The prefix of the tensors that were read, if only a part of a larger model was."""
    is_assumed: bool = False
    """Whether the activation is a guess."""
    is_folded: bool = False
    """Whether a normalisation was folded into the weights, which are then no plain sum over the samples."""
    base: str | None = None
    """Where the start of training is known from."""
    update: Update | None = None
    """What training added to the first layer, if its start is known."""
    notes: tuple[str, ...] = ()
    """What was assumed or done to read the model."""

    def __post_init__(self) -> None:
        inputs, outputs = self.network.sizes[0], self.network.sizes[-1]
        if self.features is not None and self.input_shape != (len(self.features.columns),):
            shape = "x".join(map(str, self.input_shape))
            raise ConfigError(
                f"--columns names {len(self.features.columns):,} columns, but an input is {shape}; name every "
                "value that the first layer takes, in its order"
            )
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
        update = None if self.update is None else self.update.to(device)
        return replace(self, network=self.network.to(device=device), update=update)

    @property
    def dense(self) -> AttackerView[DenseNetwork] | None:
        """The same function as a fully-connected network, or None if there is none.

        Kernels as large as their input are rows of a fully-connected layer.
        """
        network = self.network.dense_equivalent if isinstance(self.network, ConvNetwork) else self.network
        if not isinstance(network, DenseNetwork):
            return None
        return replace(self, network=network)  # type: ignore[arg-type,return-value]

    def narrowed(self, kind: type[N]) -> AttackerView[N]:
        """This view, for code that supports only one kind of network; another kind is an error."""
        if not isinstance(self.network, kind):
            raise ConfigError(
                f"{self.network.name} can't be read here: only a {kind.__name__} is supported; "
                "`engram audit` and `engram reconstruct` also support convolutions"
            )
        return cast("AttackerView[N]", self)
