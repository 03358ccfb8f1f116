"""The commands as users run them: train, inspect, reconstruct, score; kill and resume; errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engram.data.choice import DataChoice
from tests.cli.command import ENGRAM, engram


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small gate: 10 faces, 30-30 network."""
    out = tmp_path_factory.mktemp("gate") / "target"
    engram(
        "train",
        "--data",
        "faces",
        "--labels",
        "gate",
        "-n",
        10,
        "--widths",
        "30,30",
        "--epochs",
        60,
        "-o",
        out,
    )
    return out


ATTACK = ("--recipe", "haim2022", "--candidates", 8, "--steps", 40, "--set", "lr_images=0.01")


def test_from_training_to_scores(target: Path, tmp_path: Path) -> None:
    card = json.loads((target / "card.json").read_text())
    assert card["data"] == {"name": "faces", "labels": "gate", "n": 10, "seed": None, "classes": None}
    assert card["epochs"] == 60
    assert 0 <= card["train"]["accuracy"] <= 1

    run = tmp_path / "run"
    engram("reconstruct", target, *ATTACK, "-o", run)
    found = load_file(run / "reconstruction.safetensors")
    assert found["images"].shape == (8, 1, 25, 25)
    assert found["images"].dtype == torch.float32
    assert found["duals"].shape == found["labels"].shape == (8,)
    record = json.loads((run / "run.json").read_text())
    assert record["outcome"]["state"] == "step_limit"
    assert record["settings"]["candidates"] == 8
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 41))

    printed = engram("score", run)
    assert "ssim>0.4" in printed
    assert "excess" in printed
    scores = json.loads((run / "scores.json").read_text())
    assert scores["n_train"] == scores["n_held_out"] == 10
    assert scores["candidates"] == 8
    assert len(scores["records"]) == 10
    assert scores["reliability"] is None  # the published scheme has no confidence
    assert all(isinstance(row["model_output"], float) for row in scores["records"])
    assert (run / "pairs.png").read_bytes().startswith(b"\x89PNG")


