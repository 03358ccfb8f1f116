"""Training along the flow: the method against closed forms, the path against plain descent, resuming."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engram.core.errors import ConfigError
from engram.core.loop import Budget, Snapshots, State, StopReason, run
from engram.data.choice import DataChoice
from engram.data.sets import centred
from engram.models.networks import DenseNetwork
from engram.models.tasks import Binary, Multiclass, Regression, Task
from engram.training.descent import GradientDescent, GramDescent
from engram.training.flow import FlowDescent, advance, reach
from engram.training.recipe import Flow, MLPSpec, Recipe
from engram.training.target import measure, train
from tests import cases


@pytest.mark.parametrize("stages", [2, 3, 8, 30])
def test_a_step_solves_linear_decay_to_second_order(stages: int) -> None:
    """y' = -a y: a step of h multiplies by 1 - z + z²/2 + O(z³), z = h a, whatever the number of stages."""
    start, decay = torch.tensor([1.0], dtype=torch.float64), 0.7

    def missed(size: float) -> float:
        moved = advance(lambda by: {"y": decay * (start + by["y"])}, {"y": decay * start}, size, stages)
        return abs(float(1 + moved["y"]) - math.exp(-decay * size))

    assert missed(0.01) < 1e-7
    assert missed(0.02) / missed(0.01) == pytest.approx(8, rel=0.05)


@pytest.mark.parametrize("stages", [2, 5, 20])
def test_stiff_modes_are_damped_within_the_stability_interval(stages: int) -> None:
    stiff = torch.linspace(0.0, 1.0, 200, dtype=torch.float64) * reach(stages)
    start = torch.ones_like(stiff)
    growth = (start + advance(lambda by: {"y": stiff * (start + by["y"])}, {"y": stiff}, 1.0, stages)["y"]).abs()
    assert float(growth.max()) <= 1 + 1e-12
    beyond = 1.3 * reach(stages)
    unstable = 1 + advance(lambda by: {"y": beyond * (1 + by["y"])}, {"y": torch.tensor(beyond)}, 1.0, stages)["y"]
    assert abs(float(unstable)) > 1


def _faces(n: int) -> tuple[Tensor, Tensor]:
    data = DataChoice(name="faces", labels="gate", n=n).load(held_out=0)
    return centred(data.train.images, data.mean).flatten(1), data.train.labels


def _until(descent: GradientDescent | FlowDescent, loss: float) -> tuple[DenseNetwork, int]:
    """The network where the loss first falls below `loss`, and the epochs it took."""
    state, epochs = descent.init(), 0
    while True:
        before = {name: value.clone() for name, value in state.items()}
        metrics = descent.step(state)
        epochs += int(metrics.get("steps", torch.tensor(1)))
        if float(metrics["loss"]) < loss:
            # plain descent reports the loss before its step, the flow the loss after it
            return descent.network(state if "rate" in metrics else before), epochs


@pytest.mark.parametrize("method", [GradientDescent, GramDescent])
def test_follows_the_path_of_plain_descent(method: type[GradientDescent]) -> None:
    """Every layer has the direction that plain descent has at the same loss, after a fraction of its epochs."""
    inputs, labels = _faces(20)
    start = MLPSpec(inputs=625, widths=(40, 40)).initialise(torch.Generator().manual_seed(0))
    plain = GramDescent(start, Binary(), Recipe(lr=0.05), inputs, labels)
    expected, plain_epochs = _until(plain, 5e-4)
    recipe = Recipe(lr=0.05, flow=Flow())
    assert recipe.flow is not None
    found, epochs = _until(FlowDescent(method(start, Binary(), recipe, inputs, labels), recipe.flow), 5e-4)
    assert epochs < plain_epochs / 4
    for name, value in expected.params.items():
        assert float(torch.cosine_similarity(found.params[name].flatten(), value.flatten(), dim=0)) > 0.995


@pytest.mark.parametrize("task", [Binary(), Multiclass(3)], ids=["binary", "multiclass"])
def test_continues_far_below_the_range_of_float32(task: Task) -> None:
    inputs, labels = cases.points(12, 20, labels=task.label_count)
    recipe = Recipe(lr=0.1, epochs=20_000, loss_threshold=1e-60, flow=Flow(below=0.5, tolerance=0.05))
    spec = MLPSpec(inputs=20, widths=(30, 30), outputs=task.outputs)
    network, solution = train(spec, recipe, task, inputs, labels)
    assert solution.reason is StopReason.FINISHED
    assert 0 < solution.loss < 1e-60
    assert solution.steps < 5000
    assert measure(network, task, inputs, labels).smallest_margin > 100


