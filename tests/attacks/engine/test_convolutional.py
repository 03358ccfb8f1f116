"""The engine for convolutions: equations compared with autograd, recovery, resuming, planning."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engram.attacks.engine.closed_form import explained
from engram.attacks.engine.convolutional import PRIOR, SPAN, ConvEngine, outside
from engram.attacks.engine.dense import Engine
from engram.attacks.engine.self_tuning import Phase
from engram.attacks.published import smoothed
from engram.attacks.registry import make_attack
from engram.attacks.settings import EngineSettings
from engram.core.errors import ConfigError
from engram.core.loop import Budget, Snapshots, run
from engram.models.activations import RELU
from engram.models.networks import ConvNetwork
from engram.models.tasks import Binary, Multiclass, MulticlassPairs, Regression, Task
from engram.models.view import AttackerView
from engram.scoring.metrics import zscored
from tests.conv_cases import SHAPE, SIZE, drawn, faces, written


@pytest.fixture(scope="module")
def images() -> Tensor:
    """The images written into the network."""
    return faces(0) - faces(0).mean(0)


@pytest.fixture(scope="module")
def others() -> Tensor:
    return faces(100) - faces(0).mean(0)


def best_ncc(images: Tensor, candidates: Tensor) -> Tensor:
    return (zscored(images) @ zscored(candidates).T / images[0].numel()).amax(1)


def test_recovers_the_written_images_and_nothing_else(images: Tensor, others: Tensor) -> None:
    engine = ConvEngine(AttackerView(written(), SHAPE, Binary()), EngineSettings(steps=200, restarts=2, prior=0.2))
    assert engine.problem.scales.space.rank <= SIZE
    found = engine.reconstruction(run(engine, Budget(steps=engine.total_steps)).state)
    assert int((best_ncc(images, found.images) > 0.8).sum()) >= 6
    assert int((best_ncc(others, found.images) > 0.8).sum()) == 0
    assert found.scores is not None
    most_confident = found.images[:4]
    assert float(best_ncc(most_confident, images).min()) > 0.8, "the most confident candidates are real"


@pytest.mark.parametrize("prior", [0.0, 0.7])
def test_candidates_in_chunks_give_the_same_gradients(prior: float) -> None:
    view = AttackerView(written(), SHAPE, Binary())
    whole, pieces = (
        ConvEngine(view, EngineSettings(candidates=10, dtype="float64", memory=memory))
        for memory in (4_000_000_000, 60_000)
    )
    assert len(whole.parts(10)) == 1
    assert len(pieces.parts(10)) >= 3
    state = {"images": whole.draw(1), "duals": torch.rand(10, dtype=torch.float64)}
    state["labels"] = torch.arange(10) % 2
    metric = whole.objective.metric(whole.latents(state["images"]), state["duals"])
    expected, found = (engine.gradients(state, metric, prior) for engine in (whole, pieces))
    assert found[0].keys() == expected[0].keys()
    for name, value in expected[0].items():
        torch.testing.assert_close(found[0][name], value)
    torch.testing.assert_close(found[1], expected[1])
    torch.testing.assert_close(found[2], expected[2])


def test_only_written_images_have_their_features_in_the_row_space(images: Tensor, others: Tensor) -> None:
    problem = ConvEngine(AttackerView(written(), SHAPE, Binary()), EngineSettings()).problem

    def share_outside(inputs: Tensor) -> Tensor:
        features = problem.features(inputs)
        return outside(features, problem.coordinates(features))

    assert float(share_outside(images).max()) < 0.5 * float(share_outside(others).min())


@pytest.mark.parametrize("task", [Binary(), Multiclass(3), MulticlassPairs(3), Regression("l2")], ids=str)
@pytest.mark.parametrize("layers", ["conv3x3 relu flatten 9 relu {}", "conv3x4s2 relu avgpool2 flatten 6 relu {}"])
def test_stationarity_and_its_gradient_equal_autograd(task: Task, layers: str) -> None:
    """The layer's predicted rows in the row space, and the whole gradient in the pixels, by double backward."""
    network = drawn(layers.format(task.outputs))
    engine = ConvEngine(
        AttackerView(network, SHAPE, task), EngineSettings(candidates=6, dtype="float64", prior=0.0, restarts=1)
    )
    state = engine.init()
    engine.step(state)
    scales, basis = engine.problem.scales, engine.problem.scales.space.basis
    upper, lower = smoothed(RELU, scales.slope), smoothed(RELU, engine.problem.feature_slope)
    labels, duals = state["labels"], state["duals"]
    images = state["images"].detach().requires_grad_()
    features = network.features(images, lower)
    weight = scales.network.weights[0].clone().requires_grad_()
    inside = features @ basis.T
    outputs = upper(inside @ weight.T) @ scales.network.weights[1].T
    task = engine.posed.task
    rows = task.output_weights(labels, duals, outputs)
    (predicted,) = torch.autograd.grad((rows * outputs).sum(), weight, create_graph=True)
    done = engine.objective.run(inside.detach(), duals, labels)
    torch.testing.assert_close(explained(done, 0), predicted, rtol=0, atol=1e-10)

    metric = engine.objective.metric(inside.detach(), duals)
    value, by_residual = engine.objective.stationarity(explained(done, 0), metric)
    sides = task.sides(labels, duals, done.outputs)
    margin, by_margin = engine.objective.margin((sides * done.outputs).sum(1), duals)
    share = engine.objective.shares(duals)
    span = SPAN * (share * (1 - inside.square().sum(1) / features.square().sum(1))).sum()
    slow = -(predicted * by_residual).sum() + ((sides * outputs).sum(1) * by_margin).sum() + span
    (expected,) = torch.autograd.grad(slow, images)
    losses, by_images, _ = engine.gradients(state, metric, 0.0)
    torch.testing.assert_close(by_images, expected, rtol=0, atol=1e-10)
    found = torch.stack([losses["stationarity"], losses["margin"], losses["outside"]])
    torch.testing.assert_close(found, torch.stack([value, margin, span.detach()]))


