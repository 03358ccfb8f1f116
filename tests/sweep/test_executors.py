"""What every executor must do, and what local processes do when a worker dies."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from engram.attacks.published import PublishedScheme
from engram.core.errors import ConfigError
from engram.core.loop import Metrics, State
from engram.sweep.executors import ATTEMPTS, Executor, InProcess, Job, Processes
from engram.sweep.trial import Ended, PackedView, TrialOrder, packed, run_trial
from tests.sweep import small

SETTINGS = {"candidates": 6, "steps": 30, "lr_images": 0.01, "seed": 5}


def order(number: int = 0, scratch: Path | None = None, **settings: float) -> TrialOrder:
    return TrialOrder(number=number, recipe="haim2022", settings={**SETTINGS, **settings}, scratch=scratch)


def job(chosen: TrialOrder) -> Job:
    return Job("sweep", small.view(), chosen)


def all_ended(executor: Executor, count: int) -> dict[int, Ended]:
    found: dict[int, Ended] = {}
    deadline = time.monotonic() + 120
    while len(found) < count and time.monotonic() < deadline:
        found |= {one.order.number: ended for one, ended in executor.collect(0.2)}
    return found


@pytest.fixture(scope="module", params=["in_process", "processes"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    made: Callable[[], Executor] = InProcess if request.param == "in_process" else lambda: Processes(2)
    one = made()
    yield one
    one.close()


def test_an_executor_returns_what_the_trial_returns(executor: Executor) -> None:
    executor.submit(job(order()))
    ended = all_ended(executor, 1)[0]
    expected = run_trial(packed(small.view()), order())
    assert ended.state == expected.state == "complete"
    assert ended.unexplained == expected.unexplained
    assert ended.steps == 30
    found, reference = (load(one.files["reconstruction.safetensors"]) for one in (ended, expected))
    assert all(torch.equal(found[name], reference[name]) for name in reference)
    assert {"run.json", "metrics.jsonl"} < ended.files.keys()


def test_a_failure_is_a_result_and_the_next_trial_runs(executor: Executor) -> None:
    for chosen in (order(1, lr_images=1e30), order(2, candidates=7), order(3)):
        executor.submit(job(chosen))
        ended = all_ended(executor, 1)
        assert ended.keys() == {chosen.number}
        outcome = ended[chosen.number]
        if chosen.number == 1:
            assert outcome.state == "diverged"
            assert "lower lr_images" in outcome.reason
            assert "reconstruction.safetensors" not in outcome.files
        elif chosen.number == 2:
            assert outcome.state == "failed"
            assert "ConfigError: candidates must be a multiple of 2, got 7" in outcome.reason
        else:
            assert outcome.state == "complete"


def test_collecting_without_jobs_returns_nothing(executor: Executor) -> None:
    assert executor.collect(0.01) == []


def test_an_interrupted_trial_resumes_from_its_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends like an uninterrupted one, with the checkpoints it had passed."""
    whole = run_trial(packed(small.view()), order())
    monkeypatch.setattr("engram.sweep.trial.SNAPSHOT_SECONDS", 0.0)
    step = PublishedScheme.step
    taken: list[int] = []

    def dies_after_12(self: PublishedScheme, state: State) -> Metrics:
        if len(taken) == 12:
            raise KeyboardInterrupt
        taken.append(1)
        return step(self, state)

    with monkeypatch.context() as patched:
        patched.setattr(PublishedScheme, "step", dies_after_12)
        with pytest.raises(KeyboardInterrupt):
            run_trial(packed(small.view()), order(scratch=tmp_path))
    resumed = run_trial(packed(small.view()), order(scratch=tmp_path))
    assert resumed.files["reconstruction.safetensors"] == whole.files["reconstruction.safetensors"]
    assert resumed.files["metrics.jsonl"] == whole.files["metrics.jsonl"]
    assert resumed.checkpoints == whole.checkpoints
    assert all(0 <= value <= 1 for value in whole.checkpoints)


def test_a_hopeless_trial_ends_at_its_checkpoint() -> None:
    free = run_trial(packed(small.view()), order())
    strict = TrialOrder(
        number=0, recipe="haim2022", settings=SETTINGS, limits=(1.0, free.checkpoints[1] - 1e-6, 1.0)
    )
    ended = run_trial(packed(small.view()), strict)
    assert ended.state == "pruned"
    assert ended.steps == 8, "a quarter of 30, rounded up"
    assert ended.checkpoints == (*free.checkpoints[:2], -1.0)
    assert "reconstruction.safetensors" not in ended.files
    generous = TrialOrder(number=0, recipe="haim2022", settings=SETTINGS, limits=free.checkpoints)
    assert run_trial(packed(small.view()), generous).state == "complete", "as good as the limit is good enough"


def test_a_killed_worker_is_replaced_and_its_trial_ends_the_same(tmp_path: Path) -> None:
    expected = run_trial(packed(small.view()), order(steps=600))
    executor = Processes(1)
    try:
        executor.submit(job(order(scratch=tmp_path / "0", steps=600)))
        first = executor.pids[0]
        while not (tmp_path / "0" / "metrics.jsonl").exists():
            assert executor.collect(0.01) == [], "over before it was killed"
        os.kill(first, signal.SIGKILL)
        ended = all_ended(executor, 1)[0]
        assert executor.pids[0] != first
    finally:
        executor.close()
    assert ended.state == "complete"
    assert ended.files["reconstruction.safetensors"] == expected.files["reconstruction.safetensors"]


def test_a_trial_whose_worker_always_dies_is_reported_as_killed() -> None:
    executor = Processes(1)
    seen: set[int] = set()
    done = threading.Event()

    def kill_every_worker() -> None:
        while not done.wait(0.05):
            for pid in set(executor.pids) - seen:
                seen.add(pid)
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_every_worker)
    executor.submit(job(order(4, steps=10**6)))
    killer.start()
    try:
        ended = all_ended(executor, 1)[4]
    finally:
        done.set()
        killer.join()
        executor.close()
    assert ended.state == "killed"
    assert f"its worker died {ATTEMPTS} times (SIGKILL)" in ended.reason


def test_a_worker_has_its_share_of_the_threads() -> None:
    executor = Processes(1, threads=2)
    try:
        executor.submit(job(order()))
        assert all_ended(executor, 1)[0].threads == 2
    finally:
        executor.close()
    assert torch.get_num_threads() == 1, "this process keeps its own"
    with pytest.raises(ConfigError, match="jobs must lie in 1"):
        Processes(0)
    with pytest.raises(ConfigError, match="threads must be at least 1"):
        Processes(1, threads=0)


def test_weights_are_sent_as_safetensors_and_arrive_bit_for_bit() -> None:
    view = small.view()
    sent = packed(view)
    arrived = sent.unpacked()
    assert arrived.network.digest() == view.network.digest()
    assert (arrived.task, arrived.input_shape, arrived.pixel_range) == (
        view.task,
        view.input_shape,
        view.pixel_range,
    )


def test_pickled_weights_are_refused_and_not_run(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "executed",)

    sent = PackedView(
        weights=pickle.dumps(Hostile()), layers=None, task="binary", input_shape=(4,), pixel_range=(0.0, 1.0)
    )
    assert run_trial(sent, order()).state == "failed"
    assert not (tmp_path / "executed").exists()
