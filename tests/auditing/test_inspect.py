"""Noise and rank against layers whose noise and rank are known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engram.auditing.inspect import count_equations, describe, remaining_noise
from engram.models.networks import DenseNetwork
from engram.models.row_space import SAFETY
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from tests.cases import network, view


def noisy(rows: int, columns: int, std: float, rank: int = 0) -> Tensor:
    """Noise of that standard deviation plus `rank` strong directions, in float64."""
    generator = torch.Generator().manual_seed(rows + rank)
    noise = std * torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    left, right = (torch.randn(size, rank, generator=generator, dtype=torch.float64) for size in (rows, columns))
    return noise + 3 * std * left @ right.T


def with_first_layer(weight: Tensor) -> AttackerView:
    """A network with that first layer, as an attacker sees it."""
    base = network(weight.shape[1], weight.shape[0], 1)
    return AttackerView(DenseNetwork((weight, base.weights[1]), base.biases), (weight.shape[1],), Binary())


@pytest.mark.parametrize("shape", [(300, 500), (500, 300), (400, 400), (60, 900)])
def test_a_random_layer_is_all_noise(shape: tuple[int, int]) -> None:
    found = remaining_noise(torch.linalg.svdvals(noisy(*shape, 0.02)), *shape)
    assert found is not None
    assert found.std == pytest.approx(0.02, rel=0.05)
    assert found.share == pytest.approx(1, abs=0.1)


def test_the_share_is_the_energy_that_training_left_alone() -> None:
    weight, noise = noisy(300, 500, 0.01, rank=20), noisy(300, 500, 0.01)
    found = describe(with_first_layer(weight)).layers[0].noise
    assert found is not None
    assert found.std == pytest.approx(0.01, rel=0.05)
    assert found.share == pytest.approx(float(noise.square().sum() / weight.square().sum()), rel=0.1)


@pytest.mark.parametrize("rank", [0, 7])
def test_the_rank_is_that_of_the_planted_directions(rank: int) -> None:
    found = describe(with_first_layer(noisy(200, 300, 0.01, rank))).spectrum
    assert found.rank == rank
    assert found.edge is not None
    assert found.edge == pytest.approx(0.01 * (200**0.5 + 300**0.5), rel=0.05)
    assert found.threshold == pytest.approx(SAFETY * found.edge)


def test_a_layer_too_small_for_the_fit_is_unknown_and_counts_all_directions() -> None:
    found = describe(with_first_layer(noisy(200, 12, 0.01)))
    assert found.layers[0].noise is None
    assert found.spectrum.edge is None
    assert found.spectrum.rank == found.space.rank == 12
    flat = torch.zeros(5, 12, dtype=torch.float64)
    flat[0, 0] = 1
    assert describe(with_first_layer(flat)).spectrum.rank == 1


def test_layers_are_described_as_they_are() -> None:
    target = view(30, 40, 25, 1, shape=(30,))
    found = describe(target)
    assert found.name == "30-40-25-1"
    assert found.parameters == 30 * 40 + 40 + 40 * 25 + 25
    assert found.homogeneous
    for layer, weight, bias in zip(found.layers, target.network.weights, target.network.biases, strict=True):
        assert (layer.outputs, layer.inputs) == tuple(weight.shape)
        assert layer.norm == pytest.approx(float(weight.norm()))
        assert layer.largest_singular_value == pytest.approx(float(torch.linalg.matrix_norm(weight, ord=2)))
        assert layer.bias_norm == (None if bias is None else pytest.approx(float(bias.norm())))


def test_equations_against_unknowns() -> None:
    """h (r + 1) equations for n (r + 1) unknowns: as many samples as neurons, fewer without a bias."""
    counted = count_equations(network(100, 30, 20, 1), 9, 7)
    assert (counted.equations, counted.unknowns) == (100 * 30 + 30 + 30 * 20 + 20, 700)
    assert counted.most_samples == 3650 // 100
    assert (counted.row_space_equations, counted.row_space_unknowns) == (30 * 10, 7 * 10)
    assert counted.row_space_most_samples == 30
    without = count_equations(network(100, 30, 20, 1, bias="none"), 9, None)
    assert (without.row_space_equations, without.row_space_most_samples) == (270, 27)
    assert without.unknowns is without.row_space_unknowns is None


def test_margin_times_duals_is_the_energy_of_the_first_layer_in_its_row_space() -> None:
    target = with_first_layer(noisy(200, 300, 0.01, rank=7))
    found = describe(target)
    assert found.margin is not None
    inside = target.network.weights[0] @ found.space.basis.T
    bias = target.network.biases[0]
    assert bias is not None
    energy = float(inside.square().sum() + bias.square().sum())
    assert found.margin.margin * found.margin.sum_of_duals == pytest.approx(energy, rel=1e-5)


def test_a_linear_model_has_no_margin_estimate() -> None:
    linear = DenseNetwork((torch.randn(1, 12, generator=torch.Generator().manual_seed(0)),), (None,))
    found = describe(AttackerView(linear, (12,), Binary()))
    assert found.margin is None
    assert found.spectrum.rank == 1
