"""One-hot values of a table: pulled to their corners, the mean known or not, and only if the names are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import engram
from engram.attacks.engine.dense import Engine
from engram.attacks.engine.objective import Corners, off_corners
from engram.attacks.engine.self_tuning import sums_moved
from engram.attacks.registry import make_attack
from engram.attacks.settings import EngineSettings
from engram.core.errors import ConfigError
from engram.core.loop import Budget, Snapshots, run
from engram.models.networks import DenseNetwork, Network
from engram.models.view import AttackerView, Features

COLUMNS = ("age", "sex=F", "sex=M", "town=a", "town=b", "town=c", "height")
GROUPS = ((1, 2), (3, 4, 5))


def records(count: int = 12) -> Tensor:
    """Rows with unequal shares of the values, float64."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(count, len(COLUMNS), generator=generator, dtype=torch.float64)
    for group in GROUPS:
        drawn = (torch.rand(count, generator=generator) ** 2 * len(group)).long()
        rows[:, list(group)] = torch.nn.functional.one_hot(drawn, len(group)).double()
    return rows


def slow(rows: Tensor, weights: Tensor, gap: Tensor, floor: Tensor | None) -> Tensor:
    """The weighted sum of squared distances, group by group and row by row."""
    total, energy = rows.new_zeros(()), 0.0
    for group in GROUPS:
        places = list(group)
        units = rows[:, places] / gap[places]
        energy += 1 - 1 / len(places)
        shift = weights @ units if floor is None else floor[places] / gap[places]
        largest = (units - shift).argmax(1)
        corner = torch.eye(len(places), dtype=rows.dtype)[largest]
        level = weights @ (units - corner) if floor is None else shift
        for row in range(len(rows)):
            total = total + weights[row] * (units[row] - level - corner[row]).square().sum()
    return total / energy


@pytest.mark.parametrize("known", [True, False])
def test_values_and_gradients_are_those_of_the_formula(known: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(9, len(COLUMNS), generator=generator, dtype=torch.float64)
    gap = 0.5 + torch.rand(len(COLUMNS), generator=generator, dtype=torch.float64)
    floor = torch.randn(len(COLUMNS), generator=generator, dtype=torch.float64) if known else None
    weights = torch.rand(9, generator=generator, dtype=torch.float64)
    weights /= weights.sum()
    free = rows.clone().requires_grad_()
    expected = slow(free, weights, gap, floor)
    (gradient,) = torch.autograd.grad(expected, free)
    values, gradients = off_corners(rows, weights, Corners.of(GROUPS, gap, floor))
    torch.testing.assert_close((weights * values).sum(), expected.detach())
    torch.testing.assert_close(weights[:, None] * gradients, gradient)
    assert not gradients[:, [0, 6]].any(), "numbers are free"


def test_records_are_at_their_corners_whatever_mean_was_subtracted() -> None:
    rows = records()
    weights = torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)
    ones = torch.ones(len(COLUMNS), dtype=torch.float64)
    for mean in (rows.mean(0), torch.zeros_like(ones), 5 * ones):
        assert float(off_corners(rows - mean, weights, Corners.of(GROUPS, ones))[0].max()) < 1e-20
        assert float(off_corners(rows - mean, weights, Corners.of(GROUPS, ones, -mean))[0].max()) < 1e-20
    blurred = 0.5 * (rows - rows.mean(0))
    assert float(off_corners(blurred, weights, Corners.of(GROUPS, ones))[0].mean()) > 0.05


def test_a_group_is_two_or_more_columns_of_one_name() -> None:
    assert Features(COLUMNS).groups == GROUPS
    assert Features(("a=1", "b=1", "a=2", "c=", "c=3")).groups == ((0, 2), (3, 4))
    for columns in ((), ("a", "a=1"), ("a=1", "a=1"), ("", "a=1", "a=2"), ("age", "b=1", "c=2"), (1, 2)):
        with pytest.raises(ConfigError, match="columns"):
            Features(columns)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def network() -> DenseNetwork:
    generator = torch.Generator().manual_seed(2)
    first = torch.randn(30, 12, generator=generator) @ records().float() * 0.3
    layers = (first, torch.randn(10, 30, generator=generator), torch.randn(1, 10, generator=generator))
    return DenseNetwork(layers, (torch.zeros(30), torch.zeros(10), torch.zeros(1)))


