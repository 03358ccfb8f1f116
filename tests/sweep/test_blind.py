"""The blind objective against a hand-written reference, and what it must not depend on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engram.attacks.reconstruction import Reconstruction
from engram.models.networks import DenseNetwork
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.sweep.trial import unexplained_share
from engram.training.recipe import BiasPolicy
from tests import cases


def _found(n: int, inputs: int) -> Reconstruction:
    images, labels = cases.points(n, inputs)
    return Reconstruction(images, torch.linspace(0.2, 2.0, n, dtype=torch.float64), labels)


@pytest.mark.parametrize("sizes", [(5, 4, 1), (5, 6, 4, 1)])
@pytest.mark.parametrize("bias", ["first", "none"])
def test_the_objective_equals_least_squares_by_hand(sizes: tuple[int, ...], bias: BiasPolicy) -> None:
    network = cases.network(*sizes, bias=bias)
    found = _found(7, 5)
    weights = [weight.numpy() for weight in network.weights]
    shift = np.zeros(sizes[1]) if network.biases[0] is None else network.biases[0].numpy()
    first = weights[0] if bias == "none" else np.c_[weights[0], shift]
    explained = np.zeros_like(first)
    for x, label, dual in zip(found.images.numpy(), found.labels.tolist(), found.duals.tolist(), strict=True):
        hidden, gates = x, []
        for layer, weight in enumerate(weights[:-1]):
            bent = weight @ hidden + (shift if layer == 0 else 0)
            gates.append(bent > 0)
            hidden = bent * gates[-1]
        signal = np.ones(1)
        for weight, gate in zip(reversed(weights[1:]), reversed(gates), strict=True):
            signal = (weight.T @ signal) * gate
        entering = x if bias == "none" else np.append(x, 1.0)
        explained += (2 * label - 1) * dual * np.outer(signal, entering)
    scale = max(0.0, (first * explained).sum() / (explained**2).sum())
    expected = ((first - scale * explained) ** 2).sum() / (first**2).sum()
    share = unexplained_share(AttackerView(network, (5,), Binary()), found)
    assert share == pytest.approx(expected, abs=1e-6)
    assert 0 < share <= 1


def test_the_scale_of_the_duals_does_not_matter() -> None:
    view, found = cases.view(5, 6, 4, 1), _found(6, 5)
    scaled = replace(found, duals=1000 * found.duals)
    assert unexplained_share(view, scaled) == pytest.approx(unexplained_share(view, found), abs=1e-6)


def test_the_samples_that_made_the_layer_explain_it() -> None:
    """W_1 = sum_i lambda_i delta_i x_i^T, all gates open; other samples explain less."""
    found = _found(4, 5)
    found = replace(found, images=found.images.abs(), labels=torch.ones(4, dtype=torch.int64))
    outer = torch.tensor([[0.3, 1.0, 0.1]], dtype=torch.float64)
    first = outer.T @ (found.duals[None] @ found.images)
    view = AttackerView(DenseNetwork((first, outer), (None, None)), (5,), Binary())
    assert unexplained_share(view, found) < 1e-6
    other = replace(found, images=cases.points(4, 5, seed=7)[0].abs())
    assert unexplained_share(view, other) > 0.05


def test_candidates_without_duals_explain_nothing() -> None:
    found = _found(4, 5)
    assert unexplained_share(cases.view(5, 6, 1), replace(found, duals=torch.zeros(4))) == 1.0


@pytest.mark.parametrize("size", [1e30, 1e60, float("nan")])
def test_huge_candidates_never_seem_perfect(size: float) -> None:
    """An overflow must not give 0, the best value."""
    found = _found(4, 5)
    share = unexplained_share(cases.view(5, 6, 1), replace(found, images=size * found.images))
    assert 0.1 < share <= 1
