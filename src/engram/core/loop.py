"""The library's only optimisation loop: progress, divergence, snapshots, resuming and time limits.

An `Iteration` says how to start, how to step and when it is finished; `run` does the rest and returns
a `Solution`, whose `StopReason` says why it ended. A diverged run is a value, not a crash. `Progress` tells a
callable how far work is; TensorBoard and Weights & Biases are observers.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

from engram.core import files
from engram.core.errors import CheckpointError, ConfigError, DivergedError, optional, require

State = dict[str, Tensor]
"""Everything an iteration needs to continue bit for bit: unknowns, momenta, generator states."""

Metrics = Mapping[str, Tensor]
"""Named scalars of one step; `loss` must be among them and decides whether the run has diverged.

`steps`, if given, is how many steps of the budget this one uses; the default is one. `seconds`, if given, is the
time of the whole run, earlier processes included, and counts against the budget in place of this process's.
"""

Values = Mapping[str, float]
"""The same as plain numbers."""


class StopReason(Enum):
    """Why a run ended; the value is what users read."""

    FINISHED = "reached its goal"
    STOPPED = "was stopped by an observer"
    STEP_LIMIT = "used all its steps"
    TIME_LIMIT = "used all its time"
    DIVERGED = "diverged"


class Iteration(Protocol):
    """What a solver implements: init, step, finished. `step` may update the tensors of `state` in place."""

    def init(self) -> State: ...

    def step(self, state: State) -> Metrics: ...

    def finished(self, metrics: Values) -> bool: ...

    def fingerprint(self) -> str:
        """Text that differs whenever the trajectory would; a snapshot is resumed only under the same text."""

    def hint(self) -> str:
        """What the user should change when this iteration diverges."""


Observer = Callable[[int, Values, State], object]
"""Called after every step with its number, its metrics and the state; decides itself how often to act.

It may keep tensors of its own in the state, which snapshots then include. It ends the run by returning `STOP`.
"""
STOP = "stop"


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The limits of a run: `steps`, and optionally `seconds` of this process's time."""

    steps: int
    seconds: float | None = None

    def __post_init__(self) -> None:
        require(self.steps > 0, "steps", "must be positive", self.steps)
        require(self.seconds is None or self.seconds > 0, "seconds", "must be positive", self.seconds)


@dataclass(frozen=True, eq=False)
class Solution:
    """The outcome: last state, why the run stopped, and the steps and seconds of all its processes together."""

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
class Position:
    """How far a run has got: what a snapshot contains besides the state."""

    fingerprint: str
    step: int = 0
    loss: float = math.inf
    finished: bool = False
    seconds: float = 0.0
    layout: str = ""
    """Names, types and shapes of the state's tensors, which a damaged file would change."""

    def __post_init__(self) -> None:
        known = (self.fingerprint, str), (self.step, int), (self.finished, bool), (self.layout, str)
        sound = all(type(value) is kind for value, kind in known) and self.step >= 0
        numbers = (self.loss, self.seconds)
        require(
            sound
            and all(type(one) in (int, float) and not math.isnan(one) for one in numbers)
            and self.seconds >= 0,
            "position",
            "must be that of a run",
            self,
        )


@dataclass(frozen=True, kw_only=True)
class Snapshots:
    """A file that always contains a complete state of a run, written every `every_seconds`."""

    path: Path
    every_seconds: float = 20.0

    def save(self, position: Position, state: State) -> None:
        told = {**asdict(position), "layout": _layout(state)}
        encoded = torch.tensor(list(json.dumps(told).encode()), dtype=torch.uint8)
        files.write_tensors(self.path, {**state, "_position": encoded})

    def load(self, fingerprint: str) -> tuple[Position, State]:
        """The run's position and state, or an error that says why it can't be resumed."""
        state = files.read_tensors(self.path)
        try:
            position = Position(**json.loads(bytes(state.pop("_position").tolist())))
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError, ConfigError) as error:
            raise CheckpointError(f"{self.path} is not a snapshot of a run; start without --resume") from error
        if position.fingerprint != fingerprint:
            raise CheckpointError(
                f"{self.path} belongs to a run with other settings or another model; "
                "resume with the same ones, or start again in another directory"
            )
        if position.layout not in ("", _layout(state)):
            raise self.damaged("its tensors have other names, types or shapes than the run gave them")
        return position, state

    def damaged(self, problem: object) -> CheckpointError:
        return CheckpointError(f"{self.path} is damaged: {problem}; start again in another directory with -o")


def _layout(state: State) -> str:
    return ";".join(f"{name} {state[name].dtype} {tuple(state[name].shape)}" for name in sorted(state))


BAD_STATE = (RuntimeError, LookupError, ValueError, TypeError, ArithmeticError)
"""What a step raises on tensors that are not those it made: torch names shapes, types and indices so."""


FIRST_SNAPSHOT = 5.0
"""Seconds before the first snapshot, at most: whoever watches a run wants to see something soon."""


