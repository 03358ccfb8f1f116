"""The matched filter against slow references: autograd one record at a time, and everything in memory."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from engram.core.errors import ConfigError
from engram.members.layers import (
    Layer,
    LayerPass,
    bias_of,
    blocks_of,
    blocks_of_vectors,
    columns_of,
    layer_weight,
    layers_read,
    passes,
    readable_layers,
    record_axes,
)
from engram.members.matched_filter import Directions, left_out_scores
from engram.members.pool import Pool
from engram.members.scores import FILTER, FIT, LayerScores, score_layers

LAYERS: dict[str, tuple[Layer, tuple[int, ...]]] = {
    "linear": (nn.Linear(6, 4), (6,)),
    "linear without bias": (nn.Linear(6, 4, bias=False), (6,)),
    "tokens": (nn.Linear(6, 4), (5, 6)),
    "conv1d": (nn.Conv1d(2, 3, 3, stride=2), (2, 9)),
    "conv2d": (nn.Conv2d(2, 3, 3, padding=1), (2, 6, 5)),
    "conv2d grouped": (nn.Conv2d(4, 6, (3, 2), groups=2, stride=(1, 2)), (4, 6, 7)),
    "conv2d depthwise, dilated": (nn.Conv2d(3, 3, 2, groups=3, dilation=2, bias=False), (3, 6, 6)),
    "conv2d same": (nn.Conv2d(2, 3, (3, 5), padding="same"), (2, 6, 6)),
    "conv2d circular": (nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 5, 5)),
    "conv3d": (nn.Conv3d(2, 3, 2, padding=(0, 1, 0)), (2, 3, 4, 5)),
}


def margin(outputs: Tensor, labels: Tensor) -> Tensor:
    """Curved, so that signals differ from record to record."""
    return (outputs.flatten(1).sin().sum(1)) * (2 * labels - 1)


def drawn(shape: tuple[int, ...], n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(n, *shape, generator=generator, dtype=torch.float64)
    return inputs, torch.arange(n) % 2


def scored(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, batch: int = 256, **settings: float
) -> LayerScores:
    """All records in one pool; the first half counts as the records in question."""
    half = len(inputs) // 2
    pool = Pool.of((inputs[:half], labels[:half]), (inputs[half:], labels[half:]), batch=batch)
    return score_layers(model, pool, margin, **settings)  # type: ignore[arg-type]


def filtered(model: nn.Module, inputs: Tensor, labels: Tensor, **settings: float) -> dict[str, Tensor]:
    found = scored(model, inputs, labels, **settings)  # type: ignore[arg-type]
    return {layer: scores for (layer, test), scores in found.scores.items() if test == FILTER}


def by_autograd(model: nn.Module, layer: Layer, inputs: Tensor, labels: Tensor) -> Tensor:
    """The gradient of one record's margin after another, [n, g, q, p]."""
    rows = []
    for one, label in zip(inputs[:, None], labels[:, None], strict=True):
        bias = bias_of(layer)
        parameters = [layer.weight] if bias is None else [layer.weight, bias]
        gradients = torch.autograd.grad(margin(model(one), label).sum(), parameters)
        if isinstance(layer, nn.Embedding):
            rows.append(gradients[0].T[None])
            continue
        groups = getattr(layer, "groups", 1)
        by_group = [gradients[0].reshape(groups, len(gradients[0]) // groups, -1)]
        by_group += [value.reshape(groups, -1, 1) for value in gradients[1:]]
        rows.append(torch.cat(by_group, 2))
    return torch.stack(rows)


@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_are_those_of_autograd_one_record_at_a_time(kind: str) -> None:
    layer, shape = LAYERS[kind]
    model = nn.Sequential(layer, nn.Tanh()).double().eval()
    inputs, labels = drawn(shape, 4)
    found = passes(model, {"0": layer}, inputs, labels, margin)[1]["0"].gradients()
    torch.testing.assert_close(found, by_autograd(model, layer, inputs, labels), rtol=1e-10, atol=1e-12)


class Frames(nn.Module):
    """Frames of a clip go through a convolution as if they were records."""

    def __init__(self) -> None:
        super().__init__()
        self.frame = nn.Conv2d(2, 4, 3, groups=2)

    def forward(self, clips: Tensor) -> Tensor:
        frames: Tensor = self.frame(clips.flatten(0, 1))
        return frames.reshape(len(clips), -1)


def test_frames_that_are_folded_into_the_batch_belong_to_their_record() -> None:
    model = Frames().double().eval()
    inputs, labels = drawn((3, 2, 4, 4), 5)
    found = passes(model, {"frame": model.frame}, inputs, labels, margin)[1]["frame"].gradients()
    torch.testing.assert_close(found, by_autograd(model, model.frame, inputs, labels), rtol=1e-10, atol=1e-12)


def test_groups_without_positions_all_count() -> None:
    layer = nn.Conv2d(4, 6, 2, groups=2)
    model = nn.Sequential(layer).double().eval()
    inputs, labels = drawn((4, 2, 2), 20)
    found = filtered(model, inputs, labels)["0"]
    one = passes(model, {"0": layer}, inputs, labels, margin)[1]["0"]
    torch.testing.assert_close(found, reference(layer, one.gradients(), one, 3.0), rtol=1e-9, atol=1e-9)


class Residual(nn.Module):
    """Batch norm, activations in place, a skip connection, a layer that is used twice and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.twice = nn.Conv2d(4, 4, 3, padding=1)
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu_(self.norm(self.first(inputs)))
        hidden = hidden + torch.relu_(self.twice(hidden))
        hidden = hidden + torch.relu_(self.twice(hidden))
        outputs: Tensor = self.head(hidden.mean((2, 3)))
        return outputs


def residual() -> Residual:
    torch.manual_seed(1)
    model = Residual().double()
    model(drawn((2, 5, 5), 16, seed=3)[0])  # running statistics
    return model.eval()


@pytest.mark.parametrize("name", ["first", "twice", "head"])
def test_gradients_through_a_residual_network(name: str) -> None:
    model = residual()
    inputs, labels = drawn((2, 5, 5), 4)
    layers = readable_layers(model)
    found = passes(model, layers, inputs, labels, margin)[1][name].gradients()
    expected = by_autograd(model, getattr(model, name), inputs, labels)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def reference(layer: Layer, gradients: Tensor, one: LayerPass, interference: float) -> Tensor:
    """t of every record, with the whole pool and whole matrices in memory."""
    weight, scores = layer_weight(layer), []
    bases, moments = [], []
    for group in range(len(weight)):
        h, u = (part[:, group].flatten(0, 1) for part in one.vectors(10**9))
        b, columns = torch.linalg.eigh(h.T @ h / len(gradients))
        a, rows = torch.linalg.eigh(u.T @ u / len(gradients))
        rotated = rows.T @ gradients[:, group] @ columns
        bases.append((rows.T @ weight[group] @ columns, rotated))
        separable = torch.outer(a.clamp(min=0), b.clamp(min=0))
        moments.append(rotated.square().mean(0) if one.positions > 1 else separable)
    energy = torch.stack([turned.square() for turned, _ in bases])
    noise = energy.median() / 0.4549
    scale = (energy.sum() - noise * energy.numel()).clamp(min=0) / torch.stack(moments).sum()
    for record in range(len(gradients)):
        match = size = torch.zeros((), dtype=torch.float64)
        for (turned, rotated), moment in zip(bases, moments, strict=True):
            gain = 1 / (interference * scale * moment + noise)
            match = match + (gain * turned * rotated[record]).sum()
            size = size + (gain * rotated[record].square()).sum()
        scores.append(match / size.sqrt())
    return torch.stack(scores)


@pytest.mark.parametrize("name", ["first", "twice", "head"])
def test_streamed_scores_are_those_of_the_whole_pool_in_memory(name: str) -> None:
    model = residual()
    inputs, labels = drawn((2, 5, 5), 30)
    found = filtered(model, inputs, labels, batch=7, interference=2.0)
    layers = readable_layers(model)
    one = passes(model, layers, inputs, labels, margin)[1][name]
    expected = reference(layers[name], one.gradients(), one, 2.0)
    torch.testing.assert_close(found[name], expected, rtol=1e-9, atol=1e-9)


def test_scores_depend_neither_on_the_batches_nor_on_the_order() -> None:
    model = residual()
    inputs, labels = drawn((2, 5, 5), 20)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    whole = filtered(model, inputs, labels, batch=20)
    single = filtered(model, inputs, labels, batch=1)
    turned = filtered(model, inputs[order], labels[order], batch=6)
    for name, scores in whole.items():
        torch.testing.assert_close(single[name], scores, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(turned[name], scores[order], rtol=1e-9, atol=1e-9)


def test_what_is_not_read_is_listed_with_the_reason() -> None:
    found = scored(residual(), *drawn((2, 5, 5), 6))
    assert {layer for layer, _ in found.scores} == {"first", "twice", "head"}
    assert found.left_out == {"unused": "the outputs do not depend on it, or it is not called as a module"}


def test_a_wide_layer_is_read_in_blocks() -> None:
    """A pool of few records spans little of a wide layer; a larger pool needs blocks, and says so."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(50, 30), nn.Tanh(), nn.Linear(30, 1)).double().eval()
    inputs, labels = drawn((50,), 40)
    whole, cut = scored(model, inputs, labels), scored(model, inputs, labels, widest=20)
    assert whole.notes == ()
    assert cut.notes == (
        "0 is cut into 2 x 3 blocks, each with its own eigenbasis",
        "2 is cut into 1 x 2 blocks, each with its own eigenbasis",
    )
    assert torch.corrcoef(torch.stack([whole.scores["0", FILTER], cut.scores["0", FILTER]]))[0, 1] > 0.7
    few = scored(model, inputs[:10], labels[:10], widest=20)
    assert not [note for note in few.notes if "x 3" in note]


def test_blocks_of_vectors_are_those_of_their_gradients() -> None:
    model = nn.Sequential(nn.Linear(7, 5), nn.Tanh()).double().eval()
    inputs, labels = drawn((7,), 4)
    one = passes(model, readable_layers(model), inputs, labels, margin)[1]["0"]
    entering, signals = blocks_of_vectors(*one.vectors(1), 2, 3)
    found = signals.transpose(2, 3) @ entering
    assert found.shape == (4, 6, 3, 3)
    torch.testing.assert_close(found, blocks_of(one.gradients(), 2, 3))


@pytest.mark.parametrize("kind", LAYERS)
def test_chosen_positions_are_some_of_all(kind: str) -> None:
    layer, shape = LAYERS[kind]
    layer = layer.double()
    inputs, _ = drawn(shape, 3)
    whole = columns_of(layer, inputs)
    chosen = torch.arange(whole.shape[3])[::2]
    torch.testing.assert_close(columns_of(layer, inputs, chosen), whole[..., chosen])


def test_a_small_pool_gives_the_same_scores_as_the_whole_basis() -> None:
    """Few vectors are kept instead of moments; every direction outside them is out of every record's reach."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(1, 12, 40, generator=generator, dtype=torch.float64)
    few, whole = Directions(40), Directions(40)
    few.add(vectors)
    whole.moments = torch.zeros(1, 40, 40, dtype=torch.float64)
    whole.add(vectors)
    values, basis = few.basis()
    expected, _ = whole.basis()
    torch.testing.assert_close(values, expected[:, -12:])
    torch.testing.assert_close(basis @ torch.diag_embed(values) @ basis.mT, vectors.mT @ vectors)
    torch.testing.assert_close(basis.mT @ basis, torch.eye(12, dtype=torch.float64)[None])


class Words(nn.Module):
    """A transformer of torch's own, whose fused path for inference calls no module."""

    def __init__(self, *, batch_first: bool = True, padding: int | None = None) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embed = nn.Embedding(20, 8, padding_idx=padding)
        self.place = nn.Parameter(torch.randn(5, 1, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first)
        self.head = nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens.T) + self.place
        hidden = self.layer(hidden.transpose(0, 1)) if self.batch_first else self.layer(hidden).transpose(0, 1)
        outputs: Tensor = self.head(hidden.mean(1))
        return outputs


def words(n: int, length: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 20, (n, length), generator=generator), torch.arange(n) % 2


@pytest.mark.parametrize("batch_first", [True, False])
def test_tokens_through_a_transformer_with_frozen_weights(batch_first: bool) -> None:
    model = Words(batch_first=batch_first).double().eval().requires_grad_(False)
    found = scored(model, *words(12))
    inside = {f"layer.{name}" for name in ("self_attn.in_proj", "self_attn.out_proj", "linear1", "linear2")}
    assert {layer for layer, _ in found.scores} == inside | {"embed", "head"}
    assert found.left_out.keys() == {"place"}
    assert "not the weight of a Linear, Conv or Embedding layer" in found.left_out["place"]


class Mixing(nn.Module):
    """Attention whose keys and values come from elsewhere, with masks, between embedded tokens."""

    def __init__(self, **options: bool | int) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8, padding_idx=3)
        self.other = nn.Linear(8, int(options.get("kdim", 8)))
        self.mix = nn.MultiheadAttention(8, 2, **options)

    def forward(self, tokens: Tensor) -> Tensor:
        queries = self.embed(tokens)
        keys = self.other(queries)[:, :4]
        if not self.mix.batch_first:
            queries, keys = queries.transpose(0, 1), keys.transpose(0, 1)
        hidden, weights = self.mix(queries, keys, keys, key_padding_mask=tokens[:, :4] == 7)
        if self.mix.kdim == 8:
            hidden, _ = self.mix(hidden, hidden, hidden, need_weights=False)
        hidden = hidden if self.mix.batch_first else hidden.transpose(0, 1)
        outputs: Tensor = hidden.flatten(1)[:, :2] + weights.square().sum((1, 2))[:, None]
        return outputs


OPTIONS: dict[str, dict[str, bool | int]] = {
    "batch first": {"batch_first": True},
    "batch second": {},
    "keys of another size": {"kdim": 6, "vdim": 6, "batch_first": True},
    "without bias": {"bias": False, "batch_first": True},
    "bias as a further key, zeros as another": {"add_bias_kv": True, "add_zero_attn": True},
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_attention_is_read_and_computes_the_same(kind: str) -> None:
    torch.manual_seed(0)
    model = Mixing(**OPTIONS[kind]).double().eval()
    tokens, labels = words(6)
    layers = layers_read(model)
    margins, found = passes(model, layers, tokens, labels, margin, record_axes(model, layers, tokens[:2]))
    torch.testing.assert_close(margins, margin(model(tokens), labels), rtol=1e-12, atol=1e-12)
    own = {name: layer for name, layer in layers.items() if name in dict(model.named_modules())}
    assert len(layers) - len(own) == (3 if "kdim" in OPTIONS[kind] else 1)
    for name, layer in own.items():
        expected = by_autograd(model, layer, tokens, labels)
        torch.testing.assert_close(found[name].gradients(), expected, rtol=1e-9, atol=1e-12)
    bias = model.mix.in_proj_bias
    for place, name in enumerate(name for name in layers if name not in own):
        weight = getattr(model.mix, name.removeprefix("mix.") + "_weight")
        for one in range(len(tokens)):
            value = margin(model(tokens[one : one + 1]), labels[one : one + 1]).sum()
            gradients = torch.autograd.grad(value, [weight] if bias is None else [weight, bias])
            rows = [gradients[0]]
            if bias is not None:
                rows.append(gradients[1].reshape(-1, len(weight))[place][:, None])
            torch.testing.assert_close(found[name].gradients()[one, 0], torch.cat(rows, 1), rtol=1e-9, atol=1e-12)
    assert "forward" not in model.mix.__dict__


def test_an_embedding_is_a_layer_with_inputs_of_one_and_zero() -> None:
    """Rows of the table, streamed, give what the whole one-hot layer gives in memory."""
    torch.manual_seed(0)
    model = Words(padding=2).double().eval()
    tokens, labels = words(30)
    layers = layers_read(model)
    axes = record_axes(model, layers, tokens[:2])
    one = passes(model, layers, tokens, labels, margin, axes)[1]["embed"]
    gradients = one.gradients()
    torch.testing.assert_close(gradients.mT[:, 0], _by_rows(one), rtol=1e-12, atol=1e-12)
    found = scored(model, tokens, labels, batch=7)
    weight, vectors = layer_weight(model.embed), one.rows()[2]
    _, rows = torch.linalg.eigh(vectors.T @ vectors)
    turned, energy = rows.T @ gradients[:, 0], (rows.T @ weight[0]).square()
    used = gradients[:, 0].abs().sum((0, 1)) > 0
    assert int((~used).sum()) == 1  # the padding alone
    moments, energy = turned.square().mean(0)[:, used], energy[:, used]
    noise = energy.median() / 0.4549
    scale = (energy.sum() - noise * energy.numel()).clamp(min=0) / moments.sum()
    gain = 1 / (3.0 * scale * moments + noise)
    turned = turned[:, :, used]
    match = (gain * (rows.T @ weight[0])[:, used] * turned).sum((1, 2))
    expected = match / (gain * turned.square()).sum((1, 2)).sqrt()
    torch.testing.assert_close(found.scores["embed", FILTER], expected, rtol=1e-9, atol=1e-9)
    flat = gradients.flatten(1)
    fitted = left_out_scores(flat @ flat.T, flat @ weight.flatten(), float(weight.square().sum()), weight.numel())
    torch.testing.assert_close(found.scores["embed", FIT], fitted, rtol=1e-6, atol=1e-6)


def _by_rows(one: LayerPass) -> Tensor:
    owners, indices, signals = one.rows()
    table = signals.new_zeros(one.records, 20, 8)
    table[owners, indices] = signals
    return table


def test_bags_are_left_out_and_said() -> None:
    model = nn.Sequential(nn.EmbeddingBag(20, 4), nn.Linear(4, 2)).double().eval()
    found = scored(model, *words(12))
    assert {layer for layer, _ in found.scores} == {"1"}
    assert found.left_out.keys() == {"0.weight"}


def test_a_large_vocabulary_takes_no_eigenbasis() -> None:
    large = nn.Sequential(nn.Embedding(400_000, 4), nn.Flatten(), nn.Linear(20, 2)).eval()
    tokens, labels = words(200)
    found = scored(large, 20_000 * tokens, labels)
    assert found.scores["0", FILTER].isfinite().all()
    assert found.notes == ()


def test_the_model_is_left_as_it_was() -> None:
    model = residual()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    inputs, labels = drawn((2, 5, 5), 6)
    frozen = filtered(model, inputs, labels)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    free = filtered(model, inputs, labels)
    assert all(torch.equal(frozen[name], scores) for name, scores in free.items())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_in_training_mode_is_refused() -> None:
    inputs, labels = drawn((2, 5, 5), 6)
    with pytest.raises(ConfigError, match=r"training mode, where records influence each other; call model.eval"):
        scored(residual().train(), inputs, labels)
