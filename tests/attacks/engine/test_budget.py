"""A time budget is filled with starts: each gets its length when it begins, from the speed measured so far."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import pytest
import torch

from engram.attacks.engine.convolutional import ConvEngine
from engram.attacks.engine.dense import Engine
from engram.attacks.engine.iteration import fit_to_budget
from engram.attacks.engine.self_tuning import FEWEST_STEPS, MOST_RESTARTS, MOST_STEPS, WORTHWHILE, next_length
from engram.attacks.settings import EngineSettings
from engram.core.loop import Budget, Snapshots, Solution, StopReason, Stopwatch, run
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from tests import cases
from tests.conv_cases import SHAPE, drawn


class Laps(Stopwatch):
    """A clock that shows what the test says."""

    def __init__(self, laps: Iterator[float]) -> None:
        self.laps = laps

    def lap(self) -> float:
        return next(self.laps)


def _attack(seconds: float, laps: Iterator[float], *, conv: bool = False) -> Engine | ConvEngine:
    settings = EngineSettings(candidates=6, prior=0.4)
    engine: Engine | ConvEngine
    if conv:
        network = drawn("conv3x3 relu flatten 30 relu 1", torch.float32)
        engine = ConvEngine(AttackerView(network, SHAPE, Binary()), settings)
    else:
        engine = Engine(cases.view(16, 12, 12, 1, shape=(1, 4, 4)), settings)
    planned = fit_to_budget(engine, seconds)
    object.__setattr__(planned, "_watch", Laps(laps))
    return planned


def _run(engine: Engine | ConvEngine) -> Solution:
    assert engine.settings.seconds is not None
    return run(engine, Budget(steps=engine.total_steps, seconds=(1 - engine.closing) * engine.settings.seconds))


@pytest.mark.parametrize("affordable", [0.0, 10.0, 500.0, 1000.0, 2500.0, 5000.0, 19_000.0])
def test_starts_divide_the_time(affordable: float) -> None:
    lengths: list[int] = []
    left = affordable
    while len(lengths) < 2 or left >= WORTHWHILE:
        lengths.append(next_length(left, len(lengths)))
        left -= lengths[-1]
    assert all(FEWEST_STEPS <= length <= MOST_STEPS for length in lengths)
    assert 2 <= len(lengths) <= MOST_RESTARTS
    if affordable >= 2 * FEWEST_STEPS:
        assert sum(lengths) <= affordable
        assert sum(lengths) > affordable - len(lengths)


@pytest.mark.parametrize("conv", [False, True], ids=["dense", "conv"])
def test_a_budget_is_used_up(conv: bool) -> None:
    """0.1 s a step and 30 s: two starts that end where the time does."""
    solution = _run(_attack(30.0, repeat(0.1), conv=conv))
    assert solution.reason is StopReason.TIME_LIMIT
    assert 0.95 * 30 <= float(solution.state["seconds"]) <= 30
    assert len(solution.state["pool_duals"]) + (int(solution.state["start_step"]) > 100) == 2
    assert len(solution.state["pool_duals"]) >= 1


@pytest.mark.parametrize("later", [0.05, 0.2], ids=["faster", "slower"])
def test_a_machine_that_changes_its_speed(later: float) -> None:
    """The plan is made anew at each start: three starts of 400 steps become more, or two."""
    planned = _attack(120.0, chain(repeat(0.1, 300), repeat(later)))
    solution = _run(planned)
    starts = len(solution.state["pool_duals"])
    assert 0.95 * 120 <= float(solution.state["seconds"]) <= 120
    assert starts >= 3 if later < 0.1 else starts == 2
    running = planned.phase(solution.state)
    assert running.share >= 0.7 or running.step < 0.1 * solution.steps, "hardly a step is thrown away"


def test_the_slow_first_step_does_not_count_for_all() -> None:
    """The first step computes the metric; later ones do so every fifty steps."""
    laps = chain([0.0, 2.0, 0.0, 3.0], repeat(0.1))  # opening 2 s, first step 3 s
    state = run(_attack(40.0, laps), Budget(steps=10)).state
    assert 90 < int(state["start_length"]) < 110, "33 s are left for two starts at 0.16 s a step"


def test_a_killed_run_keeps_to_its_budget(tmp_path: Path) -> None:
    snapshots = Snapshots(path=tmp_path / "s")
    killed = _attack(30.0, repeat(0.1))
    run(killed, Budget(steps=100), snapshots=snapshots).require_finite()
    resumed = _attack(30.0, repeat(0.1))
    budget = Budget(steps=resumed.total_steps, seconds=0.98 * 30)
    solution = run(resumed, budget, snapshots=snapshots, resume=True)
    assert solution.reason is StopReason.TIME_LIMIT
    assert 0.95 * 30 <= float(solution.state["seconds"]) <= 30


def test_a_budget_beyond_the_most_starts_ends_early() -> None:
    engine = _attack(1e6, repeat(1.0))
    object.__setattr__(engine.settings, "restarts", 3)
    object.__setattr__(engine.settings, "steps", 41)
    solution = _run(engine)
    assert solution.steps == 3 * 41
    assert engine.share_done(solution.steps, {"seconds": 1.0, "starts": 3.0}) == 1.0


def test_progress_shows_time_where_time_is_the_limit() -> None:
    timed = _attack(60.0, repeat(0.1))
    assert timed.share_done(10, {"seconds": 15.0, "starts": 0.0}) == 0.25
    counted = Engine(timed.view, EngineSettings(steps=40, restarts=2))
    assert counted.share_done(20, {}) == 0.25
