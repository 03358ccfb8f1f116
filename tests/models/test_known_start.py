"""A known start: what training added to it has one direction a sample, and gives the samples away."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from engram.attacks.registry import make_attack
from engram.attacks.settings import EngineSettings
from engram.core.errors import ConfigError
from engram.models.open.door import open_recorded, open_view
from engram.models.row_space import find_update
from engram.pipeline import attack

SHAPE = (1, 6, 6)


def built(seed: int, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(36, 50, bias=bias), nn.ReLU(), nn.Linear(50, 20), nn.ReLU(), nn.Linear(20, 1)
    )


def samples(n: int, seed: int = 0) -> Tensor:
    images = torch.rand(2 * n, *SHAPE, generator=torch.Generator().manual_seed(seed))
    return images - images[:n].mean(0)


def trained(
    model: nn.Module, inputs: Tensor, *, adam: bool = False, decay: float = 1e-3, steps: int = 300
) -> nn.Module:
    labels = torch.arange(len(inputs)) % 2
    kind = torch.optim.Adam if adam else torch.optim.SGD
    optimizer = kind(model.parameters(), 0.01 if adam else 0.2, weight_decay=decay)
    for _ in range(steps):
        for some in torch.split(torch.randperm(len(inputs)), 5):
            optimizer.zero_grad()
            nn.functional.softplus(-(2 * labels[some] - 1) * model(inputs[some])[:, 0]).mean().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model


@pytest.mark.parametrize("bias", [True, False])
def test_the_number_of_samples_is_read_off(bias: bool) -> None:
    """By mini-batches and with weight decay; without a bias one direction of centred inputs is missing."""
    n = 12
    model = trained(built(3, bias), samples(n)[:n])
    view = open_view(model, input_shape=SHAPE, base=built(3, bias))
    assert view.update is not None
    assert view.update.samples == (n if bias else n - 1)
    assert 0.05 < view.update.kept < 0.95
    assert f"used {view.update.samples} samples" in view.notes[-1]
    assert view.update.space.rank == n - 1


def test_members_lie_in_the_span_and_others_do_not() -> None:
    n = 12
    images = samples(n)
    view = open_view(trained(built(3), images[:n]), input_shape=SHAPE, base=built(3))
    assert view.update is not None
    outside = view.update.outside(images.flatten(1))
    assert float(outside[:n].max()) < 1e-6 < 1e-3 < float(outside[n:].min())


def test_a_seed_is_a_base(tmp_path: Path) -> None:
    model = trained(built(7), samples(8)[:8])
    torch.save(model.state_dict(), tmp_path / "model.pt")
    before = torch.random.get_rng_state()
    view = open_view(tmp_path / "model.pt", input_shape=SHAPE, base_seed=7)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert view.update is not None
    assert (view.update.samples, view.base) == (8, "seed 7")
    settings = EngineSettings(steps=2, restarts=1, candidates=4, prior=0.0)
    attack(make_attack(view, settings=settings), directory=tmp_path / "run", model=str(tmp_path / "model.pt"))
    import json

    again = open_recorded(json.loads((tmp_path / "run" / "run.json").read_text()))
    assert again.update is not None
    with pytest.raises(ConfigError, match="base"):
        make_attack(open_view(tmp_path / "model.pt", input_shape=SHAPE), resume_from=tmp_path / "run")


def test_another_start_or_adam_is_noticed(tmp_path: Path) -> None:
    model = trained(built(3), samples(12)[:12])
    other = open_view(model, input_shape=SHAPE, base=built(4))
    assert other.update is None
    assert "is not of low rank" in other.notes[-1]
    unrelated = {name: 1e-6 * value for name, value in built(9).state_dict().items()}
    with pytest.raises(ConfigError, match="is left in the model"):
        open_view(unrelated, input_shape=SHAPE, base=built(9))
    model_of_adam = trained(built(3), samples(12)[:12], adam=True, decay=0.0)
    assert open_view(model_of_adam, input_shape=SHAPE, base=built(3)).update is None
    with pytest.raises(ConfigError, match="give one of them"):
        open_view(model, input_shape=SHAPE, base=built(3), base_seed=3)
    narrow = nn.Sequential(nn.Flatten(), nn.Linear(36, 9), nn.ReLU(), nn.Linear(9, 1))
    with pytest.raises(ConfigError, match="give the model that training started from"):
        open_view(model, input_shape=SHAPE, base=narrow)


def test_the_engine_explains_the_update_in_its_exact_span() -> None:
    n = 6
    images = samples(n)
    view = open_view(trained(built(3), images[:n]), input_shape=SHAPE, base=built(3))
    chosen = make_attack(view, settings=EngineSettings(steps=60, restarts=2, candidates=12, prior=0.0))
    state = chosen.init()
    for _ in range(chosen.total_steps):
        chosen.step(state)
    found = chosen.reconstruction(state).images.flatten(1)
    assert view.update is not None
    basis = view.update.space.basis
    assert torch.allclose(found @ basis.T @ basis, found, atol=1e-4)


def test_update_of_a_scaled_start_is_exact() -> None:
    """W = c W(0) + a sum of n terms: c, n and the span come back to rounding."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(40, 30, generator=generator, dtype=torch.float64)
    inputs, signals = (torch.randn(5, size, generator=generator, dtype=torch.float64) for size in (30, 40))
    kept, found = find_update(0.3 * start + signals.T @ inputs, None, start, None)
    assert found is not None
    assert found.samples == 5
    assert kept == found.kept == pytest.approx(0.3, abs=1e-9)
    assert torch.allclose(found.rows, signals.T @ inputs, atol=1e-8)
    assert float(found.outside(inputs).max()) < 1e-12