def opened(network: DenseNetwork, **further: object) -> AttackerView[Network]:
    shape = (len(COLUMNS),)
    return engram.open_view(network, input_shape=shape, task="binary", **further)  # type: ignore[arg-type]


SETTINGS = EngineSettings(steps=60, restarts=1, candidates=8, dtype="float64")


def ended(engine: Engine) -> Tensor:
    return run(engine, Budget(steps=engine.total_steps)).state["latents"]


def test_candidates_come_nearer_to_corners_and_without_names_nothing_changes(network: DenseNetwork) -> None:
    known, plain = (Engine(opened(network, columns=names), SETTINGS) for names in (COLUMNS, None))
    off = {}
    for name, engine in (("known", known), ("plain", plain)):
        rows = ended(engine) @ engine.scales.space.basis.double()
        weights = torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)
        off[name] = float(off_corners(rows, weights, Corners.of(GROUPS, torch.ones(7).double()))[0].mean())
    assert off["known"] < 0.7 * off["plain"]
    switched_off = Engine(known.view, replace(SETTINGS, prior=0.0))
    assert torch.equal(ended(switched_off), ended(Engine(plain.view, replace(SETTINGS, prior=0.0))))


def test_the_normalisation_says_where_the_corners_are(network: DenseNetwork) -> None:
    """In the problem's own coordinates records, normalised, are at the corners."""
    mean, std = [0.1 * place for place in range(7)], [1.0 + place for place in range(7)]
    engine = Engine(opened(network, columns=",".join(COLUMNS), normalize=(mean, std)), SETTINGS)
    corners, rows = engine.objective.corners, records()
    assert corners is not None
    assert corners.floor is not None
    posed = (rows - torch.tensor(mean)) / torch.tensor(std).double() / engine._scale
    weights = torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)
    assert float(off_corners(posed, weights, corners)[0].max()) < 1e-10


def test_weights_show_whether_a_mean_was_subtracted() -> None:
    generator = torch.Generator().manual_seed(3)
    signals, start = torch.randn(40, 12, generator=generator).double(), torch.randn(40, 7, generator=generator)
    rows = records()
    raw, centred = (0.01 * start + signals @ some for some in (rows, rows - rows.mean(0)))
    assert sums_moved(raw, 0.01, GROUPS)
    assert not sums_moved(centred, 0.01, GROUPS)
    assert not sums_moved(start, 1.0, GROUPS)


def test_several_classes_need_the_mean() -> None:
    """Unknown, it cost records: benchmarks/tables.py."""
    torch.manual_seed(0)
    start = torch.nn.Sequential(torch.nn.Linear(7, 40), torch.nn.ReLU(), torch.nn.Linear(40, 3))
    shape = (len(COLUMNS),)
    with pytest.raises(ConfigError, match="needs the mean that is subtracted"):
        Engine(engram.open_view(start, input_shape=shape, columns=COLUMNS), SETTINGS)
    known = engram.open_view(start, input_shape=shape, columns=COLUMNS, normalize="none")
    assert Engine(known, SETTINGS).objective.corners is not None


def test_a_resumed_run_has_the_same_bits(network: DenseNetwork, tmp_path: Path) -> None:
    engine, snapshots = (
        Engine(opened(network, columns=COLUMNS), SETTINGS),
        Snapshots(path=tmp_path / "s", every_seconds=0),
    )
    straight = ended(engine)
    run(engine, Budget(steps=10), snapshots=snapshots)
    again = Engine(opened(network, columns=COLUMNS), SETTINGS)
    resumed = run(again, Budget(steps=again.total_steps), snapshots=snapshots, resume=True)
    assert torch.equal(resumed.state["latents"], straight)
    assert again.fingerprint() != Engine(opened(network), SETTINGS).fingerprint()


def test_names_that_can_t_be_used_are_refused(network: DenseNetwork) -> None:
    with pytest.raises(ConfigError, match="--columns names 3 columns, but an input is 7"):
        opened(network, columns="a,b=1,b=2")
    with pytest.raises(ConfigError, match="but an input is 1x1x7"):
        replace(opened(network), input_shape=(1, 1, 7), features=Features(COLUMNS))
    with pytest.raises(ConfigError, match="can't be used with --recipe haim2022"):
        make_attack(opened(network, columns=COLUMNS), "haim2022")
