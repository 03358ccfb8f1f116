"""A time budget becomes a plan that takes about that time."""

from __future__ import annotations

import pytest

from engram.attacks.engine.dense import Engine
from engram.attacks.engine.iteration import FEWEST_STEPS, MOST_RESTARTS, MOST_STEPS, fit_to_budget, plan
from engram.attacks.engine.self_tuning import PRIOR_GRID, make_schedule
from engram.attacks.settings import EngineSettings
from tests import cases


@pytest.mark.parametrize("affordable", [10, 500, 1000, 2500, 5000, 40_000])
def test_plans_stay_within_the_affordable_steps(affordable: int) -> None:
    settings = plan(EngineSettings(), len(PRIOR_GRID), affordable)
    assert 2 <= settings.restarts <= MOST_RESTARTS
    assert FEWEST_STEPS <= settings.steps <= MOST_STEPS
    if settings.steps > FEWEST_STEPS:
        assert make_schedule(settings, tries=True).total <= affordable


def test_more_time_never_means_fewer_steps_or_restarts() -> None:
    plans = [plan(EngineSettings(), len(PRIOR_GRID), affordable) for affordable in range(100, 20_000, 100)]
    work = [one.steps * one.restarts for one in plans]
    assert work == sorted(work)


def test_more_time_is_more_work() -> None:
    """A hundred times the time gives more steps even on a busy machine; `python -m benchmarks.race` shows how
    well a budget is kept."""
    view = cases.view(36, 60, 60, 1, shape=(1, 6, 6))
    engine = Engine(view, EngineSettings(candidates=40))
    short, long = (fit_to_budget(engine, seconds) for seconds in (0.2, 20.0))
    assert long.total_steps > 2 * short.total_steps
    assert short.settings.restarts >= 2
