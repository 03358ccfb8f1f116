"""The matched filter: is this record's gradient in the weights?

At a stationary point every weight matrix is a sum over the training samples, W = c W(0) + sum_i lambda_i u_i h_iᵀ,
with h_i what enters the layer and u_i the gradient of sample i's margin by the layer's output. Whether a record is
in that sum is a detection problem: a known signal g = u hᵀ in coloured noise, which is the other samples (second
moments S in the Kronecker-factored eigenbasis) and the initialisation (white, sigma²). The best linear detector,
in the eigenbases C_u = Q_u diag(a) Q_uᵀ and C_h = Q_h diag(b) Q_hᵀ, is

    t(x) = <g~, G o W~> / sqrt(<g~², G>),    G = 1 / (f s S + sigma²),    x~ = Q_uᵀ x Q_h

for every layer of every network. At layers with positions (convolutions, tokens) g is the sum of u_p h_pᵀ over
them, and S is measured in the eigenbasis; elsewhere S = a bᵀ. All of it is computed from the weights and the
pooled records: no shadow model, and nobody says who is a member.

The pool is read two or three times: covariances, second moments at layers with positions, scores. Memory is
bounded by the sizes of the layers, not by the number of records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from engram.core.errors import ConfigError, require
from engram.core.progress import Progress, part, silent

Margin = Callable[[Tensor, Tensor], Tensor]
"""From outputs [b, ...] and labels [b] to margins [b]."""
MEDIAN_OF_CHI2 = 0.4549
"""Median of the square of a standard normal variable."""
INTERFERENCE = 3.0
"""f: how much the other samples count as noise, as a multiple of what the energy of the weights suggests."""
WIDEST = 4096
"""Layers with more rows or columns than this have no eigenbasis and are left out."""
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Layer = nn.Linear | Convolution
_AT_ONCE = 64 * 1024 * 1024
"""Values of per-sample gradients that are held at once."""


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


def readable_layers(model: nn.Module, widest: int = WIDEST) -> tuple[dict[str, Layer], dict[str, str]]:
    """The layers that the filter reads, and why it leaves others out, by name."""
    layers: dict[str, Layer] = {}
    left_out: dict[str, str] = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, Layer):
            continue
        _, rows, columns = layer_weight(layer).shape
        if max(rows, columns) > widest:
            left_out[name] = f"{rows} x {columns} is wider than {widest:,}"
        else:
            layers[name] = layer
    return layers, left_out


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
) -> dict[str, LayerPass]:
    """One forward and one backward pass of a batch, by layer; layers without effect on the output are missing."""
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
    return found


@dataclass(eq=False)
class LayerFilter:
    """The filter of one layer, filled in by reading the pool."""

    weight: Tensor
    by_columns: Tensor
    by_rows: Tensor
    samples: int = 0
    has_positions: bool = False
    columns: Tensor = field(default_factory=lambda: torch.zeros(0))
    rows: Tensor = field(default_factory=lambda: torch.zeros(0))
    moments: Tensor = field(default_factory=lambda: torch.zeros(0))
    gain: Tensor = field(default_factory=lambda: torch.zeros(0))
    template: Tensor = field(default_factory=lambda: torch.zeros(0))

    @classmethod
    def of(cls, layer: Layer) -> LayerFilter:
        weight = layer_weight(layer)
        groups, rows, columns = weight.shape
        return cls(weight, weight.new_zeros(groups, columns, columns), weight.new_zeros(groups, rows, rows))

    def add_covariances(self, one: LayerPass) -> None:
        entering, signals = one.entering.transpose(0, 1).flatten(1, 2), one.signals.transpose(0, 1).flatten(1, 2)
        self.by_columns += entering.transpose(1, 2) @ entering
        self.by_rows += signals.transpose(1, 2) @ signals
        self.samples += len(one.entering)
        self.has_positions |= one.positions > 1 or len(self.weight) > 1  # groups are such a sum, too

    def find_bases(self) -> None:
        b, self.columns = torch.linalg.eigh(self.by_columns / self.samples)
        a, self.rows = torch.linalg.eigh(self.by_rows / self.samples)
        self.moments = a.clamp(min=0)[:, :, None] * b.clamp(min=0)[:, None, :]
        if self.has_positions:
            self.moments = torch.zeros_like(self.moments)

    def add_moments(self, one: LayerPass) -> None:
        if not self.has_positions:
            return
        for gradients in self._rotated(one):
            self.moments += gradients.square().sum(0) / self.samples

    def close(self, interference: float) -> None:
        """Fix the gain once the moments are known."""
        weight = self.rows.transpose(1, 2) @ self.weight @ self.columns
        energy = weight.square()
        noise = energy.median() / MEDIAN_OF_CHI2
        scale = (energy.sum() - noise * energy.numel()).clamp(min=0) / self.moments.sum().clamp(min=1e-300)
        self.gain = 1 / (interference * scale * self.moments + noise.clamp(min=1e-30))
        self.template = self.gain * weight

    def scores(self, one: LayerPass) -> Tensor:
        """t of every record, [b]."""
        if self.has_positions:
            parts = [
                (
                    (gradients * self.template).sum((1, 2, 3)),
                    (gradients.square() * self.gain).sum((1, 2, 3)),
                )
                for gradients in self._rotated(one)
            ]
            match, size = (torch.cat(values) for values in zip(*parts, strict=True))
        else:
            h, u = one.entering[:, 0, 0].double() @ self.columns[0], one.signals[:, 0, 0].double() @ self.rows[0]
            match = ((u @ self.template[0]) * h).sum(1)
            size = ((u.square() @ self.gain[0]) * h.square()).sum(1)
        return match / size.clamp(min=1e-300).sqrt()

    def _rotated(self, one: LayerPass) -> Iterator[Tensor]:
        """Per-sample gradients in the eigenbasis, [b, g, q, p], a few samples at a time."""
        kind = one.entering.dtype
        rows, columns = self.rows.to(kind), self.columns.to(kind)
        for start in range(0, len(one.entering), chunk := max(1, _AT_ONCE // self.weight.numel())):
            some = LayerPass(one.entering[start : start + chunk], one.signals[start : start + chunk])
            yield (rows.transpose(1, 2) @ some.gradients() @ columns).double()


@dataclass(frozen=True, eq=False)
class Pool:
    """Records in question and controls together: inputs [n, ...] as the model takes them, labels [n]."""

    inputs: Tensor
    labels: Tensor
    batch: int = 256

    def __post_init__(self) -> None:
        require(len(self.inputs) == len(self.labels) > 0, "labels", "must be as many as inputs", len(self.labels))
        require(self.batch > 0, "batch", "must be positive", self.batch)

    def __len__(self) -> int:
        return len(self.inputs)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(torch.split(self.inputs, self.batch), torch.split(self.labels, self.batch), strict=True)


@dataclass(frozen=True, eq=False)
class FilterScores:
    """t of every record at every layer, [n] by name, and the layers that were left out, with the reason."""

    layers: dict[str, Tensor]
    left_out: dict[str, str]


def matched_filter(
    model: nn.Module,
    pool: Pool,
    margin: Margin,
    *,
    interference: float = INTERFERENCE,
    widest: int = WIDEST,
    progress: Progress = silent,
) -> FilterScores:
    """Score every record of the pool at every layer of a model in eval mode.

    The pool holds the records in question and the controls, so that all of them are treated alike.
    """
    if model.training:
        raise ConfigError("the model is in training mode, where records influence each other; call model.eval()")
    require(interference > 0, "interference", "must be positive", interference)
    layers, left_out = readable_layers(model, widest)
    if not layers:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items()) or "it has no Linear or Conv layer"
        raise ConfigError(f"no layer of {type(model).__name__} can be read: {reasons}")
    filters = {name: LayerFilter.of(layer) for name, layer in layers.items()}

    def read(what: str, first: float, last: float, use: Callable[[LayerFilter, LayerPass, str], None]) -> None:
        report, done = part(progress, first, last), 0
        chosen = {name: layers[name] for name in filters}
        for inputs, labels in pool:
            for name, one in passes(model, chosen, inputs, labels, margin).items():
                use(filters[name], one, name)
            done += len(labels)
            report(f"reading records: {what}", done / len(pool))

    read("covariances", 0.0, 0.3, lambda layer, one, _: layer.add_covariances(one))
    for name in [name for name, layer in filters.items() if layer.samples != len(pool)]:
        left_out[name] = "the outputs do not depend on it, or it is not called as a module"
        del filters[name]
    for layer in filters.values():
        layer.find_bases()
    if any(layer.has_positions for layer in filters.values()):
        read("moments", 0.3, 0.6, lambda layer, one, _: layer.add_moments(one))
    for layer in filters.values():
        layer.close(interference)
    scores: dict[str, list[Tensor]] = {name: [] for name in filters}
    read("scores", 0.6, 1.0, lambda layer, one, name: scores[name].append(layer.scores(one)))
    return FilterScores({name: torch.cat(some) for name, some in scores.items()}, left_out)
