"""The edges of a uniform start: the score against its definition, and what edges show of an update."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from engram.models.networks import DenseNetwork
from engram.models.row_space import find_image_space, noise_level, singular_values, standing_out
from engram.models.uniform_start import (
    KAPPA,
    noise_at_edges,
    read_edges,
    seen_at_edges,
    shares_of_spread,
    uniform_bound,
)
from tests.models.test_row_space import PIXELS, SHAPE, drawn, share_inside, smooth_images

NEURONS = 300
BOUND = PIXELS**-0.5


def uniform(*shape: int, bound: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(*shape, dtype=torch.float64).uniform_(-bound, bound, generator=generator)


def trained(spread: float, *, images: int = 6, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """W [NEURONS, PIXELS] after training, what training added with this spread, and the images it is made of."""
    shown = smooth_images(images, seed)
    added = drawn(NEURONS, images, seed=seed + 1) @ shown
    added *= spread * BOUND / added.square().mean().sqrt()
    return uniform(NEURONS, PIXELS, bound=BOUND, seed=seed + 2) + added, added, shown


def missed(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).square().sum() / truth.square().sum())


def test_the_information_of_an_edge() -> None:
    """The integral of phi² / Phi."""
    value, _ = integrate.quad(lambda u: np.exp(2 * stats.norm.logpdf(u) - stats.norm.logcdf(u)), -30, 30)
    assert pytest.approx(value, rel=1e-4) == KAPPA


@pytest.mark.parametrize("spread", [0.02, 0.1, 0.2])
def test_it_is_the_slope_of_the_log_density(spread: float) -> None:
    """Of uniform plus normal noise, differentiated numerically, divided by the information."""
    weights = torch.linspace(-1.3, 1.3, 27, dtype=torch.float64)
    found = seen_at_edges(weights, 1.0, torch.tensor(spread, dtype=torch.float64))

    def log_density(w: float) -> float:
        upper, lower = stats.norm.logcdf((w + 1) / spread), stats.norm.logcdf((w - 1) / spread)
        if w > 0:  # the mirrored form, which keeps its digits beyond the edge
            upper, lower = stats.norm.logcdf((1 - w) / spread), stats.norm.logcdf((-1 - w) / spread)
        return float(upper + np.log1p(-np.exp(lower - upper)))

    step = 1e-6
    slopes = [-(log_density(w + step) - log_density(w - step)) / (2 * step) for w in weights.tolist()]
    expected = np.array(slopes) * spread / KAPPA
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3, atol=1e-4)


def test_it_shows_what_was_added_with_the_noise_it_says() -> None:
    """A small shift of all weights comes back, with a variance that is several times below that of the weights."""
    spread = torch.tensor(0.05, dtype=torch.float64)
    start = uniform(2_000_000, bound=1.0, seed=3) + 0.05 * drawn(2_000_000, seed=4)
    before, after = (seen_at_edges(start + shift, 1.0, spread) for shift in (0.0, 0.01))
    assert float((after - before).mean()) == pytest.approx(0.01, rel=0.05)
    noise = float(noise_at_edges(spread, 1.0))
    assert float(before.std()) == pytest.approx(noise, rel=0.05)
    assert noise**2 < 0.2 / 3


def test_where_training_added_much_the_weights_speak_themselves() -> None:
    weights, spread = drawn(5, seed=5), torch.tensor(0.5, dtype=torch.float64)
    torch.testing.assert_close(seen_at_edges(weights, 1.0, spread), weights)
    assert float(noise_at_edges(spread, 1.0)) == pytest.approx(1 / math.sqrt(3))


def test_the_spread_is_read_off_what_lies_beyond() -> None:
    sizes = torch.tensor([0.05, 0.1, 0.2], dtype=torch.float64)
    rest = uniform(3, 200_000, bound=2.0, seed=6) + 2 * sizes[:, None] * drawn(3, 200_000, seed=7)
    rows, _, _ = shares_of_spread(rest, 2.0)
    torch.testing.assert_close(rows, sizes, rtol=0.05, atol=0)


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.15])
def test_the_bound_is_found(spread: float) -> None:
    weight = uniform(400, 500, bound=0.3, seed=8) + 0.3 * spread * drawn(400, 500, seed=9)
    assert uniform_bound(weight) == pytest.approx(0.3, rel=0.02)


@pytest.mark.parametrize(
    "weight",
    [
        drawn(400, 500, seed=10),
        drawn(400, 500, seed=11) * drawn(400, 1, seed=12),
        uniform(400, 500, bound=1.0, seed=13) + drawn(400, 500, seed=14),
        uniform(20, 30, bound=1.0, seed=15),
        torch.zeros(200, 200),
        torch.ones(200, 200),
    ],
    ids=["normal", "rows that differ", "edges gone", "few weights", "zeros", "ones"],
)
def test_no_bound_without_edges(weight: Tensor) -> None:
    assert uniform_bound(weight) is None


def test_edges_show_images_that_the_weights_hide() -> None:
    weight, added, images = trained(0.1)
    level = noise_level(singular_values(weight), *weight.shape)
    plain, found = find_image_space(weight, SHAPE), read_edges(weight, None, SHAPE, level)
    assert found is not None
    assert found.bound == pytest.approx(BOUND)
    assert found.space.rank > plain.rank
    assert share_inside(found.space, images) > share_inside(plain, images) + 0.1
    shown = found.noise[:, None] * standing_out(found.even, SHAPE, 1.0)
    assert missed(shown, added) < 0.5 * missed(standing_out(weight, SHAPE, level), added)


def test_vectors_have_edges_too() -> None:
    vectors = torch.nn.functional.normalize(drawn(4, 200, seed=20), dim=1)
    added = 0.8 * BOUND * drawn(NEURONS, 4, seed=21) @ vectors
    weight = uniform(NEURONS, 200, bound=BOUND, seed=22) + added
    level = noise_level(singular_values(weight), *weight.shape)
    found = read_edges(weight, None, (200,), level)
    assert found is not None
    shown = found.noise[:, None] * standing_out(found.even, (200,), 1.0)
    assert missed(shown, added) < 0.5 * missed(standing_out(weight, (200,), level), added)


def test_noise_alone_shows_nothing() -> None:
    weight = uniform(NEURONS, PIXELS, bound=BOUND, seed=23)
    found = read_edges(weight, None, SHAPE, BOUND / math.sqrt(3))
    assert found is not None
    assert found.space.detected <= 1


def test_normal_starts_and_clean_layers_are_left_alone() -> None:
    weight, added, _ = trained(0.07)
    normal = added + BOUND / math.sqrt(3) * drawn(NEURONS, PIXELS, seed=24)
    assert read_edges(normal, None, SHAPE, BOUND / math.sqrt(3)) is None
    assert read_edges(100 * added + weight, None, SHAPE, BOUND / math.sqrt(3)) is None


@pytest.mark.parametrize("start", ["uniform", "zero"])
def test_a_bias_is_read_if_it_started_like_the_weights(start: str) -> None:
    weight, _, _ = trained(0.07)
    moved = 0.07 * BOUND * drawn(NEURONS, seed=25)
    bias = moved + uniform(NEURONS, bound=BOUND if start == "uniform" else 1e-9, seed=26)
    found = read_edges(weight, bias, SHAPE, BOUND / math.sqrt(3))
    assert found is not None
    assert found.bias is not None
    if start == "zero":
        torch.testing.assert_close(found.bias, bias)
    else:
        assert missed(found.bias, moved) < 0.5 * missed(bias, moved)


def test_a_network_reads_its_edges_once_and_scales_them() -> None:
    weight, _, _ = trained(0.07)
    network = DenseNetwork((weight, drawn(1, NEURONS, seed=27)), (None, None))
    found = network.edges(SHAPE)
    assert found is not None
    assert network.edges(SHAPE) is found
    twice = network.scaled(2.0).edges(SHAPE)
    assert twice is not None
    torch.testing.assert_close(twice.rows, 2 * found.rows)
    torch.testing.assert_close(twice.even, found.even)
