"""What each layer of a model saw of a record: what entered it, and the margin's gradient by what left it.

Hooks give both for every Linear and convolution of any module; what stands around them needs nothing special. The
products of the two are the per-sample gradients of the weights, without a loop over the samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

Margin = Callable[[Tensor, Tensor], Tensor]
"""From outputs [b, ...] and labels [b] to margins [b]."""
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Layer = nn.Linear | Convolution


@dataclass(frozen=True, eq=False)
class LayerPass:
    """What enters a layer's weight, [b, g, L, p], and the margin's gradient by what it gives, [b, g, L, q].

    There are g groups of a convolution (1 elsewhere), L positions (1 for plain inputs), q rows and p columns, the
    last of ones where the layer has a bias.
    """

    entering: Tensor
    signals: Tensor

    @property
    def positions(self) -> int:
        return self.entering.shape[2]

    def gradients(self) -> Tensor:
        """Per-sample gradients of the margin by [W b], [b, g, q, p]."""
        return self.signals.transpose(2, 3) @ self.entering

    def blocked(self, rows: int, columns: int) -> LayerPass:
        """As so many blocks of rows and of columns, each a group of its own; see `blocks_of`."""
        if rows == columns == 1:
            return self
        entering, signals = (
            _split(part, count) for part, count in ((self.entering, columns), (self.signals, rows))
        )
        b, places = entering.shape[0], entering.shape[3]
        return LayerPass(
            entering[:, :, None].expand(-1, -1, rows, -1, -1, -1).reshape(b, -1, places, entering.shape[4]),
            signals[:, :, :, None].expand(-1, -1, -1, columns, -1, -1).reshape(b, -1, places, signals.shape[4]),
        )

    def sampled(self, count: int) -> LayerPass:
        """At no more than this many positions, always the same ones."""
        if self.positions <= count:
            return self
        chosen = torch.randperm(self.positions, generator=torch.Generator().manual_seed(0))[:count]
        return LayerPass(self.entering[:, :, chosen], self.signals[:, :, chosen])

    def unfolded(self, records: int) -> LayerPass:
        """With windows or time steps that were folded into the batch as positions of their record."""
        both = (
            part.reshape(records, -1, *part.shape[1:]).transpose(1, 2).flatten(2, 3)
            for part in (self.entering, self.signals)
        )
        return LayerPass(*both)

    def joined(self, other: LayerPass) -> LayerPass:
        """With the positions of another call of the same layer."""
        return LayerPass(
            torch.cat([self.entering, other.entering], 2), torch.cat([self.signals, other.signals], 2)
        )


def patches(layer: Convolution, entering: Tensor) -> Tensor:
    """The inputs [b, C, ...] of a convolution as rows of its weight, [b, g, L, C / g * k].

    >>> patches(nn.Conv1d(1, 1, 2), torch.tensor([[[1.0, 2.0, 3.0]]])).tolist()
    [[[[1.0, 2.0], [2.0, 3.0]]]]
    """
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    windows = functional.pad(entering, layer._reversed_padding_repeated_twice, mode=mode)
    dimensions = len(layer.kernel_size)
    for axis, (size, step, spread) in enumerate(
        zip(layer.kernel_size, layer.stride, layer.dilation, strict=True), start=2
    ):
        windows = windows.unfold(axis, spread * (size - 1) + 1, step)[..., ::spread]
    b, channels = entering.shape[:2]
    places = math.prod(windows.shape[2 : 2 + dimensions])
    windows = windows.reshape(b, layer.groups, channels // layer.groups, places, -1)
    return windows.transpose(2, 3).flatten(3)


def layer_pass(layer: Layer, entering: Tensor, signals: Tensor) -> LayerPass:
    """One call of a layer as rows and columns of its weight."""
    if isinstance(layer, Convolution):
        columns = patches(layer, entering)
        b, rows = signals.shape[:2]
        signals = signals.reshape(b, layer.groups, rows // layer.groups, -1).transpose(2, 3)
    else:
        columns = entering.reshape(len(entering), 1, -1, entering.shape[-1])
        signals = signals.reshape(len(signals), 1, -1, signals.shape[-1])
    if layer.bias is not None:
        columns = torch.cat([columns, columns.new_ones(*columns.shape[:3], 1)], 3)
    return LayerPass(columns, signals)


def layer_weight(layer: Layer) -> Tensor:
    """[W b] of a layer by groups, [g, q, p], in float64."""
    groups = layer.groups if isinstance(layer, Convolution) else 1
    weight = layer.weight.detach().double()
    weight = weight.reshape(groups, len(weight) // groups, -1)
    if layer.bias is None:
        return weight
    return torch.cat([weight, layer.bias.detach().double().reshape(groups, -1, 1)], 2)


def blocks_of(weight: Tensor, rows: int, columns: int) -> Tensor:
    """A weight [g, q, p] cut into blocks, [g rows columns, q / rows, p / columns], filled up with zeros."""
    if rows == columns == 1:
        return weight
    g, q, p = weight.shape
    high, wide = -(-q // rows), -(-p // columns)
    weight = functional.pad(weight, (0, wide * columns - p, 0, high * rows - q))
    return weight.reshape(g, rows, high, columns, wide).transpose(2, 3).reshape(-1, high, wide)


def _split(part: Tensor, count: int) -> Tensor:
    """[b, g, L, d] as [b, g, count, L, d / count], filled up with zeros."""
    b, g, places, d = part.shape
    size = -(-d // count)
    part = functional.pad(part, (0, size * count - d)) if size * count > d else part
    return part.reshape(b, g, places, count, size).transpose(2, 3)


def readable_layers(model: nn.Module) -> dict[str, Layer]:
    """The layers with a weight that is a sum over records, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, Layer)}