@pytest.mark.parametrize("task", [Binary(), Multiclass(3), Regression("l2")], ids=lambda task: task.name)
def test_weight_decay_ends_at_a_stationary_point(task: Task) -> None:
    """Plain descent at a small rate stays there: at the edges of neurons the gradient itself does not vanish."""
    inputs, labels = cases.points(6, 10, labels=task.label_count)
    decay, bound = 0.05, 1e-2
    recipe = Recipe(
        lr=0.05,
        epochs=10_000,
        weight_decay=decay,
        gradient_threshold=bound,
        flow=Flow(tolerance=0.03),
        dtype="float64",
    )
    spec = MLPSpec(inputs=10, widths=(8,), outputs=task.outputs, first_layer_std=None)
    network, solution = train(spec, recipe, task, inputs, labels)
    assert solution.reason is StopReason.FINISHED
    assert measure(network, task, inputs, labels).accuracy == 1, "a balance of loss and decay, not the origin"
    slow = GradientDescent(network, task, Recipe(lr=0.01, weight_decay=decay, dtype="float64"), inputs, labels)
    later = slow.network(run(slow, Budget(steps=1000)).state)
    squares = sum(float((later.params[name] - value).square().sum()) for name, value in network.params.items())
    assert math.sqrt(squares) / (1000 * 0.01) < bound


def test_plain_descent_stops_at_the_gradient_threshold_too() -> None:
    inputs, labels = cases.points(6, 12)
    recipe = Recipe(lr=0.1, epochs=5000, weight_decay=0.05, gradient_threshold=2e-2, dtype="float64")
    _, solution = train(MLPSpec(inputs=12, widths=(10,)), recipe, Binary(), inputs, labels)
    assert solution.reason is StopReason.FINISHED
    assert 100 <= solution.steps < 5000


@pytest.mark.parametrize("epochs", [20, 200])
def test_resumed_is_bit_identical(tmp_path: Path, epochs: int) -> None:
    """Interrupted before and after the flow starts."""
    inputs, labels = cases.points(10, 14)
    spec, recipe = MLPSpec(inputs=14, widths=(12, 12)), Recipe(lr=0.3, flow=Flow(below=0.5))

    def state(budget: int, snapshots: Snapshots | None, resume: bool = False) -> State:
        start = spec.initialise(torch.Generator().manual_seed(0))
        assert recipe.flow is not None
        descent = FlowDescent(GramDescent(start, Binary(), recipe, inputs.float(), labels), recipe.flow)
        return run(descent, Budget(steps=budget), snapshots=snapshots, resume=resume).state

    whole = state(400, None)
    assert "_size" in whole
    snapshots = Snapshots(path=tmp_path / "s")
    assert ("_size" in state(epochs, snapshots)) == (epochs == 200)
    resumed = state(400, snapshots, resume=True)
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_first_step_far_too_long_is_rejected() -> None:
    inputs, labels = cases.points(10, 14)
    recipe = Recipe(lr=1e4, epochs=1000, loss_threshold=1e-6, flow=Flow(below=10.0))
    _, solution = train(MLPSpec(inputs=14, widths=(12,)), recipe, Binary(), 1e-3 * inputs, labels)
    assert solution.reason is not StopReason.DIVERGED


@pytest.mark.parametrize("task", cases.TASKS, ids=lambda task: f"{task.name}-{task.outputs}")
def test_log_loss_is_the_log_of_the_loss(task: Task) -> None:
    logits = 5 * torch.randn(9, task.outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(9) % task.label_count
    torch.testing.assert_close(task.log_loss(logits, labels), task.loss(logits, labels).log())


@pytest.mark.parametrize("task", [Binary(), Multiclass(3)], ids=["binary", "multiclass"])
def test_log_loss_and_its_gradient_do_not_underflow(task: Task) -> None:
    labels = torch.tensor([0, 1])
    logits = torch.zeros(2, task.outputs)
    side = torch.tensor([-1.0, 1.0])[:, None] if task.outputs == 1 else torch.eye(3)[:2]
    logits = (logits + 500 * side).requires_grad_()
    log_loss = task.log_loss(logits, labels)
    assert float(log_loss.detach()) == pytest.approx(-500 + math.log(max(task.outputs - 1, 1)), abs=1e-3)
    (gradient,) = torch.autograd.grad(log_loss, logits)
    assert float((gradient * side).sum()) == pytest.approx(-1, abs=1e-4), "half of it from each sample"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Flow(tolerance=0.5), "tolerance must be above 0 and at most 0.1, got 0.5"),
        (lambda: Flow(below=0), "below must be positive"),
        (lambda: Recipe(flow=Flow(), batch=5), "batch must be left out with flow"),
        (lambda: Recipe(gradient_threshold=1.0, batch=5), "batch must be left out with gradient_threshold"),
        (lambda: Recipe(flow=Flow(), normalise_below=0.1), "normalise_below must be left out with flow"),
        (lambda: Recipe(gradient_threshold=0.0), "gradient_threshold must be positive"),
    ],
)
def test_arguments_are_checked(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]
