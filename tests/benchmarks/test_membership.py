"""The membership benchmark trains, asks in every way, survives a kill, and writes what it printed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.membership_targets import TARGETS, TargetPlan, ViT, adam, augmented, resnet
from torch import nn

from benchmarks import membership, shadow_tests
from engram.core import files
from engram.scoring.curves import roc


def _small() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(625, 64), nn.ReLU(), nn.Linear(64, 2))


def test_a_small_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = TargetPlan(_small, "gate", 50, 10, 20, adam, "faces", shadows=4)
    monkeypatch.setitem(TARGETS, "small", plan)
    monkeypatch.setattr(membership, "FEWER", 2)
    run = ["--targets", "small", "--seeds", "1,2", "--out", str(tmp_path)]
    membership.main(run)
    rows = files.read_json(tmp_path / "membership.json")["rows"]
    assert [row["seed"] for row in rows] == [1, 2]
    assert list(rows[0]["tests"]) == [
        "engram",
        "loss threshold",
        *(f"{test} {count}" for count in (2, 4) for test in ("offline LiRA", "online LiRA", "RMIA")),
    ]
    for one in rows[0]["tests"].values():
        assert 0 <= one["tpr_at_0"] <= one["tpr_at_1%"] <= 1
    printed = capsys.readouterr().out
    assert f"auc {rows[0]['tests']['engram']['auc']:.3f}" in printed
    assert printed.count("shadow model") == 4
    assert (tmp_path / "membership.png").stat().st_size > 1000
    membership.main(run)
    assert "shadow model" not in capsys.readouterr().out
    again = files.read_json(tmp_path / "membership.json")["rows"]
    assert again[0]["tests"]["engram"]["auc"] == rows[0]["tests"]["engram"]["auc"]


@pytest.mark.parametrize("score", [shadow_tests.online_lira, shadow_tests.offline_lira, shadow_tests.rmia])
def test_shadow_tests_find_members_whose_margins_rise(score: object) -> None:
    """Every record has its own difficulty, which a threshold on the margin does not know."""
    generator = torch.Generator().manual_seed(0)
    difficulty = 3 * torch.randn(200, generator=generator)
    members = torch.rand(64, 200, generator=generator) < 0.5
    shadows = difficulty + 2 * members + 0.5 * torch.randn(64, 200, generator=generator)
    own = torch.arange(200) < 100
    target = difficulty + 2 * own + 0.5 * torch.randn(200, generator=generator)
    scores = score(target, shadows, members)  # type: ignore[operator]
    threshold = roc(target[own], target[~own]).auc
    assert threshold < 0.75
    assert roc(scores[own], scores[~own]).auc > threshold + 0.1


def test_networks_and_augmentation() -> None:
    images = torch.rand(4, 3, 32, 32)
    assert augmented(images).shape == images.shape
    assert resnet()(images).shape == ViT()(images).shape == (4, 10)
    assert 260_000 < sum(value.numel() for value in resnet(3).parameters()) < 280_000
