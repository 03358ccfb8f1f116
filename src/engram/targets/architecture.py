"""Feed-forward architectures as a line of text: `conv3x32 relu flatten 1000 relu 1`, in the words of `layers`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from engram.errors import ConfigError
from engram.targets.layers import EXAMPLE, Conv, Dense, Flatten, Layer, MisfitError, ReLU, Shape, parse_layers

MAX_LAYERS = 256
MAX_VALUES = 2**31
"""Weights of one layer, and values between two layers, at the most: shapes of strangers may be absurd."""


@dataclass(frozen=True)
class Architecture:
    """Layers that fit one after the other, from an input shape to a fully-connected output layer.

    >>> net = Architecture.parse("conv3x32 relu flatten 1000 relu 1", (3, 32, 32))
    >>> net.weight_shapes
    ((32, 3, 3, 3), (1000, 28800), (1, 1000))
    >>> net.name
    '3x32x32-conv3x32-1000-1'
    """

    input_shape: Shape
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        problems = self._problems()
        if problems:
            raise ConfigError(f"the architecture '{self.text}' does not work: {'; '.join(problems)}; {EXAMPLE}")

    @classmethod
    def parse(cls, text: str, input_shape: Shape) -> Architecture:
        return cls(input_shape, parse_layers(text))

    @property
    def text(self) -> str:
        return " ".join(map(str, self.layers))

    @property
    def name(self) -> str:
        """Without what has no weights or choices."""
        shown = [str(layer) for layer in self.layers if not isinstance(layer, ReLU | Flatten)]
        return "-".join(["x".join(map(str, self.input_shape)), *shown])

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """What enters each layer, and what comes out in the end."""
        shapes = [self.input_shape]
        for layer in self.layers:
            shapes.append(layer.shape_after(shapes[-1]))
        return tuple(shapes)

    @cached_property
    def weight_shapes(self) -> tuple[Shape, ...]:
        """Of the layers that have weights."""
        pairs = zip(self.layers, self.shapes, strict=False)
        return tuple(layer.weight_shape(shape) for layer, shape in pairs if isinstance(layer, Conv | Dense))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many values enter the first layer and come out of each layer that has weights."""
        pairs = zip(self.layers, self.shapes[1:], strict=True)
        after = [math.prod(shape) for layer, shape in pairs if isinstance(layer, Conv | Dense)]
        return (math.prod(self.input_shape), *after)

    def _problems(self) -> list[str]:
        if not 0 < len(self.layers) <= MAX_LAYERS:
            return [f"it must have 1 to {MAX_LAYERS} layers, got {len(self.layers)}"]
        problems = []
        if not any(isinstance(layer, Conv) for layer in self.layers):
            problems.append("it has no convolution; fully-connected networks need no description")
        if not isinstance(self.layers[-1], Dense):
            problems.append(f"it must end in a fully-connected layer, not in {self.layers[-1]}")
        shape: Shape = self.input_shape
        for place, layer in enumerate(self.layers, start=1):
            before = shape
            try:
                shape = layer.shape_after(before)
            except MisfitError as misfit:
                arriving = "x".join(map(str, before))
                return [*problems, f"{layer} (layer {place}) can't take {arriving}: {misfit}"]
            weights = math.prod(layer.weight_shape(before)) if isinstance(layer, Conv | Dense) else 0
            if max(weights, math.prod(shape)) > MAX_VALUES:
                return [*problems, f"{layer} (layer {place}) has more than {MAX_VALUES:,} values"]
        return problems
