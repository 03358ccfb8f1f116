"""The whole engine: it recovers memorised images, scores them, and is reproducible."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from engram.attacks.engine.consensus import agreements, consensus
from engram.attacks.engine.dense import Engine
from engram.attacks.reconstruction import Reconstruction
from engram.attacks.settings import EngineSettings
from engram.core.errors import ConfigError
from engram.core.loop import Budget, Snapshots, run
from engram.data.choice import DataChoice
from engram.models.networks import DenseNetwork
from engram.models.tasks import Binary, task_named
from engram.models.view import AttackerView
from engram.pipeline import build_target, compare
from engram.scoring.metrics import ncc
from engram.training.recipe import MLPSpec, Recipe

FACES = DataChoice(name="faces", labels="gate", n=20)
SHAPE = (1, 25, 25)


@pytest.fixture(scope="module")
def memorised() -> DenseNetwork:
    """Twenty faces, alternately admitted and not: a small network has to memorise them."""
    spec = MLPSpec(inputs=625, widths=(400, 400))
    return build_target(FACES, spec, Recipe(lr=0.05, epochs=2000), Binary()).network


def _engine(network: DenseNetwork, **settings: object) -> Engine:
    return Engine(AttackerView(network, SHAPE, Binary()), EngineSettings(**settings))  # type: ignore[arg-type]


def test_recovers_memorised_faces_and_scores_them_highest(memorised: DenseNetwork) -> None:
    engine = _engine(memorised, steps=250, restarts=3)
    found = engine.reconstruction(run(engine, Budget(steps=engine.total_steps)).state)
    report = compare(found, FACES.load())
    counts = report.counts
    assert counts["ncc>0.8"].train >= 10
    assert counts["ncc>0.8"].held_out == 0
    assert found.scores is not None
    assert torch.equal(found.scores, found.scores.sort(descending=True).values)
    data = FACES.load()
    likeness = ncc(found.images, data.train.images - data.mean).amax(1)
    assert int((likeness[:5] > 0.8).sum()) >= 4, "the most confident candidates are real faces"
    assert float(likeness[:10].mean()) > float(likeness[-10:].mean()) + 0.2


@pytest.mark.parametrize("name", ["multiclass", "multiclass:pairs", "regression:huber"])
def test_recovers_faces_from_every_task(name: str) -> None:
    """Two outputs, all pairs, or targets -1 and +1 with weight decay: all give the same images."""
    task = task_named(name, 2)
    spec = MLPSpec(inputs=625, widths=(200, 200), outputs=task.outputs)
    recipe = Recipe(lr=0.2, epochs=800, weight_decay=1e-3 if "regression" in name else 0.0)
    network = build_target(FACES, spec, recipe, task).network
    engine = Engine(AttackerView(network, SHAPE, task), EngineSettings(steps=150, restarts=2, prior=1.6))
    found = engine.reconstruction(run(engine, Budget(steps=engine.total_steps)).state)
    counts = compare(found, FACES.load()).counts
    assert counts["ncc>0.8"].train >= 5
    assert counts["ncc>0.8"].held_out == 0


def test_recovers_faces_from_a_standard_start() -> None:
    """Nine tenths of the first layer are noise; the faces' directions stand out in low frequencies."""
    few = DataChoice(name="faces", labels="gate", n=8)
    spec = MLPSpec(inputs=625, widths=(400, 400), first_layer_std=None)
    engine = _engine(
        build_target(few, spec, Recipe(lr=0.05, epochs=2000), Binary()).network, steps=200, restarts=3
    )
    found = engine.reconstruction(run(engine, Budget(steps=engine.total_steps)).state)
    counts = compare(found, few.load()).counts
    assert counts["ssim>0.4"].train >= 5
    assert counts["ssim>0.4"].held_out == 0


def test_an_untrained_network_gives_nothing() -> None:
    spec = MLPSpec(inputs=625, widths=(200, 200), first_layer_std=None)
    network = build_target(FACES, spec, Recipe(lr=1e-12, epochs=1), Binary()).network
    engine = _engine(network, steps=60, restarts=3)
    found = engine.reconstruction(run(engine, Budget(steps=engine.total_steps)).state)
    assert compare(found, FACES.load()).train.count("ncc", 0.8) == 0


def test_gradients_of_the_objective_equal_differences(memorised: DenseNetwork) -> None:
    """Where the derivative is exact: the prior in the latents, stationarity in the duals. (Elsewhere the papers'
    ReLU derivative is a surrogate; the closed form is compared with autograd in its own test.)"""
    engine = _engine(memorised, candidates=10, dtype="float64", restarts=1, prior=1.0)
    state = run(engine, Budget(steps=1)).state
    metric = engine.objective.metric(state["latents"], state["duals"])
    _, _, by_duals = engine.objective(state, metric, 1.0)
    prior, by_prior = engine.objective.variation(state["latents"], state["duals"])
    direction = torch.randn_like(state["latents"])
    ahead = engine.objective.variation(state["latents"] + 1e-6 * direction, state["duals"])[0]
    assert float((ahead - prior) / 1e-6) == pytest.approx(float((by_prior * direction).sum()), rel=1e-3)

    def stationarity(duals: torch.Tensor) -> float:
        return float(engine.objective({**state, "duals": duals}, metric, 0.0)[0]["stationarity"])

    direction = torch.randn_like(state["duals"])
    step = 1e-4 * engine.scales.dual
    difference = stationarity(state["duals"] + step * direction) - stationarity(state["duals"] - step * direction)
    assert difference / (2 * step) == pytest.approx(float((by_duals * direction).sum()), rel=1e-4)


