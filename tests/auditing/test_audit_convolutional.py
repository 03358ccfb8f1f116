"""The audit of networks that begin with convolutions: the same verdict, on features."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from engram.attacks.settings import EngineSettings
from engram.auditing.record import AuditRecord
from engram.auditing.run import audit
from engram.auditing.watch import Watcher
from engram.core.errors import ConfigError, UnsupportedModelError
from engram.scoring.protocols import Buzaglo2023Protocol
from tests.conv_cases import LABELS, SHAPE, drawn, faces, written
from tests.schemas import problems

QUICK = EngineSettings(restarts=2, steps=300)


@cache
def audited(start: int) -> AuditRecord:
    """With the faces from `start` on given as training faces; the real ones start at 0."""
    given = {"train": (faces(start), LABELS), "held_out": (faces(100), LABELS), "mean": faces(0).mean(0)}
    return audit(written(), settings=QUICK, baselines="quick" if start == 0 else "none", **given)  # type: ignore[arg-type]


def test_faces_in_the_weights_are_found_and_others_are_not() -> None:
    leaking, innocent = audited(0), audited(50)
    assert leaking.verdict.outcome == "leak found"
    assert leaking.comparison is not None
    assert leaking.comparison.score.protocol == Buzaglo2023Protocol(B=1.5)
    assert sum(risk.recovered for risk in leaking.risks) >= 6
    assert leaking.comparison.membership is not None
    assert leaking.comparison.membership["dual"].roc.auc > 0.9
    assert leaking.timeline[-1].counts is not None
    assert leaking.timeline[-1].counts["ncc>0.8"].train == sum(risk.recovered for risk in leaking.risks), (
        "the same matching"
    )
    assert innocent.verdict.outcome == "no leak found"
    assert any("gets only" in warning for warning in innocent.comparison.warnings)  # type: ignore[union-attr]


def test_the_report_says_what_is_read_and_what_is_unknown() -> None:
    record = audited(0)
    text, read = record.to_html(), json.loads(json.dumps(record.to_json(), allow_nan=False))
    assert "Spectrum of the first fully-connected layer" in text
    assert "there is no ceiling" in text
    assert "ceiling SSIM" not in text
    assert "enough equations" not in text
    assert "Baseline: first-layer kernels" in text
    assert "calibrated on eleven small convolutional networks" in text
    assert f"--arch &#39;{record.architecture}&#39;" in text
    assert read["model"]["architecture"] == "conv3x8 relu flatten 200 relu 1"
    assert problems("report", read) == []
    assert read["inspection"]["row_space"]["layer"] == "layers.1"
    assert read["inspection"]["samples"]["kkt"]["layers"][0]["name"] == "layers.1"
    kernels = read["baselines"][1]
    assert (kernels["name"], kernels["images"], kernels["scores"]) == ("first-layer kernels", 8, None)
    assert read["baselines"][0]["scores"]["protocol"]["B"] == 1.5
    assert read["comparison"]["risks"][0]["ceiling_ssim"] is None
    assert read["comparison"]["risks"][0]["dual"] is not None


def test_a_blind_audit_shows_candidates_and_is_resumed_after_a_kill(tmp_path: Path) -> None:
    record = audit(written(), settings=QUICK, baselines="none", directory=tmp_path / "run")
    assert record.mode == "blind"
    assert record.verdict.outcome == "leak suspected"
    assert torch.equal(record.blind.found.images, audited(0).blind.found.images), "the data change nothing"
    (tmp_path / "run" / "report.json").unlink()
    again = audit(written(), baselines="none", directory=tmp_path / "run", resume=True)
    assert again.attack.settings == record.attack.settings
    assert torch.equal(again.blind.found.images, record.blind.found.images)


def test_an_untrained_network_is_not_suspected() -> None:
    untrained = drawn("conv3x8 relu flatten 200 relu 1", torch.float32)
    short = EngineSettings(restarts=2, steps=20, prior=0.2, candidates=8)
    record = audit(untrained, settings=short, baselines="none")
    assert record.verdict.outcome == "no leak found"
    assert "no direction of layers.1 stands above the noise" in record.verdict.sentence


def test_a_module_a_state_dict_and_a_file_with_their_layers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(400, 30), nn.ReLU(), nn.Linear(30, 1)
    )
    torch.save(module.state_dict(), tmp_path / "model.pt")
    torch.export.save(torch.export.export(module, (torch.zeros(1, *SHAPE),)), tmp_path / "model.pt2")
    short = EngineSettings(restarts=2, steps=8, prior=0.2, candidates=6)
    described = {"input_shape": SHAPE, "arch": "conv3x4 relu flatten 30 relu 1"}
    found = [
        audit(model, settings=short, baselines="none", directory=tmp_path / f"run{index}", **given).blind.found  # type: ignore[arg-type]
        for index, (model, given) in enumerate(
            [
                (module, described),
                (module.state_dict(), described),
                (tmp_path / "model.pt", described),
                (tmp_path / "model.pt2", {}),
            ]
        )
    ]
    assert all(torch.equal(one.images, found[0].images) for one in found[1:])
    assert Watcher(tmp_path / "run2").look().images is not None, "the described layers are in its run.json"
    assert Watcher(tmp_path / "run3").look().images is not None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"model": written().params, "arch": "conv3x8 relu flatten 200 relu 1"},
            "--arch needs the shape of one input",
        ),
        ({"arch": "conv3x8 relu flatten 100 relu 1"}, "specifies its own layers, which differ; leave --arch out"),
        ({"input_shape": (1, 6, 24)}, "input shape 1x6x24 differs from the 1x12x12 of the network's layers"),
        ({"model": drawn("conv3x3 relu flatten 1")}, "`engram reconstruct --recipe buzaglo2023`"),
        ({"model": drawn("conv3x3 relu flatten 5 5 relu 1")}, "`engram reconstruct --recipe buzaglo2023`"),
    ],
)
def test_wrong_inputs_are_named(given: dict[str, object], message: str, tmp_path: Path) -> None:
    arguments = {"model": written(), "directory": tmp_path / "run", **given}
    with pytest.raises((ConfigError, UnsupportedModelError)) as caught:
        audit(arguments.pop("model"), **arguments)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert not (tmp_path / "run" / "report.json").exists()
