"""Gram-space training is plain descent, seen from the images."""

from __future__ import annotations

import pytest
import torch

from engram.loop import Budget, run
from engram.targets.descent import GradientDescent
from engram.targets.gram import GramDescent
from engram.targets.recipe import Recipe
from engram.targets.spec import BiasPolicy
from engram.task import Binary, Task
from tests import cases


@pytest.mark.parametrize("bias", ["first", "all", "none"])
@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(lr=0.3, dtype="float64"),
        Recipe(lr=0.3, batch=3, dtype="float64"),
        Recipe(lr=0.3, weight_decay=0.05, dtype="float64"),
        Recipe(lr=0.3, batch=4, weight_decay=0.05, normalise_below=0.5, dtype="float64"),
    ],
    ids=["full", "batches", "decay", "all"],
)
def test_equals_plain_descent(recipe: Recipe, bias: BiasPolicy) -> None:
    _compare(recipe, bias, Binary())


@pytest.mark.parametrize("task", cases.TASKS, ids=lambda task: f"{task.name}-{task.outputs}")
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_equals_plain_descent_for_every_task(task: Task, weight_decay: float) -> None:
    _compare(Recipe(lr=0.1, batch=4, weight_decay=weight_decay, dtype="float64"), "all", task)


def _compare(recipe: Recipe, bias: BiasPolicy, task: Task) -> None:
    inputs, labels = cases.points(10, 15, labels=task.label_count)
    start = cases.network(15, 8, 6, task.outputs, bias=bias)
    plain, gram = (method(start, task, recipe, inputs, labels) for method in (GradientDescent, GramDescent))
    expected = plain.network(run(plain, Budget(steps=60)).state).params
    found = gram.network(run(gram, Budget(steps=60)).state).params
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert not torch.allclose(value, start.params[name], atol=1e-3)
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10)
