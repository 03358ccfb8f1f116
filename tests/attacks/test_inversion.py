"""Model inversion climbs and descends; weights are shown unchanged."""

from __future__ import annotations

import pytest
import torch

from engram.attacks.inversion import Inversion, InversionSettings, first_layer_images, invert
from engram.core.errors import ConfigError
from engram.models.networks import DenseNetwork
from engram.models.tasks import Binary, Multiclass
from engram.models.view import AttackerView
from tests.cases import view


def test_half_of_the_starts_climb_and_half_descend() -> None:
    """For f(x) = x_0 (as relu(x_0) - relu(-x_0)) the extremes are the ends of the pixel range."""
    first = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    linear = AttackerView(DenseNetwork((first, torch.tensor([[1.0, -1.0]])), (None, None)), (2,), Binary())
    settings = InversionSettings(images=40, steps=50)
    search = Inversion(linear, settings)
    start = search.init()
    before = linear.network(start["images"]).squeeze(1)
    for _ in range(settings.steps):
        search.step(start)
    moved = linear.network(start["images"]).squeeze(1) - before
    assert bool((moved[0::2] >= 0).all())
    assert bool((moved[1::2] <= 0).all())
    found = invert(linear, settings)
    assert found.outputs.tolist() == sorted(found.outputs.tolist())
    assert float(found.outputs[0]) == -1.0, "the largest rate reaches the end of the range"
    assert float(found.outputs[-1]) == 1.0


def test_gradient_steps_follow_the_definition() -> None:
    search = Inversion(view(6, 9, 1), InversionSettings(images=4, steps=1, batch=3))
    state = search.init()
    images = state["images"].clone().requires_grad_()
    (slope,) = torch.autograd.grad(search.network(images).sum(), images)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None]
    expected = (images.detach() + state["rates"] * signs * slope).clamp(-1, 1)
    search.step(state)
    assert torch.allclose(state["images"], expected)


def test_every_class_is_climbed_and_descended() -> None:
    search = Inversion(view(6, 9, 3, task=Multiclass(3)), InversionSettings(images=12))
    assert search.signs.sum(0).tolist() == [0, 0, 0]
    assert search.signs.abs().sum(0).tolist() == [4, 4, 4]


def test_weights_come_largest_first_in_the_shape_of_an_input() -> None:
    one = view(12, 7, 1, shape=(3, 2, 2))
    images = first_layer_images(one)
    assert images.shape == (7, 3, 2, 2)
    norms = images.flatten(1).norm(dim=1)
    assert bool((norms.diff() <= 0).all())
    assert float(norms[0]) == float(one.network.weights[0].norm(dim=1).max())


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="images must be positive, got 0"):
        InversionSettings(images=0)
