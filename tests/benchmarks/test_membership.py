"""The membership benchmark trains, asks and writes what it printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from benchmarks import membership
from engram.core import files


def _small() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(625, 64), nn.ReLU(), nn.Linear(64, 2))


def test_a_small_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = membership.TargetPlan(_small, "gate", 50, 10, 30, membership.TARGETS["mlp10"].optimiser, "faces")
    monkeypatch.setitem(membership.TARGETS, "small", plan)
    membership.main(["--targets", "small", "--seeds", "1,2", "--out", str(tmp_path)])
    rows = files.read_json(tmp_path / "membership.json")["rows"]
    assert [row["seed"] for row in rows] == [1, 2]
    assert all(0 <= row["engram"]["tpr_at_0"] <= row["engram"]["tpr_at_1%"] <= 1 for row in rows)
    assert f"auc {rows[0]['engram']['auc']:.3f}" in capsys.readouterr().out
