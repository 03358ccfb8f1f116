"""Normalisation: read as people write it, undone where candidates are shown, noticed where it is missing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engram.attacks.registry import make_attack
from engram.attacks.settings import EngineSettings
from engram.core.errors import ConfigError
from engram.models.networks import DenseNetwork
from engram.models.open.door import open_view
from engram.models.open.modules import as_module
from engram.models.view import Normalization

SHAPE = (3, 4, 4)


def network(seed: int = 0) -> DenseNetwork:
    generator = torch.Generator().manual_seed(seed)
    weights = tuple(torch.randn(shape, generator=generator) / 4 for shape in ((30, 48), (10, 30), (1, 10)))
    return DenseNetwork(weights, (torch.randn(30, generator=generator) / 10, None, None))


@pytest.mark.parametrize(
    "given",
    [
        "0.5,0.4,0.3/0.2,0.25,0.3",
        ((0.5, 0.4, 0.3), (0.2, 0.25, 0.3)),
        SimpleNamespace(mean=[0.5, 0.4, 0.3], std=[0.2, 0.25, 0.3]),
        SimpleNamespace(
            transforms=[object(), SimpleNamespace(mean=torch.tensor([0.5, 0.4, 0.3]), std=(0.2, 0.25, 0.3))]
        ),
    ],
)
def test_the_same_in_every_form(given: Any) -> None:
    found = Normalization.of(given)
    assert torch.allclose(torch.tensor(found.mean), torch.tensor([0.5, 0.4, 0.3]))
    assert torch.allclose(torch.tensor(found.std), torch.tensor([0.2, 0.25, 0.3]))
    assert Normalization.parse(found.text) == found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("imagnet", "--normalize must be MEAN/STD or one of none, half, bytes, imagenet"),
        ("0.5", "--normalize must be MEAN/STD"),
        ("0.5/0", "std must be positive"),
        ("nan/1", "mean must be finite"),
        (3, "normalize must be text"),
    ],
)
def test_what_is_not_a_normalisation(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Normalization.of(given)


def test_channels_must_fit() -> None:
    with pytest.raises(ConfigError, match="mean has 2 values, but inputs of 3x4x4 take 1, 3 or 48"):
        open_view(network(), input_shape=SHAPE, normalize="0.1,0.2/1")


def test_the_view_computes_what_the_model_does() -> None:
    """Of pixels without the mean; as a network, as a module and as a bare network of what enters."""
    known = Normalization((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
    view = open_view(network(), input_shape=SHAPE, normalize=known)
    pixels = torch.rand(5, *SHAPE)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (known.mean, known.std))
    expected = network()((pixels - mean) / std)
    inputs = pixels - known.mean_of(SHAPE)
    assert torch.allclose(view.network(inputs), expected, atol=1e-5)
    assert torch.allclose(as_module(view.network)(inputs), expected, atol=1e-5)
    entering = view.network.entering(inputs)
    assert view.dense is not None
    assert torch.allclose(view.dense.network.bare(entering), expected, atol=1e-5)
    assert torch.allclose(view.network.leaving(entering), inputs.flatten(1), atol=1e-6)
    assert view.network.digest() != network().digest()


def test_candidates_are_in_pixel_coordinates() -> None:
    """Dividing pixels by 1/4 and the first layer by 4 is the same model, so the same candidates come out."""
    settings = EngineSettings(steps=10, restarts=2, candidates=8, prior=0.0)
    plain = network()
    scaled = DenseNetwork((plain.weights[0] / 4, *plain.weights[1:]), plain.biases)
    found = [
        make_attack(view, settings=settings)
        for view in (open_view(plain, input_shape=SHAPE), open_view(scaled, input_shape=SHAPE, normalize="0/0.25"))
    ]
    images = []
    for attack in found:
        state = attack.init()
        for _ in range(attack.total_steps):
            attack.step(state)
        images.append(attack.reconstruction(state).images)
    assert images[0].abs().max() > 0.01
    assert torch.allclose(images[0], images[1], rtol=1e-3, atol=1e-4)


def test_channels_are_undone_one_by_one() -> None:
    """A candidate that the engine finds as g x comes out as x."""
    generator = torch.Generator().manual_seed(1)
    signal = torch.randn(30, 4, generator=generator) @ torch.randn(4, 48, generator=generator)
    plain = network()
    clean = DenseNetwork((signal, *plain.weights[1:]), plain.biases)
    view = open_view(clean, input_shape=SHAPE, normalize="0/0.2,0.25,0.5")
    attack: Any = make_attack(view, settings=EngineSettings(steps=2, restarts=1, candidates=4, prior=0.0))
    latents = torch.randn(4, attack.scales.space.rank)
    entering = (latents @ attack.scales.space.basis).view(-1, *SHAPE)
    shown = attack.shown(latents, torch.ones(4), torch.tensor([0, 1, 0, 1]))
    scale = torch.tensor([0.2, 0.25, 0.5]).view(3, 1, 1) / (0.2 * 0.25 * 0.5) ** (1 / 3)
    assert attack._noisy_rows is None
    assert torch.allclose(shown, entering * scale, atol=1e-5)


def test_a_run_remembers_it(tmp_path: Path) -> None:
    from engram.pipeline import attack as run_attack

    settings = EngineSettings(steps=2, restarts=1, candidates=4, prior=0.0)
    view = open_view(network(), input_shape=SHAPE, normalize="half")
    run_attack(make_attack(view, settings=settings), directory=tmp_path / "run")
    make_attack(view, resume_from=tmp_path / "run")
    with pytest.raises(ConfigError, match="normalization"):
        make_attack(open_view(network(), input_shape=SHAPE), resume_from=tmp_path / "run")
