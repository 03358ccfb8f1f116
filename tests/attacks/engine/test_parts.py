"""Row space, metric and prior compared with slow code or planted truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engram.attacks.engine.closed_form import inverse_covariances
from engram.attacks.engine.image_prior import SMOOTHING, total_variation
from engram.attacks.engine.iteration import BETAS, adam, moments
from engram.models.row_space import find_row_space, marchenko_pastur_quantile, noise_level


@pytest.mark.parametrize("shape", [(200, 500), (500, 200), (300, 300)])
@pytest.mark.parametrize("std", [1e-4, 0.02])
def test_noise_level_is_estimated_from_the_spectrum(shape: tuple[int, int], std: float) -> None:
    generator = torch.Generator().manual_seed(1)
    noise = std * torch.randn(shape, generator=generator, dtype=torch.float64)
    signal = torch.randn(shape[0], 30, generator=generator, dtype=torch.float64)
    signal = signal @ torch.randn(30, shape[1], generator=generator, dtype=torch.float64) * std
    values = torch.linalg.svdvals(noise + signal)
    assert noise_level(values, *shape) == pytest.approx(std, rel=0.08)


def test_planted_directions_are_found_and_no_others() -> None:
    generator = torch.Generator().manual_seed(2)
    samples = torch.randn(12, 400, generator=generator)
    weight = torch.randn(150, 12, generator=generator) @ samples + 0.01 * torch.randn(
        150, 400, generator=generator
    )
    space = find_row_space(weight)
    assert space.rank == 12
    torch.testing.assert_close(space.basis @ space.basis.T, torch.eye(12), rtol=0, atol=1e-5)
    inside = samples @ space.basis.T @ space.basis
    assert float((inside - samples).norm() / samples.norm()) < 0.01


def test_pure_noise_has_one_direction() -> None:
    weight = torch.randn(100, 300, generator=torch.Generator().manual_seed(3))
    assert find_row_space(weight).rank == 1


def test_rounding_is_not_a_direction() -> None:
    """Decayed weights: signal, and rounding of many sizes instead of noise, whose edge follows no law."""
    generator = torch.Generator().manual_seed(6)
    weight = torch.randn(200, 12, generator=generator) @ torch.randn(12, 400, generator=generator)
    sizes = 1e-8 * torch.logspace(0, -4, 200)[:, None]
    weight = weight.double() + sizes * torch.randn(200, 400, generator=generator, dtype=torch.float64)
    assert find_row_space(weight.float()).rank == 12


def test_quantile_equals_a_sampled_spectrum() -> None:
    values = torch.linalg.svdvals(torch.randn(400, 900, generator=torch.Generator().manual_seed(4)))
    for quantile in (0.1, 0.5, 0.9):
        sampled = float(values.sort().values[int(quantile * 400)])
        assert marchenko_pastur_quantile(400, 900, quantile) == pytest.approx(sampled, rel=0.02)


@pytest.mark.parametrize("room", [1, 400, 10**6], ids=["a row at a time", "a few", "all at once"])
def test_metric_equals_inverses_one_by_one(room: int) -> None:
    generator = torch.Generator().manual_seed(5)
    entering = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    gates = torch.rand(20, 7, generator=generator, dtype=torch.float64)
    duals = torch.rand(20, generator=generator, dtype=torch.float64)
    found, tops = inverse_covariances(entering, gates * duals.square()[:, None], 0.01, room=room)
    for neuron in range(7):
        covariance = np.zeros((4, 4))
        for i in range(20):
            x = entering[i].numpy()
            covariance += float(gates[i, neuron]) * float(duals[i]) ** 2 * np.outer(x, x)
        largest = np.linalg.eigvalsh(covariance)[-1]
        expected = np.linalg.inv(covariance / largest + 0.01 * np.eye(4))
        np.testing.assert_allclose(found[neuron].numpy(), expected, rtol=1e-3)
        assert float(tops[neuron]) == pytest.approx(largest, rel=1e-3)


def test_metric_of_unused_neurons_is_a_multiple_of_the_identity() -> None:
    found, _ = inverse_covariances(torch.ones(3, 2), torch.zeros(3, 4), 0.5, room=1000)
    torch.testing.assert_close(found, 2 * torch.eye(2).expand(4, 2, 2))


def test_adam_equals_torch_adam() -> None:
    generator = torch.Generator().manual_seed(7)
    start = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    state, parameter = {"x": start.clone(), **moments("x", start)}, start.clone().requires_grad_()
    reference = torch.optim.Adam([parameter], lr=0.03, betas=BETAS, eps=1e-12)
    for step in range(1, 6):
        parameter.grad = torch.randn(4, 3, generator=generator, dtype=torch.float64)
        adam(state, "x", parameter.grad, 0.03, step)
        reference.step()
    torch.testing.assert_close(state["x"], parameter.detach(), rtol=0, atol=1e-12)


def test_adam_takes_a_rate_for_each_entry_of_a_row() -> None:
    rates = torch.tensor([0.1, 0.2, 0.4])
    state = {"x": torch.zeros(2, 3), **moments("x", torch.zeros(2, 3))}
    adam(state, "x", torch.ones(2, 3), rates, step=1)
    torch.testing.assert_close(state["x"], -rates.expand(2, 3))


def test_contrast_follows_the_spectrum_down_to_the_noise() -> None:
    generator = torch.Generator().manual_seed(9)
    strengths = torch.logspace(0, -3.5, 12)[:, None]
    samples = strengths * torch.randn(12, 400, generator=generator)
    weight = torch.randn(150, 12, generator=generator) @ samples
    space = find_row_space(weight + 0.002 * torch.randn(150, 400, generator=generator))
    contrast = space.contrast
    assert float(contrast.square().mean()) == pytest.approx(1.0)
    assert bool((contrast.diff() < 0).all()), "weaker directions have less contrast"
    faint = space.singular_values[: space.rank] < 2 * space.edge
    assert float(contrast[0] / contrast[faint].max()) > 2.5


def test_total_variation_equals_a_loop_and_its_gradient_differences() -> None:
    generator = torch.Generator().manual_seed(6)
    images = torch.randn(3, 2, 4, 5, generator=generator, dtype=torch.float64)
    values, gradients = total_variation(images)
    for i in range(3):
        total = 0.0
        for c in range(2):
            for y in range(4):
                for x in range(5):
                    if x < 4:
                        total += math.hypot(float(images[i, c, y, x + 1] - images[i, c, y, x]), SMOOTHING)
                    if y < 3:
                        total += math.hypot(float(images[i, c, y + 1, x] - images[i, c, y, x]), SMOOTHING)
        assert float(values[i]) == pytest.approx(total / 40, abs=1e-10)
    assert torch.autograd.gradcheck(_Variation.apply, images.clone().requires_grad_())
    assert gradients.shape == images.shape


class _Variation(torch.autograd.Function):
    """Passes the closed-form gradient to torch's numerical check."""

    @staticmethod
    def forward(ctx: object, images: torch.Tensor) -> torch.Tensor:
        values, gradients = total_variation(images)
        ctx.save_for_backward(gradients)  # type: ignore[attr-defined]
        return values

    @staticmethod
    def backward(ctx: object, *above: torch.Tensor) -> torch.Tensor:
        (gradients,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return above[0].view(-1, 1, 1, 1) * gradients  # type: ignore[no-any-return]
