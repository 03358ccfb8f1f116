"""`engram membership` as users run it: plain files, the user's own class, and what goes wrong."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from engram.cli.app import app
from engram.core.errors import EngramError
from tests.cli.command import engram
from tests.members.test_membership import FACES, convolutional, dense, trained
from tests.schemas import problems

CODE = """
from torch import nn

def build():
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1),
        nn.Linear(8 * 11 * 11, 64), nn.GELU(), nn.Linear(64, 2),
    )

def broken():
    raise RuntimeError("no weights here")

def number():
    return 3
"""


def invoke(*arguments: object, code: int = 0) -> str:
    """Standard output of the command, run in this process; its error is raised."""
    result = CliRunner().invoke(app, ["membership", *map(str, arguments)], env={"COLUMNS": "200"})
    if isinstance(result.exception, EngramError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, their training records and a control, as files."""
    home = tmp_path_factory.mktemp("membership")
    data = FACES.load()
    for name, one in (("train", data.train), ("held", data.held_out)):
        np.savez(home / f"{name}.npz", images=one.images.numpy(), labels=one.labels.numpy())
    torch.save(trained(dense).state_dict(), home / "dense.pt")
    torch.save({"state_dict": trained(convolutional).state_dict()}, home / "conv.pt")
    (home / "code.py").write_text(CODE)
    return home


def data_of(home: Path) -> tuple[object, ...]:
    return "--data", f"npz:{home / 'train.npz'}", "--held-out", f"npz:{home / 'held.npz'}"


