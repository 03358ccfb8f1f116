"""Training under defences: each setting does what it says, DP-SGD keeps its bound, and rows survive a kill."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import engram
from engram.cli.app import app
from engram.core.errors import CheckpointError, ConfigError
from engram.data.choice import DataChoice
from engram.defences.defend import Order
from engram.defences.training import (
    DEFENCES,
    SCENARIOS,
    Fit,
    SampleLoss,
    chosen_defences,
    fitted,
    moved_about,
    privately_fitted,
    started,
)
from engram.models.tasks import Binary, Multiclass
from tests.defences.cases import CLASSES, build, samples, trained

FEATURES = 24


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory: pytest.TempPathFactory) -> str:
    """360 vectors in four classes that overlap."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(360) % CLASSES
    vectors = torch.randn(360, FEATURES, generator=generator)
    vectors[torch.arange(360), labels] += 1.0
    path = tmp_path_factory.mktemp("embeddings") / "vectors.npz"
    np.savez(path, images=vectors.numpy(), labels=labels.numpy())
    return f"npz:{path}"


def choice(embeddings: str, n: int = 80) -> DataChoice:
    return DataChoice(name=embeddings, labels="identity", n=n)


@pytest.fixture(scope="module")
def table(embeddings: str) -> Any:
    return engram.defend("head", data=choice(embeddings), only="dp-8,early,narrow", seeds=(0, 1), seconds=0)


def test_defences_are_told_apart(table: Any) -> None:
    means = table.means()
    assert list(means) == ["none", "dp-8", "early", "narrow"]
    assert means["none"].members > 3 * means["dp-8"].members
    assert means["none"].train_accuracy > means["early"].train_accuracy
    assert "none" in table.by_defence()
    assert set(table.frontier) <= set(means)


def test_the_lower_bound_stays_below_the_accountants(table: Any) -> None:
    private = [row for row in table.rows if row.epsilon_bound is not None]
    assert len(private) == 2
    assert all(7 < row.epsilon_bound <= 8 for row in private)
    assert not any(row.violates for row in private)
    assert replace(private[0], exposure=replace(private[0].exposure, epsilon=9.0)).violates


def test_no_defence_makes_a_leak_of_records_that_training_never_saw(table: Any) -> None:
    found = [row.unseen for row in table.rows]
    assert all(one is not None and one.epsilon < 0.5 and abs(one.auc - 0.5) < 0.15 for one in found)


def test_rows_survive_a_kill(embeddings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"data": choice(embeddings), "only": "early", "seeds": (0, 1), "seconds": 0}
    whole = engram.defend("head", **given, directory=tmp_path)
    path = tmp_path / "defences.json"
    stored = json.loads(path.read_text())
    stored["rows"] = stored["rows"][:3]
    path.write_text(json.dumps(stored))
    trained_again: list[str] = []
    real = Order.row

    def noted(order: Order, defence: Any, seed: int) -> Any:
        trained_again.append(f"{defence.name}/{seed}")
        return real(order, defence, seed)

    monkeypatch.setattr(Order, "row", noted)
    again = engram.defend("head", **given, directory=tmp_path, resume=True)
    assert trained_again == ["early/1"]
    assert numbers(again) == numbers(whole)
    with pytest.raises(CheckpointError, match="belongs to another target"):
        engram.defend("head", **{**given, "seconds": 5}, directory=tmp_path, resume=True)


def numbers(table: Any) -> list[tuple[Any, ...]]:
    return [(row.key, row.exposure.auc, row.exposure.members, row.exposure.accuracy) for row in table.rows]


def test_processes_give_the_same_rows(embeddings: str) -> None:
    given: dict[str, Any] = {"data": choice(embeddings), "only": "early", "seeds": (0,), "seconds": 0}
    alone, both = (engram.defend("head", **given, jobs=jobs) for jobs in (1, 2))
    for one, other in zip(numbers(alone), numbers(both), strict=True):
        # another number of threads may round differently
        assert one[0] == other[0]
        assert one[1:] == pytest.approx(other[1:], abs=0.03)


def test_ones_own_training_is_compared(embeddings: str) -> None:
    seen: list[str] = []
    train = samples(60, 1)

    def own(defence: engram.Defence) -> nn.Module:
        seen.append(defence.name)
        epochs = max(1, round(100 * defence.epochs))
        inputs = train[0] - train[0].mean(0)
        return fitted(started(build, 0), inputs, train[1], Multiclass(CLASSES), Fit(epochs=epochs, batch=10))

    centred = [(one[0] - train[0].mean(0), one[1]) for one in (train, samples(200, 2))]
    table = engram.defend(own, *centred, only="none,early", seconds=0)
    assert seen == ["none", "early"]
    means = table.means()
    assert means["none"].members > means["early"].members
    with pytest.raises(ConfigError, match="needs train and held_out"):
        engram.defend(own, only="none")
    with pytest.raises(ConfigError, match="seeds, jobs can't be used"):
        engram.defend(own, *centred, seeds=(0,), jobs=2)
    with pytest.raises(ConfigError, match="are for your own function"):
        engram.defend("gate", *centred)