@contextmanager
def _recorded(layers: Mapping[str, Layer]) -> Iterator[dict[str, list[tuple[Tensor, Tensor]]]]:
    """While this is open, what enters and leaves each layer, call by call."""
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}

    def hook(name: str) -> Callable[..., Tensor]:
        def record(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            output = output if output.requires_grad else output.detach().requires_grad_()
            seen[name].append((inputs[0].detach().clone(), output))
            return output.clone()  # so that an activation in place changes the copy alone

        return record

    handles = [layer.register_forward_hook(hook(name)) for name, layer in layers.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def passes(
    model: nn.Module, layers: Mapping[str, Layer], inputs: Tensor, labels: Tensor, margin: Margin
) -> tuple[Tensor, dict[str, LayerPass]]:
    """One forward and one backward pass of a batch: margins [b], and what each layer saw.

    Layers without effect on the output are missing.
    """
    inputs, labels = as_fed(model, inputs), labels.to(_example(model).device)
    with torch.enable_grad(), _recorded(layers) as seen:
        margins = margin(model(inputs), labels)
        calls = [(name, entering, output) for name, pairs in seen.items() for entering, output in pairs]
        outputs = [output for _, _, output in calls]
        gradients = torch.autograd.grad(margins.sum(), outputs, allow_unused=True)
    found: dict[str, LayerPass] = {}
    for (name, entering, _), gradient in zip(calls, gradients, strict=True):
        if gradient is None or len(entering) % len(inputs):
            continue
        one = layer_pass(layers[name], entering, gradient).unfolded(len(inputs))
        found[name] = found[name].joined(one) if name in found else one
    return margins.detach(), found


def as_fed(model: nn.Module, inputs: Tensor) -> Tensor:
    """On the model's device and with its precision; whole numbers, such as tokens, stay what they are."""
    example = _example(model)
    return inputs.to(example.device, example.dtype if inputs.is_floating_point() else None)


def _example(model: nn.Module) -> Tensor:
    return next((one for one in model.parameters() if one.is_floating_point()), torch.zeros(0))
