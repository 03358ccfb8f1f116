"""Images on a flat background: seen in the weights, pulled onto it, shown on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engram.attacks.engine.consensus import on_background
from engram.attacks.engine.dense import Engine
from engram.attacks.engine.objective import background_level, off_background
from engram.attacks.engine.self_tuning import has_background
from engram.attacks.reconstruction import Reconstruction
from engram.attacks.settings import EngineSettings
from engram.core.loop import Budget, Snapshots, run
from engram.models.networks import DenseNetwork
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.scoring.match import score
from engram.scoring.protocols import Buzaglo2023Protocol
from engram.scoring.report import evaluate

SIDE = 10


@pytest.fixture(scope="module")
def digits() -> Tensor:
    """Bright strokes on black, never within two pixels of the border."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.zeros(60, 1, SIDE, SIDE)
    inner = torch.rand(60, 1, SIDE - 4, SIDE - 4, generator=generator)
    pixels[:, :, 2:-2, 2:-2] = torch.where(inner > 0.7, 0.5 + inner / 2, 0.0)
    return pixels


@pytest.fixture(scope="module")
def network(digits: Tensor) -> DenseNetwork:
    """A first layer that learnt the digits, over the noise of its start."""
    generator = torch.Generator().manual_seed(1)
    centred = (digits - digits.mean(0)).flatten(1)
    first = 0.1 * torch.randn(40, 60, generator=generator) @ centred + 1e-3 * torch.randn(
        40, SIDE**2, generator=generator
    )
    layers = (first, torch.randn(12, 40, generator=generator), torch.randn(1, 12, generator=generator))
    return DenseNetwork(layers, (torch.zeros(40), torch.zeros(12), torch.zeros(1)))


def test_pixels_that_never_changed_show_in_the_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = 0.01 * torch.randn(200, 100, generator=generator)
    assert not has_background(weight, 0.01), "a start that learnt nothing has no background"
    photographs = weight + torch.randn(200, 100, generator=generator)
    assert not has_background(photographs, 0.01)
    digits = weight.clone()
    digits[:, 20:] += torch.randn(200, 80, generator=generator)
    assert has_background(digits, 0.01)
    digits[:, 4:] += torch.randn(200, 96, generator=generator)
    assert not has_background(digits, 0.01), "four pixels of a hundred are too few"


def test_the_level_is_a_weighted_quantile() -> None:
    values = torch.tensor([[3.0], [1.0], [2.0], [5.0]])
    assert background_level(values, torch.ones(4)).item() == 1.0
    assert background_level(values, torch.tensor([1.0, 0.01, 1.0, 1.0])).item() == 2.0


def test_the_gradient_towards_the_background_is_right() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    level = torch.randn(7, generator=generator, dtype=torch.float64)
    free = images.clone().requires_grad_()
    off_background(free, level)[0].sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(free.grad, off_background(images, level)[1])
    below, above = (off_background(level[None] + shift, level)[0].item() for shift in (-1.0, 1.0))
    assert below == pytest.approx(4 * above)


def test_candidates_are_shown_on_black_and_the_mean_is_found(digits: Tensor) -> None:
    """Half the contrast and some noise, as the engine leaves them; nothing of the truth is given."""
    generator = torch.Generator().manual_seed(2)
    mean = digits.mean(0)
    noisy = 0.5 * (digits - mean) + 0.02 * torch.randn(digits.shape, generator=generator)
    labels = torch.zeros(len(digits), dtype=torch.int64)
    found = on_background(Reconstruction(noisy, torch.ones(len(digits)), labels), (0.0, 1.0))
    assert found.mean is not None
    assert float((found.mean - mean).abs().max()) < 0.1
    torch.testing.assert_close(found.shown, found.images + found.mean)
    assert float((found.shown[digits == 0] == 0).float().mean()) > 0.99
    assert float((found.shown - digits).abs().mean()) < 0.03
    assert found.take(torch.tensor([0, 2])).mean is found.mean


def test_scores_use_the_mean_that_the_attacker_found(digits: Tensor) -> None:
    mean, protocol = digits.mean(0), Buzaglo2023Protocol()
    own = mean + 0.2 * torch.rand(mean.shape, generator=torch.Generator().manual_seed(3))
    candidates = digits - own
    with_own = score(candidates, digits, mean, protocol=protocol, shown_mean=own)
    with_true = score(candidates, digits, mean, protocol=protocol)
    assert with_own.ssim is not None
    assert with_true.ssim is not None
    assert float(with_own.ssim.min()) > 0.99 > float(with_true.ssim.max())
    assert with_own.ncc is not None
    assert with_true.ncc is not None
    torch.testing.assert_close(with_own.ncc, with_true.ncc)


def test_a_threshold_that_everything_passes_is_named(digits: Tensor) -> None:
    mean, generator = digits.mean(0), torch.Generator().manual_seed(0)
    black = torch.zeros_like(digits)
    black[:, :, 5, 5] = 1.0
    report = evaluate(
        black - mean, black, black, mean, protocol=Buzaglo2023Protocol(), generator=generator, shown_mean=mean
    )
    assert any("SSIM > 0.4 says nothing about these images: 60 of 60" in warning for warning in report.warnings)


def test_an_engine_that_sees_a_background_uses_it_and_resumes(network: DenseNetwork, tmp_path: Path) -> None:
    view = AttackerView(network, (1, SIDE, SIDE), Binary())
    engine = Engine(view, EngineSettings(candidates=20, steps=30, restarts=2, metric_every=10))
    assert engine.has_background
    assert not Engine(view, replace(engine.settings, prior=0.0)).has_background
    whole = run(engine, Budget(steps=60)).state
    assert whole["background"].shape == (SIDE**2,)
    assert engine.reconstruction(whole).mean is not None
    snapshots = Snapshots(path=tmp_path / "s")
    run(Engine(view, engine.settings), Budget(steps=45), snapshots=snapshots)
    resumed = run(Engine(view, engine.settings), Budget(steps=60), snapshots=snapshots, resume=True).state
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_the_mean_is_kept_in_the_file(digits: Tensor, tmp_path: Path) -> None:
    found = Reconstruction(digits, torch.ones(60), torch.zeros(60, dtype=torch.int64), mean=digits.mean(0))
    found.save(tmp_path / "r.safetensors")
    loaded = Reconstruction.load(tmp_path / "r.safetensors")
    assert loaded.mean is not None
    assert torch.equal(loaded.mean, digits.mean(0))
