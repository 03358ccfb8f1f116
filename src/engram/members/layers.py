"""What each layer of a model saw of a record: what entered it, and the margin's gradient by what left it.

Hooks give both for every Linear, convolution and embedding of any module; what stands around them needs nothing
special. The products of the two are the per-sample gradients of the weights, without a loop over the samples.
Attention of torch's own keeps its input projections to itself; while records are read, they are layers like any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Margin = Callable[[Tensor, Tensor], Tensor]
"""From outputs [b, ...] and labels [b] to margins [b]."""
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
Mendable = nn.Linear | Convolution
Layer = Mendable | nn.Embedding
"""An embedding is a linear layer whose input is 1 at the index and 0 elsewhere."""


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
        return self.layer.embedding_dim if isinstance(self.layer, nn.Embedding) else len(self.layer.weight)

    def gradients(self) -> Tensor:
        """Per-sample gradients of the margin by [W b], [b, g, q, p]; for an embedding `rows` takes less memory."""
        parts = []
        for entering, leaving in self.calls:
            signals = signals_of(self.layer, leaving)
            found = signals @ columns_of(self.layer, entering).transpose(2, 3)
            if bias_of(self.layer) is not None:
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
            if bias_of(self.layer) is not None:
                columns = functional.pad(columns, (0, 0, 0, 1), value=1.0)
            parts.append([_unfolded(part.transpose(2, 3), self.records) for part in (columns, signals)])
        entering, signals = (torch.cat(some, 2) for some in zip(*parts, strict=True))
        return entering, signals

    def rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """What the gradients of an embedding are but for zeros: record [m], index [m], gradient of its row [m, q].

        Each record has one entry for each of its indices, however often it occurs.
        """
        assert isinstance(self.layer, nn.Embedding)
        keys, signals = [], []
        for indices, leaving in self.calls:
            owners = torch.arange(self.records, device=indices.device).repeat_interleave(
                indices.numel() // self.records
            )
            counted = indices.flatten() != padding_of(self.layer)
            keys.append((owners * self.layer.num_embeddings + indices.flatten())[counted])
            signals.append(leaving.reshape(-1, self._rows)[counted])
        found, places = torch.unique(torch.cat(keys), return_inverse=True)
        sums = signals[0].new_zeros(len(found), self._rows).index_add_(0, places, torch.cat(signals))
        return found // self.layer.num_embeddings, found % self.layer.num_embeddings, sums


def padding_of(layer: nn.Embedding) -> int:
    """The index whose row is not trained, or -1."""
    return -1 if layer.padding_idx is None else layer.padding_idx


def bias_of(layer: Layer) -> Tensor | None:
    return None if isinstance(layer, nn.Embedding) else layer.bias


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
    if isinstance(layer, nn.Embedding):
        indices = entering.reshape(len(entering), 1, 1, -1)
        indices = indices if chosen is None else indices[..., chosen]
        kinds = torch.arange(layer.num_embeddings, device=indices.device)[:, None]
        # training leaves the row of the padding as it is
        return ((indices == kinds) & (kinds != padding_of(layer))).to(layer.weight)
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
    if isinstance(layer, nn.Embedding):
        return layer.weight.detach().double().T[None]
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


def readable_layers(model: nn.Module) -> dict[str, Mendable]:
    """The modules with a weight that is a sum over records, by name; what can be mended."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, Mendable)}


def layers_read(model: nn.Module) -> dict[str, Layer]:
    """All that is read: `readable_layers`, embeddings, and the input projections of attention, by name."""
    found: dict[str, Layer] = {}
    for name, module in model.named_modules():
        if isinstance(module, Mendable) or _is_plain(module, nn.Embedding):
            found[name] = module
        elif _is_plain(module, nn.MultiheadAttention):
            found |= {f"{name}.{part}": layer for part, layer in projections(module).items()}
    return found


def parameters_left_out(model: nn.Module, layers: Mapping[str, Layer]) -> dict[str, str]:
    """Weights that belong to no layer that is read, by name, with the reason."""
    read = {layer.weight.data_ptr() for layer in layers.values()}
    why = "it is not the weight of a Linear, Conv or Embedding layer, or that layer is of a special kind"
    return {
        name: why
        for name, one in model.named_parameters()
        # biases belong to their layers, and norms have nothing else
        if one.ndim > 1 and one.data_ptr() not in read and not any(name.startswith(f"{own}.") for own in layers)
    }


