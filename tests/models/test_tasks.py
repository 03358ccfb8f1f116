"""Tasks compared with autograd, torch's losses, and the stationary points of training."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engram.attacks.published import residuals
from engram.core.errors import ConfigError
from engram.models.tasks import (
    Binary,
    Multiclass,
    MulticlassPairs,
    Regression,
    Task,
    infer_task,
    own_classes,
    task_named,
)
from tests import cases

TASKS = pytest.mark.parametrize("task", cases.TASKS, ids=lambda task: f"{task.name}-{task.outputs}")


def logits_and_labels(task: Task, n: int = 12, seed: int = 1) -> tuple[Tensor, Tensor]:
    logits, labels = cases.points(n, task.outputs, seed=seed, labels=task.label_count)
    return logits.requires_grad_(), labels


@pytest.mark.parametrize("task", [Binary(), Multiclass(2), Multiclass(5)], ids=repr)
def test_output_weights_are_the_gradient_of_duals_times_margins(task: Task) -> None:
    logits, labels = logits_and_labels(task)
    duals = torch.linspace(0.1, 2.0, 12, dtype=torch.float64)
    (expected,) = torch.autograd.grad((duals * task.margins(logits, labels)).sum(), logits)
    torch.testing.assert_close(task.output_weights(labels, duals, logits), expected, rtol=0, atol=1e-12)


def test_pair_weights_are_the_gradient_of_every_difference() -> None:
    task = MulticlassPairs(4)
    logits, labels = logits_and_labels(task)
    duals = task.draw_duals(labels, torch.Generator().manual_seed(0))
    total = sum(
        duals[i, j] * (logits[i, y] - logits[i, j])
        for i, y in enumerate(labels.tolist())
        for j in range(4)
        if j != y
    )
    assert isinstance(total, Tensor)
    (expected,) = torch.autograd.grad(total, logits)
    found = task.output_weights(labels, duals, logits)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.sum(1), torch.zeros(12, dtype=torch.float64), rtol=0, atol=1e-12)


def test_pairs_with_only_the_runner_up_are_the_published_form() -> None:
    logits, labels = logits_and_labels(Multiclass(4))
    duals = torch.rand(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    one_each = Multiclass(4).output_weights(labels, duals, logits)
    pairs = (-one_each).clamp(min=0)  # lambda_i in the column of the runner-up
    torch.testing.assert_close(MulticlassPairs(4).output_weights(labels, pairs, logits), one_each)
    torch.testing.assert_close(MulticlassPairs(4).sample_duals(pairs), duals)


def test_gradient_reaches_the_duals_and_not_the_logits() -> None:
    for task in cases.TASKS:
        logits, labels = logits_and_labels(task)
        duals = task.draw_duals(labels, torch.Generator().manual_seed(0)).requires_grad_()
        found = task.output_weights(labels, duals, logits)
        by_duals, by_logits = torch.autograd.grad(found.square().sum(), (duals, logits), allow_unused=True)
        assert by_duals.abs().sum() > 0
        assert by_logits is None


def _duals_of_decay(task: Task, logits: Tensor, labels: Tensor, decay: float) -> Tensor:
    """The duals at a stationary point of training with weight decay, as the papers derive them."""
    if isinstance(task, MulticlassPairs):
        others = logits.softmax(1).masked_fill(torch.nn.functional.one_hot(labels, task.outputs).bool(), 0)
        return others / (len(labels) * decay)
    if isinstance(task, Regression):
        y = torch.where(labels == 1, 1.0, -1.0).double()
        miss = logits.squeeze(1) - y
        slopes = {
            "l2": 2 * miss,
            "l2.5": 2.5 * miss.sign() * miss.abs() ** 1.5,
            "huber": miss.clamp(-1, 1),
        }
        return -slopes[task.kind] / (len(labels) * decay)
    return torch.sigmoid(-task.margins(logits, labels)) / (len(labels) * decay)  # two classes: logistic


@pytest.mark.parametrize(
    "task", [task for task in cases.TASKS if task != Multiclass(4)], ids=lambda task: f"{task.name}-{task.outputs}"
)
def test_stationarity_is_the_gradient_of_the_loss_with_weight_decay(task: Task) -> None:
    """theta - sum_i sum_k c_ik dPhi_k(x_i) = (1/w) d(loss + w/2 |theta|²)/dtheta for the loss's own duals.

    Holds at every theta, so it is zero where training ends. (With more than two classes the runner-up alone is
    an approximation, so that form is left out.)
    """
    decay = 0.03
    network = cases.network(5, 8, 6, task.outputs, bias="all")
    inputs, labels = cases.points(12, 5, labels=task.label_count)
    params = {name: value.clone().requires_grad_() for name, value in network.params.items()}
    logits = network.with_params(params)(inputs)
    energy = torch.stack([value.square().sum() for value in params.values()]).sum()
    expected = torch.autograd.grad(task.loss(logits, labels) + decay / 2 * energy, list(params.values()))
    duals = _duals_of_decay(task, logits.detach(), labels, decay)
    # The released form divides by m: its duals are m times the paper's.
    found = residuals(network, task, torch.relu, inputs, labels, len(inputs) * duals)
    for (name, value), gradient in zip(found.items(), expected, strict=True):
        torch.testing.assert_close(value.detach(), gradient / decay, rtol=0, atol=1e-10, msg=name)
    assert task.has_signed_duals or bool((duals >= 0).all())
    if task.has_signed_duals:
        short = logits.detach().squeeze(1).abs() < 1
        assert short.any()
        assert torch.equal(task.sample_labels(labels, duals)[short], labels[short])


@TASKS
def test_margins_and_accuracy_by_hand(task: Task) -> None:
    logits, labels = logits_and_labels(task)
    for row, label, margin, right in zip(
        logits.tolist(),
        labels.tolist(),
        task.margins(logits, labels).tolist(),
        task.correct(logits, labels).tolist(),
        strict=True,
    ):
        others = [value for k, value in enumerate(row) if k != label]
        expected = row[label] - max(others) if task.outputs > 1 else row[0] * (1 if label == 1 else -1)
        assert margin == pytest.approx(expected, abs=1e-12)
        assert right == (expected > 0)


def test_pair_duals_start_with_the_same_sums_and_zero_for_the_own_class() -> None:
    labels = torch.arange(3000) % 4
    duals = MulticlassPairs(4).draw_duals(labels, torch.Generator().manual_seed(0))
    assert duals.shape == (3000, 4)
    assert bool((duals.gather(1, labels[:, None]) == 0).all())
    assert float(duals.sum(1).mean()) == pytest.approx(0.5, abs=0.01)
    assert 0 <= float(duals.min()) < float(duals.max()) <= 1 / 3


def test_regression_duals_start_with_either_sign() -> None:
    duals = Regression().draw_duals(torch.zeros(3000), torch.Generator().manual_seed(0))
    assert float(duals.mean()) == pytest.approx(0, abs=0.05)
    assert float(duals.std()) == pytest.approx(1, abs=0.05)
    assert not Regression().dual_shortfall(torch.zeros(3000), duals, 0.5).any()


@TASKS
def test_task_is_found_by_its_name(task: Task) -> None:
    assert task_named(task.name, task.outputs) == task


def test_task_is_inferred_from_the_outputs() -> None:
    assert infer_task(1) == Binary()
    assert infer_task(10) == Multiclass(10)
    assert [own_classes(task.name) for task in cases.TASKS] == [False, True, True, True, False, False, False]


@pytest.mark.parametrize("name", ["poetry", "regression", "regression:", "multiclass:all", "binary:x"])
def test_unknown_names_are_refused_with_a_list_of_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=r"task must be one of binary, multiclass, .*regression:huber, got"):
        task_named(name, 3)


@pytest.mark.parametrize("kind", ["l", "l1", "l0.5", "l-2", "l2.5.1", "mse", "linf"])
def test_losses_are_checked(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"loss must be huber, or l followed by a power above 1, got .*l2"):
        Regression(kind)


def test_one_class_is_not_a_multiclass_task() -> None:
    with pytest.raises(
        ConfigError, match=r"classes must be at least 2.*got 1; a network with one output is binary"
    ):
        task_named("multiclass", 1)
