"""Networks with convolutions from the command line: train, inspect, reconstruct, score; files without a card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from tests.cli.command import engram

LAYERS = "conv3x4s2 relu flatten 30 relu 1"
SHORT = ("--steps", 8, "--restarts", 2, "--prior", 0.4, "-m", 6)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("convolutional") / "target"
    options = ("--weight-decay", 1e-3, "--lr", 0.1, "--epochs", 30, "--init", "standard")
    engram("train", "--data", "faces", "--labels", "gate", "-n", 6, "--arch", LAYERS, *options, "-o", out)
    return out


def test_from_training_to_scores(target: Path, tmp_path: Path) -> None:
    card = json.loads((target / "card.json").read_text())
    assert card["network"]["layers"] == LAYERS
    assert card["network"]["input_shape"] == [1, 25, 25]
    run = tmp_path / "run"
    engram("reconstruct", target, *SHORT, "-o", run)
    record = json.loads((run / "run.json").read_text())
    assert (record["recipe"], record["architecture"]) == ("engine", LAYERS)
    assert load_file(run / "reconstruction.safetensors")["images"].shape[1:] == (1, 25, 25)
    for options, ratio in (((), 1.5), (("--ratio", 1.2), 1.2)):
        engram("score", run, *options)
        scores = json.loads((run / "scores.json").read_text())
        assert scores["protocol"] == {"name": "buzaglo2023", "B": ratio}
        assert scores["n_train"] == 6
    refused = engram("score", run, "--ratio", 1.2, "--protocol", "haim2022", expect=1)
    assert "--ratio does nothing with --protocol haim2022" in refused


def test_published_scheme_and_budget(target: Path, tmp_path: Path) -> None:
    engram("reconstruct", target, "--recipe", "buzaglo2023", "--steps", 5, "-m", 4, "-o", tmp_path / "published")
    assert len(load_file(tmp_path / "published" / "reconstruction.safetensors")["images"]) == 4
    engram("reconstruct", target, "--budget", "1s", "-m", 4, "--prior", "none", "-o", tmp_path / "planned")
    assert json.loads((tmp_path / "planned" / "run.json").read_text())["settings"]["prior"] == 0.0


def test_inspection_shows_layers_and_kernels(target: Path, tmp_path: Path) -> None:
    picture = tmp_path / "kernels.png"
    record = json.loads(engram("inspect", target, "--json", "--plot", picture))
    assert [layer["inputs"] for layer in record["layers"]] == [9, 4 * 12 * 12, 30]
    assert record["row_space"]["layer"] == "layers.1"
    assert record["architecture"] == LAYERS
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = engram("inspect", target)
    assert "row space of layers.1" in shown
    shown = engram("inspect", target, "--with-data")
    assert "of the median sample's features" in shown
    assert "KKT" in shown
    refused = engram("inspect", target, "-n", 6, expect=1)
    assert "-n alone counts equations, which is not done with convolutions" in refused


def test_an_audit_of_a_directory_and_of_a_file_without_a_card(target: Path, tmp_path: Path) -> None:
    options = ("--budget", "2s", "--images", 4)
    printed = engram("audit", target, "--with-data", *options, "-o", tmp_path / "with")
    record = json.loads((tmp_path / "with" / "report.json").read_text())
    assert record["verdict"]["sentence"] in printed
    assert record["mode"] == "with data"
    assert record["comparison"]["scores"]["protocol"]["B"] == 1.5
    assert [one["name"] for one in record["baselines"]] == ["model inversion", "first-layer kernels"]
    described = ("--arch", LAYERS, "--input-shape", "1x25x25")
    engram("audit", target / "model.safetensors", *described, *options, "-o", tmp_path / "blind")
    blind = json.loads((tmp_path / "blind" / "report.json").read_text())
    assert (blind["mode"], blind["model"]["architecture"]) == ("blind", LAYERS)
    engram("audit", target / "model.safetensors", *described, "--images", 4, "-o", tmp_path / "blind", "--resume")
    again = json.loads((tmp_path / "blind" / "report.json").read_text())
    assert again["attack"]["settings"] == blind["attack"]["settings"]
    assert "step" in engram("watch", tmp_path / "blind", "--once")


def test_files_without_a_card(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 30),
        nn.ReLU(),
        nn.Linear(30, 1),
    )
    torch.save(net.state_dict(), tmp_path / "model.pt")
    torch.export.save(torch.export.export(net, (torch.zeros(1, 3, 8, 8),)), tmp_path / "model.pt2")
    described = ("--arch", "conv3x4 relu avgpool2 flatten 30 relu 1", "--input-shape", "3x8x8")
    for name, options in (("model.pt", described), ("model.pt2", ())):
        engram("reconstruct", tmp_path / name, *options, *SHORT, "-o", tmp_path / f"run-{name}")
    results = [
        load_file(tmp_path / f"run-{name}" / "reconstruction.safetensors") for name in ("model.pt", "model.pt2")
    ]
    assert torch.equal(results[0]["images"], results[1]["images"])
    undescribed = engram(
        "reconstruct", tmp_path / "model.pt", "-o", tmp_path / "x", "--input-shape", "3x8x8", expect=1
    )
    assert "--arch 'conv3x32 relu flatten 1000 relu 1'" in undescribed
    shapeless = engram("reconstruct", tmp_path / "model.pt", *described[:2], "-o", tmp_path / "x", expect=1)
    assert "--arch needs the shape of one input, e.g. --input-shape" in shapeless


def test_contradictions_are_reported(target: Path, tmp_path: Path) -> None:
    start = ("train", "--data", "faces", "--labels", "gate", "-n", 6, "-o", tmp_path / "x")
    both = engram(*start, "--arch", LAYERS, "--widths", "10", expect=1)
    assert "--widths and --arch each describe the whole network" in both
    assert "--arch must end in 1 for this task" in engram(*start, "--arch", f"{LAYERS}0", expect=1)
    other = LAYERS.replace("30", "20")
    error = engram("inspect", target, "--arch", other, "--input-shape", "1x25x25", expect=1)
    assert "leave --arch out" in error
