"""`--resume`: options that differ from the run's are refused by name; those left out come from the run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from engram.attacks.settings import EngineSettings
from engram.auditing.run import audit
from engram.cli.app import app
from engram.core.errors import ConfigError, EngramError
from tests.cases import network

CURE = "out to resume that run, or start again in another directory with -o"
SHAPE = ("--input-shape", "3x2x2")


def invoke(*arguments: object) -> str:
    """A command in this process; its error is raised."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, EngramError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: object) -> str:
    with pytest.raises(EngramError) as caught:
        invoke(*arguments)
    return str(caught.value)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, a run of each recipe and an audit, all of them finished."""
    place = tmp_path_factory.mktemp("made")
    torch.manual_seed(0)
    for name in ("model.pt", "other.pt"):
        model = torch.nn.Sequential(torch.nn.Linear(12, 9), torch.nn.ReLU(), torch.nn.Linear(9, 1))
        torch.save(model.state_dict(), place / name)
    start = ("reconstruct", place / "model.pt", *SHAPE, "-m", 6)
    invoke(*start, "--steps", 3, "--restarts", 1, "--prior", "none", "-o", place / "engine")
    published = ("--recipe", "haim2022", "--settings", "mnist", "--task", "binary", "--steps", 4)
    invoke(*start, *published, "-o", place / "haim2022")
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


@pytest.mark.parametrize(
    ("run", "options", "given", "recorded"),
    [
        ("engine", ("--seed", "7"), "seed is 7 here", "0"),
        ("engine", ("--steps", "5"), "--steps is 5 here", "3"),
        ("engine", ("--restarts", "2"), "--restarts is 2 here", "1"),
        ("engine", ("--prior", "0.5"), "--prior is 0.5 here", "none"),
        ("engine", ("-m", "8"), "--candidates is 8 here", "6"),
        ("engine", ("--dtype", "float64"), "dtype is float64 here", "float32"),
        ("engine", ("--input-shape", "12"), "--input-shape is 12 here", "3x2x2"),
        ("engine", ("--task", "regression:l2"), "task is regression:l2 here", "binary"),
        ("engine", ("--set", "ridge=0.5"), "ridge is 0.5 here", "left out"),
        ("haim2022", ("--seed", "7"), "seed is 7 here", "0"),
        ("haim2022", ("--set", "lr_images=0.5"), "lr_images is 0.5 here", "0.0305"),
        ("haim2022", ("--settings", "cifar10"), "--settings is cifar10 here", "mnist"),
    ],
)
def test_another_option_is_refused_by_name(
    place: Path, run: str, options: tuple[str, ...], given: str, recorded: str
) -> None:
    record = place / run / "run.json"
    before = record.read_bytes()
    error = refused("reconstruct", place / "model.pt", "-o", place / run, "--resume", *options)
    where = place / run / ("options.json" if given.startswith("--") else "run.json")
    assert f"{given}, but {recorded} in the run recorded in {where}; leave {given.split()[0]} {CURE}" in error
    assert record.read_bytes() == before


@pytest.mark.parametrize("run", ["engine", "haim2022"])
def test_options_that_are_left_out_come_from_the_run(place: Path, run: str) -> None:
    """Nothing but model and directory: shape, recipe, task and settings are remembered."""
    before = load_file(place / run / "reconstruction.safetensors")
    (place / run / "reconstruction.safetensors").unlink()
    invoke("reconstruct", place / "model.pt", "-o", place / run, "--resume")
    after = load_file(place / run / "reconstruction.safetensors")
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=0, equal_nan=True)
    same = ("--seed", 0, "-m", 6, *SHAPE, "--budget", "9s")
    more = ("--settings", "mnist", "--steps", 4) if run == "haim2022" else ("--steps", 3)
    invoke("reconstruct", place / "model.pt", "-o", place / run, "--resume", *same, *more)


def test_another_model_is_named(place: Path) -> None:
    error = refused("reconstruct", place / "other.pt", "-o", place / "engine", "--resume")
    assert "the model's weights differ from those of the run" in error
    assert "model.pt); give that model" in error


def test_training_is_resumed_with_its_options_and_no_others(tmp_path: Path) -> None:
    out = tmp_path / "target"
    options = ("--data", "faces", "--labels", "gate", "-n", 6, "--widths", 8, "--epochs", 20, "--seed", 3)
    invoke("train", *options, "-o", out)
    whole = load_file(out / "model.safetensors")
    assert json.loads((out / "options.json").read_text())["widths"] == "8"
    (out / "model.safetensors").unlink()
    invoke("train", "-o", out, "--resume")
    assert all(torch.equal(whole[name], value) for name, value in load_file(out / "model.safetensors").items())
    invoke("train", *options, "-o", out, "--resume")
    error = refused("train", "-o", out, "--resume", "--seed", 4)
    assert f"--seed is 4 here, but 3 in the run recorded in {out / 'options.json'}; leave --seed {CURE}" in error
    assert "--batch is 2 here, but left out in the run" in refused("train", "-o", out, "--resume", "--batch", 2)
    assert "already contains a run" in refused("train", *options, "--lr", 0.5, "-o", out)
    assert json.loads((out / "options.json").read_text())["lr"] == 0.01, "a refused run leaves no trace"


def test_an_audit_is_resumed_with_its_data_and_no_other(tmp_path: Path) -> None:
    target, out = tmp_path / "target", tmp_path / "audit"
    invoke("train", "--data", "faces", "--labels", "gate", "-n", 6, "--widths", 8, "--epochs", 20, "-o", target)
    data = ("--data", "faces", "--labels", "gate", "-n", 6, "--held-out-n", 8)
    invoke("audit", target, *data, "--budget", "1s", "--baselines", "none", "-o", out)
    first = json.loads((out / "report.json").read_text())
    for more in ((), data, ("--budget", "1s", "--device", "cpu", "--fail-on-leak")):
        result = CliRunner().invoke(app, [*map(str, ("audit", target, "-o", out, "--resume", *more))])
        assert result.exit_code in (0, 3), result.output
        again = json.loads((out / "report.json").read_text())
        assert again["mode"] == "with data"
        assert again["comparison"]["held_out"]["records"] == 8
        assert again["baselines"] == []
        assert again["attack"]["settings"] == first["attack"]["settings"]
    for options, words in (
        (("--data", "circle"), "--data is circle here, but faces"),
        (("--baselines", "quick"), "--baselines is quick here, but none"),
        (("--with-data",), "--with-data is True here, but False"),
        (("--held-out", "none"), "--held-out is none here, but left out"),
    ):
        assert words in refused("audit", target, "-o", out, "--resume", *options)
    (out / "options.json").write_text("[]")
    assert "options.json is damaged: it must be a JSON object" in refused("audit", target, "-o", out, "--resume")


def test_python_refuses_other_settings_too(tmp_path: Path) -> None:
    made = network(12, 9, 1, dtype=torch.float32)
    settings = EngineSettings(candidates=6, steps=3, restarts=1, prior=0.0)
    given = {"input_shape": (3, 2, 2), "baselines": "none", "directory": tmp_path}
    audit(made, settings=settings, **given)  # type: ignore[arg-type]
    audit(made, settings=settings, resume=True, **given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="candidates is left out here, but 6 in the run"):
        audit(made, settings=EngineSettings(seed=5), resume=True, **given)  # type: ignore[arg-type]
