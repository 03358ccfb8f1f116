"""sweep.html: what a sweep found, with and without data."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from markupsafe import escape

from engram.attacks.reconstruction import Reconstruction
from engram.auditing.verdict import sweep_verdict
from engram.data.choice import DataChoice
from engram.data.sets import Split
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.pipeline import compare
from engram.render.html import render
from engram.render.svg import Axis, Choices, ParallelChart, TrialLine
from engram.sweep.executors import InProcess
from engram.sweep.page import sweep_page
from engram.sweep.space import Choice, Space, SweepSpec
from engram.sweep.summary import Conclusion, conclude
from engram.sweep.sweep import Sweep, drive
from tests import cases
from tests.sweep import small


@pytest.fixture(scope="module")
def faces() -> Split:
    return DataChoice(name="faces", labels="gate", n=6).load()


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory, faces: Split) -> Conclusion:
    """Twenty-four small trials on an untrained network, scored against faces."""
    view = AttackerView(cases.network(625, 9, 1, dtype=torch.float32), (1, 25, 25), Binary())
    sweep = Sweep(
        view=view,
        spec=small.spec(24, steps=10, keep=1.0),
        directory=tmp_path_factory.mktemp("sweep"),
        model="gate",
    )
    drive([sweep], InProcess())
    found = conclude(sweep, faces)
    sweep.close()
    assert json.loads((sweep.directory / "sweep.json").read_text()) == json.loads(json.dumps(found.summary))
    return found


def test_the_page_has_all_its_parts(scored: Conclusion, faces: Split) -> None:
    text = render(sweep_page(scored, faces.train))
    assert "engram sweep</p>" in text
    sentence = sweep_verdict(scored.pooled, scored.score, scored.summary["pooled"]["trials"]).sentence
    assert str(escape(sentence)) in text
    for words in ("Against the number of pooled trials", "Settings and objective", "Importance", "All trials"):
        assert words in text
    complete = scored.summary["counts"]["complete"]
    assert complete >= 20
    assert text.count("<title>trial ") == complete
    assert text.count("data:image/png;base64,") == 12, "six pairs"
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", text)
    growth = scored.summary["pooled"]["growth"]
    assert [point["trials"] for point in growth] == [1, 2, 4, 8, 16, complete]
    counts = scored.summary["scores"]["counts"]
    assert growth[-1]["counts"] == counts
    assert growth[-1]["candidates"] == len(scored.pooled)


def test_a_blind_page_with_few_trials_counts_confident_candidates(tmp_path: Path) -> None:
    with small.opened(tmp_path, small.spec(3)) as sweep:
        drive([sweep], InProcess())
        found = conclude(sweep)
    assert found.summary["scores"] is None
    assert found.summary["pooled"]["growth"][0]["counts"] is None
    page = sweep_page(found)
    text = render(page)
    assert "3 complete trials are too few to tell; at least 20 are needed." in text
    assert "confident candidates" in text
    assert page.outcome in ("leak suspected", "no leak found")


def test_pages_of_sweeps_over_choices_or_starts_only(tmp_path: Path) -> None:
    fixed = {"steps": 5, "candidates": 4}
    spaces = {
        "choices": Space(search={"dtype": Choice(choices=("float32", "float64"))}, fixed=fixed),
        "starts": Space(fixed=fixed),
    }
    for name, space in spaces.items():
        with small.opened(tmp_path / name, SweepSpec(space=space, trials=2)) as sweep:
            drive([sweep], InProcess())
            text = render(sweep_page(conclude(sweep)))
        assert ("No setting was varied" in text) == (name == "starts")
        assert ("float64</text>" in text) == (name == "choices")


def test_the_verdict_depends_on_the_records_and_their_control(scored: Conclusion, faces: Split) -> None:
    inputs = faces.train.images - faces.mean
    own = Reconstruction(inputs, torch.ones(6), faces.train.labels, torch.full((6,), 0.95))
    score = compare(own, faces)
    assert sweep_verdict(own, score, 2).outcome == "leak found"
    assert (
        "6 of 6 training records were recovered (ncc>0.8) in 6 candidates pooled from 2 trials"
        in sweep_verdict(own, score, 2).sentence
    )
    assert sweep_verdict(own, None, 2).outcome == "leak suspected"
    assert sweep_verdict(replace(own, scores=torch.full((6,), 0.1)), None, 2).outcome == "no leak found"
    assert (
        "can't be judged without a second trial"
        in sweep_verdict(replace(own, scores=torch.full((6,), torch.nan)), None, 1).sentence
    )
    noise = replace(own, images=torch.randn(6, 1, 25, 25, generator=torch.Generator().manual_seed(0)))
    assert sweep_verdict(noise, compare(noise, faces), 2).outcome == "no leak found"


def test_lines_stay_within_the_axes_and_names_are_escaped() -> None:
    axes: list[Axis | Choices] = [
        Axis("rate", 1e-3, 1, log=True),
        Choices("<b>", ["a", "b"]),
        Axis("objective", 0, 1),
    ]
    drawn = ParallelChart("t", axes, [TrialLine([0.5, "b", 7.0], "<i>", is_best=True)], summary="s").__html__()
    assert "<b>" not in drawn
    assert "<i>" not in drawn
    points = re.findall(r'points="([^"]+)"', drawn)
    numbers = [float(number) for number in re.split("[ ,]", points[0])]
    assert len(numbers) == 6
    assert all(0 <= number <= 920 for number in numbers)
