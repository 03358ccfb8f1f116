"""Every experiment of the catalogue runs at scale smoke, draws its figures and states its numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engram.experiments.catalogue import CATALOGUE, PUBLISHED
from engram.experiments.runner import Run
from engram.experiments.zoo import PRESETS


@pytest.mark.parametrize("name", CATALOGUE)
def test_runs(name: str, smoke: Run, papers: Path) -> None:
    experiment = CATALOGUE[name]
    (record,) = smoke.experiments([experiment], go_on=False)
    assert record["failed"] is None
    assert [row["preset"] for row in record["rows"]] == [case.preset for case in experiment.cases_at("smoke")]
    stored = json.loads((papers / "experiments" / f"{experiment.stem}.json").read_text())
    assert stored == json.loads(json.dumps(record))
    assert bool(record["figures"]) == ("table" not in name)
    for figure in record["figures"].values():
        assert (papers / "figures" / figure).read_bytes().startswith(b"\x89PNG")
    for row in record["rows"]:
        assert row["cuts"], "smoke is never the paper's size"
        assert all(count["train"] <= row["n"] for count in row["counts"].values())


def test_published_numbers_belong_to_presets() -> None:
    assert set(PUBLISHED) <= set(PRESETS)
    for name, published in PUBLISHED.items():
        assert PRESETS[name].loss in (published.loss, None)
