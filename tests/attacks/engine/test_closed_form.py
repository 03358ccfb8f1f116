"""The closed form compared with autograd through the published scheme's residuals, in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engram.attacks.engine.closed_form import explained, parameters, pull_back, run_pass
from engram.attacks.engine.dense import Engine
from engram.attacks.engine.self_tuning import Scales
from engram.attacks.published import residuals, smoothed
from engram.attacks.settings import EngineSettings
from engram.models.activations import RELU
from engram.models.networks import DenseNetwork
from engram.models.row_space import RowSpace
from engram.models.tasks import Binary, Task
from engram.models.view import AttackerView
from engram.training.recipe import BiasPolicy
from tests import cases

SLOPE = 6.0


@pytest.mark.parametrize("sizes", [(4, 6, 1), (4, 6, 5, 1), (4, 6, 5, 7, 1), (4, 5, 5, 4, 3, 1)])
@pytest.mark.parametrize("bias", ["first", "all", "none"])
@pytest.mark.parametrize("which", ["first", "every", "upper"])
def test_value_and_gradients_equal_autograd(sizes: tuple[int, ...], bias: BiasPolicy, which: str) -> None:
    network = cases.network(*sizes, bias=bias)
    inputs, labels = cases.points(7, sizes[0], seed=3)
    duals = torch.linspace(0.2, 1.5, 7, dtype=torch.float64)
    depth = len(network.weights)
    chosen = {"first": [0], "every": list(range(depth)), "upper": list(range(1, depth))}[which]
    shares = [0.5 + layer for layer in range(depth)]

    inputs.requires_grad_()
    duals.requires_grad_()
    # The published residuals include a 1/m; the engine's duals are those of the paper.
    by_name = residuals(network, Binary(), smoothed(RELU, SLOPE), inputs, labels, len(inputs) * duals)
    outputs = network(inputs, smoothed(RELU, SLOPE)).squeeze(1)
    expected = 0.3 * outputs.square().sum()
    for layer in chosen:
        for part in ("weight", "bias"):
            if (name := f"layers.{layer}.{part}") in by_name:
                expected = expected + shares[layer] * by_name[name].square().sum()
    by_inputs, by_duals = torch.autograd.grad(expected, (inputs, duals))

    signs = Binary.signs(labels, torch.float64)
    done = run_pass(network, inputs.detach(), lambda _: (duals.detach() * signs)[:, None], SLOPE)
    left = {layer: parameters(network, layer) - explained(done, layer) for layer in chosen}
    value = 0.3 * done.outputs.square().sum() + sum(shares[k] * left[k].square().sum() for k in chosen)
    by_residual = {layer: 2 * shares[layer] * left[layer] for layer in chosen}
    found_inputs, found_coefficients = pull_back(network, done, SLOPE, by_residual, by_output=0.6 * done.outputs)
    torch.testing.assert_close(value, expected.detach(), rtol=0, atol=1e-10)
    torch.testing.assert_close(found_inputs, by_inputs, rtol=0, atol=1e-10)
    torch.testing.assert_close(found_coefficients.squeeze(1) * signs, by_duals, rtol=0, atol=1e-10)


@pytest.mark.parametrize("task", cases.TASKS, ids=lambda task: f"{task.name}-{task.outputs}")
@pytest.mark.parametrize("bias", ["first", "all"])
def test_every_task_equals_autograd(task: Task, bias: BiasPolicy) -> None:
    """Stationarity of all layers and the margins of every task, through its coefficients and back to its duals."""
    network = cases.network(4, 6, 5, task.outputs, bias=bias)
    inputs, labels = cases.points(8, 4, seed=3, labels=task.label_count)
    duals = task.draw_duals(labels, torch.Generator().manual_seed(1))
    inputs.requires_grad_()
    duals.requires_grad_()
    by_name = residuals(network, task, smoothed(RELU, SLOPE), inputs, labels, len(inputs) * duals)
    outputs = network(inputs, smoothed(RELU, SLOPE))
    sides = task.sides(labels, duals.detach(), outputs)
    expected = sum(value.square().sum() for value in by_name.values()) + (sides * outputs).sum(1).square().sum()
    assert isinstance(expected, torch.Tensor)
    by_inputs, by_duals = torch.autograd.grad(expected, (inputs, duals))

    view = AttackerView(network, (4,), task)
    settings = EngineSettings(candidates=8, dtype="float64", prior=0.0)
    objective = replace(Engine(view, settings).objective, scales=_unscaled(network), task=task)
    done = objective.run(inputs.detach(), duals.detach(), labels)
    left = {layer: parameters(network, layer) - explained(done, layer) for layer in range(3)}
    margins = (task.sides(labels, duals, done.outputs) * done.outputs).sum(1)
    value = sum(residual.square().sum() for residual in left.values()) + margins.square().sum()
    by_output = 2 * margins[:, None] * task.sides(labels, duals, done.outputs)
    by_residual = {layer: 2 * residual for layer, residual in left.items()}
    found_inputs, by_coefficients = pull_back(network, done, SLOPE, by_residual, by_output.detach())
    found_duals = objective.by_duals(duals, labels, done.outputs, by_coefficients)
    torch.testing.assert_close(value.detach(), expected.detach(), rtol=0, atol=1e-10)
    torch.testing.assert_close(found_inputs, by_inputs, rtol=0, atol=1e-10)
    torch.testing.assert_close(found_duals, by_duals, rtol=0, atol=1e-10)


def _unscaled(network: DenseNetwork) -> Scales:
    """No rotation, no scaling: the network's own coordinates."""
    space = RowSpace(
        torch.eye(network.sizes[0], dtype=torch.float64), torch.ones(network.sizes[0]), 0, torch.ones(1), 0.0, 0.0
    )
    return Scales(network=network, space=space, candidates=8, latent_std=1.0, slope=SLOPE, dual=1.0)
