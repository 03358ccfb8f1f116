"""The KKT gap at exact KKT points, and the duals against a dense solution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor

from engram.core.errors import ConfigError
from engram.members.kkt import kkt, nonnegative_minimum
from engram.models.networks import DenseNetwork
from engram.models.tasks import Binary, Multiclass
from engram.training.recipe import BiasPolicy
from tests.cases import network, points


def orthogonal_with_ones(labels: Tensor) -> Tensor:
    """Points that, once a constant 1 is appended, have squared length n + 1, are orthogonal within a class, and
    have inner product -1/n across classes."""
    n = len(labels)
    gram = (n + 1) * torch.eye(n, dtype=torch.float64) - (labels[:, None] != labels).double() / n
    points: Tensor = torch.linalg.cholesky(gram - 1)
    return points


def stationary(n: int, neurons: int) -> tuple[DenseNetwork, Tensor, Tensor, Tensor]:
    """A network that is an exact KKT point in both layers, its samples, labels and duals.

    Neuron k with output weight a_k is active only on the samples with y_i a_k > 0: these are orthogonal, and the
    others lie on the far side. Its pre-activation there is lambda_i |a_k| (n + 1), so the output layer is also a
    sum of gradients if sum_i lambda_i² (n + 1) = 1 over each class.
    """
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(n) % 2
    inputs = orthogonal_with_ones(labels)
    signs = Binary.signs(labels, torch.float64)
    duals = 0.5 + torch.rand(n, generator=generator, dtype=torch.float64)
    for label in (0, 1):
        chosen = labels == label
        duals[chosen] /= (duals[chosen].square().sum() * (n + 1)).sqrt()
    outgoing = torch.randn(neurons, generator=generator, dtype=torch.float64)
    active = (signs[:, None] * outgoing > 0).double()
    signals = active * outgoing
    extended = torch.cat([inputs, torch.ones(n, 1, dtype=torch.float64)], 1)
    first = (signals * (signs * duals)[:, None]).T @ extended
    return DenseNetwork((first[:, :-1], outgoing[None]), (first[:, -1], None)), inputs, labels, duals


def test_a_kkt_point_has_no_gap_and_its_duals_come_back() -> None:
    target, inputs, labels, duals = stationary(8, 30)
    found = kkt(target, Binary(), inputs, labels)
    assert all(layer.gap < 1e-8 and layer.own_gap < 1e-8 for layer in found.layers)
    torch.testing.assert_close(found.duals, duals, rtol=1e-8, atol=1e-10)
    assert bool(found.support.all())
    # homogeneity: sum_i lambda_i margin_i = ||[W_1 b_1]||²
    margins = Binary().margins(target(inputs), labels)
    assert found.margin == pytest.approx(float((duals * margins).sum() / duals.sum()), rel=1e-8)


def test_samples_that_are_not_support_vectors_get_no_dual() -> None:
    """A linear hard-margin problem by hand: w = (1, 0) is half the sum of the first two samples."""
    linear = DenseNetwork((torch.tensor([[1.0, 0.0]], dtype=torch.float64),), (None,))
    inputs = torch.tensor([[1.0, 2.0], [1.0, -2.0], [-1.0, 0.0]], dtype=torch.float64)
    found = kkt(linear, Binary(), inputs, torch.tensor([1, 1, 1]))
    assert found.layers[0].gap < 1e-8
    assert found.support.tolist() == [True, True, False]
    torch.testing.assert_close(found.duals, torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))
    assert found.margin == pytest.approx(1)


def test_a_network_that_no_sample_explains_has_gap_one_and_no_margin() -> None:
    linear = DenseNetwork((torch.tensor([[1.0, 0.0]]),), (None,))
    found = kkt(linear, Binary(), torch.tensor([[-1.0, 0.0]]), torch.tensor([1]))
    assert found.layers[0].gap == 1
    assert found.margin is None
    assert not bool(found.support.any())


@pytest.mark.parametrize("bias", ["first", "all", "none"])
@pytest.mark.parametrize("n", [6, 40])
def test_duals_and_gaps_equal_the_dense_solution(bias: BiasPolicy, n: int) -> None:
    """Gradients from autograd, stacked into a matrix for scipy; 40 samples of 5 values are linearly dependent."""
    target = network(5, 9, 7, 1, bias=bias)
    inputs, labels = points(n, 5)
    found = kkt(target, Binary(), inputs, labels)
    leaves = {name: value.clone().requires_grad_() for name, value in target.params.items()}
    outputs = target.with_params(leaves)(inputs).squeeze(1)
    signs = Binary.signs(labels, torch.float64)
    for layer, gap in enumerate(found.layers):
        names = [name for name in leaves if name.startswith(f"layers.{layer}.")]
        rows = []
        for sample in range(n):
            gradients = torch.autograd.grad(outputs[sample], [leaves[name] for name in names], retain_graph=True)
            rows.append(signs[sample] * torch.cat([gradient.flatten() for gradient in gradients]))
        matrix = torch.stack(rows, 1).numpy()
        theta = torch.cat([target.params[name].flatten() for name in names]).numpy()
        size = np.linalg.norm(theta)
        own, residual = nnls(matrix, theta, maxiter=10_000)
        assert gap.own_gap == pytest.approx(residual / size, abs=1e-8)
        assert gap.gap == pytest.approx(np.linalg.norm(theta - matrix @ found.duals.numpy()) / size, abs=1e-8)
        if layer == 0 and n == 6:
            np.testing.assert_allclose(found.duals.numpy(), own, atol=1e-8)
    assert found.layers[0].gap == found.layers[0].own_gap


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_the_minimum_does_not_depend_on_the_scale(scale: float) -> None:
    factor, _ = points(12, 8)
    aim = points(12, 1, seed=1)[0].squeeze(1)
    plain = nonnegative_minimum(factor.T @ factor, factor.T @ aim)
    scaled = nonnegative_minimum(scale * factor.T @ factor, factor.T @ aim)
    torch.testing.assert_close(scaled * scale, plain, rtol=1e-8, atol=1e-10)
    assert float(plain.min()) == 0


def test_other_tasks_are_refused() -> None:
    inputs, labels = points(4, 5)
    with pytest.raises(ConfigError, match="KKT gap is defined for binary tasks only, got a multiclass task"):
        kkt(network(5, 6, 3), Multiclass(3), inputs, labels)
