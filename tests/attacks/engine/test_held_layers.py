"""Held upper layers: exact at the refresh, close to exact afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engram.attacks.engine.dense import REFRESH, Engine, HeldLayers
from engram.attacks.engine.self_tuning import SOFTNESS
from engram.attacks.settings import EngineSettings
from engram.core.loop import State
from engram.models.tasks import task_named
from engram.models.view import AttackerView
from engram.training.recipe import MLPSpec

ONE_DUAL = ["binary", "multiclass", "regression:l2"]
TASKS = [*ONE_DUAL, "multiclass:pairs"]


def _engine(task_name: str, *, widths: tuple[int, ...] = (30, 20, 10)) -> Engine:
    """A random network with a strong first layer, so that the row space is the full input space."""
    outputs = 3 if task_name.startswith("multiclass") else 1
    spec = MLPSpec(inputs=16, widths=widths, outputs=outputs, bias="all", first_layer_std=1.0)
    network = spec.initialise(torch.Generator().manual_seed(3), torch.float64)
    view = AttackerView(network, (1, 4, 4), task_named(task_name, outputs))
    engine = Engine(view, EngineSettings(candidates=12, restarts=1, prior=0.5, dtype="float64"))
    engine.__dict__["posed"] = view  # unchanged: also with only the runner-up's dual
    excited = engine.scales.network.weights[0].norm(dim=1).mean() * engine.scales.latent_std
    # gates as sharp as where a layer is learnt: a random one is taken for noise
    engine.__dict__["scales"] = replace(engine.scales, slope=SOFTNESS / float(excited), noise=0.0)
    return engine


def _state(engine: Engine) -> State:
    state = engine.init()
    engine.step(state)
    if engine.view.task.has_signed_duals:
        state["duals"][0] *= -1
    return state


@pytest.mark.parametrize("moving", [False, True], ids=["metric held", "metric moving"])
@pytest.mark.parametrize("task", TASKS)
def test_at_the_refresh_the_gradient_is_exact(task: str, moving: bool) -> None:
    engine = _engine(task)
    state = _state(engine)
    metric = engine.objective.metric(state["latents"], state["duals"])
    exact = engine.objective(state, metric, 0.5, moving=moving)
    held = HeldLayers.at(engine.objective, state, metric, 0.5)
    frozen = held.gradients(engine.objective, state, metric, moving=moving)
    assert frozen[0].keys() == exact[0].keys()
    for name, value in exact[0].items():
        torch.testing.assert_close(frozen[0][name], value, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(frozen[1], exact[1], rtol=0, atol=1e-10 * float(exact[1].abs().max()))
    torch.testing.assert_close(frozen[2], exact[2], rtol=0, atol=1e-10 * float(exact[2].abs().max()))


@pytest.mark.parametrize("task", ONE_DUAL)
def test_it_stays_exact_in_the_duals(task: str) -> None:
    """Signals are linear in the duals, and the layers above do not depend on them."""
    engine = _engine(task)
    state = _state(engine)
    metric = engine.objective.metric(state["latents"], state["duals"])
    frozen = HeldLayers.at(engine.objective, state, metric, 0.0)
    state["duals"] = state["duals"] * torch.linspace(0.5, 2.0, len(state["duals"]), dtype=torch.float64)
    losses, _, by_duals = engine.objective(state, metric, 0.0)
    near_losses, _, near_by_duals = frozen.gradients(engine.objective, state, metric)
    torch.testing.assert_close(near_losses["stationarity"], losses["stationarity"])
    torch.testing.assert_close(near_by_duals, by_duals, rtol=0, atol=1e-10 * float(by_duals.abs().max()))


def test_with_several_duals_per_sample_their_sum_stays_exact() -> None:
    """Their proportions are held, and so is their gradient."""
    engine = _engine("multiclass:pairs")
    state = _state(engine)
    metric = engine.objective.metric(state["latents"], state["duals"])
    frozen = HeldLayers.at(engine.objective, state, metric, 0.0)
    before = engine.objective(state, metric, 0.0)[2]
    sizes = torch.linspace(0.5, 2.0, len(state["duals"]), dtype=torch.float64)
    state["duals"] = state["duals"] * sizes[:, None]
    losses, _, _ = engine.objective(state, metric, 0.0)
    near_losses, _, near_by_duals = frozen.gradients(engine.objective, state, metric)
    torch.testing.assert_close(near_losses["stationarity"], losses["stationarity"])
    torch.testing.assert_close(near_by_duals, before)


@pytest.mark.parametrize("task", TASKS)
def test_between_refreshes_it_follows_the_exact_gradient(task: str) -> None:
    engine = _engine(task)
    state = _state(engine)
    metric = engine.objective.metric(state["latents"], state["duals"])
    frozen = HeldLayers.at(engine.objective, state, metric, 0.5)
    before = engine.objective(state, metric, 0.5)[1]
    noise = torch.randn(state["latents"].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    state["latents"] = state["latents"] + 1e-3 * engine.scales.latent_std * noise
    after = engine.objective(state, metric, 0.5)[1]
    near = frozen.gradients(engine.objective, state, metric)[1]
    assert float((near - after).norm()) < 0.7 * float((before - after).norm()), "closer than no update"


@pytest.mark.parametrize(
    ("task", "widths", "frozen"),
    [("binary", (30, 20), True), ("binary", (30,), False), ("multiclass:pairs", (30, 20), True)],
)
def test_layers_are_held_if_it_saves_work(task: str, widths: tuple[int, ...], frozen: bool) -> None:
    engine = _engine(task, widths=widths)
    state = engine.init()
    for _ in range(REFRESH + 1):
        engine.step(state)
    assert ("held_latents" in state) == frozen
    if frozen:
        assert not torch.equal(state["held_latents"], state["latents"])
