"""The row space of images: finds smooth directions hidden in noise and none in pure noise, keeps fine detail."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engram.models.row_space import (
    Frequencies,
    RowSpace,
    cosines,
    find_image_space,
    find_row_space,
    keep_signal,
    overlaps,
    strongest_patterns,
)

SHAPE = (3, 16, 16)
PIXELS = 3 * 16 * 16


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def smooth_images(count: int, seed: int) -> Tensor:
    """Random images of length 1 whose power falls as 1 / f², [count, PIXELS]."""
    powers = torch.arange(1, PIXELS + 1, dtype=torch.float64).pow(-0.5)
    images = Frequencies.of(SHAPE).pixels(drawn(count, PIXELS, seed=seed) * powers)
    return torch.nn.functional.normalize(images, dim=1)


def share_inside(space: RowSpace, images: Tensor) -> float:
    """Mean energy of images of length 1 inside the row space."""
    return float((images @ space.basis.double().T).square().sum(1).mean())


def test_coefficients_equal_a_sum_over_pixels() -> None:
    shape = (2, 3, 4)
    frequencies, images = Frequencies.of(shape), drawn(5, 24, seed=1)
    found = frequencies.coefficients(images)
    channels, rows, columns = map(cosines, shape)
    for place, index in enumerate(frequencies.order.tolist()):
        c, (y, x) = index // 12, divmod(index % 12, 4)
        pattern = torch.einsum("c,h,w->chw", channels[c], rows[y], columns[x]).flatten()
        torch.testing.assert_close(found[:, place], images @ pattern)


def test_pixels_inverts_coefficients_and_lengths_are_kept() -> None:
    images = drawn(4, PIXELS, seed=2)
    coefficients = Frequencies.of(SHAPE).coefficients(images)
    torch.testing.assert_close(Frequencies.of(SHAPE).pixels(coefficients), images)
    torch.testing.assert_close(coefficients.norm(dim=1), images.norm(dim=1))


def test_smooth_patterns_come_first() -> None:
    frequencies = Frequencies.of(SHAPE)
    flat = frequencies.coefficients(torch.ones(1, PIXELS, dtype=torch.float64))[0]
    assert float(flat[0]) == pytest.approx(math.sqrt(PIXELS))
    board = torch.tensor([[(-1.0) ** (y + x) for x in range(16)] for y in range(16)], dtype=torch.float64)
    checks = frequencies.coefficients(board.expand(SHAPE).reshape(1, -1))[0].square()
    assert float(checks[PIXELS // 4 :].sum() / checks.sum()) > 0.9


@pytest.mark.parametrize(("rows", "columns", "strength"), [(200, 600, 25.0), (600, 200, 22.0), (300, 300, 20.0)])
def test_overlaps_match_planted_directions(rows: int, columns: int, strength: float) -> None:
    found = []
    for seed in range(5):
        left = torch.nn.functional.normalize(drawn(rows, seed=seed), dim=0)
        right = torch.nn.functional.normalize(drawn(columns, seed=seed + 100), dim=0)
        noisy = strength * left[:, None] * right + drawn(rows, columns, seed=seed + 200)
        vectors, values, others = torch.linalg.svd(noisy, full_matrices=False)
        cosines_found = float((vectors[:, 0] @ left).square() + (others[0] @ right).square())
        found.append((cosines_found, float(overlaps(values[:1], rows, columns))))
    sampled, predicted = torch.tensor(found).mean(0).tolist()
    assert predicted == pytest.approx(sampled, abs=0.12)
    assert 0.3 < sampled < 1.9, "neither hidden nor obvious"


def test_smooth_images_are_found_below_the_noise_of_all_frequencies() -> None:
    images = smooth_images(12, seed=3)
    weight = drawn(200, 12, seed=4) @ images * 2 + drawn(200, PIXELS, seed=5)
    plain, smooth = find_row_space(weight), find_image_space(weight, SHAPE)
    assert smooth.detected >= plain.detected + 3
    assert share_inside(smooth, images) > 1.5 * share_inside(plain, images)
    torch.testing.assert_close(
        smooth.basis @ smooth.basis.T, torch.eye(smooth.rank, dtype=torch.float64), rtol=0, atol=1e-9
    )
    assert bool((smooth.strengths.diff() <= 0).all())
    assert smooth.noise_std == pytest.approx(1, rel=0.08)


@pytest.mark.parametrize("seed", range(4))
def test_pure_noise_has_no_direction_in_any_band(seed: int) -> None:
    space = find_image_space(drawn(150, PIXELS, seed=seed), SHAPE)
    assert (space.detected, space.rank) == (0, 1)


def test_without_noise_the_span_is_exact() -> None:
    images = torch.nn.functional.normalize(drawn(9, PIXELS, seed=6), dim=1)
    space = find_image_space(drawn(100, 9, seed=7) @ images, SHAPE)
    assert space.rank == space.detected == 9
    assert share_inside(space, images) == pytest.approx(1)


def test_images_that_are_not_smooth_lose_nothing() -> None:
    images = torch.nn.functional.normalize(drawn(10, PIXELS, seed=8), dim=1)
    weight = 3 * drawn(200, 10, seed=9) @ images * math.sqrt(PIXELS) / 10 + drawn(200, PIXELS, seed=10)
    plain, smooth = find_row_space(weight), find_image_space(weight, SHAPE)
    assert smooth.detected >= plain.detected
    assert share_inside(smooth, images) > share_inside(plain, images) - 0.02


def test_a_layer_of_zeros_has_no_direction() -> None:
    space = find_image_space(torch.zeros(40, PIXELS), SHAPE)
    assert (space.detected, space.rank) == (0, 1)
    assert bool(space.basis.isfinite().all())


def test_signal_is_kept_shell_by_shell() -> None:
    directions = drawn(3, 128, seed=11)
    directions[:, 32:64] *= 0.5  # less than noise: nothing is left
    kept = keep_signal(directions, 0.7)
    for direction in range(3):
        for first, last in ((0, 32), (32, 64), (64, 128)):
            energy = sum(float(value) ** 2 for value in directions[direction, first:last])
            factor = max(0.0, energy - 0.49 * (last - first)) / energy
            torch.testing.assert_close(kept[direction, first:last], factor * directions[direction, first:last])
    torch.testing.assert_close(keep_signal(directions, 0.0), directions)


@pytest.mark.parametrize("shape", [(30, 80), (80, 30)])
def test_patterns_are_left_singular_vectors(shape: tuple[int, int]) -> None:
    matrix = drawn(*shape, seed=12)
    found, expected = strongest_patterns(matrix, 5), torch.linalg.svd(matrix).U[:, :5]
    torch.testing.assert_close((found * expected).sum(0).abs(), torch.ones(5, dtype=torch.float64))
