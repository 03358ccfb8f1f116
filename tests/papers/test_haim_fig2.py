"""haim/fig2 from end to end in seconds: every stage and panel, but far from convergence."""

from __future__ import annotations

from dataclasses import replace

from engram.papers.attacks import CIRCLE_ATTACK, run_fig2
from engram.training.presets import CIRCLE_RECIPE


def test_every_stage_exists_and_is_drawn() -> None:
    recipe, settings = replace(CIRCLE_RECIPE, epochs=20), replace(CIRCLE_ATTACK, steps=4, dual_floor=0.01)
    result = run_fig2(1, recipe=recipe, settings=settings)
    assert len(result.start) == len(result.found) == 100
    assert len(result.final) <= len(result.pruned) <= 100
    assert result.found.labels.bincount().tolist() == [50, 50]
    assert not result.start.images.equal(result.found.images)
    assert result.figure().startswith(b"\x89PNG")


def test_the_summary_counts_recovered_points() -> None:
    result = run_fig2(0, recipe=replace(CIRCLE_RECIPE, epochs=2), settings=replace(CIRCLE_ATTACK, steps=1))
    planted = replace(result, final=replace(result.found, images=result.data.train.images + 0.04))
    assert planted.summary.startswith("20 of 20 points within 0.1 (0 within 0.05)")
