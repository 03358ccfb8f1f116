"""The published scheme compared with hand-written references."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import torch

from engram.attacks.published import (
    PublishedScheme,
    dual_loss,
    margin_loss,
    range_loss,
    residuals,
    smoothed,
    stationarity_loss,
)
from engram.attacks.settings import Haim2022
from engram.core.errors import ConfigError
from engram.core.loop import Budget, StopReason, run
from engram.models.activations import RELU
from engram.models.networks import DenseNetwork
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.training.recipe import BiasPolicy
from tests import cases, oracle


@pytest.mark.parametrize("sizes", [(3, 4, 1), (3, 5, 4, 1), (2, 4, 3, 3, 1)])
@pytest.mark.parametrize("bias", ["first", "all", "none"])
def test_residuals_equal_hand_written_backpropagation(sizes: tuple[int, ...], bias: BiasPolicy) -> None:
    network = cases.network(*sizes, bias=bias)
    inputs, labels = cases.points(6, sizes[0])
    duals = torch.linspace(0.1, 2.0, 6, dtype=torch.float64)
    slope = 7.0
    found = residuals(network, Binary(), smoothed(RELU, slope), inputs, labels, duals)

    weights = [weight.numpy() for weight in network.weights]
    biases = [None if b is None else b.numpy() for b in network.biases]
    expected = {name: value.numpy().copy() for name, value in network.params.items()}
    for x, label, dual in zip(inputs.numpy(), labels.tolist(), duals.tolist(), strict=True):
        row = [dual * (2 * label - 1) / 6]
        by_weight, by_bias = oracle.smoothed_gradients(weights, biases, x, slope, row)
        for layer, (weight_gradient, bias_gradient) in enumerate(zip(by_weight, by_bias, strict=True)):
            expected[f"layers.{layer}.weight"] -= weight_gradient
            if bias_gradient is not None:
                expected[f"layers.{layer}.bias"] -= bias_gradient
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].detach().numpy(), value, rtol=0, atol=1e-10)
    total = sum(float((value**2).sum()) for value in expected.values())
    assert stationarity_loss(found).item() == pytest.approx(total, abs=1e-10)


def test_smoothed_relu_second_derivative_is_that_of_the_sigmoid() -> None:
    slope = 19.1
    z = torch.linspace(-0.4, 0.4, 41, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(smoothed(RELU, slope)(z).sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), z)
    for value, once, twice in zip(z.tolist(), first.tolist(), second.tolist(), strict=True):
        gate = oracle.sigmoid(slope * value)
        assert once == pytest.approx(gate, abs=1e-12)
        assert twice == pytest.approx(slope * gate * (1 - gate), abs=1e-10)


def test_smoothed_relu_forward_is_exact() -> None:
    z = torch.tensor([-1e-9, 0.0, 1e-9, 3.0])
    assert torch.equal(smoothed(RELU, 5.0)(z), torch.relu(z))


@pytest.mark.parametrize("bias", ["first", "all", "none"])
def test_gradient_of_the_objective_equals_forward_mode_by_hand(bias: BiasPolicy) -> None:
    """Through the gates' sigmoids and through the hidden values, whose ReLU is smoothed too."""
    network = cases.network(3, 5, 4, 1, bias=bias)
    inputs, labels = cases.points(4, 3)
    duals = torch.tensor([0.7, 0.1, 1.3, 0.4], dtype=torch.float64)
    inputs.requires_grad_()
    loss = stationarity_loss(residuals(network, Binary(), smoothed(RELU, 6.0), inputs, labels, duals))
    (gradient,) = torch.autograd.grad(loss, inputs)
    for moved in [(0, 0), (1, 2), (2, 1), (3, 1)]:
        expected = oracle.stationarity_derivative(
            [weight.numpy() for weight in network.weights],
            [None if value is None else value.numpy() for value in network.biases],
            inputs.detach().numpy(),
            [[(2 * label - 1) * dual] for label, dual in zip(labels.tolist(), duals.tolist(), strict=True)],
            6.0,
            moved,
        )
        assert loss.item() == pytest.approx(expected.value, abs=1e-10)
        assert float(gradient[moved]) == pytest.approx(expected.slope, abs=1e-10)


