"""Gram-space training equals plain descent; so do mini-batches without gradient arrays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engram.core.errors import ConfigError
from engram.core.loop import Budget, run
from engram.models.networks import DenseNetwork
from engram.models.tasks import Binary, Task
from engram.training.descent import BatchDescent, GradientDescent, GramDescent
from engram.training.recipe import BiasPolicy, Recipe
from engram.training.target import make_descent
from tests import cases

ALL = Recipe(lr=0.3, batch=4, weight_decay=0.05, normalise_below=0.5, dtype="float64")
PLAIN_AND_BATCH: tuple[type[GradientDescent[DenseNetwork]], ...] = (GradientDescent, BatchDescent)


@pytest.mark.parametrize("bias", ["first", "all", "none"])
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(lr=0.3, dtype="float64"),
        Recipe(lr=0.3, batch=3, dtype="float64"),
        Recipe(lr=0.3, weight_decay=0.05, dtype="float64"),
        Recipe(lr=0.3, weight_decay=0.05, forget=7, dtype="float64"),
        ALL,
    ],
    ids=["full", "batches", "decay", "forget", "all"],
)
def test_equals_plain_descent(recipe: Recipe, bias: BiasPolicy) -> None:
    _compare(recipe, bias, Binary())


@pytest.mark.parametrize("task", cases.TASKS, ids=lambda task: f"{task.name}-{task.outputs}")
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_equals_plain_descent_for_every_task(task: Task, weight_decay: float) -> None:
    _compare(Recipe(lr=0.1, batch=4, weight_decay=weight_decay, dtype="float64"), "all", task)


@pytest.mark.parametrize("task", cases.TASKS, ids=lambda task: f"{task.name}-{task.outputs}")
@pytest.mark.parametrize(
    "recipe", [Recipe(lr=0.1, batch=4, dtype="float64"), replace(ALL, lr=0.02)], ids=["plain", "all"]
)
@pytest.mark.parametrize("bias", ["first", "all"])
def test_batches_without_gradients_equal_plain_descent(recipe: Recipe, bias: BiasPolicy, task: Task) -> None:
    _compare(recipe, bias, task, BatchDescent)


def test_batches_train_a_single_layer_too() -> None:
    inputs, labels = cases.points(10, 4)
    recipe = Recipe(lr=0.1, batch=4, dtype="float64")
    start = DenseNetwork((torch.ones(1, 4, dtype=torch.float64),), (None,))
    states = [
        run(kind(start, Binary(), recipe, inputs, labels), Budget(steps=5)).state for kind in PLAIN_AND_BATCH
    ]
    torch.testing.assert_close(states[1]["layers.0.weight"], states[0]["layers.0.weight"], rtol=0, atol=1e-12)


def test_forget_removes_what_decay_left_of_the_initialisation() -> None:
    """With zero inputs and no biases, the initialisation is all there is."""
    start = cases.network(15, 8, 6, 1, bias="none")
    recipe = Recipe(lr=0.3, weight_decay=0.05, forget=7, dtype="float64")
    inputs, labels = torch.zeros(10, 15, dtype=torch.float64), torch.arange(10) % 2
    descent = GradientDescent(start, Binary(), recipe, inputs, labels)
    before, after = (run(descent, Budget(steps=steps)).state for steps in (6, 7))
    for name, value in start.params.items():
        torch.testing.assert_close(before[name], value * (1 - 0.3 * 0.05) ** 6)
        torch.testing.assert_close(after[name], torch.zeros_like(value), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"forget": 5}, "needs weight_decay"),
        ({"forget": 10**7, "weight_decay": 0.1}, "between 0 and the epochs"),
        ({"forget": 5, "weight_decay": 0.1, "batch": 3}, "needs full batches and a constant rate"),
    ],
)
def test_forgetting_needs_decay_and_plain_epochs(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recipe(**wrong)


def test_an_unused_option_does_not_change_cache_keys() -> None:
    assert "forget" not in Recipe(weight_decay=0.1).settings()
    assert Recipe(weight_decay=0.1, forget=5).settings()["forget"] == 5


def test_training_uses_the_cheapest_form() -> None:
    """Gram space with fewer images than pixels; else batches, if there are any."""
    inputs, labels = cases.points(10, 15)
    dense = cases.network(15, 8, 1)
    kinds = {
        (rows, batch): type(make_descent(dense, Binary(), Recipe(batch=batch), inputs.repeat(rows, 1), labels))
        for rows in (1, 2)
        for batch in (None, 4)
    }
    assert kinds == {(1, None): GramDescent, (1, 4): GramDescent, (2, None): GradientDescent, (2, 4): BatchDescent}


def _compare(
    recipe: Recipe, bias: BiasPolicy, task: Task, kind: type[GradientDescent[DenseNetwork]] = GramDescent
) -> None:
    inputs, labels = cases.points(10, 15, labels=task.label_count)
    start = cases.network(15, 8, 6, task.outputs, bias=bias)
    plain, other = (method(start, task, recipe, inputs, labels) for method in (GradientDescent, kind))
    solutions = [run(descent, Budget(steps=60)) for descent in (plain, other)]
    assert solutions[1].loss == pytest.approx(solutions[0].loss, rel=1e-9)
    expected, found = plain.network(solutions[0].state).params, other.network(solutions[1].state).params
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert not torch.allclose(value, start.params[name], atol=1e-3)
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10)
