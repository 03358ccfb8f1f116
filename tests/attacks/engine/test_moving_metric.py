"""The gradient of a metric that moves with the candidates, against autograd through its inverse."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from engram.attacks.engine.closed_form import (
    Groups,
    Metric,
    explained,
    first_gates,
    inverse_covariances,
    pull_back,
    run_pass,
    with_constant,
)
from engram.attacks.engine.dense import METRIC_MOVES, Engine
from engram.attacks.engine.self_tuning import CLASSES_RIDGE, RIDGE, Phase, first_prior
from engram.attacks.settings import EngineSettings
from engram.core.loop import Budget, run
from engram.models.networks import DenseNetwork
from engram.models.tasks import Binary, Multiclass
from engram.models.view import AttackerView
from engram.training.recipe import MLPSpec
from tests import cases

SLOPE, SMALL = 6.0, 0.05


def test_the_gradient_is_that_of_residual_and_metric() -> None:
    """r_kᵀ (C_k + ridge)⁻¹ r_k, with C_k = sum_i lambda_i² x_i x_iᵀ over active samples, as autograd sees it."""
    network = cases.network(4, 6, 1, bias="first")
    inputs, labels = cases.points(9, 4, seed=3)
    sizes = torch.linspace(0.2, 1.5, 9, dtype=torch.float64)
    signs = Binary.signs(labels, torch.float64)
    done = run_pass(network, inputs, lambda _: (sizes * signs)[:, None], SLOPE)
    generator = torch.Generator().manual_seed(1)
    target = explained(done, 0)
    target = target + 0.003 * torch.randn(target.shape, generator=generator, dtype=torch.float64)
    used = first_gates(network, inputs, SLOPE) * sizes.square()[:, None]
    groups = Groups.alike(used, 6)
    inverses = inverse_covariances(with_constant(inputs, network.biases[0]), used, SMALL, room=10**6)
    metric = Metric.of(inverses, groups, torch.linspace(0.5, 2.0, 6, dtype=torch.float64), target)

    moved = inputs.clone().requires_grad_()
    entering = with_constant(moved, network.biases[0])
    gates = first_gates(network, moved, SLOPE)
    residual = target - (gates * done.arriving[0]).T @ entering
    # The spread of a signal is proportional to it, so a gate enters C_k squared; at 0 and 1 it is its own square.
    shares = sizes.square()[:, None] * gates.square() / gates.detach()
    covariances = torch.einsum("ik,ia,ib->kab", shares, entering, entering)
    identity = torch.eye(5, dtype=torch.float64)
    inverse = torch.linalg.inv(covariances + SMALL * metric.largest[:, None, None] * identity)
    value = (metric.scale * metric.largest * torch.einsum("ka,kab,kb->k", residual, inverse, residual)).sum()
    (expected,) = torch.autograd.grad(value, moved)

    deviate = partial(metric.deviations, arriving=done.arriving[0], variances=sizes.square()[:, None])
    by_residual = {0: 2 * metric(residual.detach())}
    still, by_coefficients = pull_back(network, done, SLOPE, by_residual)
    found, the_same = pull_back(network, done, SLOPE, by_residual, deviations=deviate)
    assert float(deviate(-(with_constant(inputs, network.biases[0]) @ by_residual[0].T)).abs().max()) < 1
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    assert not torch.allclose(still, expected, rtol=0.01, atol=0)
    torch.testing.assert_close(the_same, by_coefficients)


def test_a_signal_differs_at_most_by_itself() -> None:
    metric = Metric(*[torch.ones(1)] * 2, *[torch.ones(1)] * 4)  # type: ignore[arg-type]
    by_signal = torch.tensor([[-8.0], [8.0], [-1.0], [3.0]])
    arriving = torch.tensor([[2.0], [2.0], [2.0], [0.0]])
    assert metric.deviations(by_signal, arriving, torch.ones(1)).tolist() == [[1.0], [-1.0], [0.25], [-1.0]]


def _view(rank: int, noise: float = 1e-4) -> AttackerView[DenseNetwork]:
    """Two classes, and a first layer of noise that has learnt so many directions."""
    spec = MLPSpec(inputs=192, widths=(200, 20), first_layer_std=noise)
    generator = torch.Generator().manual_seed(3)
    network = spec.initialise(generator, torch.float64)
    learnt = torch.randn(200, rank, generator=generator) @ torch.randn(rank, 192, generator=generator)
    network = network.with_params({**network.params, "layers.0.weight": network.weights[0] + learnt})
    return AttackerView(network, (3, 8, 8), Binary())


@pytest.mark.parametrize("noise", [1e-4, 10.0], ids=["clean", "noisy"])
@pytest.mark.parametrize("room", ["all at once", "in chunks"])
def test_it_moves_only_late_in_a_start_and_without_noise(
    room: str, noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where candidates are too many to hold the upper layers."""
    memory = 10**9 if room == "all at once" else 10**6
    settings = EngineSettings(candidates=40, restarts=1, steps=10, memory=memory, dtype="float64")
    engine = Engine(_view(5, noise), settings)
    assert engine.is_noisy == (noise == 10.0)
    assert engine._can_hold == (room == "all at once")
    seen: list[int] = []
    plain = Metric.deviations

    def watched(metric: Metric, *given: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        return plain(metric, *given)

    monkeypatch.setattr(Metric, "deviations", watched)
    run(engine, Budget(steps=round(10 * METRIC_MOVES)))
    assert not seen
    run(engine, Budget(steps=10))
    assert bool(seen) == (not engine.is_noisy)


@pytest.mark.parametrize(("rank", "first"), [(20, 1.0), (150, 3.0)])
def test_with_many_directions_the_prior_falls(rank: int, first: float) -> None:
    engine = Engine(_view(rank), EngineSettings(prior=0.5, dtype="float64"))
    assert first_prior(engine.scales.space.rank) == pytest.approx(first)
    strengths = [engine._prior(Phase(index=0, step=step, length=10)) for step in (0, 5, 10)]
    assert strengths == pytest.approx([0.5 * first, 0.5 * first**0.5, 0.5])


def test_the_ridge_is_smaller_for_several_classes_unless_there_is_noise() -> None:
    def ridges(noise: float, given: float | None = None) -> list[float]:
        view = _view(5, noise)
        views = [view, replace(view, task=Multiclass(3), network=_three_outputs(view.network))]
        return [Engine(one, EngineSettings(ridge=given)).objective.ridge for one in views]

    assert ridges(1e-4) == [RIDGE, CLASSES_RIDGE]
    assert ridges(10.0) == [RIDGE, RIDGE]
    assert ridges(1e-4, given=0.5) == [0.5, 0.5]


def _three_outputs(network: DenseNetwork) -> DenseNetwork:
    return network.with_params({**network.params, "layers.2.weight": network.weights[2].repeat(3, 1)})
