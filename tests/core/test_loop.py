"""The optimisation loop: goals, limits, divergence, snapshots and resuming."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from engram.core.errors import CheckpointError, ConfigError, DivergedError
from engram.core.loop import Budget, Metrics, Snapshots, State, StopReason, Values, run


@dataclass(frozen=True)
class Halving:
    """x <- factor x, with loss x; a real iteration small enough to predict."""

    factor: float = 0.5
    goal: float = 0.0
    name: str = "halving"

    def init(self) -> State:
        return {"x": torch.tensor(1.0, dtype=torch.float64)}

    def step(self, state: State) -> Metrics:
        state["x"] *= self.factor
        return {"loss": state["x"]}

    def finished(self, metrics: Values) -> bool:
        return metrics["loss"] < self.goal

    def fingerprint(self) -> str:
        return repr(self)

    def hint(self) -> str:
        return "choose a smaller factor"


def test_stops_at_the_goal() -> None:
    solution = run(Halving(goal=0.1), Budget(steps=100))
    assert (solution.reason, solution.steps, solution.loss) == (StopReason.FINISHED, 4, 0.0625)


def test_stops_at_the_step_limit() -> None:
    solution = run(Halving(), Budget(steps=3))
    assert (solution.reason, solution.steps) == (StopReason.STEP_LIMIT, 3)
    assert float(solution.state["x"]) == 0.125


def test_stops_at_the_time_limit() -> None:
    solution = run(Halving(factor=1.0), Budget(steps=10**9, seconds=0.05))
    assert solution.reason is StopReason.TIME_LIMIT
    assert 0.05 <= solution.seconds < 5


def test_divergence_is_a_value_that_names_step_and_cure() -> None:
    solution = run(Halving(factor=1e200), Budget(steps=10))
    assert solution.reason is StopReason.DIVERGED
    assert solution.message == "diverged at step 2; choose a smaller factor"
    with pytest.raises(DivergedError, match="at step 2"):
        solution.require_finite()


@dataclass(frozen=True)
class Steep(Halving):
    """Its loss overflows before its state does."""

    def step(self, state: State) -> Metrics:
        super().step(state)
        return {"loss": state["x"] ** 2}


def test_a_non_finite_loss_is_divergence_even_if_the_state_is_finite() -> None:
    solution = run(Steep(factor=1e200), Budget(steps=10))
    assert bool(solution.state["x"].isfinite())
    assert solution.reason is StopReason.DIVERGED


def test_divergence_leaves_the_last_finite_snapshot(tmp_path: Path) -> None:
    snapshots = Snapshots(path=tmp_path / "s", every_seconds=0.0)
    run(Halving(factor=1e200), Budget(steps=10), snapshots=snapshots)
    progress, state = snapshots.load(repr(Halving(factor=1e200)))
    assert progress.step == 1
    assert float(state["x"]) == 1e200


def test_seconds_count_all_processes(tmp_path: Path) -> None:
    snapshots = Snapshots(path=tmp_path / "s")
    first = run(Halving(), Budget(steps=3), snapshots=snapshots)
    progress, state = snapshots.load(repr(Halving()))
    assert progress.seconds == first.seconds > 0
    snapshots.save(replace(progress, seconds=1000.0), state)
    assert run(Halving(), Budget(steps=5), snapshots=snapshots, resume=True).seconds > 1000


def test_observers_see_every_step() -> None:
    seen: list[tuple[int, float]] = []
    run(Halving(), Budget(steps=3), observers=[lambda step, metrics, _: seen.append((step, metrics["loss"]))])
    assert seen == [(1, 0.5), (2, 0.25), (3, 0.125)]


def test_resumes_where_it_stopped(tmp_path: Path) -> None:
    snapshots = Snapshots(path=tmp_path / "s")
    run(Halving(), Budget(steps=3), snapshots=snapshots)
    steps: list[int] = []
    solution = run(
        Halving(),
        Budget(steps=5),
        snapshots=snapshots,
        resume=True,
        observers=[lambda step, *_: steps.append(step)],
    )
    assert steps == [4, 5]
    assert float(solution.state["x"]) == 0.5**5


def test_a_finished_run_does_not_step_again(tmp_path: Path) -> None:
    snapshots = Snapshots(path=tmp_path / "s")
    first = run(Halving(goal=0.1), Budget(steps=9), snapshots=snapshots)
    again = run(Halving(goal=0.1), Budget(steps=9), snapshots=snapshots, resume=True)
    assert (again.reason, again.steps, again.loss) == (first.reason, first.steps, first.loss)


def test_without_resume_it_starts_from_scratch(tmp_path: Path) -> None:
    snapshots = Snapshots(path=tmp_path / "s")
    run(Halving(), Budget(steps=3), snapshots=snapshots)
    assert float(run(Halving(), Budget(steps=1), snapshots=snapshots).state["x"]) == 0.5


def test_a_snapshot_of_another_run_is_refused(tmp_path: Path) -> None:
    snapshots = Snapshots(path=tmp_path / "s")
    run(Halving(), Budget(steps=3), snapshots=snapshots)
    with pytest.raises(CheckpointError, match="other settings or another model"):
        run(Halving(name="other"), Budget(steps=5), snapshots=snapshots, resume=True)


def test_a_damaged_snapshot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"not tensors")
    with pytest.raises(CheckpointError, match="not a complete safetensors file"):
        run(Halving(), Budget(steps=5), snapshots=Snapshots(path=tmp_path / "s"), resume=True)


@pytest.mark.parametrize(("steps", "seconds"), [(0, None), (1, 0.0)])
def test_an_empty_budget_is_refused(steps: int, seconds: float | None) -> None:
    with pytest.raises(ConfigError, match="must be positive"):
        Budget(steps=steps, seconds=seconds)


def test_the_first_snapshot_comes_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever watches a run sees something soon, however rarely it is written after that."""
    monkeypatch.setattr("engram.core.loop.FIRST_SNAPSHOT", 0.0)
    snapshots = Snapshots(path=tmp_path / "s", every_seconds=1000.0)
    written: list[int] = []

    def look(step: int, metrics: Values, state: State) -> None:
        if snapshots.path.exists():
            written.append(snapshots.load(repr(Halving()))[0].step)

    run(Halving(), Budget(steps=4), snapshots=snapshots, observers=[look])
    assert written == [1, 1, 1], "once after the first step, and not again"
