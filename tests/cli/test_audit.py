"""`engram audit` as users and CI run it."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engram.core.files import write_tensors
from tests.auditing.cases import faces, memorising
from tests.cli.command import ENGRAM, engram

BUDGET = ("--budget", "4s", "--baselines", "none")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file without a card, and folders with its training images and with others."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("model")
    write_tensors(folder / "model.safetensors", memorising().params)
    for name, chosen in (("own", faces(0)), ("other", faces(20)), ("nothing", faces(20, 0))):
        kinds = [folder / name / f"{label}-{kind}" for label, kind in enumerate(chosen.classes)]
        for kind in kinds:
            kind.mkdir(parents=True)
        for index, (image, label) in enumerate(zip(chosen.images, chosen.labels.tolist(), strict=True)):
            pixels = (image[0] * 255).round().to(torch.uint8).numpy()
            Image.fromarray(pixels).save(kinds[label] / f"{index:03d}.png")
    return folder


def test_with_data_it_lists_the_records_and_fails_if_asked(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "audit"
    data = ("--data", f"folder:{model / 'own'}", "-n", 20, "--held-out", f"folder:{model / 'other'}")
    shape = ("--input-shape", "1x25x25")
    printed = engram("audit", model / "model.safetensors", *shape, *data, *BUDGET, "-o", out)
    assert "Leak found" in printed
    record = json.loads((out / "report.json").read_text())
    assert record["verdict"]["outcome"] == "leak found"
    assert record["comparison"]["held_out"]["records"] == 20
    assert record["command"].startswith("engram audit ")
    assert len(list(csv.DictReader((out / "risk.csv").read_text().splitlines()))) == 20
    assert "the model gets only" not in printed
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert json.loads((out / "run.json").read_text())["kind"] == "reconstruction"
    assert load_file(out / "reconstruction.safetensors")["scores"].shape[0] == record["candidates"]["count"]
    assert len((out / "timeline.jsonl").read_text().splitlines()) == len(record["timeline"])
    # A run that its budget ended is resumed to its last step, and the report is written again.
    (out / "report.html").unlink()
    again = subprocess.run(
        [
            *ENGRAM,
            *map(str, ("audit", model / "model.safetensors", *shape, *data, "--baselines", "none")),
            *map(str, ("-o", out, "--resume", "--fail-on-leak")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 3, again.stderr
    assert (out / "report.html").exists()
    longer = json.loads((out / "report.json").read_text())
    assert longer["attack"]["settings"] == record["attack"]["settings"]
    assert longer["attack"]["steps"] >= record["attack"]["steps"]
    assert longer["timeline"][0] == record["timeline"][0]


def test_a_blind_audit_shows_what_an_attacker_gets(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "audit"
    printed = engram("audit", model / "model.safetensors", "--input-shape", "1x25x25", *BUDGET, "-o", out)
    record = json.loads((out / "report.json").read_text())
    assert record["mode"] == "blind"
    assert record["verdict"]["sentence"] in printed
    assert record["comparison"] is None
    assert (out / "risk.csv").read_text().startswith("index,label,recovered")


def test_a_killed_audit_is_resumed(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "audit"
    arguments = ["audit", str(model / "model.safetensors"), "--input-shape", "1x25x25", "--baselines", "none"]
    child = subprocess.Popen(
        [*ENGRAM, *arguments, "--budget", "8s", "-o", str(out), "--snapshot-every", "0"], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 100
    while not (out / "snapshot.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert not (out / "report.json").exists(), "killed too late to show anything"
    engram(*arguments, "-o", out, "--resume")
    record = json.loads((out / "report.json").read_text())
    assert record["attack"]["settings"] == json.loads((out / "run.json").read_text())["settings"]
    assert record["timeline"][-1]["step"] == record["attack"]["steps"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--input-shape", "3x25x25"), "input shape 3x25x25 has 1,875 values, but the first layer takes 625"),
        ((), "does not specify the shape of its inputs"),
        (("--input-shape", "1x25x25", "-n", "20"), "-n can only be used with --data"),
        (("--input-shape", "1x25x25", "--data", "OWN", "-n", "20"), "no image of folder:"),
        (
            ("--input-shape", "1x25x25", "--data", "OWN", "-n", "20", "--held-out", "NOTHING"),
            "contains no pictures",
        ),
        (
            ("--input-shape", "1x25x25", "--data", "OWN", "-n", "20", "--held-out", "OWN"),
            "held_out must contain no training record",
        ),
        (("--input-shape", "25x25", "--data", "OWN", "-n", "20", "--held-out", "OTHER"), "input shape 25x25"),
        (("--input-shape", "1x25x25", "--with-data"), "--with-data needs a directory from `engram train`"),
        (("--input-shape", "1x25x25", "--baselines", "some"), "baselines must be one of none, quick, full"),
        (
            ("--input-shape", "1x25x25", "--baselines", "none", "--images", "9"),
            "images has no effect without baselines",
        ),
    ],
)
def test_errors_name_cause_and_cure(model: Path, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    folders = {"OWN": "own", "OTHER": "other", "NOTHING": "nothing"}
    given = [f"folder:{model / folders[one]}" if one in folders else one for one in arguments]
    error = engram("audit", model / "model.safetensors", *given, "-o", tmp_path / "audit", expect=1)
    assert message in error
    assert not (tmp_path / "audit" / "report.html").exists()


def test_labels_that_do_not_fit_are_noticed(model: Path, tmp_path: Path) -> None:
    """With the classes swapped, the model gets none of its own records right."""
    for name in ("own", "other"):
        for kind in (model / name).iterdir():
            label, _, rest = kind.name.partition("-")
            turned = tmp_path / name / f"{1 - int(label)}-{rest}"
            turned.parent.mkdir(exist_ok=True)
            turned.symlink_to(kind)
    data = ("--data", f"folder:{tmp_path / 'own'}", "-n", 20, "--held-out", f"folder:{tmp_path / 'other'}")
    shape = ("--input-shape", "1x25x25")
    printed = engram("audit", model / "model.safetensors", *shape, *data, *BUDGET, "-o", tmp_path / "audit")
    assert re.search(r"the model gets only \d+% of the training records right", printed)
