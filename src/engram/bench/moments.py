"""What an attack had recovered at which moment, and what it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from engram.bench.ratio import Curve, time_to_count

INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class Count:
    """Training images that pass a threshold beside their nulls; excess = train - held_out, scaled to as many."""

    train: int
    held_out: int
    excess: float
    noise: int


@dataclass(frozen=True)
class Moment:
    """What an attack had after `step` steps and `seconds` of its own time."""

    seconds: float
    step: int
    counts: Mapping[str, Count]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """An attack from its start to where it was stopped; seconds are its own, without scoring.

    `setup_seconds` are those of its planning and its preparation, `peak_memory_bytes` is the process's until then.
    `cpu_seconds` are those of all threads during the steps: far below threads x step_seconds, others were at work.
    """

    recipe: str
    settings: Mapping[str, Any]
    total_steps: int
    steps: int
    setup_seconds: float
    step_seconds: float
    cpu_seconds: float
    stopped: str
    peak_memory_bytes: int
    moments: tuple[Moment, ...]

    @property
    def is_interrupted(self) -> bool:
        return self.stopped == INTERRUPTED

    @property
    def seconds(self) -> float:
        return self.setup_seconds + self.step_seconds

    @property
    def seconds_per_step(self) -> float | None:
        return self.step_seconds / self.steps if self.steps else None

    def curve(self, metric: str) -> Curve:
        return [(moment.seconds, moment.counts[metric].excess) for moment in self.moments]

    def to_json(self, metrics: tuple[str, ...]) -> dict[str, Any]:
        record = {name: value for name, value in asdict(self).items() if name != "moments"}
        times = {
            metric: [{"count": count, "seconds": seconds} for count, seconds in time_to_count(self.curve(metric))]
            for metric in metrics
        }
        return record | {
            "seconds": self.seconds,
            "seconds_per_step": self.seconds_per_step,
            "curve": [asdict(moment) for moment in self.moments],
            "time_to_count": times,
        }
