"""The zoo: every preset at every scale is well-formed, smoke runs anywhere, and nothing is trained twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from engram.core.errors import ConfigError
from engram.data.choice import DataChoice
from engram.models.open.door import CARD_FILE, MODEL_FILE
from engram.models.tasks import Binary, task_named
from engram.pipeline import build_target
from engram.training.presets import PRESETS, SCALES, Scale, plan
from engram.training.recipe import Flow, MLPSpec, Recipe
from engram.training.target import ENTRY_FILE, TargetCache, content_key
from tests.cli.command import engram


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", PRESETS)
def test_every_plan_fits_its_task(name: str, scale: Scale) -> None:
    made = plan(name, scale, seed=3)
    task = task_named(made.task, made.network.outputs)
    assert made.network.outputs == task.outputs
    assert made.recipe.seed == 3
    assert made.data.n % (made.data.classes or 2) == 0
    assert (made.cuts == ()) if scale == "paper" else True


def test_scales_of_one_target() -> None:
    """As in Table 1 of the first paper, then along the flow to its loss, then small."""
    paper, cpu, smoke = (plan("cifar500-biases", scale) for scale in ("paper", "cpu", "smoke"))
    assert (paper.data.n, paper.recipe.epochs, paper.recipe.lr, paper.recipe.flow) == (500, 1_000_000, 0.01, None)
    assert (cpu.data, cpu.network) == (paper.data, paper.network)
    assert cpu.recipe.flow is not None
    assert cpu.recipe.loss_threshold == 4.3e-6
    assert smoke.network.bias == paper.network.bias == "all"
    assert smoke.data.name == "faces"


@pytest.mark.parametrize("name", ["cifar500", "cifar500-sgd", "classes10", "cifar300-l2.5", "decay-1e-3"])
def test_smoke_trains(name: str) -> None:
    made = plan(name, "smoke")
    task = task_named(made.task, made.network.outputs)
    card = build_target(made.data, made.network, made.recipe, task).card
    assert card is not None
    assert card.train.loss < 1.1


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="there is no preset 'nonsense'; see them with `engram train --list`"):
        plan("nonsense")
    with pytest.raises(ConfigError, match="scale must be one of smoke, cpu, paper"):
        plan("cifar500", "huge")  # type: ignore[arg-type]


CHOICE, NETWORK = DataChoice(name="faces", labels="gate", n=6), MLPSpec(inputs=625, widths=(5,))


def _build(cache: TargetCache, recipe: Recipe, directory: Path | None = None) -> tuple[torch.Tensor, int]:
    """The first layer, and how many epochs this call trained."""
    trained: list[int] = []
    target = build_target(
        CHOICE,
        NETWORK,
        recipe,
        Binary(),
        cache=cache,
        directory=directory,
        observers=[lambda step, *_: trained.append(step)],
    )
    return target.network.weights[0], len(trained)


def test_a_trained_target_is_taken_from_the_cache(tmp_path: Path) -> None:
    cache, recipe = TargetCache(tmp_path / "cache"), Recipe(epochs=4)
    first, trained = _build(cache, recipe)
    again, trained_again = _build(cache, recipe, tmp_path / "copy")
    assert (trained, trained_again) == (4, 0)
    assert torch.equal(first, again)
    assert (tmp_path / "copy" / CARD_FILE).exists()
    assert _build(cache, Recipe(epochs=5))[1] == 5


@pytest.mark.parametrize("damaged", [MODEL_FILE, CARD_FILE, ENTRY_FILE])
def test_a_damaged_entry_is_trained_again(tmp_path: Path, damaged: str) -> None:
    cache, recipe = TargetCache(tmp_path), Recipe(epochs=4)
    first, _ = _build(cache, recipe)
    (entry,) = tmp_path.iterdir()
    content = bytearray((entry / damaged).read_bytes())
    content[-10] ^= 1
    (entry / damaged).write_bytes(content)
    again, trained = _build(cache, recipe)
    assert trained == 4
    assert torch.equal(first, again)
    assert _build(cache, recipe)[1] == 0, "and repaired"


def test_the_key_includes_everything_that_matters() -> None:
    data = CHOICE.load()
    other = DataChoice(name="faces", labels="gate", n=6, seed=1)
    keys = {
        content_key(NETWORK, Recipe(), Binary(), CHOICE, data),
        content_key(NETWORK, Recipe(flow=Flow()), Binary(), CHOICE, data),
        content_key(MLPSpec(inputs=625, widths=(6,)), Recipe(), Binary(), CHOICE, data),
        content_key(NETWORK, Recipe(), Binary(), CHOICE, other.load()),  # the same choice, other images
        content_key(NETWORK, Recipe(), task_named("regression:l2"), CHOICE, data),
    }
    assert len(keys) == 5


def test_presets_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGRAM_CACHE", str(tmp_path / "cache"))
    assert "cifar500-sgd" in engram("train", "--list")
    smoke = ("train", "--preset", "cifar500", "--scale", "smoke")
    printed = engram(*smoke, "-o", tmp_path / "first")
    assert "cut: 10 images of faces instead of 500 of cifar10" in printed
    assert (tmp_path / "first" / "metrics.jsonl").exists()
    engram(*smoke, "-o", tmp_path / "second")
    assert not (tmp_path / "second" / "metrics.jsonl").exists(), "taken from the cache"
    cards = [json.loads((tmp_path / name / "card.json").read_text()) for name in ("first", "second")]
    assert cards[0] == cards[1]
    engram(*smoke, "--no-cache", "-o", tmp_path / "third")
    assert (tmp_path / "third" / "metrics.jsonl").exists(), "trained again"
    error = engram(*smoke, "--lr", 0.1, "-o", tmp_path / "fourth", expect=1)
    assert "--lr can't be used with --preset" in error
    assert "--scale cpu can only be used with --preset" in engram(
        "train", "--scale", "cpu", "-o", tmp_path / "x", expect=1
    )


def test_along_the_flow_from_the_command_line(tmp_path: Path) -> None:
    data = ("train", "--data", "faces", "--labels", "gate", "-n", 10, "--widths", "30,30", "--lr", 0.05)
    engram(*data, "--flow", "--loss-threshold", 1e-10, "--epochs", 5000, "-o", tmp_path / "flow")
    card = json.loads((tmp_path / "flow" / "card.json").read_text())
    assert card["stopped"] == "reached its goal"
    assert 0 < card["train"]["loss"] < 1e-10
    assert card["recipe"]["flow"] == {"below": 0.3, "tolerance": 0.01}
    lines = (tmp_path / "flow" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == sorted(set(steps))
    assert steps[-1] <= card["epochs"]
    error = engram(*data, "--flow-below", 0.2, "-o", tmp_path / "x", expect=1)
    assert "--flow-below can only be used with --flow; give both or neither" in error


@pytest.mark.parametrize("name", ["conv3x32", "conv32x8"])
def test_convolutions_keep_their_kernels_and_channels(name: str) -> None:
    paper, cpu = plan(name, "paper"), plan(name, "cpu")
    kernel, channels = map(int, name.removeprefix("conv").split("x"))
    assert paper.network.name == f"3x32x32-conv{kernel}x{channels}-1000-1"
    assert (paper.data.n, paper.recipe.weight_decay, paper.network.first_layer_std) == (500, 1e-3, None)
    assert cpu.network.name.startswith(f"3x32x32-conv{kernel}x{channels}")
    assert cpu.recipe.weight_decay == paper.recipe.weight_decay
    assert any("instead of 500" in cut for cut in cpu.cuts)
    assert any("300-1 instead of" in cut for cut in cpu.cuts)


@pytest.mark.parametrize("name", PRESETS)
def test_every_cut_is_reported(name: str) -> None:
    paper, cpu = plan(name, "paper"), plan(name, "cpu")
    changed = (paper.data, paper.network, paper.recipe) != (cpu.data, cpu.network, cpu.recipe)
    assert changed == bool(cpu.cuts)
