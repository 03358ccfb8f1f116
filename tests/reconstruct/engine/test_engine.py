"""The engine as a whole: it recovers planted images, judges itself, and is reproducible."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engram.attacker import AttackerView
from engram.data.choice import DataChoice
from engram.errors import ConfigError
from engram.loop import Budget, Snapshots, run
from engram.pipeline import build_target, compare
from engram.reconstruct.candidates import Reconstruction
from engram.reconstruct.engine.consensus import agreements, consensus
from engram.reconstruct.engine.settings import EngineSettings
from engram.reconstruct.engine.solver import Engine
from engram.targets.descent import Recipe
from engram.targets.networks import DenseNetwork
from engram.targets.spec import MLPSpec
from engram.task import Binary

FACES = DataChoice(name="faces", labels="gate", n=20)
SHAPE = (1, 25, 25)


@pytest.fixture(scope="module")
def memorised() -> DenseNetwork:
    """Twenty faces, alternately admitted and not: a small network has to memorise them."""
    spec = MLPSpec(inputs=625, widths=(400, 400))
    return build_target(FACES, spec, Recipe(lr=0.05, epochs=2000), Binary()).network


def _engine(network: DenseNetwork, **settings: object) -> Engine:
    return Engine(AttackerView(network, SHAPE, Binary()), EngineSettings(**settings))  # type: ignore[arg-type]


def test_recovers_memorised_faces_and_knows_which(memorised: DenseNetwork) -> None:
    engine = _engine(memorised, steps=250, restarts=3)
    found = engine.reconstruction(run(engine, Budget(steps=engine.total_steps)).state)
    report = compare(found, FACES.load())
    counts = {row.threshold.text: row for row in report.counts}
    assert counts["ncc>0.8"].train >= 10
    assert counts["ncc>0.8"].held_out == 0
    assert found.scores is not None
    assert torch.equal(found.scores, found.scores.sort(descending=True).values)
    best = compare(found.take(torch.arange(5)), FACES.load())
    assert best.train.count("ncc", 0.8) >= 4, "the five most confident candidates are real faces"


def test_an_untrained_network_gives_nothing_and_no_confidence() -> None:
    spec = MLPSpec(inputs=625, widths=(200, 200), first_layer_std=None)
    network = build_target(FACES, spec, Recipe(lr=1e-12, epochs=1), Binary()).network
    engine = _engine(network, steps=60, restarts=3)
    found = engine.reconstruction(run(engine, Budget(steps=engine.total_steps)).state)
    assert compare(found, FACES.load()).train.count("ncc", 0.8) == 0
    assert found.scores is not None


def test_objective_s_gradients_equal_autograd(memorised: DenseNetwork) -> None:
    """Margin, prior and metric together, in float64, against differences along random directions."""
    engine = _engine(memorised, candidates=10, dtype="float64", restarts=1)
    state = engine.init()
    state["metric_latents"], state["metric_duals"] = state["latents"].clone(), state["duals"].clone()
    losses, by_latents, by_duals = engine._objective(state)

    def value(latents: torch.Tensor, duals: torch.Tensor) -> float:
        terms = engine._objective({**state, "latents": latents, "duals": duals})[0]
        return float(sum(terms.values()))

    assert value(state["latents"], state["duals"]) == pytest.approx(float(sum(losses.values())))
    # Only the prior has an exact derivative in the latents: the papers' ReLU derivative is a surrogate elsewhere.
    prior, by_prior = engine._variation(state["latents"], state["duals"])
    direction = torch.randn_like(state["latents"])
    ahead = engine._variation(state["latents"] + 1e-6 * direction, state["duals"])[0]
    assert float((ahead - prior) / 1e-6) == pytest.approx(float((by_prior * direction).sum()), rel=1e-3)
    # In the duals the stationarity is a plain quadratic.
    direction = torch.randn_like(state["duals"])

    def stationarity(duals: torch.Tensor) -> float:
        return float(engine._objective({**state, "duals": duals})[0]["stationarity"])

    step = 1e-4 * engine.scales.dual
    difference = stationarity(state["duals"] + step * direction) - stationarity(state["duals"] - step * direction)
    assert difference / (2 * step) == pytest.approx(float((by_duals * direction).sum()), rel=1e-4)
    assert by_latents.shape == state["latents"].shape


def test_resumed_in_the_middle_of_a_metric_ends_bit_identical(memorised: DenseNetwork, tmp_path: Path) -> None:
    settings = {"steps": 60, "restarts": 2, "candidates": 20}
    whole = run(_engine(memorised, **settings), Budget(steps=120)).state
    snapshots = Snapshots(path=tmp_path / "s")
    run(_engine(memorised, **settings), Budget(steps=73), snapshots=snapshots)
    resumed = run(_engine(memorised, **settings), Budget(steps=120), snapshots=snapshots, resume=True).state
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_scaling_the_pixels_scales_the_candidates(memorised: DenseNetwork) -> None:
    """No hidden unit: a network that reads pixels in [0, 10] gives the same images, ten times as large."""
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
    torch.testing.assert_close(agreements(likeness.clone(), 2), torch.tensor([0.9, 0.4, 0.9, 0.4]))


def test_consensus_merges_the_same_image_and_ranks_it_first() -> None:
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(1, 1, 6, 6, generator=generator)
    alone = torch.randn(3, 1, 6, 6, generator=generator)
    images = torch.stack([shared[0], alone[0], 2 * shared[0], alone[1], shared[0] + 0.01 * alone[2], alone[2]])
    found = consensus(Reconstruction(images, torch.ones(6), torch.ones(6, dtype=torch.int64)), restarts=3)
    assert len(found) == 4
    flat = found.images[0].flatten()
    assert float(torch.corrcoef(torch.stack([flat, shared.flatten()]))[0, 1]) > 0.999
    assert found.scores is not None
    assert float(found.scores[0]) > 0.9
    assert float(found.scores[1:].max()) < 0.2


def test_images_of_different_labels_are_not_merged() -> None:
    image = torch.randn(1, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    found = consensus(Reconstruction(image.repeat(2, 1, 1, 1), torch.ones(2), torch.tensor([0, 1])), restarts=2)
    assert len(found) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be positive"),
        ({"prior": -1.0}, "prior must not be negative, got -1.0; 0 is none"),
        ({"candidates": 1}, "candidates must be at least 2"),
    ],
)
def test_settings_are_checked(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineSettings(**change)  # type: ignore[arg-type]