def test_a_plain_network(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    printed = invoke(home / "dense.pt", "--input-shape", "1x25x25", *data_of(home), "-o", out)
    assert printed.startswith("Leak found: ")
    assert "of the members identified" in printed
    rows = list(csv.DictReader((out / "membership.csv").read_text().splitlines()))
    assert list(rows[0]) == ["set", "index", "label", "score", "p_value"]
    assert len(rows) == 100
    record = json.loads((out / "membership.json").read_text())
    assert record["auc"] > 0.9
    assert record["data"]["mean"] == "train"
    assert record["accuracy"] == 1.0
    assert record["tpr_at_fpr"]["0"] > 0.5
    assert {"layers", "epsilon_lower", "pool", "seconds", "versions", "tpr_bounds"} <= record.keys()
    page = (out / "report.html").read_text()
    assert "The most exposed records" in page
    assert page.count("data:image/png") == 5 + 50 + 50  # first screen, gallery, and the table of records


def test_a_model_of_the_users_own_class(home: Path, tmp_path: Path) -> None:
    code = ("--model-code", f"{home / 'code.py'}:build")
    printed = invoke(home / "conv.pt", *code, *data_of(home), "-o", tmp_path / "run", "--fail-on-leak", code=3)
    assert printed.startswith("Leak found: ")


def test_inputs_without_a_mean_are_noticed(home: Path, tmp_path: Path) -> None:
    """The same network on raw pixels: its first bias takes the mean in."""
    state = torch.load(home / "dense.pt")
    state["1.bias"] -= state["1.weight"] @ FACES.load().mean.flatten()
    torch.save(state, tmp_path / "raw.pt")
    invoke(tmp_path / "raw.pt", "--input-shape", "1x25x25", *data_of(home), "-o", tmp_path / "run")
    record = json.loads((tmp_path / "run" / "membership.json").read_text())
    assert record["data"]["mean"] == "zero"
    assert record["accuracy"] == 1.0


def test_a_target_of_engram_train_names_its_data(tmp_path: Path) -> None:
    train = "train --data faces --labels gate -n 20 --widths 60,30 --epochs 500 --lr 0.05 -o"
    assert CliRunner().invoke(app, [*train.split(), str(tmp_path / "target")]).exit_code == 0
    invoke(tmp_path / "target", "--with-data", "-o", tmp_path / "run")
    assert json.loads((tmp_path / "run" / "membership.json").read_text())["records"] == 20


def test_a_model_that_was_not_trained_on_them_is_doubted(home: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    torch.save(dense().state_dict(), tmp_path / "fresh.pt")
    printed = invoke(tmp_path / "fresh.pt", "--input-shape", "1x25x25", *data_of(home), "-o", tmp_path / "run")
    assert printed.startswith("No leak found")
    assert "of the training records right" in printed


def test_errors_name_cause_and_cure(home: Path, tmp_path: Path) -> None:
    shape, out = ("--input-shape", "1x25x25"), ("-o", tmp_path / "run")
    cases: list[tuple[tuple[object, ...], str]] = [
        ((home / "dense.pt", *shape, *out), r"no records to ask about; give --data and --held-out"),
        (
            (home / "dense.pt", *shape, *out, *data_of(home)[:2]),
            r"so the control needs others: give them with --held",
        ),
        (
            (home / "dense.pt", *shape, *out, *data_of(home)[:3], "none"),
            r"without a control no score means anything",
        ),
        (
            (home / "dense.pt", *shape, *out, *data_of(home)[:3], f"npz:{home / 'train.npz'}"),
            r"must contain no training record: it is the control; got 50 that are also in records",
        ),
        ((home / "conv.pt", *data_of(home), *out, "--model-code", "code.py"), r"must be FILE.py:FUNCTION"),
        ((home / "conv.pt", *data_of(home), *out, "--model-code", "none.py:build"), r"there is no file none.py"),
        (
            (home / "conv.pt", *data_of(home), *out, "--model-code", f"{home / 'code.py'}:make"),
            r"code.py has no function make; it must return the model without arguments",
        ),
        (
            (home / "conv.pt", *data_of(home), *out, "--model-code", f"{home / 'code.py'}:broken"),
            r"code.py:broken failed: RuntimeError: no weights here; give the code that built the model",
        ),
        (
            (home / "conv.pt", *data_of(home), *out, "--model-code", f"{home / 'code.py'}:number"),
            r"code.py:number returned a int, not a torch.nn.Module; return the model",
        ),
        (
            (home / "dense.pt", *data_of(home), *out, "--model-code", f"{home / 'code.py'}:build"),
            r"dense.pt lacks 0.bias, 0.weight.*the model of .* has no 3.bias, 3.weight",
        ),
        (
            (home / "conv.pt", *shape, *data_of(home), *out, "--model-code", f"{home / 'code.py'}:build"),
            r"--input-shape does nothing with --model-code, which builds the model; leave it out",
        ),
    ]
    for arguments, message in cases:
        with pytest.raises(EngramError, match=f"(?s){message}"):
            invoke(*arguments)
    assert not (tmp_path / "run" / "membership.json").exists()


def test_an_earlier_report_is_left_alone(home: Path, tmp_path: Path) -> None:
    (tmp_path / "membership.json").write_text("{}")
    with pytest.raises(EngramError, match="already contains a membership report; choose another directory"):
        invoke(home / "dense.pt", "--input-shape", "1x25x25", *data_of(home), "-o", tmp_path)


def test_the_weights_file_is_never_executed(home: Path, tmp_path: Path) -> None:
    """--model-code runs the code that the user names, but the weights are read as safely as ever."""
    torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
    with pytest.raises(EngramError, match=r"can't be read safely: it contains Python objects"):
        invoke(
            tmp_path / "module.pt",
            "--model-code",
            f"{home / 'code.py'}:build",
            *data_of(home),
            "-o",
            tmp_path / "o",
        )


def test_an_audit_of_any_model_asks_for_membership(home: Path, tmp_path: Path) -> None:
    """Images can't be reconstructed from it, and the report says so."""
    code = ("--model-code", f"{home / 'code.py'}:build")
    printed = engram("audit", home / "conv.pt", *code, *data_of(home), "-o", tmp_path / "run")
    assert "Only membership is audited: images can't be reconstructed, because " in printed
    assert "Leak found: " in printed
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["mode"], report["verdict"]["leaks"]) == ("membership only", True)
    assert report["not_tried"]["reconstruction"]
    assert problems("report", report) == []
    assert "What was not tried" in (tmp_path / "run" / "report.html").read_text()
    engram("audit", home / "conv.pt", *code, *data_of(home), "-o", tmp_path / "again", "--fail-on-leak", expect=3)
    (tmp_path / "policy.toml").write_text("members_at_0_fpr = 0.05")
    policy = ("--policy", tmp_path / "policy.toml")
    engram("audit", home / "conv.pt", *code, *data_of(home), "-o", tmp_path / "gated", *policy, expect=3)
    decision = json.loads((tmp_path / "gated" / "decision.json").read_text())
    assert problems("decision", decision) == []
    assert decision["decided_by"] == "members identified at 0% FPR"
    engram("policy", "check", tmp_path / "gated", *policy, expect=3)


def test_an_audit_of_a_readable_model_built_by_code_reconstructs(home: Path, tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "from torch import nn\n"
        "def build(activation=nn.ReLU):\n"
        "    layers = nn.Linear(625, 200), activation(), nn.Linear(200, 50), activation(), nn.Linear(50, 1)\n"
        "    return nn.Sequential(nn.Flatten(), *layers)\n"
        "def smooth():\n"
        "    return build(nn.Hardtanh)\n"
    )
    run = ("audit", home / "dense.pt", *data_of(home), "--budget", "1s", "--baselines", "none")
    engram(*run, "--model-code", f"{tmp_path / 'plain.py'}:build", "-o", tmp_path / "run")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["candidates"]["count"] > 0
    printed = engram(*run, "--model-code", f"{tmp_path / 'plain.py'}:smooth", "-o", tmp_path / "other")
    assert "because its layers alone give other outputs" in printed