def test_the_command_writes_table_page_and_rows(embeddings: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [
        "defend",
        "head",
        "--data",
        embeddings,
        "-n",
        "80",
        "--only",
        "early",
        "--seeds",
        "0",
        "--budget",
        "0",
    ]
    result = CliRunner().invoke(app, [*command, "-o", str(out)])
    assert result.exit_code == 0, result.output
    told = json.loads((out / "summary.json").read_text())
    assert [row["defence"] for row in told["rows"]] == ["none", "early"]
    assert "Risk against accuracy" in (out / "report.html").read_text()
    assert (out / "defences.csv").read_text().startswith("defence,seed,n,epsilon_bound")
    again = CliRunner().invoke(app, [*command, "-o", str(out)])
    assert again.exit_code == 1
    assert "already contains" in str(again.exception)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["castle"], "there is no target 'castle'"),
        (["head"], "needs records"),
        (["gate", "--only", "prayer"], "there is no defence 'prayer'"),
        (["gate", "--only", "more"], "more does not apply"),
        (["gate", "--seeds", "a"], "--seeds must be numbers"),
        (["gate", "--jobs", "2", "--ray", "local"], "--jobs does nothing with --ray"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], part: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["defend", *arguments, "-o", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert part in str(result.exception)


def test_dp_sgd_replaces_batch_norm_and_spends_what_it_may() -> None:
    inputs, labels = samples(80, 0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES))
    noise = {}
    for epsilon in (1.0, 8.0):
        fit = Fit(epochs=3, batch=20, epsilon=epsilon)
        made, spent = privately_fitted(started(lambda: model, 0), inputs, labels, Multiclass(CLASSES), fit)
        assert not any(isinstance(one, nn.BatchNorm2d) for one in made.modules())
        assert 0.9 * epsilon < spent.epsilon <= epsilon
        assert made(inputs).shape == (80, CLASSES)
        noise[epsilon] = spent.noise
    assert noise[1.0] > 2 * noise[8.0]


def test_ghost_clipping_clips() -> None:
    """One step without noise to speak of moves the weights by no more than rate times clip."""
    inputs, labels = 100 * samples(40, 0)[0], samples(40, 0)[1]
    fit = Fit(epochs=1, batch=40, epsilon=1e6, optimiser="sgd", lr=1.0, momentum=0.0, clip=0.01)
    before = started(build, 0)
    start = torch.cat([value.detach().flatten().clone() for value in before.parameters()])
    after, _ = privately_fitted(before, inputs, labels, Multiclass(CLASSES), fit)
    moved = torch.cat([value.detach().flatten() for value in after.parameters()]) - start
    assert 0 < float(moved.norm()) < 0.02


def test_the_loss_of_each_record_is_what_people_know() -> None:
    outputs, labels = torch.tensor([[2.0], [-1.0]]), torch.tensor([1, 1])
    loss = SampleLoss(Binary(), 0.0)
    loss.reduction = "none"
    torch.testing.assert_close(loss(outputs, labels), torch.nn.functional.softplus(-outputs[:, 0]))


def test_label_smoothing_keeps_outputs_small() -> None:
    inputs, labels = samples(40, 0)
    sizes = []
    for smoothing in (0.0, 0.3):
        fit = Fit(epochs=60, batch=10, smoothing=smoothing)
        model = fitted(started(build, 0), inputs, labels, Multiclass(CLASSES), fit)
        sizes.append(float(model(inputs).detach().softmax(1).amax(1).mean()))
    assert sizes[1] < sizes[0] - 0.1


def slow_moves(image: Tensor, most: int) -> list[Tensor]:
    """Every shift and flip of an image [C, H, W], pixel by pixel."""
    _, height, width = image.shape
    found = []
    for down in range(-most, most + 1):
        for across in range(-most, most + 1):
            moved = torch.zeros_like(image)
            for row in range(height):
                for column in range(width):
                    if 0 <= row + down < height and 0 <= column + across < width:
                        moved[:, row, column] = image[:, row + down, column + across]
            found += [moved, moved.flip(2)]
    return found


def test_images_are_flipped_and_shifted() -> None:
    image = torch.rand(2, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    moved = moved_about(image.expand(64, -1, -1, -1))
    known = slow_moves(image, 1)
    assert all(any(torch.equal(one, other) for other in known) for one in moved)
    assert len({one.numpy().tobytes() for one in moved}) > 10
    with pytest.raises(ConfigError, match="are for images"):
        moved_about(torch.rand(3, 5))


@pytest.mark.parametrize("name", DEFENCES)
def test_every_defence_changes_the_training(name: str) -> None:
    scenario, plain = SCENARIOS["mlp"], DEFENCES["none"]
    defence = DEFENCES[name]
    same = (
        defence.applied(scenario.fit, 500) == plain.applied(scenario.fit, 500)
        and defence.records == 1
        and repr(scenario.network((1, 8, 8), 4, defence, 0)) == repr(scenario.network((1, 8, 8), 4, plain, 0))
        and defence.start == 1
    )
    assert same == (name == "none")


def test_every_target_builds_at_every_width() -> None:
    for name, scenario in SCENARIOS.items():
        shape = (FEATURES,) if name == "head" else (3, 16, 16)
        for defence in chosen_defences(None, scenario):
            model = scenario.network(shape, 4, defence, 0).eval()
            assert model(torch.rand(2, *shape)).shape == (2, 4)


def test_training_repeats_and_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first, second = (trained(samples(20, 0), epochs=3).state_dict() for _ in range(2))
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(first[name], second[name]) for name in first)
