"""Tasks other than binary, and inputs that are not images, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from engram.data.readers import load_faces
from tests.cli.command import engram

SMALL = ("--widths", "30,30", "--epochs", 40)
SHORT = ("--recipe", "buzaglo2023", "--steps", 12)


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real faces, each in one of four classes."""
    path = tmp_path_factory.mktemp("people") / "people.npz"
    faces = load_faces().images[:100, 0]
    np.savez(path, images=faces.numpy(), labels=np.arange(100) % 4)
    return path


@pytest.fixture(scope="module")
def three_classes(people: Path) -> Path:
    out = people.parent / "target"
    options = ("--task", "multiclass", "--classes", 3, "-n", 12, "--lr", 0.2)
    engram("train", "--data", f"npz:{people}", *options, *SMALL, "-o", out)
    return out


@pytest.mark.parametrize(("form", "shape"), [(None, None), ("multiclass:pairs", (6, 3))])
def test_from_classes_to_scores(
    three_classes: Path, tmp_path: Path, form: str | None, shape: tuple[int, int] | None
) -> None:
    card = json.loads((three_classes / "card.json").read_text())
    assert card["task"] == "multiclass"
    assert card["network"]["outputs"] == card["data"]["classes"] == 3
    losses = [json.loads(line)["loss"] for line in (three_classes / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0] <= 1.2

    run = tmp_path / "run"
    chosen = () if form is None else ("--task", form)
    engram("reconstruct", three_classes, *SHORT, *chosen, "-m", 6, "-o", run)
    found = load_file(run / "reconstruction.safetensors")
    assert found["images"].shape == (6, 1, 25, 25)
    assert found["labels"].tolist() == [0, 1, 2, 0, 1, 2]
    assert found["duals"].shape == (6,)
    assert ("pair_duals" in found) == (shape is not None)
    if shape is not None:
        assert found["pair_duals"].shape == shape
    record = json.loads((run / "run.json").read_text())
    assert (record["recipe"], record["task"]) == ("buzaglo2023", form or "multiclass")
    assert record["settings"]["lr_duals"] == 0.479, "the authors' settings for several classes"

    engram("score", run)
    scores = json.loads((run / "scores.json").read_text())
    assert scores["n_train"] == scores["n_held_out"] == 12
    assert {row["label"] for row in scores["records"]} == {0, 1, 2}
    assert all(len(row["model_output"]) == 3 for row in scores["records"])


def test_faces_and_other_things_as_two_classes_with_two_outputs(tmp_path: Path) -> None:
    target, run = tmp_path / "target", tmp_path / "run"
    printed = engram("train", "--data", "faces", "--task", "multiclass", "-n", 10, *SMALL, "-o", target)
    assert "625-30-30-2 (multiclass)" in printed
    assert json.loads((target / "card.json").read_text())["data"]["labels"] == "identity"
    engram("reconstruct", target, *SHORT, "-m", 4, "-o", run)
    # the same data, named by hand: the classes of a multiclass run are the data set's own
    engram("score", run, "--data", "faces", "-n", 10)
    assert json.loads((run / "scores.json").read_text())["data"]["labels"] == "identity"


@pytest.mark.parametrize("loss", ["l2", "l2.5", "huber"])
def test_from_a_regression_to_scores(tmp_path: Path, loss: str) -> None:
    target, run = tmp_path / "target", tmp_path / "run"
    options = ("--task", f"regression:{loss}", "--weight-decay", 1e-3, "--init", "standard", "--lr", 0.02)
    engram("train", "--data", "faces", "--labels", "gate", "-n", 10, *options, *SMALL, "-o", target)
    losses = [json.loads(line)["loss"] for line in (target / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0]
    engram("reconstruct", target, *SHORT, "-m", 20, "--set", "lr_images=0.01", "-o", run)
    found = load_file(run / "reconstruction.safetensors")
    assert found["duals"].min() < 0 < found["duals"].max()
    assert torch.equal(found["labels"], (found["duals"] > 0).long())
    assert json.loads((run / "run.json").read_text())["settings"]["dual_weight"] == 0
    engram("score", run)
    assert len(json.loads((run / "scores.json").read_text())["records"]) == 10


def test_resuming_with_other_settings_is_refused_and_with_the_same_works(
    three_classes: Path, tmp_path: Path
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    attack = ("reconstruct", three_classes, "--recipe", "buzaglo2023", "-m", 6, "--steps", 1000)
    engram(*attack, "--budget", "0.05s", "-o", cut)
    done = json.loads((cut / "run.json").read_text())["outcome"]["steps"]
    assert 0 < done < 1000
    error = engram(*attack, "--task", "multiclass:pairs", "-o", cut, "--resume", expect=1)
    assert "task is multiclass:pairs here, but multiclass in the run" in error
    engram(*attack, "-o", cut, "--resume")
    engram(*attack, "-o", whole)
    expected, resumed = (load_file(run / "reconstruction.safetensors") for run in (whole, cut))
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)


def test_the_outputs_of_a_file_without_a_card_determine_the_task(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(12, 9), torch.nn.ReLU(), torch.nn.Linear(9, 4))
    torch.save(net.state_dict(), tmp_path / "model.pt")
    model = (tmp_path / "model.pt", "--input-shape", "3x2x2")
    assert json.loads(engram("inspect", *model, "--json"))["task"] == "multiclass"
    engram("reconstruct", *model, *SHORT, "-o", tmp_path / "run")
    found = load_file(tmp_path / "run" / "reconstruction.safetensors")
    assert found["labels"].bincount().tolist() == [250] * 4
    error = engram("inspect", *model, "--task", "binary", expect=1)
    assert "the network has 4 outputs, but a binary task has 1" in error


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows that are not images and have no pixel range, and a network trained on them."""
    path = tmp_path_factory.mktemp("table") / "table.npz"
    rows = np.random.default_rng(0).normal(size=(40, 60)).astype(np.float32)
    np.savez(path, images=rows, labels=np.arange(40) % 2)
    engram("train", "--data", f"npz:{path}", "-n", 10, *SMALL, "-o", path.parent / "target")
    return path


@pytest.mark.parametrize(
    "options",
    [
        ("--recipe", "haim2022", "--steps", 12, "-m", 4, "--set", "lr_images=0.01", "--set", "range_weight=0"),
        ("--recipe", "engine", "--steps", 12, "--restarts", 2),
    ],
    ids=["haim2022", "engine"],
)
def test_vectors_from_training_to_scores(table: Path, tmp_path: Path, options: tuple[object, ...]) -> None:
    target, run = table.parent / "target", tmp_path / "run"
    assert json.loads((target / "card.json").read_text())["input_shape"] == [60]
    # without its card, as an attacker has it
    engram("reconstruct", target / "model.safetensors", "--input-shape", 60, *options, "-o", run)
    images = load_file(run / "reconstruction.safetensors")["images"]
    assert images.ndim == 2
    assert images.shape[1] == 60
    data = ("--data", f"npz:{table}", "-n", 10)
    printed = engram("score", run, *data)
    assert "relative_l2<0.3" in printed
    assert "ncc>0.8" in printed
    scores = json.loads((run / "scores.json").read_text())
    assert scores["protocol"]["name"] == "vector"
    assert all(row["relative_l2"] > 0 and -1 <= row["ncc"] <= 1 for row in scores["records"])
    assert not (run / "pairs.png").exists()
    error = engram("score", run, *data, "--protocol", "haim2022", expect=1)
    assert "--protocol haim2022 matches images, but npz:" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("reconstruct", "TARGET", "--recipe", "haim2022"), "task must be binary for the recipe haim2022"),
        (("reconstruct", "TARGET", *SHORT, "-m", "7"), "candidates must be a multiple of 3, got 7"),
        (
            ("reconstruct", "TARGET", "--task", "regression:l2", *SHORT),
            "has 3 outputs, but a regression:l2 task has 1",
        ),
        (("train", "--data", "PEOPLE", "-n", "8"), "data must have 2 classes for a binary task"),
        (
            ("train", "--data", "PEOPLE", "-n", "8", "--classes", "5", "--task", "multiclass"),
            "classes must lie in 2..4",
        ),
        (
            ("train", "--data", "PEOPLE", "-n", "10", "--task", "multiclass"),
            "n must be a multiple of 4, the classes of",
        ),
        (
            ("train", "--data", "faces", "-n", "10", "--task", "regression:mse"),
            "loss must be huber, or l followed by a power",
        ),
    ],
)
def test_errors_name_cause_and_cure(
    people: Path, three_classes: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    named = {"TARGET": str(three_classes), "PEOPLE": f"npz:{people}"}
    assert message in engram(*(named.get(str(word), word) for word in arguments), "-o", tmp_path / "out", expect=1)


def test_a_floor_for_duals_of_either_sign_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    engram("train", "--data", "faces", "-n", 4, "--task", "regression:l2", *SMALL, "-o", target)
    error = engram("reconstruct", target, *SHORT, "--set", "dual_floor=0.1", "-o", tmp_path / "run", expect=1)
    assert "dual_floor must be 0 if dual_weight is 0, as for regression" in error


def test_describing_data_without_naming_it_is_refused(three_classes: Path, tmp_path: Path) -> None:
    engram("reconstruct", three_classes, *SHORT, "-m", 3, "-o", tmp_path / "run")
    error = engram("score", tmp_path / "run", "--classes", 3, expect=1)
    assert "--classes can only be used with --data; give --data NAME -n NUMBER too" in error