def _is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether it computes what its kind computes."""
    if not isinstance(module, kind) or type(module).forward is not kind.forward:
        return False
    # an embedding that changes its weights while it is used, or scales its gradients by counts over the batch
    return not (isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq))


def projections(attention: nn.MultiheadAttention) -> dict[str, nn.Linear]:
    """What queries, keys and values go through, as layers that share the weights."""
    bias: Tensor | None = attention.in_proj_bias
    packed: Tensor | None = getattr(attention, "in_proj_weight", None)
    if packed is not None:
        return {"in_proj": _sharing(packed, bias)}
    biases = (None, None, None) if bias is None else bias.chunk(3)
    weights = {name: getattr(attention, f"{name}_weight") for name in ("q_proj", "k_proj", "v_proj")}
    return {name: _sharing(weights[name], own) for name, own in zip(weights, biases, strict=True)}


def _sharing(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return layer


def _attention_of_layers(attention: nn.MultiheadAttention, parts: Mapping[str, Layer]) -> Callable[..., Any]:
    """The same function, made of calls of its layers.

    Between them stands attention whose projections are the identity, so masks and all options are torch's own.
    """
    width, example = attention.embed_dim, attention.out_proj.weight
    between = nn.MultiheadAttention(
        width,
        attention.num_heads,
        bias=False,
        add_zero_attn=attention.add_zero_attn,
        batch_first=attention.batch_first,
        device="meta",
    ).eval()
    same = torch.eye(width, dtype=example.dtype, device=example.device)
    between.in_proj_weight = nn.Parameter(same.repeat(3, 1), requires_grad=False)
    between.out_proj.weight = nn.Parameter(same, requires_grad=False)
    between.bias_k, between.bias_v = attention.bias_k, attention.bias_v

    def forward(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any) -> tuple[Tensor, Any]:
        entering = query, key, value
        if "in_proj" in parts:  # one layer of three parts, which is called once for each different input
            whole = {id(one): parts["in_proj"](one) for one in entering}
            made = [whole[id(one)].chunk(3, -1)[place] for place, one in enumerate(entering)]
        else:
            made = [parts[name](one) for name, one in zip(("q_proj", "k_proj", "v_proj"), entering, strict=True)]
        mixed, weights = between(*made, *rest, **named)
        return attention.out_proj(mixed), weights

    return forward


@contextmanager
def _modules_called(model: nn.Module, layers: Mapping[str, Layer]) -> Iterator[None]:
    """While this is open, attention and transformer layers call their parts, which they would skip otherwise."""
    was_on = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    changed = []
    try:
        for name, module in model.named_modules():
            own = {
                one.removeprefix(f"{name}."): layer for one, layer in layers.items() if one.startswith(f"{name}.")
            }
            if isinstance(module, nn.MultiheadAttention) and own.keys() & {"in_proj", "q_proj"}:
                module.forward = _attention_of_layers(module, own)  # type: ignore[method-assign]
                changed.append(module)
        yield
    finally:
        for module in changed:
            del module.forward
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
    model: nn.Module,
    layers: Mapping[str, Layer],
    inputs: Tensor,
    labels: Tensor,
    margin: Margin,
    axes: Mapping[str, int] | None = None,
) -> tuple[Tensor, dict[str, LayerPass]]:
    """One forward and one backward pass of a batch: margins [b], and what each layer saw.

    Layers without effect on the output are missing. `axes` says which axis of what a layer sees counts records,
    where it is not the first.
    """
    inputs, labels = as_fed(model, inputs), labels.to(_example(model).device)
    with torch.enable_grad(), _modules_called(model, layers), _recorded(layers) as seen:
        margins = margin(model(inputs), labels)
        calls = [(name, entering, output) for name, pairs in seen.items() for entering, output in pairs]
        outputs = [output for _, _, output in calls]
        gradients = torch.autograd.grad(margins.sum(), outputs, allow_unused=True)
    seen_by: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for (name, entering, _), gradient in zip(calls, gradients, strict=True):
        axis = 0 if axes is None else axes.get(name, 0)
        if gradient is not None and entering.shape[axis] % len(inputs) == 0:
            seen_by.setdefault(name, []).append((entering.movedim(axis, 0), gradient.movedim(axis, 0)))
    found = {name: LayerPass(layers[name], tuple(pairs), len(inputs)) for name, pairs in seen_by.items()}
    return margins.detach(), found


@torch.no_grad()
def record_axes(model: nn.Module, layers: Mapping[str, Layer], inputs: Tensor) -> dict[str, int]:
    """Which axis of what each layer sees counts records; layers where none does are missing.

    It is the axis that is twice as long for two records [2, ...] as for the first of them alone, and the first
    half of it is that record's: sequences that come before the batch, such as most of torch's own, have another
    than the first.
    """
    seen = []
    for some in (inputs[:1], inputs[:2]):
        with _modules_called(model, layers), _recorded(layers) as calls:
            model(as_fed(model, some))
        seen.append({name: [entering for entering, _ in pairs] for name, pairs in calls.items()})
    axes = {}
    for name, alone in seen[0].items():
        pairs = list(zip(alone, seen[1][name], strict=False))
        most = max((one.ndim for one in alone), default=0)
        fitting = [axis for axis in range(most) if all(_counts_records(axis, *pair) for pair in pairs)]
        if pairs and fitting:
            axes[name] = fitting[0]
    return axes


def _counts_records(axis: int, one: Tensor, two: Tensor) -> bool:
    if one.ndim != two.ndim or one.ndim <= axis or two.shape[axis] != 2 * one.shape[axis]:
        return False
    first = two.narrow(axis, 0, one.shape[axis]).double()
    if first.shape != one.shape:  # the other record is longer: there is nothing to compare
        return True
    away = (first - one).abs().max() if one.numel() else one.new_zeros(())
    return bool(away <= 1e-3 * (1e-6 + one.double().abs().max()))


def as_fed(model: nn.Module, inputs: Tensor) -> Tensor:
    """On the model's device and with its precision; whole numbers, such as tokens, stay what they are."""
    example = _example(model)
    return inputs.to(example.device, example.dtype if inputs.is_floating_point() else None)


def _example(model: nn.Module) -> Tensor:
    return next((one for one in model.parameters() if one.is_floating_point()), torch.zeros(0))