def test_the_score_reports_the_precision_of_the_confidence(target: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    engram("reconstruct", target, "--steps", 20, "--restarts", 2, "--prior", 1.6, "-o", run)
    printed = engram("score", run)
    precision = {
        row["k"]: row for row in json.loads((run / "scores.json").read_text())["reliability"]["precision"]
    }
    data = DataChoice(name="faces", labels="gate", n=10).load(None)
    found = load_file(run / "reconstruction.safetensors")["images"][:20].flatten(1).numpy()
    real = [
        max(np.corrcoef(candidate, image)[0, 1] for image in images.flatten(1).numpy()) > 0.8
        for images in (data.train.images - data.mean, data.held_out.images - data.mean)
        for candidate in found
    ]
    assert precision[20] == {"k": 20, "train": sum(real[:20]) / 20, "held_out": sum(real[20:]) / 20}
    assert "of the 20 most confident candidates" in printed


def test_a_foreign_checkpoint_needs_only_its_input_shape(tmp_path: Path) -> None:
    torch.manual_seed(0)
    foreign = torch.nn.Sequential(torch.nn.Linear(12, 9), torch.nn.ReLU(), torch.nn.Linear(9, 1))
    torch.save({"state_dict": foreign.state_dict(), "epoch": 3}, tmp_path / "model.pt")
    described = json.loads(engram("inspect", tmp_path / "model.pt", "--input-shape", "3x2x2", "--json"))
    assert described["name"] == "12-9-1"
    assert described["layers"][0]["norm"] == pytest.approx(float(foreign.state_dict()["0.weight"].norm()))
    run = tmp_path / "run"
    engram("reconstruct", tmp_path / "model.pt", "--input-shape", "3x2x2", *ATTACK, "-o", run)
    assert load_file(run / "reconstruction.safetensors")["images"].shape == (8, 3, 2, 2)


@pytest.mark.parametrize(
    "recipe",
    [
        ("--recipe", "haim2022", "--candidates", "40", "--steps", "800", "--set", "lr_images=0.01"),
        ("--recipe", "engine", "--candidates", "40", "--steps", "400", "--restarts", "3"),
    ],
    ids=["haim2022", "engine"],
)
def test_killed_and_resumed_ends_bit_identical(target: Path, tmp_path: Path, recipe: tuple[str, ...]) -> None:
    """SIGKILL at some moment in the middle; --resume ends like the undisturbed run."""
    arguments = ["reconstruct", str(target), *recipe, "-o"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    engram(*arguments, whole)
    child = subprocess.Popen([*ENGRAM, *arguments, str(cut), "--snapshot-every", "0"], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (cut / "snapshot.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert not (cut / "reconstruction.safetensors").exists(), "killed too late to show anything"
    engram(*arguments, cut, "--resume")
    expected, resumed = (load_file(run / "reconstruction.safetensors") for run in (whole, cut))
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)
    metrics = [(run / "metrics.jsonl").read_text() for run in (whole, cut)]
    assert metrics[0] == metrics[1]


def test_an_earlier_run_is_not_overwritten(target: Path, tmp_path: Path) -> None:
    engram("reconstruct", target, *ATTACK, "-o", tmp_path / "run")
    error = engram("reconstruct", target, *ATTACK, "-o", tmp_path / "run", expect=1)
    assert "already contains a run; resume it with --resume, or choose another directory" in error


def test_a_diverged_run_says_where_and_what_to_do(target: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    error = engram("reconstruct", target, *ATTACK[:-1], "lr_images=1e30", "-o", run, expect=1)
    assert "diverged at step" in error
    assert "lower lr_images" in error
    assert json.loads((run / "run.json").read_text())["outcome"]["state"] == "diverged"
    assert not (run / "reconstruction.safetensors").exists()


def test_a_time_budget_is_kept(target: Path, tmp_path: Path) -> None:
    engram("reconstruct", target, *ATTACK, "--steps", 10**6, "--budget", "0.5s", "-o", tmp_path / "run")
    outcome = json.loads((tmp_path / "run" / "run.json").read_text())["outcome"]
    assert outcome["state"] == "time_limit"
    assert 0.5 <= outcome["seconds"] < 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("reconstruct", "none.pt", "--input-shape", "3x2x2"), "none.pt"),
        (
            ("reconstruct", "TARGET", "--input-shape", "3x32x32"),
            "input shape 3x32x32 has 3,072 values, but the first",
        ),
        (
            ("reconstruct", "TARGET", "--input-shape", "3by2"),
            "--input-shape must be positive numbers joined by x",
        ),
        (("reconstruct", "TARGET", "--task", "poetry"), "task must be one of binary, multiclass"),
        (("reconstruct", "TARGET", "--recipe", "magic"), "--recipe must be one of engine, haim2022, buzaglo2023"),
        (
            ("reconstruct", "TARGET", "--recipe", "haim2022", "--settings", "magic"),
            "--settings must be one of cifar10",
        ),
        (("reconstruct", "TARGET", "--memory", "4"), "--memory must be an amount with its unit, got '4'"),
        (("reconstruct", "TARGET", "--set", "lr_duals=1"), "--set must name one of candidates, steps, restarts"),
        (("reconstruct", "TARGET", "--prior", "mild"), "--prior must be learned, tv, none or a number"),
        (("reconstruct", "TARGET", "--budget", "soon"), "--budget must be a positive time"),
        (("reconstruct", "TARGET", "--device", "cuda:7"), "--device cuda:7 can't be used here"),
        (("train", "--data", "faces", "-n", "1000"), "ask for at most 200"),
        (("train", "--data", "facse", "-n", "10"), "did you mean faces?"),
        (
            ("train", "--data", "faces", "-n", "10", "--widths", "many"),
            "--widths must be numbers joined by commas",
        ),
        (
            ("train", "--data", "faces", "-n", "10", "--init", "small"),
            "--init must be a number or 'standard'",
        ),
    ],
)
def test_errors_name_cause_and_cure(
    target: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    filled = [str(target) if argument == "TARGET" else argument for argument in arguments]
    assert message in engram(*filled, "-o", tmp_path / "out", expect=1)


def test_an_unwritable_output_directory_is_named(target: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    error = engram("reconstruct", target, *ATTACK, "-o", tmp_path / "file" / "run", expect=1)
    assert "can't write" in error
    assert "choose another location with -o" in error


def test_score_without_data_says_how_to_name_it(tmp_path: Path) -> None:
    foreign = torch.nn.Sequential(torch.nn.Linear(12, 9), torch.nn.ReLU(), torch.nn.Linear(9, 1))
    torch.save(foreign.state_dict(), tmp_path / "model.pt")
    engram("reconstruct", tmp_path / "model.pt", "--input-shape", "3x2x2", *ATTACK, "-o", tmp_path / "run")
    assert "--data NAME -n NUMBER" in engram("score", tmp_path / "run", expect=1)
    assert "there is no file" in engram("score", tmp_path / "nowhere", expect=1)


def test_help_is_quick_and_loads_no_torch() -> None:
    program = "import sys; from engram.cli.app import app; assert 'torch' not in sys.modules; print('light')"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "light"
    for command in ("train", "inspect", "reconstruct", "score", "reproduce", "demo", "sweep"):
        assert "Example" in engram(command, "--help")
