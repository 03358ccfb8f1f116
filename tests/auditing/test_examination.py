"""Ceiling, boundaries, margins and the verdict, on cases computed by hand and on a small trained gate."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from engram.auditing.inspect import Description, Examination, Noise, ceiling, describe, examine
from engram.auditing.verdict import inspection_record, judge
from engram.core.errors import ConfigError
from engram.data.choice import DataChoice
from engram.data.sets import Split
from engram.members.kkt import boundaries, dense_part
from engram.models.networks import DenseNetwork
from engram.models.tasks import Binary, Multiclass
from engram.models.view import AttackerView
from engram.pipeline import build_target
from engram.training.recipe import MLPSpec, Recipe
from tests.cases import network, points

Gate = tuple[AttackerView, Split, Description, Examination]


@pytest.fixture(scope="module")
def gate() -> Gate:
    """Ten faces, a 60-40 network, trained until it has memorised them."""
    choice = DataChoice(name="faces", labels="gate", n=10)
    target = build_target(choice, MLPSpec(inputs=625, widths=(60, 40)), Recipe(epochs=800, lr=0.05), Binary())
    data = choice.load()
    view = AttackerView(target.network, (1, 25, 25), Binary())
    description = describe(view, samples=10)
    found = examine(
        dense_part(view),
        description.space,
        data.train.images,
        data.train.labels,
        data.mean,
        held_out=data.held_out.images,
    )
    return view, data, description, found


def test_samples_inside_the_row_space_have_ceiling_one() -> None:
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(48, 3, generator=generator, dtype=torch.float64)).Q.T
    mean = torch.full((3, 4, 4), 0.5, dtype=torch.float64)
    latents = 0.1 * torch.randn(6, 3, generator=generator, dtype=torch.float64)
    images = mean + (latents @ basis).view(6, 3, 4, 4)
    found = ceiling(basis, images, mean)
    assert found.ssim is not None
    assert found.ncc is not None
    for values in (found.ssim, found.ncc, found.share):
        torch.testing.assert_close(values, torch.ones(6, dtype=torch.float64))
    assert found.recognisable == 6


def test_a_sample_outside_the_row_space_is_reduced_to_the_mean() -> None:
    basis = torch.eye(16, dtype=torch.float64)[:4]
    mean = torch.full((1, 4, 4), 0.5, dtype=torch.float64)
    images = mean + torch.eye(16, dtype=torch.float64)[10].view(1, 1, 4, 4) * 0.4
    found = ceiling(basis, images, mean)
    assert found.ssim is not None
    assert found.mean_ssim is not None
    torch.testing.assert_close(found.ssim, found.mean_ssim)
    assert found.share.tolist() == [0]
    assert found.recognisable == found.recognisable_by_mean


def test_the_share_is_pythagoras_and_vectors_have_no_ssim() -> None:
    found = ceiling(torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.zeros(2))
    torch.testing.assert_close(found.share, torch.tensor([0.36, 1.0], dtype=torch.float64))
    assert (found.ssim, found.ncc, found.recognisable) == (None, None, None)


@pytest.mark.parametrize("bias", ["first", "none"])
def test_boundaries_equal_a_loop(bias: str) -> None:
    target = network(4, 30, 1, bias="first" if bias == "first" else "none")
    inputs, _ = points(20, 4)
    counts = boundaries(target, inputs, width=0.1)
    for sample in range(20):
        expected = 0
        for neuron in range(30):
            row, own = target.weights[0][neuron], target.biases[0]
            offset = 0.0 if own is None else float(own[neuron])
            size = (sum(float(value) ** 2 for value in row) + offset**2) ** 0.5
            excited = sum(float(a) * float(b) for a, b in zip(row, inputs[sample], strict=True)) + offset
            expected += abs(excited) / size < 0.1
        assert int(counts[sample]) == expected
    assert int(counts.sum()) > 0


def test_a_trained_gate_is_in_reach(gate: Gate) -> None:
    view, data, description, found = gate
    outputs = view.network(data.train.images - data.mean).squeeze(1)
    signs = Binary.signs(data.train.labels, torch.float32)
    torch.testing.assert_close(found.margins.float(), signs * outputs, rtol=1e-4, atol=1e-4)
    assert found.accuracy == 1
    assert found.loss == pytest.approx(float(torch.nn.functional.softplus(-signs * outputs).mean()), rel=1e-3)
    assert found.kkt.layers[0].gap < 0.7 < found.kkt.layers[1].gap
    assert found.ceiling.recognisable == 10
    # gradients of ten centred faces span nine directions
    assert description.spectrum.rank == 9
    assert found.held_out_boundaries is not None
    assert float(found.boundaries.double().mean()) > 3 * float(found.held_out_boundaries.double().mean())
    verdict = judge(description, found)
    assert verdict.in_reach
    assert verdict.decided_by == "ceiling"
    assert verdict.sentence.startswith("In reach: 10 of 10 samples have a ceiling above SSIM 0.4")
    blind = judge(description)
    assert blind.in_reach
    assert (
        "9 directions above the noise of its initialisation, and equations for up to 60 samples" in blind.sentence
    )


def test_samples_that_the_network_never_saw_do_not_explain_it(gate: Gate) -> None:
    view, data, description, found = gate
    unseen = examine(dense_part(view), description.space, data.held_out.images, data.held_out.labels, data.mean)
    assert (unseen.held_out_boundaries, unseen.beyond_held_out) == (None, None)
    assert unseen.kkt.layers[0].gap > found.kkt.layers[0].gap + 0.2
    verdict = judge(description, unseen)
    assert not verdict.in_reach
    assert verdict.decided_by == "stationarity"


def test_noise_need_not_be_explained(gate: Gate) -> None:
    """The gap of a layer that is mostly noise is near 1 whatever the samples; what counts is the rest."""
    _, _, description, found = gate
    first, *others = description.layers
    noisy = replace(description, layers=(replace(first, noise=Noise(1.0, 0.9)), *others))
    layers = found.kkt.layers
    gaps = {"in reach": 0.96, "out of reach": 0.99}  # 8 % and 2 % explained, of 10 % that is not noise
    for gap in gaps.values():
        kkt = replace(found.kkt, layers=(replace(layers[0], gap=gap), *layers[1:]))
        verdict = judge(noisy, replace(found, kkt=kkt))
        assert verdict.in_reach == (gap == gaps["in reach"])
        assert "90%" in verdict.sentence


def test_a_ceiling_no_higher_than_that_of_the_mean_is_out_of_reach(gate: Gate) -> None:
    _, _, description, found = gate
    low = replace(found, ceiling=replace(found.ceiling, ssim=found.ceiling.mean_ssim))
    verdict = judge(description, low)
    assert (verdict.in_reach, verdict.decided_by) == (False, "ceiling")
    assert "no more than the mean image alone" in verdict.sentence


def test_weights_decide_before_samples_do() -> None:
    untrained = AttackerView(network(200, 60, 1), (200,), Binary())
    assert judge(describe(untrained)).decided_by == "row space"
    assert not judge(describe(untrained)).in_reach
    first = untrained.network.weights[0].clone()
    first[:, 0] += 0.5  # one direction above noise that is still most of the energy
    loud = untrained.network.with_params({**untrained.network.params, "layers.0.weight": first})
    verdict = judge(describe(AttackerView(loud, (200,), Binary())))
    assert (verdict.in_reach, verdict.decided_by) == (True, "row space")
    assert "% of its energy is noise, so expect few images" in verdict.sentence
    first = 1e-3 * untrained.network.weights[0]
    first[:, 0] += 0.5
    quiet = AttackerView(
        untrained.network.with_params({**untrained.network.params, "layers.0.weight": first}), (200,), Binary()
    )
    assert judge(describe(quiet, samples=60)).in_reach
    verdict = judge(describe(quiet, samples=61))
    assert (verdict.in_reach, verdict.decided_by) == (False, "equations")
    assert "61 samples are 122 unknowns in the row space, but the first layer has only 120" in verdict.sentence
    linear = AttackerView(DenseNetwork((torch.ones(1, 4),), (None,)), (4,), Binary())
    assert judge(describe(linear)).decided_by == "hidden layer"


def test_the_record_is_plain_json_with_one_row_per_sample(gate: Gate) -> None:
    view, _, description, found = gate
    verdict = judge(description, found)
    record = json.loads(json.dumps(inspection_record(view, description, verdict, found), allow_nan=False))
    each = record["samples"]["each"]
    assert [row["index"] for row in each] == list(range(10))
    assert [row["dual"] for row in each] == found.kkt.duals.tolist()
    assert record["samples"]["margins"]["min"] == pytest.approx(min(row["margin"] for row in each))
    assert record["samples"]["kkt"]["support_vectors"] == sum(row["support"] for row in each)
    assert record["samples"]["ceiling"]["recognisable"] == sum(row["ssim"] > 0.4 for row in each)
    assert len(record["samples"]["each_held_out"]) == 10
    assert inspection_record(view, description, verdict)["samples"] is None


def test_data_of_another_kind_are_refused(gate: Gate) -> None:
    view, data, description, _ = gate
    images, labels, space = data.train.images, data.train.labels, description.space
    with pytest.raises(ConfigError, match="must have the model's input shape 1x25x25, got '1x20x25'"):
        examine(dense_part(view), space, images[:, :, :20], labels, data.mean[:, :20])
    with pytest.raises(ConfigError, match="labels must be below 2 for a binary task, got 2; choose another label"):
        examine(dense_part(view), space, images, labels + 1, data.mean)
    with pytest.raises(ConfigError, match="samples must be positive, got 0"):
        describe(view, samples=0)


def test_another_task_is_described_without_a_margin() -> None:
    found = describe(AttackerView(network(30, 25, 3), (30,), Multiclass(3)))
    assert found.margin is None
    assert found.spectrum.rank >= 0
