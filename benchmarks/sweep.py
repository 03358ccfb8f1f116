"""Sweeps: how much faster two jobs are than one, the cost of bookkeeping, and ten thousand trials.

Run: python -m benchmarks.sweep [--trials 12] [--seconds 10] [--recorded 10000]

- rate: the same sweep of small trials with one and with two local jobs; workers are started before timing.
- overhead: trials of about `--seconds` on a 3072-1000-1000-1 network in this process: the time outside the trials
  (claims, files, study) as a share of the time inside.
- recorded: a study with that many finished trials; seconds to list it, to open it again, and to claim one more.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.sweep.executors import Executor, InProcess, Job, Processes
from engram.sweep.space import PRESETS, SweepSpec
from engram.sweep.sweep import Sweep, drive
from engram.sweep.trial import Ended, TrialOrder, packed, run_trial
from engram.training.recipe import MLPSpec

TURNS = 3


def view(inputs: int, *widths: int) -> AttackerView:
    spec = MLPSpec(inputs=inputs, widths=widths)
    shape = (3, 32, 32) if inputs == 3072 else (inputs,)
    return AttackerView(spec.initialise(torch.Generator().manual_seed(0)), shape, Binary())


def sweep_spec(trials: int, steps: int, candidates: int) -> SweepSpec:
    space = PRESETS["haim2022"].fixing({"steps": steps, "candidates": candidates, "dtype": "float32"})
    return SweepSpec(space=space, trials=trials, keep=1.0)


class Clocked(InProcess):
    """Measures the seconds inside trials."""

    seconds = 0.0

    def collect(self, timeout: float) -> list[tuple[Job, Ended]]:
        started = time.perf_counter()
        ended = super().collect(timeout)
        self.seconds += time.perf_counter() - started
        return ended


def timed(target: AttackerView, spec: SweepSpec, directory: Path, executor: Executor) -> float:
    """Seconds of a whole sweep."""
    sweep = Sweep(view=target, spec=spec, directory=directory)
    started = time.perf_counter()
    drive([sweep], executor)
    seconds = time.perf_counter() - started
    sweep.close()
    return seconds


def rate(trials: int, directory: Path) -> None:
    """Alternates between both, since the speed of a shared machine changes from minute to minute."""
    target, seconds = view(64, 200, 200), {1: 0.0, 2: 0.0}
    executors = {jobs: Processes(jobs, threads=1) for jobs in seconds}
    try:
        for jobs, executor in executors.items():
            timed(target, sweep_spec(jobs, 2, 100), directory / f"start{jobs}", executor)
        for turn in range(TURNS):
            for jobs, executor in executors.items():
                part = timed(target, sweep_spec(trials, 400, 100), directory / f"jobs{jobs}turn{turn}", executor)
                seconds[jobs] += part
                print(f"rate      {jobs} jobs: {trials} trials in {part:.1f} s", flush=True)
    finally:
        for executor in executors.values():
            executor.close()
    print(f"rate      two jobs run {seconds[1] / seconds[2]:.2f} times as many trials per second as one")


def overhead(length: float, directory: Path, trials: int = 3) -> None:
    target = view(3072, 1000, 1000)
    order = TrialOrder(number=0, recipe="haim2022", settings={"candidates": 200, "steps": 4, "dtype": "float32"})
    each = run_trial(packed(target), order).seconds / 4
    steps = max(1, round(length / each))
    executor = Clocked()
    whole = timed(target, sweep_spec(trials, steps, 200), directory / "overhead", executor)
    inside = executor.seconds / trials
    outside = whole / trials - inside
    print(f"overhead  {outside:.3f} s for a trial of {inside:.1f} s: {100 * outside / inside:.2f} %", flush=True)


def recorded(count: int, directory: Path) -> None:
    target = view(64, 20)
    spec = sweep_spec(count + 1, 2, 4)
    sweep = Sweep(view=target, spec=spec, directory=directory / "recorded")
    for number in range(count):
        claim = sweep.ledger.claim(count, lambda _: True)
        assert claim is not None
        row = {"number": number, "state": "complete", "reason": "used all its steps", "objective": 0.5}
        row |= {"unexplained": 0.5, "params": claim.params, "seconds": 1.0, "checkpoints": [0.9, 0.8, 0.7]}
        sweep.ledger.finish(claim, row)
    sweep.close()
    started = time.perf_counter()
    again = Sweep(view=target, spec=spec, directory=directory / "recorded", resume=True)
    opening = time.perf_counter() - started
    started = time.perf_counter()
    again.ledger.claim(count + 1, lambda _: True)
    claiming = time.perf_counter() - started
    again.close()
    command = [sys.executable, "-c", "from engram.cli.app import main; main()", "sweep", "--list"]
    started = time.perf_counter()
    subprocess.run([*command, str(directory / "recorded")], check=True, stdout=subprocess.DEVNULL)
    listing = time.perf_counter() - started
    print(
        f"recorded  {count:,} trials: listed in {listing:.2f} s, opened again in {opening:.2f} s, "
        f"one more claim {1000 * claiming:.0f} ms"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=12, help="trials for the rate")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a trial for the overhead")
    parser.add_argument("--recorded", type=int, default=10_000, help="finished trials of the large study")
    parser.add_argument("--scratch", type=Path, help="where to write the sweeps; by default a temporary directory")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=chosen.scratch) as directory:
        rate(chosen.trials, Path(directory))
        overhead(chosen.seconds, Path(directory))
        recorded(chosen.recorded, Path(directory))


if __name__ == "__main__":
    main()