@pytest.mark.parametrize("stop", [7, 35, 62], ids=["first start", "second start", "its end"])
def test_resumed_anywhere_ends_bit_identical(stop: int, tmp_path: Path) -> None:
    view = AttackerView(drawn("conv3x3 relu flatten 30 relu 1", torch.float32), SHAPE, Binary())
    settings = EngineSettings(candidates=6, steps=32, restarts=2, metric_every=10)
    whole = run(ConvEngine(view, settings), Budget(steps=64)).state
    snapshots = Snapshots(path=tmp_path / "s")
    run(ConvEngine(view, settings), Budget(steps=stop), snapshots=snapshots).require_finite()
    resumed = run(ConvEngine(view, settings), Budget(steps=64), snapshots=snapshots, resume=True).state
    assert resumed.keys() == whole.keys()
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())


def test_all_starts_have_the_prior_of_convolutions() -> None:
    engine = ConvEngine(AttackerView(drawn("conv3x3 relu flatten 30 relu 1"), SHAPE, Binary()), EngineSettings())
    assert {engine._prior(Phase(index, step=3, length=10)) for index in range(3)} == {PRIOR}


def test_kernels_of_the_whole_image_are_treated_as_a_fully_connected_layer() -> None:
    side = SHAPE[-1]
    whole, part = (
        make_attack(AttackerView(drawn(f"conv{k}x9 relu flatten 8 relu 1", torch.float32), SHAPE, Binary()))
        for k in (side, side - 1)
    )
    assert isinstance(whole, Engine)
    assert whole.posed.network.sizes == (math.prod(SHAPE), 9, 8, 1)
    assert isinstance(whole.view.network, ConvNetwork), "records store what the caller gave"
    assert isinstance(part, ConvEngine)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("conv3x3 relu flatten 1", "needs a hidden fully-connected layer"),
        ("conv3x3 relu flatten 5 5 relu 1", "no fully-connected part of the form"),
    ],
)
def test_networks_without_the_layer_are_referred_to_the_other_recipe(layers: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        ConvEngine(AttackerView(drawn(layers), SHAPE, Binary()), EngineSettings())
    assert "--recipe buzaglo2023" in str(caught.value)
