"""Step times on tiny targets: the table, twins of two sizes, memory in a separate process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks.machine import peak_memory_bytes
from benchmarks.steps import (
    Photographs,
    StepTable,
    StepTime,
    cases,
    from_faces,
    growth_exponent,
    measure_memory,
    photographs,
    run_steps,
    time_steps,
    trained_view,
)

from engram.data.choice import DataChoice
from engram.models.tasks import Binary
from engram.pipeline import build_target
from engram.training.recipe import MLPSpec, Recipe
from tests import cases as small

SHORT = Recipe(lr=0.1, epochs=30)


def row(m: int, seconds: float, *, with_prior: bool = False, side: int = 32) -> StepTime:
    return StepTime((3, side, side), 7, m, with_prior, 50, 0.1, seconds, seconds)


def test_ratios_and_growth_of_a_table() -> None:
    rows = (row(250, 0.1), row(500, 0.2), row(1000, 0.4), row(250, 1.0, with_prior=True), row(1000, 0.5, side=64))
    table = StepTable(rows)
    assert [table.ratio(one) for one in rows] == pytest.approx([1, 2, 4, 1, 0.5 / 0.4])
    assert table.exponent(with_prior=False) == pytest.approx(1)
    assert table.exponent(with_prior=True) is None, "one size shows no growth"
    assert table.ratio(row(77, 1.0, side=64)) is None
    record = json.loads(json.dumps(table.to_json(target="t", memory=None, notes=["n"], interrupted=True)))
    assert (record["schema_version"], record["kind"], record["interrupted"]) == (1, "steps", True)
    assert record["rows"][1]["ratio"] == pytest.approx(2)
    assert record["growth_exponent"]["with_prior"] is None


def test_growth_is_a_least_squares_slope() -> None:
    assert growth_exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)
    assert growth_exponent([10, 10], [1, 2]) is None


def test_an_interruption_before_the_first_row_leaves_an_empty_table() -> None:
    record = StepTable(()).to_json(target="t", memory=None, notes=[], interrupted=True)
    assert record["rows"] == []


def test_cases_cover_candidates_on_the_first_view_and_sizes_on_the_other() -> None:
    small_view, large_view = (small.view(3 * s * s, 8, 1, shape=(3, s, s)) for s in (4, 8))
    planned = cases([small_view, large_view], (250, 1000))
    assert [(c.view.input_shape[1], c.candidates, c.with_prior) for c in planned] == [
        *((4, 250, False), (4, 1000, False), (8, 1000, False)),
        *((4, 250, True), (4, 1000, True), (8, 1000, True)),
    ]
    assert [c.with_prior for c in cases([small.view(5, 8, 1)], (10,))] == [False], "vectors have no prior"


def test_twins_of_two_sizes_are_timed() -> None:
    photos = from_faces(12)
    views = [trained_view(photos, enlarged, recipe=SHORT, widths=(16, 16)) for enlarged in (1, 2)]
    assert [view.input_shape for view in views] == [(3, 32, 32), (3, 64, 64)]
    timed = [time_steps(case, steps=3) for case in cases(views, (6, 12))]
    assert len(timed) == 6
    assert [one.steps for one in timed] == [3] * 6
    assert all(one.seconds_per_step > 0 for one in timed)


def test_enlarged_photographs_keep_their_inner_products() -> None:
    """Otherwise the two trainings would differ, which could cause a difference in time."""
    images = from_faces(6).images
    enlarged = images.repeat_interleave(2, 2).repeat_interleave(2, 3) / 2
    assert torch.allclose(images.flatten(1) @ images.flatten(1).T, enlarged.flatten(1) @ enlarged.flatten(1).T)


def test_without_cifar_faces_are_used_and_named(tmp_path: Path) -> None:
    photos: Photographs = photographs(500, tmp_path)
    assert "faces" in photos.source
    assert "CIFAR-10 is missing" in photos.source
    assert photos.images.shape == (500, 3, 32, 32)
    assert len(torch.unique(photos.images.flatten(1), dim=0)) > 490, "shifted and mirrored, not repeated"
    assert photos.labels.bincount().tolist() == [250, 250]


def test_memory_is_only_that_of_the_child() -> None:
    """On Linux children inherit their parent's peak, which would include the ballast here."""
    ballast = torch.ones(200_000_000)
    view = small.view(12, 9, 1, shape=(3, 2, 2))
    measured = measure_memory(view, 8)
    assert ballast.numel() * 4 < peak_memory_bytes()
    assert measured["candidates"] == 8
    assert 10_000_000 < measured["loaded_bytes"] <= measured["peak_memory_bytes"] < 800_000_000


def test_steps_of_a_trained_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    choice = DataChoice(name="faces", labels="gate", n=10)
    build_target(choice, MLPSpec(inputs=625, widths=(30,)), Recipe(epochs=20), Binary(), directory=tmp_path / "t")
    assert run_steps(tmp_path / "t", tmp_path, None)
    record = json.loads((tmp_path / "steps.json").read_text())
    assert [row["candidates"] for row in record["rows"]] == [250, 500, 1000, 2000] * 2
    assert record["memory"]["peak_memory_bytes"] > record["memory"]["loaded_bytes"] > 10_000_000
    assert record["growth_exponent"]["with_prior"] is not None
    printed = capsys.readouterr().out
    assert "to the power" in printed
    assert "peak memory" in printed
    assert "image sizes are not compared" in printed
