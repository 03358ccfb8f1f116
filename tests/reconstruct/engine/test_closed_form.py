"""The closed form against autograd through the published scheme's own residuals, in float64."""

from __future__ import annotations

import pytest
import torch

from engram.reconstruct.engine.closed_form import explained, parameters, pull_back, run_pass
from engram.reconstruct.published.objective import residuals
from engram.reconstruct.published.relu import smoothed_relu
from engram.targets.spec import BiasPolicy
from engram.task import Binary
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
    # The published residuals carry a 1/m; the engine's duals are the paper's own.
    by_name = residuals(network, Binary(), smoothed_relu(SLOPE), inputs, labels, len(inputs) * duals)
    outputs = network(inputs, smoothed_relu(SLOPE)).squeeze(1)
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
