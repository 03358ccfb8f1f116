"""Images read out over all frequencies: the posterior mean, and what it adds to the row space."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from engram.attacks.engine.dense import Engine, posterior_mean, read_out, shells
from engram.attacks.engine.image_prior import EXTENSION, expected_power, extended
from engram.attacks.engine.self_tuning import SOFTER, SOFTNESS, derive_scales, noise_share
from engram.attacks.settings import EngineSettings
from engram.models.networks import DenseNetwork
from engram.models.row_space import Frequencies, find_image_space
from engram.models.tasks import Binary, Multiclass, Task
from engram.models.view import AttackerView
from tests.models.test_row_space import PIXELS, SHAPE, drawn


def natural(count: int, seed: int, pixel_std: float) -> Tensor:
    """Images [count, PIXELS] with the expected power of photographs."""
    scale = expected_power(PIXELS, pixel_std).sqrt()
    return Frequencies.of(SHAPE).pixels(drawn(count, PIXELS, seed=seed) * scale)


def test_posterior_mean_equals_ridge_regression_frequency_by_frequency() -> None:
    rows, sent, found = drawn(9, 128, seed=1), drawn(4, 9, seed=2), drawn(4, 128, seed=3)
    power = torch.linspace(2, 1, 128, dtype=torch.float64)
    result = posterior_mean(rows, found, sent, power)
    left = rows - sent.T @ found

    def regressed(place: int, ridge: float) -> np.ndarray:
        """As least squares with the prior as additional equations."""
        equations = np.concatenate([sent.T.numpy(), np.sqrt(ridge) * np.eye(4)])
        right = np.concatenate([rows[:, place].numpy(), np.zeros(4)])
        return np.asarray(np.linalg.lstsq(equations, right, rcond=None)[0])

    for first, last in itertools.pairwise(shells(128)):
        noise, expected = float(left[:, first:last].square().mean()), float(power[first:last].mean())
        squares = np.mean([regressed(place, noise / expected) ** 2 for place in range(first, last)])
        variances = np.diag(np.linalg.inv((sent @ sent.T).numpy() / noise + np.eye(4) / expected))
        shown = squares + np.mean(variances)
        for place in range(first, last):
            np.testing.assert_allclose(result[:, place].numpy(), regressed(place, noise / shown), rtol=1e-8)


@pytest.mark.parametrize("too", [1 / 5, 5.0])
def test_a_wrong_power_is_corrected_by_the_weights(too: float) -> None:
    """Where images are far stronger or weaker than photographs, the read-out follows the weights."""
    sent, frequencies = drawn(8, 300, seed=5), Frequencies.of(SHAPE)
    power = expected_power(PIXELS, 0.2)
    images = frequencies.coefficients(natural(8, seed=4, pixel_std=0.2))
    rows = sent.T @ images + 3 * drawn(300, PIXELS, seed=6)
    identity = torch.eye(8, dtype=torch.float64)

    def missed(given: Tensor) -> float:
        return float((given - images).square().sum() / images.square().sum())

    corrected = posterior_mean(rows, torch.zeros_like(images), sent, too * power)
    ridges = 9 / (too * power)
    fixed = torch.stack(
        [
            torch.linalg.solve(sent @ sent.T + ridge * identity, sent @ row)
            for ridge, row in zip(ridges, rows.T, strict=True)
        ],
        1,
    )
    assert missed(corrected) < missed(fixed)


def test_finds_parts_of_images_outside_the_row_space() -> None:
    images, sent = natural(8, seed=4, pixel_std=0.2), drawn(8, 300, seed=5)
    weight = sent.T @ images + 3 * drawn(300, PIXELS, seed=6)
    space = find_image_space(weight, SHAPE)
    assert space.rank < 8, "some directions are hidden"
    inside = images @ space.basis.T @ space.basis
    rows = Frequencies.of(SHAPE).coefficients(weight)
    found = read_out(inside, rows, lambda given: sent, Frequencies.of(SHAPE), pixel_std=0.2)

    def missed(given: Tensor) -> float:
        return float((given - images).square().sum() / images.square().sum())

    assert missed(found) < 0.8 * missed(inside)


def test_candidates_without_a_signal_stay_unchanged() -> None:
    images, sent = natural(3, seed=7, pixel_std=0.2), drawn(3, 50, seed=8)
    sent[1] = 0
    found = read_out(images, drawn(50, PIXELS, seed=9), lambda given: sent, Frequencies.of(SHAPE), 0.2)
    torch.testing.assert_close(found[1], images[1])
    assert float((found[0] - images[0]).norm()) > 0.1 * float(images[0].norm())


def test_the_share_of_noise_in_the_energy() -> None:
    noise = 0.3 * drawn(60, 100, seed=10)
    assert noise_share(noise, 0.3) == pytest.approx(1, rel=0.1)
    assert noise_share(2 * noise, 0.3) == pytest.approx(0.25, rel=0.1)
    assert noise_share(noise, 0.0) == 0


@pytest.mark.parametrize(
    ("classes", "learnt", "softness", "candidates"),
    [(3, 1.0, SOFTER, 48), (3, 0.01, SOFTER, 81), (2, 1.0, SOFTNESS, 40), (2, 0.01, SOFTNESS, 80)],
)
def test_several_classes_have_softer_gates_and_noisy_layers_more_candidates(
    classes: int, learnt: float, softness: float, candidates: int
) -> None:
    images, sent = natural(8, seed=4, pixel_std=0.2), drawn(8, 300, seed=5)
    first = learnt * sent.T @ images + 0.01 * drawn(300, PIXELS, seed=6)
    outputs = classes if classes > 2 else 1
    network = DenseNetwork((first, drawn(outputs, 300, seed=7)), (None, None))
    task: Task = Multiclass(classes) if classes > 2 else Binary()
    scales = derive_scales(AttackerView(network, SHAPE, task), EngineSettings(dtype="float64"))
    generator = torch.Generator().manual_seed(0)
    probe = scales.latent_std * torch.randn(512, scales.space.rank, generator=generator, dtype=torch.float64)
    spread = float((probe @ scales.network.weights[0].T).std())
    assert scales.slope * spread == pytest.approx(softness, rel=0.02)
    assert scales.candidates == candidates


def test_an_extension_is_the_mean_of_normal_images_with_these_coordinates() -> None:
    """By conditioning on V x = z, in pixels."""
    frequencies, basis = Frequencies.of(SHAPE), torch.linalg.qr(drawn(PIXELS, 5, seed=11)).Q.T
    cosines = frequencies.pixels(torch.eye(PIXELS, dtype=torch.float64))
    power = np.arange(1, PIXELS + 1) ** -EXTENSION
    covariance = (cosines.numpy().T * power) @ cosines.numpy()
    across = covariance @ basis.numpy().T
    expected = across @ np.linalg.inv(basis.numpy() @ across)
    found = extended(basis, frequencies)
    np.testing.assert_allclose(found.numpy(), expected.T, atol=1e-10)
    torch.testing.assert_close(found @ basis.T, torch.eye(5, dtype=torch.float64))


def _started_uniform() -> DenseNetwork:
    """A network whose first layer learnt little of eight images."""
    sent, images = drawn(8, 300, seed=5), natural(8, seed=4, pixel_std=0.2)
    bound = PIXELS**-0.5
    start = torch.empty(300, PIXELS, dtype=torch.float64)
    start.uniform_(-bound, bound, generator=torch.Generator().manual_seed(12))
    learnt = sent.T @ images
    return DenseNetwork(
        (start + 0.1 * bound * learnt / learnt.square().mean().sqrt(), drawn(1, 300, seed=7)), (None, None)
    )


def test_the_engine_explains_what_the_edges_show() -> None:
    network = _started_uniform()
    scales = derive_scales(AttackerView(network, SHAPE, Binary()), EngineSettings(dtype="float64"))
    edges = network.edges(SHAPE)
    assert edges is not None
    assert scales.has_edges
    assert scales.noise > 0.9
    torch.testing.assert_close(scales.target, edges.rows @ edges.space.basis.T)
    torch.testing.assert_close(scales.network.weights[0], network.weights[0] @ edges.space.basis.T)


@pytest.mark.parametrize("prior", [None, 0.0])
def test_candidates_of_layers_with_edges_are_shown_extended(prior: float | None) -> None:
    view = AttackerView(_started_uniform(), SHAPE, Binary())
    engine = Engine(view, EngineSettings(dtype="float64", prior=prior))
    latents = engine.draw(0)
    duals, labels = torch.ones(len(latents), dtype=torch.float64), torch.zeros(len(latents), dtype=torch.long)
    shown, basis = engine.shown(latents, duals, labels).flatten(1), engine.scales.space.basis
    torch.testing.assert_close(shown @ basis.T, latents)
    inside = torch.allclose(shown, latents @ basis)
    assert inside == (prior == 0), "without a prior, nothing is filled in"