def test_zero_residual_at_the_support_vectors_of_a_hard_margin_problem() -> None:
    """Linear hard margin: theta = sum_i lambda_i y_i x_i at the optimum, so the residual vanishes there."""
    inputs, _ = cases.points(12, 3, seed=4)
    signs = torch.sign(inputs @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    X, y = inputs.numpy(), signs.numpy()
    # NNLS on the dual problem finds the support; the KKT equations on it give theta and lambda to machine
    # precision, and the check of the margins below proves that this is the optimum.
    scale = 1e-6
    A = np.vstack([(y[:, None] * X).T, np.full(12, scale)])
    active = scipy.optimize.nnls(A, np.array([0.0, 0.0, 0.0, 1.0]))[0] > 1e-9
    support = (y[:, None] * X)[active]
    duals = np.linalg.solve(support @ support.T, np.ones(len(support)))
    theta = support.T @ duals
    assert (duals > 0).all()
    assert ((y[:, None] * X) @ theta).min() == pytest.approx(1.0, abs=1e-9)  # feasible: so it is a KKT point

    linear = DenseNetwork((torch.tensor(theta)[None],), (None,))
    chosen = torch.tensor(active)
    m = int(chosen.sum())
    found = residuals(
        linear,
        Binary(),
        torch.relu,
        inputs[chosen],
        (signs[chosen] > 0).long(),
        m * torch.tensor(duals),  # lambda of the released form is m times the paper's
    )
    assert float(found["layers.0.weight"].norm()) < 1e-8


def test_losses_have_their_closed_forms() -> None:
    duals = torch.tensor([0.0, 0.3, 0.9])
    shortfall = Binary().dual_shortfall(torch.zeros(3), duals, 0.5)
    assert float(dual_loss(shortfall, squared=True)) == pytest.approx(0.25 + 0.04)
    assert float(dual_loss(shortfall, squared=False)) == pytest.approx(0.5 + 0.2)
    assert float(range_loss(torch.tensor([-1.5, -1.0, 0.0, 1.0, 3.0]))) == pytest.approx(0.25 + 4)


def test_steps_equal_torch_sgd_with_momentum() -> None:
    view = cases.view(3, 6, 5, 1)
    settings = Haim2022(candidates=4, steps=5, lr_images=0.05, lr_duals=0.02, image_std=0.5, relu_slope=5.0)
    scheme = PublishedScheme(view, settings)
    state = scheme.init()
    images, duals = (state[name].clone().requires_grad_() for name in ("images", "duals"))
    optimiser = torch.optim.SGD(
        [{"params": [images], "lr": 0.05}, {"params": [duals], "lr": 0.02}], lr=0.05, momentum=0.9
    )
    for _ in range(5):
        optimiser.zero_grad()
        unexplained = residuals(view.network, view.task, smoothed(RELU, 5.0), images, state["labels"], duals)
        loss = (
            stationarity_loss(unexplained)
            + 5 * (settings.dual_floor - duals).clamp(min=0).square().sum()
            + range_loss(images)
        )
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    solution = run(scheme, Budget(steps=5))
    torch.testing.assert_close(solution.state["images"], images.detach(), rtol=0, atol=1e-12)
    torch.testing.assert_close(solution.state["duals"], duals.detach(), rtol=0, atol=1e-12)


def test_margin_weight_gives_candidates_in_use_a_common_margin() -> None:
    view = cases.view(3, 6, 5, 1)
    alone = Haim2022(
        candidates=6,
        lr_images=0.01,
        lr_duals=1e-12,
        image_std=0.5,
        stationarity_weight=0.0,
        dual_weight=0.0,
        dual_floor=0.0,
        range_weight=0.0,
        margin_weight=300.0,
    )
    scheme = PublishedScheme(view, alone)

    def spread(images: torch.Tensor, labels: torch.Tensor) -> float:
        margins = Binary.signs(labels, images.dtype) * view.network(images).squeeze(1)
        return float(margins.std() / margins.abs().mean())

    before, after = scheme.init(), run(scheme, Budget(steps=400)).state
    start, end = (spread(state["images"], state["labels"]) for state in (before, after))
    assert end < 0.2 * start
    unused = torch.tensor([1.0, 1.0, 0.0])
    value = margin_loss(torch.tensor([2.0, 2.0, 9.0]), unused, torch.tensor(1.0))
    assert float(value) == 0.0, "a candidate without a dual may have any margin"


def test_start_has_the_distributions_of_the_papers() -> None:
    view = cases.view(50, 3, 1)
    state = PublishedScheme(view, Haim2022(candidates=2000, image_std=0.01)).init()
    assert float(state["images"].std()) == pytest.approx(0.01, rel=0.02)
    assert float(state["duals"].mean()) == pytest.approx(0.5, abs=0.03)
    assert 0 <= float(state["duals"].min()) < float(state["duals"].max()) <= 1
    assert state["labels"].bincount().tolist() == [1000, 1000]


def test_divergence_names_step_and_cure() -> None:
    scheme = PublishedScheme(cases.view(3, 6, 5, 1), Haim2022(candidates=4, lr_images=1e9))
    solution = run(scheme, Budget(steps=100))
    assert solution.reason is StopReason.DIVERGED
    assert "diverged at step" in solution.message
    assert "lower lr_images (now 1e+09)" in solution.message


def test_candidates_depend_only_on_the_seed() -> None:
    def images(seed: int) -> torch.Tensor:
        scheme = PublishedScheme(cases.view(3, 6, 1), Haim2022(candidates=4, seed=seed))
        return run(scheme, Budget(steps=3)).state["images"]

    assert torch.equal(images(1), images(1))
    assert not torch.equal(images(1), images(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"candidates": 0}, "candidates must be positive, got 0"),
        ({"dual_weight": 0.0}, "dual_floor must be 0 if dual_weight is 0, as for regression, got 0.498; leave"),
        ({"lr_images": 0.0}, "lr_images must be positive"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\)"),
        ({"dtype": "float16"}, "dtype must be float32 or float64"),
        ({"range_weight": -1.0}, "range_weight must not be negative"),
        ({"margin_weight": -1.0}, "margin_weight must not be negative"),
    ],
)
def test_settings_are_checked(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Haim2022(**change)  # type: ignore[arg-type]


def test_view_refuses_unreadable_networks() -> None:
    network = cases.network(12, 4, 2)
    network.weights[0][0, 0] = math.nan
    with pytest.raises(Exception, match="NaN or infinite") as caught:
        AttackerView(network, (1, 3, 5), Binary())
    text = str(caught.value)
    assert "input shape 1x3x5 has 15 values, but the first layer takes 12" in text
    assert "the network has 2 outputs, but a binary task has 1" in text
