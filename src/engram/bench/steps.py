"""Seconds a step of the engine: how they grow with the candidates, with the size of the images, with the prior."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engram.attacker import AttackerView
from engram.bench.machine import machine
from engram.errors import DivergedError
from engram.loop import Budget, Observer, run
from engram.reconstruct.engine.settings import EngineSettings
from engram.reconstruct.engine.solver import Engine

SCHEMA_VERSION = 1
CANDIDATES = (250, 500, 1000, 2000)
COMPARED = 1000
"""Candidates at which image sizes are compared and memory is measured, the papers' m for 500 images."""
PRIOR = 1.6
"""Any strength above zero costs the same."""
STEPS = 50
"""A whole start of as many steps as the metric is kept for, so that its price is in the mean once."""


@dataclass(frozen=True)
class Case:
    """One thing to time."""

    view: AttackerView
    candidates: int
    with_prior: bool


@dataclass(frozen=True)
class StepTime:
    """What a step took; `setup_seconds` is the engine's preparation, once for each attack."""

    input_shape: tuple[int, ...]
    rank: int
    candidates: int
    with_prior: bool
    steps: int
    setup_seconds: float
    seconds_per_step: float
    cpu_seconds_per_step: float


def cases(views: Sequence[AttackerView], candidates: Sequence[int] = CANDIDATES) -> list[Case]:
    """All numbers of candidates on the first view, `COMPARED` on the others; without and with the prior."""
    is_image = len(views[0].input_shape) == 3
    priors = (False, True) if is_image else (False,)
    first, *others = views
    pairs = [(first, m) for m in candidates] + [(view, COMPARED) for view in others]
    return [Case(view, m, with_prior) for with_prior in priors for view, m in pairs]


def time_steps(case: Case, steps: int = STEPS, *, observers: Sequence[Observer] = ()) -> StepTime:
    """Time one short start, after a step that wakes threads and memory."""
    prior = PRIOR if case.with_prior else 0.0
    settings = EngineSettings(candidates=case.candidates, prior=prior, restarts=1, steps=steps)
    started = time.perf_counter()
    engine = Engine(case.view, settings)
    rank = engine.scales.space.rank
    setup = time.perf_counter() - started
    run(engine, Budget(steps=1))
    taken: list[int] = []
    counting: list[Observer] = [lambda step, values: taken.append(step)]
    cpu_started = time.process_time()
    solution = run(engine, Budget(steps=engine.total_steps), observers=[*counting, *observers])
    cpu_seconds = time.process_time() - cpu_started
    # The loop tells its observers of steps with a finite loss only, and ends at the first other one.
    if len(taken) < engine.total_steps:
        raise DivergedError(solution.message)
    return StepTime(
        input_shape=case.view.input_shape,
        rank=rank,
        candidates=engine.scales.candidates,
        with_prior=case.with_prior,
        steps=len(taken),
        setup_seconds=setup,
        seconds_per_step=solution.seconds / len(taken),
        cpu_seconds_per_step=cpu_seconds / len(taken),
    )


def growth_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float | None:
    """Slope of log seconds over log size by least squares: 1 is linear; None for fewer than two sizes.

    >>> growth_exponent([250, 500, 1000], [1.0, 2.0, 4.0])
    1.0
    """
    if len(set(sizes)) < 2:
        return None
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in seconds]
    x_mean, y_mean = sum(x) / len(x), sum(y) / len(y)
    products = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True))
    return round(products / sum((a - x_mean) ** 2 for a in x), 6)


@dataclass(frozen=True)
class StepTable:
    """Finished measurements; the first shape measured is the one that the others are compared with."""

    rows: tuple[StepTime, ...]

    def ratio(self, row: StepTime) -> float | None:
        """To the fewest candidates of the first shape; for another shape to the same candidates of the first."""
        first_shape = self.rows[0].input_shape
        peers = [r for r in self.rows if r.with_prior == row.with_prior and r.input_shape == first_shape]
        if row.input_shape == first_shape:
            return row.seconds_per_step / min(peers, key=lambda r: r.candidates).seconds_per_step
        same = [r for r in peers if r.candidates == row.candidates]
        return row.seconds_per_step / same[0].seconds_per_step if same else None

    def exponent(self, *, with_prior: bool) -> float | None:
        """Growth over the candidates of the first shape."""
        rows = [r for r in self.rows if r.with_prior == with_prior and r.input_shape == self.rows[0].input_shape]
        return growth_exponent([r.candidates for r in rows], [r.seconds_per_step for r in rows])

    def to_json(
        self, *, target: str, memory: dict[str, Any] | None, notes: Sequence[str], interrupted: bool
    ) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "steps",
            "interrupted": interrupted,
            "target": target,
            "notes": list(notes),
            "machine": machine(),
            "rows": [{**asdict(row), "ratio": self.ratio(row)} for row in self.rows],
            "growth_exponent": {
                name: self.exponent(with_prior=with_prior)
                for name, with_prior in (("without_prior", False), ("with_prior", True))
            },
            "memory": memory,
        }
