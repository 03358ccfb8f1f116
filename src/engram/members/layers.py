"""What each layer of a model saw of a record: what entered it, and the margin's gradient by what left it.

Hooks give both for every Linear and convolution of any module; what stands around them needs nothing special. The
products of the two are the per-sample gradients of the weights, without a loop over the samples.
"""

from __future__ import annotations

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
    """What a layer saw of b records, call by call: its inputs, and the margin's gradient by its outputs.

    A weight is [g, q, p]: g groups of a convolution (1 elsewhere), q rows and p columns, the last for the bias.
    What meets it is a vector of p values at each position; plain inputs have one position.
    """

    layer: Layer
    calls: tuple[tuple[Tensor, Tensor], ...]
    records: int

    @property
    def positions(self) -> int:
        """Of each record, over all calls, and over windows or time steps that were folded into the batch."""
        return sum(signals.numel() // self._rows for _, signals in self.calls) // self.records

    @property
    def _rows(self) -> int:
        return len(self.layer.weight)

    def gradients(self) -> Tensor:
        """Per-sample gradients of the margin by [W b], [b, g, q, p]."""
        parts = []
        for entering, leaving in self.calls:
            signals = signals_of(self.layer, leaving)
            found = signals @ columns_of(self.layer, entering).transpose(2, 3)
            if self.layer.bias is not None:
                found = torch.cat([found, signals.sum(3, keepdim=True)], 3)
            parts.append(found.reshape(self.records, -1, *found.shape[1:]).sum(1))
        return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)

    def vectors(self, most: int) -> tuple[Tensor, Tensor]:
        """What enters, [b, g, m, p], and the signals, [b, g, m, q], at no more than about `most` positions.

        They are the same positions for every record.
        """
        parts = []
        for entering, leaving in self.calls:
            signals = signals_of(self.layer, leaving)
            places = signals.shape[3]
            each = max(1, most * self.records // (len(self.calls) * len(signals)))
            chosen = None
            if places > each:
                chosen = torch.randperm(places, generator=torch.Generator().manual_seed(0))[:each]
                chosen = chosen.to(signals.device)
                signals = signals[..., chosen]
            columns = columns_of(self.layer, entering, chosen)
            if self.layer.bias is not None:
                columns = functional.pad(columns, (0, 0, 0, 1), value=1.0)
            parts.append([_unfolded(part.transpose(2, 3), self.records) for part in (columns, signals)])
        entering, signals = (torch.cat(some, 2) for some in zip(*parts, strict=True))
        return entering, signals


def _unfolded(part: Tensor, records: int) -> Tensor:
    """[b f, g, L, d] as [b, g, f L, d]: what was folded into the batch becomes positions of its record."""
    if len(part) == records:
        return part
    return part.reshape(records, -1, *part.shape[1:]).transpose(1, 2).flatten(2, 3)


def signals_of(layer: Layer, leaving: Tensor) -> Tensor:
    """The gradient by a layer's outputs, [b, q g, ...] or [b, ..., q], as [b, g, q, L]."""
    if isinstance(layer, Convolution):
        return leaving.reshape(len(leaving), layer.groups, leaving.shape[1] // layer.groups, -1)
    return leaving.reshape(len(leaving), 1, -1, leaving.shape[-1]).transpose(2, 3)


def columns_of(layer: Layer, entering: Tensor, chosen: Tensor | None = None) -> Tensor:
    """A layer's inputs as what meets its weight, [b, g, p, L], without the bias; at the chosen positions, or all.

    >>> columns_of(nn.Conv1d(1, 1, 2), torch.tensor([[[1.0, 2.0, 3.0]]])).tolist()
    [[[[1.0, 2.0], [2.0, 3.0]]]]
    """
    if not isinstance(layer, Convolution):
        columns = entering.reshape(len(entering), 1, -1, entering.shape[-1]).transpose(2, 3)
        return columns if chosen is None else columns[..., chosen]
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = functional.pad(entering, layer._reversed_padding_repeated_twice, mode=mode)
    if chosen is None and isinstance(layer, nn.Conv2d):
        columns = functional.unfold(padded, layer.kernel_size, layer.dilation, 0, layer.stride)
    else:
        places = _window_places(layer, tuple(padded.shape[2:])).to(padded.device)
        columns = padded.flatten(2)[:, :, places if chosen is None else places[:, chosen]]
    return columns.reshape(len(padded), layer.groups, -1, columns.shape[-1])


def _window_places(layer: Convolution, sides: tuple[int, ...]) -> Tensor:
    """Where the values of each window are in a padded, flattened input, [k, L]."""
    places = torch.zeros(1, 1, dtype=torch.int64)
    for side, size, step, spread in zip(sides, layer.kernel_size, layer.stride, layer.dilation, strict=True):
        starts = torch.arange(0, side - spread * (size - 1), step)
        own = spread * torch.arange(size)[:, None] + starts  # [k, L] of this axis
        places = places[:, None, :, None] * side + own[None, :, None, :]
        places = places.reshape(places.shape[0] * places.shape[1], -1)
    return places


def layer_weight(layer: Layer) -> Tensor:
    """[W b] of a layer by groups, [g, q, p], in float64."""
    groups = layer.groups if isinstance(layer, Convolution) else 1
    weight = layer.weight.detach().double()
    weight = weight.reshape(groups, len(weight) // groups, -1)
    if layer.bias is None:
        return weight
    return torch.cat([weight, layer.bias.detach().double().reshape(groups, -1, 1)], 2)


def blocks_of(weight: Tensor, rows: int, columns: int) -> Tensor:
    """Weights [..., g, q, p] in blocks, [..., g rows columns, q / rows, p / columns], filled up with zeros."""
    if rows == columns == 1:
        return weight
    *before, g, q, p = weight.shape
    high, wide = -(-q // rows), -(-p // columns)
    weight = functional.pad(weight, (0, wide * columns - p, 0, high * rows - q))
    weight = weight.reshape(*before, g, rows, high, columns, wide).transpose(-3, -2)
    return weight.reshape(*before, g * rows * columns, high, wide)


def blocks_of_vectors(entering: Tensor, signals: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """The vectors of `LayerPass.vectors` for such blocks: every block of rows meets every block of columns."""
    if rows == columns == 1:
        return entering, signals
    entering, signals = (
        split(entering, columns),
        split(signals, rows),
    )  # [b, g, columns, m, p'], [b, g, rows, m, q']
    entering = entering[:, :, None].expand(-1, -1, rows, -1, -1, -1)
    signals = signals[:, :, :, None].expand(-1, -1, -1, columns, -1, -1)
    return entering.flatten(1, 3), signals.flatten(1, 3)


def split(part: Tensor, count: int) -> Tensor:
    """The last axis cut into parts: [..., L, d] as [..., count, L, d / count], filled up with zeros."""
    size = -(-part.shape[-1] // count)
    part = functional.pad(part, (0, size * count - part.shape[-1]))
    return part.reshape(*part.shape[:-1], count, size).transpose(-3, -2)


def readable_layers(model: nn.Module) -> dict[str, Layer]:
    """The layers with a weight that is a sum over records, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, Layer)}


@contextmanager
def _modules_called() -> Iterator[None]:
    """While this is open, transformer layers call their parts, which a fused path for inference would skip."""
    was_on = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_on)


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
    with torch.enable_grad(), _modules_called(), _recorded(layers) as seen:
        margins = margin(model(inputs), labels)
        calls = [(name, entering, output) for name, pairs in seen.items() for entering, output in pairs]
        outputs = [output for _, _, output in calls]
        gradients = torch.autograd.grad(margins.sum(), outputs, allow_unused=True)
    seen_by: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for (name, entering, _), gradient in zip(calls, gradients, strict=True):
        if gradient is not None and len(entering) % len(inputs) == 0:
            seen_by.setdefault(name, []).append((entering, gradient))
    found = {name: LayerPass(layers[name], tuple(pairs), len(inputs)) for name, pairs in seen_by.items()}
    return margins.detach(), found


def as_fed(model: nn.Module, inputs: Tensor) -> Tensor:
    """On the model's device and with its precision; whole numbers, such as tokens, stay what they are."""
    example = _example(model)
    return inputs.to(example.device, example.dtype if inputs.is_floating_point() else None)


def _example(model: nn.Module) -> Tensor:
    return next((one for one in model.parameters() if one.is_floating_point()), torch.zeros(0))
