"""`--resume` with a run.json that was damaged by hand: one message with file, problem and cure, exit code 1."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engram.attacks.engine.dense import Engine
from engram.attacks.published import PublishedScheme
from engram.attacks.settings import EngineSettings, Haim2022
from engram.cli.app import main
from engram.core.errors import CheckpointError
from engram.models.open.files import read_network
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.pipeline import attack

SHAPE = (3, 2, 2)
SETTINGS = EngineSettings(candidates=6, steps=3, restarts=1, prior=0.0)
CURE = "restore the original file, or start again in another directory with -o"

Record = dict[str, Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model.pt and a finished engine run of it in run/."""
    directory = tmp_path_factory.mktemp("finished")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 9), torch.nn.ReLU(), torch.nn.Linear(9, 1))
    torch.save(model.state_dict(), directory / "model.pt")
    attack(Engine(view(directory / "model.pt"), SETTINGS), directory=directory / "run", model="model.pt")
    return directory


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def view(model: Path) -> AttackerView:
    return AttackerView(read_network(model), SHAPE, Binary())


def resume(place: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    """The command in this process, including its error handling."""
    arguments = ["reconstruct", str(place / "model.pt"), "--input-shape", "3x2x2", "-o", str(place / "run")]
    monkeypatch.setattr(sys, "argv", ["engram", *arguments, "--resume", *options])
    main()


def edited(change: Callable[[Record], object]) -> Callable[[str], str]:
    """The text of run.json after a change to its content."""

    def edit(text: str) -> str:
        record = json.loads(text)
        change(record)
        return json.dumps(record)

    return edit


def setting(name: str, value: object) -> Callable[[str], str]:
    return edited(lambda record: record["settings"].update({name: value}))


DAMAGE: dict[str, tuple[Callable[[str], str], str]] = {
    "cut short": (lambda text: text[:100], "is not readable JSON"),
    "empty": (lambda _: "", "is not readable JSON"),
    "not UTF-8": (lambda text: text.replace("engine", "\udcff"), "is not readable JSON"),
    "nested without end": (lambda _: "[" * 100_000, "is not readable JSON"),
    "a list": (lambda text: f"[{text}]", 'is damaged: it must be a JSON object, got [{"schema_version": 1'),
    "no recipe": (
        edited(lambda record: record.pop("recipe")),
        "recipe must be one of engine, haim2022, buzaglo2023, got null",
    ),
    "no settings": (edited(lambda record: record.pop("settings")), "settings must be a JSON object, got null"),
    "settings not an object": (
        edited(lambda record: record.update(settings=[500])),
        "settings must be a JSON object, got [500]",
    ),
    "missing setting": (edited(lambda record: record["settings"].pop("ridge")), "settings lacks ridge"),
    "unknown setting": (setting("rigde", 0.01), "settings has 'rigde', unknown to this version"),
    "text for a number": (
        setting("steps", "500"),
        'settings are wrong (steps: Input should be a valid integer, got "500")',
    ),
    "boolean for a number": (
        setting("ridge", True),
        "settings are wrong (ridge: Input should be a valid number, got true)",
    ),
    "null for a number": (setting("seed", None), "(seed: Input should be a valid integer, got null)"),
    "fraction for a count": (setting("restarts", 1.5), "(restarts: Input should be a valid integer, got 1.5)"),
    "unknown dtype": (
        setting("dtype", "float16"),
        "(dtype: Input should be 'float32' or 'float64', got \"float16\")",
    ),
    "out of range": (setting("steps", -3), "settings are wrong (steps must be positive, got -3)"),
    "not a number": (setting("ridge", float("nan")), "settings are wrong (ridge"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_with_its_cure(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    damage, problem = DAMAGE[kind]
    record = place / "run" / "run.json"
    record.write_text(damage(record.read_text()), errors="surrogateescape")
    before = record.read_bytes()
    with pytest.raises(SystemExit) as stop:
        resume(place, monkeypatch)
    error = capsys.readouterr().err
    assert stop.value.code == 1
    assert error.startswith(f"error: {record} ")
    assert problem in error
    assert CURE in error
    assert record.read_bytes() == before


@pytest.mark.parametrize(("began", "asked"), [("engine", "haim2022"), ("haim2022", "engine")])
def test_another_recipe_is_refused_and_the_record_kept(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], began: str, asked: str
) -> None:
    if began == "haim2022":
        shutil.rmtree(place / "run")
        scheme = PublishedScheme(view(place / "model.pt"), Haim2022(candidates=4, steps=2))
        attack(scheme, directory=place / "run")
    before = (place / "run" / "run.json").read_bytes()
    with pytest.raises(SystemExit) as stop:
        resume(place, monkeypatch, "--recipe", asked)
    error = capsys.readouterr().err
    assert stop.value.code == 1
    assert f"{place / 'run' / 'run.json'} belongs to a run with --recipe {began}, not {asked}; " in error
    assert f"resume with --recipe {began}, or start again in another directory with -o" in error
    assert (place / "run" / "run.json").read_bytes() == before


def test_settings_changed_to_other_right_ones_do_not_fit_the_snapshot(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = place / "run" / "run.json"
    record.write_text(setting("seed", 7)(record.read_text()))
    with pytest.raises(SystemExit):
        resume(place, monkeypatch)
    assert "belongs to a run with other settings" in capsys.readouterr().err


def test_a_refused_resume_leaves_the_record_as_it_was(place: Path) -> None:
    """Otherwise the run's own settings would be lost, and it could not be resumed."""
    before = (place / "run" / "run.json").read_bytes()
    other = Engine(view(place / "model.pt"), EngineSettings(candidates=6, steps=4, restarts=1, prior=0.0))
    with pytest.raises(CheckpointError, match="other settings"):
        attack(other, directory=place / "run", resume=True)
    assert (place / "run" / "run.json").read_bytes() == before


def test_score_names_a_damaged_record_too(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "run" / "run.json").write_text("[]")
    monkeypatch.setattr(sys, "argv", ["engram", "score", str(place / "run"), "--data", "faces", "-n", "10"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    assert "run.json is damaged: it must be a JSON object, got []" in capsys.readouterr().err


def test_an_undamaged_record_resumes_without_its_options(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        resume(place, monkeypatch)
    assert stop.value.code == 0
    assert "used all its steps after 3 steps" in capsys.readouterr().out
