"""Every experiment of the catalogue runs at scale smoke, draws its figures and reports its numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engram.core.loop import silent
from engram.papers.attacks import SMOKE_STEPS, natural_contrast
from engram.papers.cases import Case, run_case
from engram.papers.catalogue import CATALOGUE, PUBLISHED, Run
from engram.training.presets import PRESETS


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_experiment_runs(name: str, smoke: Run, papers: Path) -> None:
    experiment = CATALOGUE[name]
    (record,) = smoke.experiments([experiment], keep_going=False)
    assert record["failed"] is None
    assert [row["preset"] for row in record["rows"]] == [case.preset for case in experiment.cases_at("smoke")]
    stored = json.loads((papers / "experiments" / f"{experiment.stem}.json").read_text())
    assert stored == json.loads(json.dumps(record))
    assert bool(record["figures"]) == ("table" not in name)
    for figure in record["figures"].values():
        assert (papers / "figures" / figure).read_bytes().startswith(b"\x89PNG")
    for row in record["rows"]:
        assert row["cuts"], "smoke is never as large as the paper"
        assert all(count["train"] <= row["n"] for count in row["counts"].values())


@pytest.mark.parametrize("name", ["haim/fig17", "haim/fig18"])
def test_the_standard_start_gets_both_attacks(name: str, smoke: Run) -> None:
    (record,) = smoke.experiments([CATALOGUE[name]], keep_going=False)
    assert [row["attack"] for row in record["rows"]] == ["engine", "haim2022"]
    assert len({row["preset"] for row in record["rows"]}) == 1
    assert sorted(part.rsplit("-", 1)[-1] for part in record["figures"]) == ["engine", "haim2022"]


def test_published_numbers_match_the_presets() -> None:
    assert set(PUBLISHED) <= set(PRESETS)
    for name, published in PUBLISHED.items():
        assert PRESETS[name].loss in (published.loss, None)


@pytest.mark.parametrize("preset", ["cifar50", "mnist500", "classes10", "cifar300-huber", "conv3x32"])
def test_the_published_scheme_attacks_the_same_targets(preset: str, smoke: Run, papers: Path) -> None:
    order = Case(preset).order(replace(smoke.setting, recipe="haim2022"))
    finished = run_case(order, smoke.setting.means, papers, progress=silent)
    assert finished is not None
    record = finished.record
    assert record.attack == "haim2022"
    assert record.steps == SMOKE_STEPS
    assert "one run of the published scheme instead of a search over 100" in record.cuts
    assert record.candidates == 2 * record.n


def test_weights_are_shown_at_the_contrast_of_photographs() -> None:
    rows = torch.randn(4, 1, 5, 5) * torch.tensor([1e-6, 1e-3, 1.0, 1e3]).view(4, 1, 1, 1)
    shown = natural_contrast(rows)
    torch.testing.assert_close(shown.flatten(1).std(1), torch.full((4,), 0.2))
    torch.testing.assert_close(shown[2] / shown[2].norm(), rows[2] / rows[2].norm())
