"""The pooled fit against its definition: every record left out in turn, and the likelihood written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from engram.members.layers import passes, readable_layers
from engram.members.matched_filter import PooledFit, _likeliest, left_out_scores


def drawn(n: int, size: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients, of which the first half is in the weight, and that weight."""
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(n, size, generator=generator, dtype=torch.float64)
    duals = (torch.arange(n) < n // 2).double()
    noise = 3 * torch.randn(size, generator=generator, dtype=torch.float64)
    return gradients, duals, gradients.T @ duals + noise


def test_scores_are_those_of_leaving_each_record_out() -> None:
    gradients, _, weight = drawn(12, 40)
    gram, products = gradients @ gradients.T, gradients @ weight
    found = left_out_scores(gram, products, float(weight.square().sum()), len(weight))
    values, vectors = torch.linalg.eigh(gram)
    rho, variance = _likeliest(values, vectors.T @ products, float(weight.square().sum()), len(weight))
    for record in range(12):
        others = torch.arange(12) != record
        kept = gradients[others]
        # what the others leave of the weight and of this record's gradient, in the metric of their covariance
        metric = torch.linalg.inv(torch.eye(40, dtype=torch.float64) + kept.T @ kept / rho)
        own = gradients[record]
        strength = own @ metric @ own
        expected = (own @ metric @ weight) / (strength + rho).sqrt() / math.sqrt(variance)
        # lambda_i / sqrt(C_ii) with C_ii = 1 / (strength + rho)
        assert float(found[record]) == pytest.approx(float(expected), rel=1e-8)


def test_the_ridge_is_the_likeliest() -> None:
    gradients, _, weight = drawn(20, 60)
    gram = gradients @ gradients.T
    values, vectors = torch.linalg.eigh(gram)
    along = vectors.T @ (gradients @ weight)
    rho, variance = _likeliest(values, along, float(weight.square().sum()), 60)

    def likelihood(some_rho: float, some_variance: float) -> float:
        covariance = some_variance * (torch.eye(60, dtype=torch.float64) + gradients.T @ gradients / some_rho)
        normal = torch.distributions.MultivariateNormal(torch.zeros(60, dtype=torch.float64), covariance)
        return float(normal.log_prob(weight))  # type: ignore[no-untyped-call]

    best = likelihood(rho, variance)
    for factor in (0.1, 0.3, 3.0, 10.0):
        assert likelihood(rho * factor, variance) < best
        assert likelihood(rho, variance * factor) < best


def test_members_score_higher() -> None:
    gradients, duals, weight = drawn(100, 400)
    found = left_out_scores(gradients @ gradients.T, gradients @ weight, float(weight.square().sum()), len(weight))
    assert found[duals > 0].min() > found[duals == 0].max()


@pytest.mark.parametrize("shape", [(6,), (4, 6)])
def test_vectors_and_gradients_give_the_same(shape: tuple[int, ...]) -> None:
    """Layers with positions keep gradients, others the two vectors whose product they are."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh()).double().eval()
    inputs, labels = torch.randn(9, *shape, dtype=torch.float64), torch.zeros(9, dtype=torch.int64)
    one = passes(model, readable_layers(model), inputs, labels, lambda outputs, _: outputs.flatten(1).sin().sum(1))
    fit = PooledFit.of(model[0])  # type: ignore[arg-type]
    fit.add(one[1]["0"])
    rows, weight = one[1]["0"].gradients().flatten(1), fit.weight.flatten()
    expected = left_out_scores(rows @ rows.T, rows @ weight, float(weight.square().sum()), len(weight))
    torch.testing.assert_close(fit.scores(), expected, rtol=1e-8, atol=1e-8)
    assert bool(fit.gradients) == (len(shape) == 2)


def test_a_layer_of_zeros_says_nothing() -> None:
    gradients, _, _ = drawn(6, 10)
    assert left_out_scores(gradients @ gradients.T, torch.zeros(6).double(), 0.0, 10).tolist() == [0.0] * 6
    assert left_out_scores(torch.zeros(6, 6).double(), torch.zeros(6).double(), 1.0, 10).isfinite().all()