def test_candidates_that_explain_nothing_have_loss_one(memorised: DenseNetwork) -> None:
    engine = _engine(memorised, candidates=10, restarts=1, prior=0.0)
    state = run(engine, Budget(steps=1)).state
    metric = engine.objective.metric(state["latents"], state["duals"])
    silent = {**state, "duals": torch.zeros_like(state["duals"])}
    assert float(engine.objective(silent, metric, 0.0)[0]["stationarity"]) == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("stop", [7, 55, 60, 101], ids=["first start", "its end", "between", "second start"])
def test_resumed_anywhere_ends_bit_identical(memorised: DenseNetwork, tmp_path: Path, stop: int) -> None:
    settings: dict[str, object] = {"steps": 60, "restarts": 2, "candidates": 20}
    whole = run(_engine(memorised, **settings), Budget(steps=120)).state
    snapshots = Snapshots(path=tmp_path / "s")
    run(_engine(memorised, **settings), Budget(steps=stop), snapshots=snapshots).require_finite()
    assert snapshots.path.exists()
    resumed = run(_engine(memorised, **settings), Budget(steps=120), snapshots=snapshots, resume=True).state
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_scales_follow_the_pixel_range(memorised: DenseNetwork) -> None:
    """No hidden unit: for pixels in [0, 10] the start is ten times as wide, and the gates are the same."""
    shrunk = memorised.with_params({**memorised.params, "layers.0.weight": memorised.weights[0] / 10})
    plain = _engine(memorised, candidates=20, steps=30, restarts=1, prior=0.0, dtype="float64")
    view = AttackerView(shrunk, SHAPE, Binary(), pixel_range=(0.0, 10.0))
    scaled = Engine(view, plain.settings)
    a, b = plain.scales, scaled.scales
    assert b.latent_std == pytest.approx(10 * a.latent_std)
    assert b.slope == pytest.approx(a.slope, rel=0.2)


def test_agreement_is_the_mean_best_likeness_in_the_other_restarts() -> None:
    likeness = torch.tensor(
        [[1.0, 0.2, 0.9, 0.1], [0.2, 1.0, 0.3, 0.4], [0.9, 0.3, 1.0, 0.0], [0.1, 0.4, 0.0, 1.0]]
    )
    torch.testing.assert_close(agreements(likeness, torch.arange(4), 2), torch.tensor([0.9, 0.4, 0.9, 0.4]))


def test_consensus_merges_the_same_image_and_ranks_it_first() -> None:
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(1, 1, 6, 6, generator=generator)
    alone = torch.randn(3, 1, 6, 6, generator=generator)
    images = torch.stack([shared[0], alone[0], 2 * shared[0], alone[1], shared[0] + 0.01 * alone[2], alone[2]])
    found = consensus(Reconstruction(images, torch.ones(6), torch.ones(6, dtype=torch.int64)), 3, room=10**6)
    assert len(found) == 4
    flat = found.images[0].flatten()
    assert float(torch.corrcoef(torch.stack([flat, shared.flatten()]))[0, 1]) > 0.999
    assert found.scores is not None
    assert float(found.scores[0]) > 0.9
    assert float(found.scores[1:].max()) < 0.2


def test_restarts_that_collapsed_onto_one_picture_do_not_vouch_for_each_other() -> None:
    generator = torch.Generator().manual_seed(0)
    mixture, own = torch.randn(1, 1, 6, 6, generator=generator), torch.randn(2, 1, 6, 6, generator=generator)
    start = torch.cat([mixture + 0.1 * torch.randn(8, 1, 6, 6, generator=generator), own[:1]])
    other = torch.cat([mixture + 0.1 * torch.randn(8, 1, 6, 6, generator=generator), own[:1] + 0.01 * own[1:]])
    found = Reconstruction(torch.cat([start, other]), torch.ones(18), torch.zeros(18, dtype=torch.int64))

    def best(crowd: float) -> Tensor:
        merged = consensus(found, 2, room=10**6, crowd=crowd)
        assert merged.scores is not None
        likeness = ncc(merged.images, mixture)[:, 0] > 0.9
        return torch.stack([merged.scores[likeness].max(), merged.scores[~likeness].max()])

    assert bool((best(7) > 0.5).all()), "seven others each are no crowd here"
    collapsed, real = best(6).tolist()
    assert collapsed < 0.2
    assert real > 0.9


def test_images_of_different_labels_are_not_merged() -> None:
    image = torch.randn(1, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    found = consensus(Reconstruction(image.repeat(2, 1, 1, 1), torch.ones(2), torch.tensor([0, 1])), 2, room=10**6)
    assert len(found) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be positive"),
        ({"prior": -1.0}, "prior must not be negative, got -1.0; 0 means none"),
        ({"candidates": 1}, "candidates must be at least 2"),
    ],
)
def test_settings_are_checked(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineSettings(**change)  # type: ignore[arg-type]


def test_points_on_a_line_have_scores_too() -> None:
    """One value has no contrast; then only agreement counts."""
    points = torch.tensor([[1.0], [3.0], [1.0], [3.0]])
    found = consensus(Reconstruction(points, torch.ones(4), torch.tensor([0, 1, 0, 1])), 2, room=10**6)
    assert found.scores is not None
    assert bool(found.scores.isfinite().all())
