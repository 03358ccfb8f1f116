"""Feed-forward architectures as a line of text: `conv3x32 relu flatten 1000 relu 1`.

conv{k}x{channels}[s{stride}][p{padding}][d{dilation}][g{groups}]   convolution with k x k kernels
relu, leaky:0.01, gelu, tanh, ...   the activation, the same one everywhere
avgpool{k}                          means over non-overlapping k x k squares
maxpool{k}[s{stride}][p{padding}]   maxima over k x k squares, k apart unless a stride is given
flatten                             [C, H, W] to C H W values, as torch does
{width}                             a fully-connected layer
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

from engram.core.errors import ConfigError
from engram.models.activations import RELU, Activation, activation_named

Shape = tuple[int, ...]
EXAMPLE = "for example 'conv3x32 relu flatten 1000 relu 1'"


class MisfitError(ValueError):
    """A layer can't take its input; the message says why."""


@dataclass(frozen=True)
class Conv:
    """Convolution, [C, H, W] -> [channels, H', W'], H' = (H + 2 padding - reach) // stride + 1.

    The reach of a kernel is dilation (kernel - 1) + 1.
    """

    kernel: int
    channels: int
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1

    def __str__(self) -> str:
        settings = (("s", self.stride, 1), ("p", self.padding, 0), ("d", self.dilation, 1), ("g", self.groups, 1))
        more = "".join(f"{letter}{value}" for letter, value, plain in settings if value != plain)
        return f"conv{self.kernel}x{self.channels}{more}"

    def shape_after(self, before: Shape) -> Shape:
        channels, height, width = _image(before)
        if min(self.stride, self.dilation, self.groups) < 1:
            raise MisfitError("its stride, dilation or groups are not positive")
        if channels % self.groups or self.channels % self.groups:
            raise MisfitError(f"{self.groups} groups don't divide its {channels} or {self.channels} channels")
        reach = self.dilation * (self.kernel - 1) + 1
        sides = [(side + 2 * self.padding - reach) // self.stride + 1 for side in (height, width)]
        if min(sides) < 1:
            raise MisfitError("its kernel is larger than the image")
        return (self.channels, *sides)

    def weight_shape(self, before: Shape) -> Shape:
        return (self.channels, before[0] // self.groups, self.kernel, self.kernel)


@dataclass(frozen=True)
class AvgPool:
    """Means over adjacent kernel x kernel squares; what is left over at the far edges is dropped."""

    kernel: int

    def __str__(self) -> str:
        return f"avgpool{self.kernel}"

    def shape_after(self, before: Shape) -> Shape:
        channels, height, width = _image(before)
        if min(height, width) < self.kernel:
            raise MisfitError("its squares are larger than the image")
        return (channels, height // self.kernel, width // self.kernel)


@dataclass(frozen=True)
class MaxPool:
    """Maxima over kernel x kernel squares, `stride` apart; `stride` 0 is the kernel."""

    kernel: int
    stride: int = 0
    padding: int = 0

    def __post_init__(self) -> None:
        if self.stride == 0:
            object.__setattr__(self, "stride", self.kernel)

    def __str__(self) -> str:
        stride = f"s{self.stride}" if self.stride != self.kernel else ""
        return f"maxpool{self.kernel}{stride}" + (f"p{self.padding}" if self.padding else "")

    def shape_after(self, before: Shape) -> Shape:
        channels, height, width = _image(before)
        if 2 * self.padding > self.kernel:
            raise MisfitError("its padding is more than half of its squares")
        sides = [(side + 2 * self.padding - self.kernel) // self.stride + 1 for side in (height, width)]
        if min(sides) < 1:
            raise MisfitError("its squares are larger than the image")
        return (channels, *sides)


@dataclass(frozen=True)
class Nonlinearity:
    """The activation, or an attack's replacement for it."""

    activation: Activation = RELU

    def __str__(self) -> str:
        return str(self.activation)

    def shape_after(self, before: Shape) -> Shape:
        return before


@dataclass(frozen=True)
class Flatten:
    """[C, H, W] -> [C H W]."""

    def __str__(self) -> str:
        return "flatten"

    def shape_after(self, before: Shape) -> Shape:
        return (math.prod(before),)


@dataclass(frozen=True)
class Dense:
    """A fully-connected layer, [in] -> [width]."""

    width: int

    def __str__(self) -> str:
        return str(self.width)

    def shape_after(self, before: Shape) -> Shape:
        if len(before) != 1:
            raise MisfitError("a fully-connected layer needs flatten before it")
        return (self.width,)

    def weight_shape(self, before: Shape) -> Shape:
        return (self.width, before[0])


Layer = Conv | AvgPool | MaxPool | Nonlinearity | Flatten | Dense


def parse_layers(text: str) -> tuple[Layer, ...]:
    """The layers of a line of text; one error names every unknown word.

    >>> [str(layer) for layer in parse_layers("conv3x8s2p1 relu avgpool2 flatten 10")]
    ['conv3x8s2p1', 'relu', 'avgpool2', 'flatten', '10']
    """
    words = text.split()
    layers = [_layer(word) for word in words]
    if unknown := [word for word, layer in zip(words, layers, strict=True) if layer is None]:
        raise ConfigError(
            f"--arch has no layer {', '.join(map(repr, unknown[:8]))}; use conv{{k}}x{{channels}}"
            "[s{stride}][p{padding}][d{dilation}][g{groups}], an activation such as relu, avgpool{k}, maxpool{k}, "
            f"flatten and {{width}}, {EXAMPLE}"
        )
    return tuple(layer for layer in layers if layer is not None)


def _number(name: str) -> str:
    return f"(?P<{name}>[1-9][0-9]{{0,8}})"


_STRIDE, _PADDING = f"(?:s{_number('stride')})?", "(?:p(?P<padding>[0-9]{1,4}))?"
_WORDS = (
    (
        re.compile(
            f"conv{_number('kernel')}x{_number('channels')}{_STRIDE}{_PADDING}"
            f"(?:d{_number('dilation')})?(?:g{_number('groups')})?"
        ),
        Conv,
    ),
    (re.compile(f"avgpool{_number('kernel')}"), AvgPool),
    (re.compile(f"maxpool{_number('kernel')}{_STRIDE}{_PADDING}"), MaxPool),
    (re.compile(_number("width")), Dense),
    (re.compile("flatten"), Flatten),
)


def _layer(word: str) -> Layer | None:
    for pattern, kind in _WORDS:
        if found := pattern.fullmatch(word.lower()):
            return kind(**{name: int(value) for name, value in found.groupdict().items() if value})
    try:
        return Nonlinearity(activation_named(word))
    except ConfigError:
        return None


def _image(shape: Shape) -> Shape:
    if len(shape) != 3:
        raise MisfitError("it needs an image, channels x height x width")
    return shape


MAX_LAYERS = 256
MAX_VALUES = 2**31
"""Most weights in one layer, and most values between two layers: foreign files may contain absurd shapes."""


@dataclass(frozen=True)
class Architecture:
    """Layers that fit together, from an input shape to a fully-connected output layer.

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
        """Without layers that have neither weights nor settings."""
        shown = [str(layer) for layer in self.layers if not isinstance(layer, Nonlinearity | Flatten)]
        return "-".join(["x".join(map(str, self.input_shape)), *shown])

    @property
    def activation(self) -> Activation:
        """The one activation of all layers."""
        return next((layer.activation for layer in self.layers if isinstance(layer, Nonlinearity)), RELU)

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """The input shape of each layer, and the output shape."""
        shapes = [self.input_shape]
        for layer in self.layers:
            shapes.append(layer.shape_after(shapes[-1]))
        return tuple(shapes)

    @cached_property
    def weight_shapes(self) -> tuple[Shape, ...]:
        """Weight shapes of the layers that have weights."""
        pairs = zip(self.layers, self.shapes, strict=False)
        return tuple(layer.weight_shape(shape) for layer, shape in pairs if isinstance(layer, Conv | Dense))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of values that enter the first layer, and that leave each layer with weights."""
        pairs = zip(self.layers, self.shapes[1:], strict=True)
        after = [math.prod(shape) for layer, shape in pairs if isinstance(layer, Conv | Dense)]
        return (math.prod(self.input_shape), *after)

    def _problems(self) -> list[str]:
        if not 0 < len(self.layers) <= MAX_LAYERS:
            return [f"it must have 1 to {MAX_LAYERS} layers, got {len(self.layers)}"]
        problems = []
        if not any(isinstance(layer, Conv) for layer in self.layers):
            problems.append("it has no convolution; leave --arch out for fully-connected networks")
        if len(kinds := {str(layer) for layer in self.layers if isinstance(layer, Nonlinearity)}) > 1:
            problems.append(f"its activations differ: {', '.join(sorted(kinds))}")
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
