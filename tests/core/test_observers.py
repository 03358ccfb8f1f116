"""Observers see step, metrics and state, may stop a run, and their time is not counted as the run's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from engram.core.loop import STOP, Budget, Snapshots, State, StepClock, StopReason, Values, by_steps, part, run
from tests.core.test_loop import Halving


def stop_at(step: int) -> object:
    return lambda now, metrics, state: STOP if now == step else None


def test_an_observer_sees_the_state_after_the_step() -> None:
    seen: list[tuple[int, float, float]] = []

    def watch(step: int, metrics: Values, state: State) -> None:
        seen.append((step, metrics["loss"], float(state["x"])))

    run(Halving(), Budget(steps=2), observers=[watch])
    assert seen == [(1, 0.5, 0.5), (2, 0.25, 0.25)]


def test_any_observer_stops_the_run_after_all_have_seen_the_step() -> None:
    seen: list[int] = []
    watching = [stop_at(3), lambda step, *_: seen.append(step)]
    solution = run(Halving(), Budget(steps=9), observers=watching)  # type: ignore[arg-type]
    assert (solution.reason, solution.steps, seen) == (StopReason.STOPPED, 3, [1, 2, 3])
    assert solution.message.startswith("was stopped by an observer after 3 steps")


def test_only_the_stop_request_stops_a_run() -> None:
    for answer in (None, False, True, 1, "continue"):
        solution = run(Halving(), Budget(steps=2), observers=[lambda *_, answer=answer: answer])
        assert solution.reason is StopReason.STEP_LIMIT


def test_a_stopped_run_is_not_continued_by_resuming_it(tmp_path: Path) -> None:
    snapshots = Snapshots(path=tmp_path / "s")
    run(Halving(), Budget(steps=9), snapshots=snapshots, observers=[stop_at(3)])  # type: ignore[list-item]
    again = run(Halving(), Budget(steps=9), snapshots=snapshots, resume=True)
    assert (again.steps, float(again.state["x"])) == (3, 0.125)


class Slow:
    """An observer that takes its time."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.clock, self.ticks = seconds, StepClock(), list[tuple[float, float]]()

    def __call__(self, step: int, metrics: Values, state: State) -> None:
        self.ticks.append(self.clock.tick(state))
        time.sleep(self.seconds)
        self.clock.tock()


def test_the_clock_stands_still_while_an_observer_works(tmp_path: Path) -> None:
    snapshots, slow = Snapshots(path=tmp_path / "s"), Slow(0.2)
    first = run(Halving(), Budget(steps=3), snapshots=snapshots, observers=[slow])
    own = float(first.state["step_seconds"])
    assert 0 < own < first.seconds - 0.5, "three times 0.2 s are the observer's"
    assert [before for before, _ in slow.ticks[1:]] == [after for _, after in slow.ticks[:-1]]
    again = run(Halving(), Budget(steps=4), snapshots=snapshots, resume=True, observers=[Slow(0.0)])
    assert float(again.state["step_seconds"]) > own, "a resumed run keeps counting"


def test_progress_by_steps_has_a_title_and_a_note() -> None:
    seen: list[tuple[str, float]] = []
    reporting = by_steps(part(lambda *now: seen.append(now), 0.5, 1.0), "attacking", 4)
    run(Halving(), Budget(steps=2), observers=[reporting])
    assert seen == [("attacking: loss 0.5", 0.625), ("attacking: loss 0.25", 0.75)]
    reporting(8, {"loss": 0.1}, {})
    assert seen[-1][1] == pytest.approx(1.0), "never beyond the end"
