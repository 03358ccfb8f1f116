"""Every kind of model with every recipe, space and command: each works, or one sentence says what does."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from engram.attacks.reconstruction import Reconstruction
from engram.attacks.registry import RECIPES, make_attack
from engram.auditing.watch import Watcher
from engram.core.errors import ConfigError
from engram.core.loop import State, Values
from engram.core.runs import read_record
from engram.models.architecture import Architecture
from engram.models.networks import ConvNetwork, Network
from engram.models.open.door import open_recorded, open_view
from engram.models.tasks import task_named
from engram.pipeline import attack
from engram.sweep.executors import InProcess
from engram.sweep.space import PRESETS, SweepSpec
from engram.sweep.sweep import Sweep, drive
from engram.training.recipe import ConvSpec, MLPSpec
from tests.cli.command import engram

SHAPE = (1, 6, 6)
KINDS = {
    "dense": None,
    "conv": "conv3x4s2 relu flatten 12 relu {}",
    "whole kernel": "conv6x14 relu flatten 9 relu {}",
}
TASKS = {"binary": 1, "multiclass": 3, "multiclass:pairs": 3, "regression:l2": 1}
STEPS = 12


@cache
def network(kind: str, outputs: int) -> Network:
    layers = KINDS[kind]
    generator = torch.Generator().manual_seed(1)
    if layers is None:
        return MLPSpec(inputs=36, widths=(20, 9), outputs=outputs).initialise(generator, torch.float32)
    spec = ConvSpec(input_shape=SHAPE, layers=layers.format(outputs), first_layer_std=None)
    return spec.initialise(generator, torch.float32)


def written(kind: str, outputs: int, place: Path) -> Path:
    path = place / f"{kind.replace(' ', '-')}-{outputs}.pt"
    torch.save(network(kind, outputs).params, path)
    return path


def options(kind: str, outputs: int) -> tuple[str, ...]:
    layers = KINDS[kind]
    described = () if layers is None else ("--arch", layers.format(outputs))
    return ("--input-shape", "1x6x6", *described)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_is_resumed_and_watched(kind: str, task: str, recipe: str, tmp_path: Path) -> None:
    """From its record alone, to the same bits as an undisturbed run; the record stores what the caller gave."""
    outputs = TASKS[task]
    layers = KINDS[kind]
    model = written(kind, outputs, tmp_path)
    arch = None if layers is None else layers.format(outputs)
    view = open_view(model, input_shape=SHAPE, task=task, arch=arch)
    settings = {
        "steps": STEPS,
        "candidates": 6,
        **({"restarts": 2, "metric_every": 5} if recipe == "engine" else {}),
    }
    if recipe == "haim2022" and task != "binary":
        with pytest.raises(ConfigError, match=r"task must be binary for the recipe haim2022.*use buzaglo2023"):
            make_attack(view, recipe, settings)
        return
    whole, _ = attack(make_attack(view, recipe, settings), directory=tmp_path / "whole", model=str(model))

    def killed(step: int, metrics: Values, state: State) -> None:
        if step == 7:
            raise KeyboardInterrupt

    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        attack(
            make_attack(view, recipe, settings),
            directory=run,
            model=str(model),
            snapshot_every=0,
            observers=[killed],
        )
    record = read_record(run)
    assert (record["task"], record["architecture"]) == (task, arch)
    assert record["weights_sha256"] == view.network.digest()
    assert Watcher(run).look().note is None
    opened = open_recorded(record)
    assert (opened.task, type(opened.network)) == (task_named(task, outputs), type(view.network))
    attack(make_attack(opened, resume_from=run), directory=run, model=str(model), resume=True)
    resumed = Reconstruction.load(run / "reconstruction.safetensors")
    assert torch.equal(resumed.images, whole.images.float())
    assert torch.equal(resumed.duals, whole.duals.float())
    status = Watcher(run).look()
    assert (status.note, status.images is None) == (None, False)


@pytest.mark.parametrize("space", PRESETS)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_space_sweeps_every_task(kind: str, task: str, space: str, tmp_path: Path) -> None:
    view = open_view(network(kind, TASKS[task]), input_shape=SHAPE, task=task)
    spec = SweepSpec(space=PRESETS[space].fixing({"steps": 3, "candidates": 6}), trials=2)
    if space == "haim2022" and task != "binary":
        with pytest.raises(ConfigError, match=r"task must be binary for the recipe haim2022.*use buzaglo2023"):
            Sweep(view=view, spec=spec, directory=tmp_path)
        return
    sweep = Sweep(view=view, spec=spec, directory=tmp_path)
    drive([sweep], InProcess())
    ended = [(row["state"], row["reason"]) for row in sweep.rows()]
    sweep.close()
    assert [state for state, _ in ended] == ["complete", "complete"], ended


@pytest.mark.parametrize("task", ["multiclass", "regression:l2"])
def test_the_command_takes_the_search_that_fits_the_task(task: str, tmp_path: Path) -> None:
    model = written("conv", TASKS[task], tmp_path)
    asked = ("--task", task, *options("conv", TASKS[task]), "--set", "steps=3", "--set", "candidates=6")
    printed = engram("sweep", model, *asked, "--trials", 2, "--jobs", 0, "-o", tmp_path / "sweep")
    assert "2 trials: 2 complete" in printed


def other_kinds(place: Path) -> dict[str, tuple[object, ...]]:
    """What else a user may pass to a command."""
    linear, deep = nn.Sequential(nn.Flatten(), nn.Linear(36, 1)), nn.Sequential(nn.Conv2d(1, 3, 3), nn.Flatten())
    torch.save(linear.state_dict(), place / "linear.pt")
    torch.save({**deep.state_dict(), "out.weight": torch.ones(1, 48)}, place / "no-hidden.pt")
    normed = nn.Sequential(nn.Linear(36, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 1))
    torch.save(normed.state_dict(), place / "normed.pt")
    conv = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 9), nn.ReLU(), nn.Linear(9, 1))
    torch.export.save(torch.export.export(conv, (torch.zeros(1, 1, 6, 6),)), place / "model.pt2")
    (place / "empty").mkdir()
    return {
        "linear": (place / "linear.pt", "--input-shape", "1x6x6"),
        "no hidden": (place / "no-hidden.pt", "--input-shape", "1x6x6", "--arch", "conv3x3 relu flatten 1"),
        "normalisation": (place / "normed.pt", "--input-shape", "1x6x6"),
        "exported": (place / "model.pt2",),
        "no target": (place / "empty",),
        "no file": (place / "nowhere.pt", "--input-shape", "1x6x6"),
    }


COMMANDS = {
    "membership": ("--data", "npz:TRAIN", "--held-out", "npz:HELD", "-o", "OUT"),
    "inspect": (),
    "reconstruct": ("--steps", 2, "-m", 4, "-o", "OUT"),
    "audit": ("--budget", "0.2s", "--images", 2, "-o", "OUT"),
    "sweep": ("--space", "engine", "--set", "steps=2", "--trials", 1, "--jobs", 0, "-o", "OUT"),
}
WORKS = {"dense", "conv", "whole kernel", "exported"}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "kind", [*KINDS, "linear", "no hidden", "normalisation", "exported", "no target", "no file"]
)
def test_every_command_works_or_says_what_does(command: str, kind: str, tmp_path: Path) -> None:
    if kind in KINDS:
        model: tuple[object, ...] = (written(kind, 1, tmp_path), *options(kind, 1))
    else:
        model = other_kinds(tmp_path)[kind]
    generator = np.random.default_rng(0)
    for name in ("TRAIN", "HELD"):
        images = generator.random((12, 6, 6), np.float32)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.arange(12) % 2)
    words = [str(tmp_path / "out") if word == "OUT" else word for word in COMMANDS[command]]
    words = [f"npz:{tmp_path / str(word)[4:]}.npz" if str(word).startswith("npz:") else word for word in words]
    if kind in WORKS or (kind == "no hidden" and command in ("inspect", "membership")):
        engram(command, *model, *words)
        return
    error = engram(command, *model, *words, expect=1)
    assert error.startswith("error: ")
    assert "Traceback" not in error
    assert ";" in error or "--recipe" in error, "the cause, and the cure"


def test_an_audit_of_a_whole_kernel_network_is_resumed(tmp_path: Path) -> None:
    model, described = written("whole kernel", 1, tmp_path), options("whole kernel", 1)
    asked = ("audit", model, *described, "--baselines", "none", "-o", tmp_path / "out")
    engram(*asked, "--budget", "0.3s")
    engram(*asked, "--resume")
    assert isinstance(network("whole kernel", 1), ConvNetwork)
    assert read_record(tmp_path / "out")["architecture"] == Architecture.parse(described[-1], SHAPE).text
