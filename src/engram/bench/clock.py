"""An attack under a clock that stands still while its candidates are scored."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from engram.bench.machine import peak_memory_bytes
from engram.bench.moments import INTERRUPTED, Count, Moment, Trace
from engram.loop import Budget, Metrics, State, StopReason, Values, run
from engram.reconstruct.attack import Attack
from engram.reconstruct.candidates import Reconstruction

FIRST_MOMENT, MOMENT_GROWTH = 0.5, 1.15
"""Scored after its first step, still a random start, after half a second, and then whenever the clock has grown by
15 %: no count is seen later than that."""


Judge = Callable[[Reconstruction], Mapping[str, Count]]
"""Counts by metric, e.g. "ncc>0.8"."""


@dataclass(eq=False)
class _Clocked:
    """An iteration that times its own start and steps, and scores between them."""

    scheme: Attack
    judge: Judge
    limit: float | None
    due: float
    progress: Callable[[float], None]
    setup_seconds: float
    step_seconds: float = 0.0
    cpu_seconds: float = 0.0
    steps: int = 0
    moments: list[Moment] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.setup_seconds + self.step_seconds

    def init(self) -> State:
        started = time.perf_counter()
        state = self.scheme.init()
        self.setup_seconds += time.perf_counter() - started
        return state

    def step(self, state: State) -> Metrics:
        started, cpu_started = time.perf_counter(), time.process_time()
        metrics = self.scheme.step(state)
        is_finite = math.isfinite(float(metrics["loss"]))
        self.step_seconds += time.perf_counter() - started
        self.cpu_seconds += time.process_time() - cpu_started
        self.steps += 1
        done = self.steps / self.scheme.total_steps
        self.progress(min(1.0, done if self.limit is None else max(done, self.seconds / self.limit)))
        if is_finite and (self.steps == 1 or self.seconds >= self.due):
            self.score(state)
        return metrics

    def score(self, state: State) -> None:
        """Does nothing if this very state was scored already."""
        if self.moments and self.moments[-1].step == self.steps:
            return
        counts = self.judge(self.scheme.reconstruction(state))
        self.moments.append(Moment(self.seconds, self.steps, counts))
        while self.due <= self.seconds:
            self.due *= MOMENT_GROWTH

    def finished(self, metrics: Values) -> bool:
        return self.scheme.finished(metrics) or self.is_out_of_time

    @property
    def is_out_of_time(self) -> bool:
        return self.limit is not None and self.seconds >= self.limit

    def fingerprint(self) -> str:
        return self.scheme.fingerprint()

    def hint(self) -> str:
        return self.scheme.hint()


def trace(
    scheme: Attack,
    judge: Judge,
    *,
    limit: float | None = None,
    already: float = 0.0,
    first_moment: float = FIRST_MOMENT,
    progress: Callable[[float], None] = lambda share: None,
) -> Trace:
    """Run an attack to its end, or to `limit` seconds of its own; score it now and then, and where it ends.

    `already` seconds were spent on its planning. Ctrl-C ends it early, and what was measured is kept.
    """
    clocked = _Clocked(scheme, judge, limit, first_moment, progress, already)
    try:
        solution = run(clocked, Budget(steps=scheme.total_steps))
        stopped = solution.message
        if solution.reason is not StopReason.DIVERGED:
            clocked.score(solution.state)
            out_of_time = clocked.is_out_of_time and clocked.steps < scheme.total_steps
            stopped = (StopReason.TIME_LIMIT if out_of_time else solution.reason).value
    except KeyboardInterrupt:
        stopped = INTERRUPTED
    return Trace(
        recipe=scheme.recipe,
        settings=asdict(scheme.settings),
        total_steps=scheme.total_steps,
        steps=clocked.steps,
        setup_seconds=clocked.setup_seconds,
        step_seconds=clocked.step_seconds,
        cpu_seconds=clocked.cpu_seconds,
        stopped=stopped,
        peak_memory_bytes=peak_memory_bytes(),
        moments=tuple(clocked.moments),
    )
