"""The one loop of the library: progress, divergence, snapshots, resuming and time limits, written once.

An `Iteration` says how to begin, how to step and when it is finished; `run` does the rest and returns
a `Solution`, whose `StopReason` says how it ended. A diverged run is a value, not a crash.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from engram.core import files
from engram.core.errors import CheckpointError, DivergedError, require

State = dict[str, Tensor]
"""Everything an iteration needs to go on, bit for bit: unknowns, momenta, generator states."""

Metrics = Mapping[str, Tensor]
"""Named scalars of one step; `loss` must be among them and decides whether the run has diverged.

`steps`, if given, says for how many steps of the budget this one counts; else it is one.
"""

Values = Mapping[str, float]
"""The same as plain numbers."""


class StopReason(Enum):
    """Why a run ended; the value is what a person reads."""

    FINISHED = "reached its goal"
    STEP_LIMIT = "used all its steps"
    TIME_LIMIT = "used all its time"
    DIVERGED = "diverged"


class Iteration(Protocol):
    """What a solver writes: begin, step, finished. `step` may update the tensors of `state` in place."""

    def init(self) -> State: ...

    def step(self, state: State) -> Metrics: ...

    def finished(self, metrics: Values) -> bool: ...

    def fingerprint(self) -> str:
        """Text that differs whenever the trajectory would; a snapshot resumes only under the same one."""

    def hint(self) -> str:
        """What a person should change when this iteration diverges."""


Observer = Callable[[int, Values], None]
"""Told of every step and its metrics; decides itself how often it does something."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Where a run ends at the latest: after `steps`, or after `seconds` of this process's time."""

    steps: int
    seconds: float | None = None

    def __post_init__(self) -> None:
        require(self.steps > 0, "steps", "must be positive", self.steps)
        require(self.seconds is None or self.seconds > 0, "seconds", "must be positive", self.seconds)


@dataclass(frozen=True, eq=False)
class Solution:
    """The outcome: last state, why it stopped, steps done and seconds spent, both by all processes of the run."""

    state: State
    reason: StopReason
    steps: int
    seconds: float
    loss: float
    message: str

    def require_finite(self) -> Solution:
        """This solution, or `DivergedError` for callers that need a finished result."""
        if self.reason is StopReason.DIVERGED:
            raise DivergedError(self.message)
        return self


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a snapshot tells beside the state."""

    fingerprint: str
    step: int = 0
    loss: float = math.inf
    finished: bool = False
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """A file that always holds the last whole state of a run, written every `every_seconds`."""

    path: Path
    every_seconds: float = 20.0

    def save(self, progress: Progress, state: State) -> None:
        encoded = torch.tensor(list(json.dumps(asdict(progress)).encode()), dtype=torch.uint8)
        files.write_tensors(self.path, {**state, "_progress": encoded})

    def load(self, fingerprint: str) -> tuple[Progress, State]:
        """How far the run was and its state, or an error that says why it can't be resumed."""
        state = files.read_tensors(self.path)
        try:
            progress = Progress(**json.loads(bytes(state.pop("_progress").tolist())))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{self.path} is no snapshot of a run; start without --resume") from error
        if progress.fingerprint != fingerprint:
            raise CheckpointError(
                f"{self.path} belongs to a run with other settings or another model; "
                "resume with the same ones, or start anew in another directory"
            )
        return progress, state


def run(
    iteration: Iteration,
    budget: Budget,
    *,
    snapshots: Snapshots | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
) -> Solution:
    """Step until the goal, the budget or divergence; with `resume`, go on from the last snapshot if any.

    Snapshots are taken by the clock, yet change nothing: a resumed run ends as the undisturbed one.
    """
    started = saved_at = time.monotonic()
    progress = Progress(fingerprint=iteration.fingerprint())
    if resume and snapshots and snapshots.path.exists():
        progress, state = snapshots.load(progress.fingerprint)
    else:
        state = iteration.init()
    reason = StopReason.FINISHED if progress.finished else StopReason.STEP_LIMIT
    earlier = progress.seconds
    while progress.step < budget.steps and not progress.finished:
        metrics = iteration.step(state)
        values = {name: float(value) for name, value in metrics.items()}
        step, loss = progress.step + int(values.get("steps", 1)), values["loss"]
        if not math.isfinite(loss):
            reason = StopReason.DIVERGED
            break
        progress = replace(progress, step=step, loss=loss, finished=iteration.finished(values))
        for observer in observers:
            observer(step, values)
        now = time.monotonic()
        if progress.finished:
            reason = StopReason.FINISHED
        elif budget.seconds is not None and now - started >= budget.seconds:
            reason = StopReason.TIME_LIMIT
            break
        elif snapshots and now - saved_at >= snapshots.every_seconds and _is_finite(state):
            snapshots.save(replace(progress, seconds=earlier + now - started), state)
            saved_at = now
    seconds = earlier + time.monotonic() - started
    if reason is StopReason.DIVERGED or not _is_finite(state):
        # The snapshot on disk stays the last finite one.
        message = f"diverged at step {progress.step + 1:,}; {iteration.hint()}"
        return Solution(state, StopReason.DIVERGED, progress.step + 1, seconds, math.nan, message)
    if snapshots:
        snapshots.save(replace(progress, seconds=seconds), state)
    message = f"{reason.value} after {progress.step:,} steps, loss {progress.loss:.3g}"
    return Solution(state, reason, progress.step, seconds, progress.loss, message)


def _is_finite(state: State) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in state.values() if tensor.is_floating_point())
