"""Activations and the two derivatives that stationarity needs, against autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from engram.attacks.engine.closed_form import explained, parameters, pull_back, run_pass
from engram.attacks.published import residuals, smoothed, stationarity_loss
from engram.core.errors import ConfigError
from engram.models.activations import Activation, activation_named
from engram.models.networks import DenseNetwork
from engram.models.tasks import Binary

ALL = ("relu", "leaky:0.2", "elu", "gelu", "gelu-tanh", "silu", "tanh", "sigmoid", "softplus")
SMOOTH = ALL[2:]
SLOPE = 7.0


def by_torch(name: str, z: Tensor) -> Tensor:
    known: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": torch.relu,
        "leaky:0.2": lambda z: functional.leaky_relu(z, 0.2),
        "elu": functional.elu,
        "gelu": functional.gelu,
        "gelu-tanh": lambda z: functional.gelu(z, approximate="tanh"),
        "silu": functional.silu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "softplus": functional.softplus,
    }
    return known[name](z)


@pytest.mark.parametrize("name", ALL)
def test_values_are_those_of_torch(name: str) -> None:
    z = torch.linspace(-4, 4, 101, dtype=torch.float64)
    assert torch.allclose(activation_named(name)(z), by_torch(name, z), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SMOOTH)
def test_gate_and_bend_are_the_derivatives(name: str) -> None:
    phi = activation_named(name)
    z = torch.linspace(-4, 4, 100, dtype=torch.float64).requires_grad_()  # 0, where ELU bends, is not among them
    (first,) = torch.autograd.grad(by_torch(name, z).sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), z)
    gate = phi.gate(z.detach(), SLOPE)
    assert torch.allclose(gate, first.detach(), rtol=0, atol=1e-10)
    assert torch.allclose(phi.bend(z.detach(), gate, SLOPE), second, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["relu", "leaky:0.2"])
def test_a_kink_is_as_soft_as_its_slope(name: str) -> None:
    phi = activation_named(name)
    z = torch.linspace(-1, 1, 41, dtype=torch.float64).requires_grad_()
    (first,) = torch.autograd.grad(smoothed(phi, SLOPE)(z).sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), z)
    gate = phi.gate(z.detach(), SLOPE)
    low = 0.2 if name != "relu" else 0.0
    assert torch.allclose(gate, low + (1 - low) * torch.sigmoid(SLOPE * z.detach()))
    assert torch.allclose(gate, first.detach())
    assert torch.allclose(phi.bend(z.detach(), gate, SLOPE), second)


def network_with(phi: Activation) -> DenseNetwork:
    generator = torch.Generator().manual_seed(0)
    shapes = ((9, 6), (7, 9), (1, 7))
    weights = tuple(torch.randn(shape, generator=generator, dtype=torch.float64) / 2 for shape in shapes)
    biases = (torch.randn(9, generator=generator, dtype=torch.float64), None, torch.ones(1, dtype=torch.float64))
    return DenseNetwork(weights, biases, activation=phi)


@pytest.mark.parametrize("name", ALL)
def test_closed_form_equals_autograd(name: str) -> None:
    """Stationarity of every layer, and its gradient by inputs and coefficients, through phi' and phi''."""
    network, task = network_with(activation_named(name)), Binary()
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(5, 6, generator=generator, dtype=torch.float64).requires_grad_()
    labels = torch.tensor([0, 1, 1, 0, 1])
    duals = (torch.rand(5, generator=generator, dtype=torch.float64) + 0.1).requires_grad_()
    phi = smoothed(network.activation, SLOPE)
    found = residuals(network, task, phi, inputs, labels, 5 * duals)
    by_inputs, by_duals = torch.autograd.grad(stationarity_loss(found), (inputs, duals))
    signs = task.signs(labels, torch.float64)
    done = run_pass(network, inputs.detach(), lambda _: (duals.detach() * signs)[:, None], SLOPE)
    left = {layer: parameters(network, layer) - explained(done, layer) for layer in range(3)}
    for layer, one in left.items():
        weight = one[:, : network.weights[layer].shape[1]]
        assert torch.allclose(weight, found[f"layers.{layer}.weight"], rtol=0, atol=1e-12)
    ours, coefficients = pull_back(network, done, SLOPE, {layer: 2 * one for layer, one in left.items()})
    assert torch.allclose(ours, by_inputs, rtol=1e-9, atol=1e-9)
    assert torch.allclose(coefficients[:, 0] * signs, by_duals, rtol=1e-9, atol=1e-9)


def test_names() -> None:
    assert str(activation_named("LeakyReLU".replace("ReLU", "").lower())) == "leaky:0.01"
    assert activation_named("leaky:0") == activation_named("relu")
    for wrong in ("mish", "leaky:2", "leaky:-1", ""):
        with pytest.raises(ConfigError, match="use one of relu, leaky:SLOPE"):
            activation_named(wrong)


def test_only_relu_and_leaky_are_homogeneous() -> None:
    plain = DenseNetwork((torch.ones(2, 2), torch.ones(1, 2)), (None, None))
    assert plain.is_homogeneous
    assert not network_with(activation_named("gelu")).is_homogeneous
    assert [activation_named(name).has_kink for name in ALL] == [True, True, *(False for _ in SMOOTH)]
