"""Each mend does what it says to the weights, and no more; readers undo what can be undone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from engram.core.errors import ConfigError
from engram.defences.mends import Distillation, MainDirections, Pruning, Rank, Rounding, families, parse_mend
from engram.defences.weights import Coloured, Public, WeightNoise, entering, set_weight, shrunk
from engram.members.layers import layer_weight, readable_layers
from engram.models.tasks import Multiclass
from tests.defences.cases import CLASSES, samples, trained


def public(n: int = 60) -> Public:
    images, labels = samples(n, seed=5)
    return Public(images - images.mean(0), labels, Multiclass(CLASSES))


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    first = nn.Conv2d(1, 8, 3, padding=1)
    grouped = nn.Conv2d(8, 12, 3, groups=4, bias=False)
    return nn.Sequential(first, nn.ReLU(), grouped, nn.ReLU(), nn.Flatten(), nn.Linear(12 * 36, CLASSES)).eval()


MODELS = {"dense": lambda: trained(samples(40, 0), epochs=20), "convolutional": convolutional}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("shaped", [False, True])
def test_noise_has_the_size_it_says_in_what_leaves_a_layer(kind: str, shaped: bool) -> None:
    model, known = MODELS[kind](), public()
    layers = readable_layers(model)
    ratios: dict[str, list[float]] = {name: [] for name in layers}
    for seed in range(20):  # a last layer of a few outputs has little to average over
        made = readable_layers(WeightNoise(0.5, shaped=shaped).apply(model, known, seed).model)
        for name, before in layers.items():
            columns, weight = entering(model, before, known.inputs), layer_weight(before)
            left = (columns @ (layer_weight(made[name]) - weight).mT).square().sum()
            ratios[name].append(float(left / (columns @ weight.mT).square().sum()))
    for name, found in ratios.items():
        assert sum(found) / len(found) == pytest.approx(0.25, rel=0.35), name


def test_shaped_noise_is_least_where_inputs_are() -> None:
    """At the same effect on outputs there is far more of it elsewhere."""
    model, known = MODELS["dense"](), public(30)  # fewer records than pixels: some directions are empty
    sizes = {}
    for shaped in (False, True):
        made = WeightNoise(0.5, shaped=shaped).apply(model, known, seed=1).model
        before, after = (layer_weight(next(iter(readable_layers(one).values()))) for one in (model, made))
        sizes[shaped] = float((after - before).norm())
    assert sizes[True] > 2 * sizes[False]


def slow_shrinkage(noisy: Tensor) -> Tensor:
    """Value by value, from how noise turns singular vectors (Gavish and Donoho 2017, section 3)."""
    u, values, vh = torch.linalg.svd(noisy, full_matrices=False)
    large, small = max(noisy.shape), min(noisy.shape)
    beta = small / large
    kept = []
    for value in values.tolist():
        y = value / math.sqrt(large)
        if y <= 1 + math.sqrt(beta):
            kept.append(0.0)
            continue
        # the true value x of y = sqrt((x + 1/x) (x + beta/x)), and the cosines of both singular vectors
        b = y**2 - 1 - beta
        x2 = (b + math.sqrt(b**2 - 4 * beta)) / 2
        left = math.sqrt((x2**2 - beta) / (x2 * (x2 + beta)))
        right = math.sqrt((x2**2 - beta) / (x2 * (x2 + 1)))
        kept.append(math.sqrt(x2) * left * right * math.sqrt(large))
    found: Tensor = (u * torch.tensor(kept, dtype=noisy.dtype)) @ vh
    return found


def test_shrinkage_is_that_of_the_paper_and_takes_noise_off() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = 4 * torch.randn(60, 3, generator=generator).double() @ torch.randn(3, 90, generator=generator).double()
    noisy = truth + torch.randn(60, 90, generator=generator).double()
    torch.testing.assert_close(shrunk(noisy), slow_shrinkage(noisy))
    assert (shrunk(noisy) - truth).norm() < 0.4 * (noisy - truth).norm()
    assert float(shrunk(torch.randn(60, 90, generator=generator).double() * 0.9).norm()) == 0


def test_whitening_undoes_colouring() -> None:
    columns = public().inputs.flatten(1).double()
    rows = torch.randn(7, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    colour = Coloured.like(columns).times(torch.tensor(2.0).double())
    torch.testing.assert_close(colour.whitened(colour.coloured(rows)), rows)


def test_who_knows_of_the_noise_reads_the_weights_better() -> None:
    model, known = trained(samples(40, 0)), public()
    found = WeightNoise(0.5, shaped=True).apply(model, known, seed=2)
    wanted = layer_weight(next(iter(readable_layers(model).values())))
    plain, informed = (layer_weight(next(iter(readable_layers(one).values()))) for one in found.readings())
    assert (informed - wanted).norm() < 0.7 * (plain - wanted).norm()


@pytest.mark.parametrize("kind", MODELS)
def test_directions_leave_nothing_outside_them(kind: str) -> None:
    model, known = MODELS[kind](), public()
    found = MainDirections(0.5).apply(model, known, seed=0)
    layer = next(iter(readable_layers(found.model).values()))
    weight = layer.weight.detach().flatten(1).double()
    rank = int(torch.linalg.matrix_rank(weight, rtol=1e-5))
    assert rank < min(weight.shape)
    # an attacker who looks at these directions alone gets the same outputs
    plain, projected = (one(known.inputs) for one in found.readings())
    torch.testing.assert_close(projected, plain, rtol=1e-4, atol=1e-4)


def test_all_directions_change_nothing_on_the_records_they_were_found_from() -> None:
    model, known = MODELS["dense"](), public(30)
    made = MainDirections(0.999999).apply(model, known, seed=0).model
    torch.testing.assert_close(made(known.inputs), model(known.inputs), rtol=1e-3, atol=1e-3)


def test_rank_rounding_and_pruning() -> None:
    model, known = MODELS["dense"](), public()
    first = next(iter(readable_layers(Rank(3).apply(model, known, 0).model).values()))
    assert int(torch.linalg.matrix_rank(layer_weight(first)[0], rtol=1e-4)) == 3
    for bits in (1, 2, 4):
        rounded = next(iter(readable_layers(Rounding(bits).apply(model, known, 0).model).values()))
        assert len(set(layer_weight(rounded).flatten().tolist())) <= 2**bits
    pruned = list(readable_layers(Pruning(0.9).apply(model, known, 0).model).values())
    assert float((pruned[0].weight == 0).double().mean()) == pytest.approx(0.9, abs=0.01)
    assert bool((pruned[-1].weight != 0).all())


def test_rounding_takes_the_best_scale() -> None:
    model, known = MODELS["dense"](), public()
    before, after = (
        layer_weight(next(iter(readable_layers(one).values())))
        for one in (model, Rounding(4).apply(model, known, 0).model)
    )
    largest = before.abs().max()
    plain = (before / (largest / 7)).round().clamp(-7, 7) * (largest / 7)
    assert (after - before).norm() <= (plain - before).norm() * (1 + 1e-6)


@pytest.mark.parametrize(
    "text", ["tune 3 epochs", "distil 3 epochs", "relabel 3 epochs", "noise 0.3", "directions 70%", "prune 80%"]
)
def test_a_mend_leaves_the_model_and_the_global_generator_alone(text: str) -> None:
    mend = parse_mend(text)
    model, known = MODELS["dense"](), public()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first, second = (mend.apply(model, known, 3).model.state_dict() for _ in range(2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], before[name]) for name in first)


def test_a_distilled_network_starts_afresh() -> None:
    """With one epoch it is near a start that is not the old one, though the seed is the same."""
    model, known = trained(samples(40, 0)), public()
    made = Distillation(1).apply(model, known, 0).model
    old, new = (next(iter(readable_layers(one).values())).weight.detach() for one in (model, made))
    assert torch.nn.functional.cosine_similarity(old.flatten(), new.flatten(), dim=0) < 0.3


def test_chains_keep_every_reader() -> None:
    found = parse_mend("shaped noise 0.3 + directions 90% + tune 2 epochs").apply(MODELS["dense"](), public(), 0)
    assert len(found.readings()) == 3


def test_every_text_can_be_read_back() -> None:
    for _, ladder in families():
        for mend in ladder:
            assert parse_mend(mend.text) == mend


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("noise", "there is no mend 'noise'"),
        ("rank 0", "rank must be at least 1"),
        ("directions 120%", "directions must be between"),
        ("noise 0.0.1", "there is no mend"),
        ("round 40 bits", "round must be 1 to 16 bits"),
        ("melt 3", "for example: noise 0.5"),
    ],
)
def test_a_text_that_is_no_mend_is_refused(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        parse_mend(text)


def test_weights_in_parts_are_refused() -> None:
    model = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
    with pytest.raises(ConfigError, match="merge them first"):
        WeightNoise(0.1).apply(
            nn.Sequential(model), Public(torch.rand(5, 4), torch.zeros(5).long(), Multiclass(2)), 0
        )


def test_weights_can_be_set_by_groups() -> None:
    layer = nn.Conv2d(4, 6, 3, groups=2)
    weight = layer_weight(layer)
    set_weight(layer, 2 * weight)
    torch.testing.assert_close(layer_weight(layer), 2 * weight)
