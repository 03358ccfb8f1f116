"""Training compared with torch's own optimiser, and the options of recipes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engram.core.errors import ConfigError
from engram.core.loop import Budget, Snapshots, StopReason, run
from engram.models.tasks import Binary, Multiclass, Task
from engram.training.descent import GradientDescent
from engram.training.recipe import MLPSpec, Recipe
from engram.training.target import measure, train
from tests import cases


def _torch_twin(
    start_params: list[torch.Tensor], recipe: Recipe, inputs: torch.Tensor, labels: torch.Tensor, task: Task
) -> None:
    """The same descent with torch.nn and torch.optim, in place."""
    w1, b1, w2, w3 = start_params
    optimiser = torch.optim.SGD(start_params, lr=recipe.lr, weight_decay=recipe.weight_decay)
    for _ in range(recipe.epochs):
        optimiser.zero_grad()
        hidden = torch.relu(torch.relu(inputs @ w1.T + b1) @ w2.T)
        loss = _torch_loss(task.name, hidden @ w3.T, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def _torch_loss(name: str, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if name.startswith("multiclass"):
        return torch.nn.NLLLoss()(torch.log_softmax(logits, 1), labels)  # type: ignore[no-any-return]
    one = logits.squeeze(1)
    targets = torch.where(labels == 1, 1.0, -1.0).double()
    losses: dict[str, Callable[[], torch.Tensor]] = {
        "binary": lambda: torch.nn.BCEWithLogitsLoss()(one, labels.double()),
        "regression:l2": lambda: torch.nn.MSELoss()(one, targets),
        "regression:l2.5": lambda: ((one - targets).square() ** 1.25).mean(),
        "regression:huber": lambda: torch.nn.SmoothL1Loss()(one, targets),
    }
    return losses[name]()


@pytest.mark.parametrize("task", cases.TASKS, ids=lambda task: f"{task.name}-{task.outputs}")
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_full_batch_descent_equals_torch_sgd(weight_decay: float, task: Task) -> None:
    inputs, labels = cases.points(10, 4, labels=task.label_count)
    recipe = Recipe(lr=0.1, epochs=20, weight_decay=weight_decay, dtype="float64")
    start = cases.network(4, 6, 5, task.outputs)
    twin = [value.clone().requires_grad_() for value in start.params.values()]
    _torch_twin(twin, recipe, inputs, labels, task)
    descent = GradientDescent(start, task, recipe, inputs, labels)
    solution = run(descent, Budget(steps=20))
    for (name, expected), value in zip(start.params.items(), twin, strict=True):
        assert not torch.equal(solution.state[name], expected)
        torch.testing.assert_close(solution.state[name], value.detach(), rtol=0, atol=1e-12)


def test_a_batch_of_everything_is_full_batch_descent() -> None:
    inputs, labels = cases.points(10, 4)
    start = cases.network(4, 6, 1)

    def weights(batch: int | None) -> torch.Tensor:
        descent = GradientDescent(start, Binary(), Recipe(epochs=5, batch=batch, dtype="float64"), inputs, labels)
        return run(descent, Budget(steps=5)).state["layers.0.weight"]

    torch.testing.assert_close(weights(10), weights(None), rtol=0, atol=1e-12)
    assert not torch.allclose(weights(3), weights(None), rtol=0, atol=1e-6)


def test_normalised_rate_is_lr_times_threshold_over_loss() -> None:
    inputs, labels = cases.points(10, 4)
    start = cases.network(4, 6, 1)
    loss = measure(start, Binary(), inputs, labels).loss

    def moved(recipe: Recipe) -> torch.Tensor:
        state = run(GradientDescent(start, Binary(), recipe, inputs, labels), Budget(steps=1)).state
        return state["layers.0.weight"] - start.weights[0]

    plain = moved(Recipe(dtype="float64"))
    above = moved(Recipe(dtype="float64", normalise_below=loss / 2))
    below = moved(Recipe(dtype="float64", normalise_below=loss * 3))
    torch.testing.assert_close(above, plain)
    torch.testing.assert_close(below, 3 * plain)


def test_stops_at_the_loss_threshold() -> None:
    inputs, labels = cases.points(6, 5)
    recipe = Recipe(lr=0.5, epochs=5000, loss_threshold=0.05, dtype="float64")
    spec = MLPSpec(inputs=5, widths=(50, 50))
    network, solution = train(spec, recipe, Binary(), inputs, labels)
    assert solution.reason is StopReason.FINISHED
    quality = measure(network, Binary(), inputs, labels)
    assert quality.loss < 0.05
    assert quality.accuracy == 1
    assert quality.smallest_margin > 0


def test_ten_classes_are_learnt() -> None:
    inputs, labels = cases.points(40, 30, labels=10)
    recipe = Recipe(lr=0.5, epochs=3000, loss_threshold=0.05, dtype="float64")
    network, _ = train(MLPSpec(inputs=30, widths=(60,), outputs=10), recipe, Multiclass(10), inputs, labels)
    quality = measure(network, Multiclass(10), inputs, labels)
    assert quality.loss < 0.05
    assert quality.accuracy == 1
    assert network(inputs).argmax(1).tolist() == labels.tolist()


def test_divergence_names_the_rate() -> None:
    inputs, labels = cases.points(6, 5)
    _, solution = train(MLPSpec(inputs=5, widths=(8,)), Recipe(lr=1e30, epochs=50), Binary(), 1e8 * inputs, labels)
    assert solution.reason is StopReason.DIVERGED
    assert "lower the learning rate (lr is 1e+30)" in solution.message


@pytest.mark.parametrize("batch", [None, 4])
def test_resumed_training_is_bit_identical(tmp_path: Path, batch: int | None) -> None:
    inputs, labels = cases.points(10, 4)
    spec = MLPSpec(inputs=4, widths=(6, 6))

    def network(epochs: int, snapshots: Snapshots | None, resume: bool = False) -> dict[str, torch.Tensor]:
        start = spec.initialise(torch.Generator().manual_seed(0))
        descent = GradientDescent(start, Binary(), Recipe(batch=batch), inputs.float(), labels)
        return run(descent, Budget(steps=epochs), snapshots=snapshots, resume=resume).state

    whole = network(30, None)
    snapshots = Snapshots(path=tmp_path / "s")
    network(11, snapshots)
    resumed = network(30, snapshots, resume=True)
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_drawing_a_wide_layer_in_parts_changes_nothing() -> None:
    spec = MLPSpec(inputs=3, widths=(2500,), first_layer_std=None)
    drawn = spec.initialise(torch.Generator().manual_seed(4))
    generator = torch.Generator().manual_seed(4)
    whole = torch.empty(2500, 3, dtype=torch.float64).uniform_(-1 / 3**0.5, 1 / 3**0.5, generator=generator)
    assert torch.equal(drawn.weights[0], whole.float())


def test_initialisation_scales() -> None:
    spec = MLPSpec(inputs=400, widths=(300, 200), bias="all")
    network = spec.initialise(torch.Generator().manual_seed(0))
    assert float(network.weights[0].std()) == pytest.approx(1e-4, rel=0.02)
    assert network.biases[0] is not None
    assert float(network.biases[0].std()) == pytest.approx(1e-4, rel=0.2)
    bound = 1 / math.sqrt(300)
    assert 0.99 * bound < float(network.weights[1].abs().max()) <= bound
    assert network.biases[1] is not None
    assert network.biases[2] is None
    spec = MLPSpec(inputs=400, widths=(300,), first_layer_std=None)
    standard = spec.initialise(torch.Generator().manual_seed(0))
    assert 0.99 / 20 < float(standard.weights[0].abs().max()) <= 1 / 20


@pytest.mark.parametrize(
    ("bias", "expected"),
    [("first", [True, False, False]), ("all", [True, True, False]), ("none", [False] * 3)],
)
def test_bias_policies(bias: str, expected: list[bool]) -> None:
    spec = MLPSpec(inputs=3, widths=(4, 5), bias=bias)  # type: ignore[arg-type]
    network = spec.initialise(torch.Generator().manual_seed(0))
    assert [value is not None for value in network.biases] == expected
    assert network.is_homogeneous == (bias != "all")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Recipe(lr=0), "lr must be positive, got 0; the paper uses 0.01"),
        (lambda: Recipe(epochs=0), "epochs must be positive"),
        (lambda: Recipe(weight_decay=-1), "weight_decay must not be negative"),
        (lambda: Recipe(loss_threshold=0.0), "loss_threshold must be positive"),
        (lambda: MLPSpec(inputs=3, widths=()), "widths must name at least one hidden layer"),
        (lambda: MLPSpec(inputs=3, bias="some"), "bias must be first, all or none"),  # type: ignore[arg-type]
        (lambda: MLPSpec(inputs=3, first_layer_std=-1.0), "first_layer_std must be positive"),
    ],
)
def test_arguments_are_checked(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]