def run(
    iteration: Iteration,
    budget: Budget,
    *,
    snapshots: Snapshots | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
) -> Solution:
    """Step until the goal, the budget, divergence or an observer ends it; with `resume`, from the last snapshot.

    Snapshots are timed by the clock but change nothing: a resumed run ends exactly as an uninterrupted one.
    """
    started = time.monotonic()
    saved_at = started - (max(0.0, snapshots.every_seconds - FIRST_SNAPSHOT) if snapshots else 0.0)
    position = Position(fingerprint=iteration.fingerprint())
    if resume and snapshots and snapshots.path.exists():
        position, state = snapshots.load(position.fingerprint)
    else:
        state = iteration.init()
    reason = StopReason.FINISHED if position.finished else StopReason.STEP_LIMIT
    earlier = position.seconds
    resumed_at = position.step
    while position.step < budget.steps and not position.finished:
        try:
            metrics = iteration.step(state)
        except BAD_STATE as error:
            if snapshots is None or not resumed_at or position.step != resumed_at:
                raise
            raise snapshots.damaged(error) from error  # the first step on what a file contains
        values = {name: float(value) for name, value in metrics.items()}
        step, loss = position.step + int(values.get("steps", 1)), values["loss"]
        if not math.isfinite(loss):
            reason = StopReason.DIVERGED
            break
        position = replace(position, step=step, loss=loss, finished=iteration.finished(values))
        answers = [observer(step, values, state) for observer in observers]
        now = time.monotonic()
        used = max(now - started, values.get("seconds", 0.0))
        if position.finished:
            reason = StopReason.FINISHED
        elif STOP in answers:  # final: a resumed run must not go past it
            reason, position = StopReason.STOPPED, replace(position, finished=True)
        elif budget.seconds is not None and used >= budget.seconds:
            reason = StopReason.TIME_LIMIT
            break
        elif snapshots and now - saved_at >= snapshots.every_seconds and _is_finite(state):
            snapshots.save(replace(position, seconds=earlier + now - started), state)
            saved_at = now
    seconds = earlier + time.monotonic() - started
    if reason is StopReason.DIVERGED or not _is_finite(state):
        # The snapshot on disk is still the last finite one.
        message = f"diverged at step {position.step + 1:,}; {iteration.hint()}"
        return Solution(state, StopReason.DIVERGED, position.step + 1, seconds, math.nan, message)
    if snapshots:
        snapshots.save(replace(position, seconds=seconds), state)
    message = f"{reason.value} after {position.step:,} steps, loss {position.loss:.3g}"
    return Solution(state, reason, position.step, seconds, position.loss, message)


@dataclass(eq=False)
class Stopwatch:
    """Seconds between laps; the first lap only starts it."""

    _since: float | None = field(default=None, init=False)

    def lap(self) -> float:
        now = time.monotonic()
        seconds = 0.0 if self._since is None else now - self._since
        self._since = now
        return seconds

    def begun(self, seconds: float) -> None:
        """Start it so many seconds ago."""
        self._since = time.monotonic() - seconds


@dataclass(eq=False)
class StepClock:
    """Seconds that the steps of a run have taken, without its observers, whose time is not the attack's.

    For the last observer of a run: `tick` when it is called, `tock` when it is done. The time of earlier
    processes is in the state, so that a resumed run continues the count.
    """

    cpu_seconds: float = 0.0
    _since: float = field(default_factory=time.perf_counter, init=False)
    _cpu_since: float = field(default_factory=time.process_time, init=False)

    def tick(self, state: State) -> tuple[float, float]:
        """Seconds before this step and after it."""
        before = float(state["step_seconds"]) if "step_seconds" in state else 0.0
        seconds = before + time.perf_counter() - self._since
        self.cpu_seconds += time.process_time() - self._cpu_since
        state["step_seconds"] = torch.tensor(seconds, dtype=torch.float64)
        return before, seconds

    def tock(self) -> None:
        self._since, self._cpu_since = time.perf_counter(), time.process_time()


def _is_finite(state: State) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in state.values() if tensor.is_floating_point())


Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done, 0 to 1. Text after a colon may change."""


def silent(what: str, share: float) -> None:
    """Report nothing."""


def part(progress: Progress, first: float, last: float) -> Progress:
    """Progress of a part of the work, from share `first` to share `last` of the whole.

    >>> part(print, 0.5, 1.0)("second half", 0.5)
    second half 0.75
    """
    return lambda what, share: progress(what, first + (last - first) * share)


def by_steps(progress: Progress, what: str, steps: int) -> Observer:
    """An observer that reports the share of the steps, with the loss."""
    return by_share(progress, what, lambda step, metrics: step / steps)


def by_share(progress: Progress, what: str, share: Callable[[int, Values], float]) -> Observer:
    """An observer that reports what `share` makes of a step and its metrics, with the loss."""

    def observe(step: int, metrics: Values, state: State) -> None:
        progress(f"{what}: loss {metrics['loss']:.4g}", min(share(step, metrics), 1.0))

    return observe


WANDB_MODES = ("offline", "online")


class TensorBoard:
    """Scalars as event files; view them with `tensorboard --logdir DIRECTORY`."""

    def __init__(self, directory: Path) -> None:
        self.check()
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(directory))

    @staticmethod
    def check() -> None:
        """Check that it is installed, before any work starts."""
        optional("tensorboard", wanted_by="--tensorboard", install="tensorboard")

    def __call__(self, step: int, metrics: Values, state: State | None = None) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """One W&B run, resumed under its id; `offline` writes only to `directory` and sends nothing."""

    def __init__(self, mode: str, *, directory: Path, run_id: str, config: dict[str, Any]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._run: Any = self.check(mode).init(
            project="engram", id=run_id, resume="allow", mode=mode, dir=str(directory), config=config
        )

    @staticmethod
    def check(mode: str) -> ModuleType:
        """The package, if it is installed and the mode is valid."""
        require(mode in WANDB_MODES, "--wandb", f"must be {' or '.join(WANDB_MODES)}", mode)
        return optional("wandb", wanted_by="--wandb", install="wandb")

    def __call__(self, step: int, metrics: Values, state: State | None = None) -> None:
        # Trials end in any order, but W&B's own steps must increase: the number is logged like any other value.
        self._run.log({"number": step, **metrics})

    def close(self) -> None:
        self._run.finish()
