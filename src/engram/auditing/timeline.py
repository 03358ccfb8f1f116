"""Good images over time: what an attack had found at a few moments, kept in a file that survives a kill."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from engram.attacks.reconstruction import Attack, Reconstruction
from engram.auditing.comparison import SURE
from engram.core import files
from engram.core.loop import State, StepClock, Values
from engram.data.sets import Split
from engram.pipeline import compare
from engram.scoring.protocols import ScoringProtocol
from engram.scoring.report import Count, ScoreReport

FIRST_MOMENT, GROWTH = 2.0, 1.5
"""Moments lie at 2, 3, 4.5, ... seconds of the attack: a dozen in two minutes, twenty in an hour."""


@dataclass(frozen=True)
class Moment:
    """After `step` steps and `seconds` of the attack itself: confident candidates, and with data the counts."""

    step: int
    seconds: float
    candidates: int
    sure: int
    counts: dict[str, Count] | None = None


@dataclass(eq=False)
class Timeline:
    """An observer that judges an attack at a few moments, with its own time off the attack's clock.

    With a path, the moments are also in a JSON-lines file, which a resumed run continues.
    """

    attack: Attack
    data: Split | None
    protocol: ScoringProtocol | None = None
    path: Path | None = None
    moments: list[Moment] = field(default_factory=list)
    clock: StepClock = field(default_factory=StepClock)

    def resume(self) -> None:
        """Take up what an earlier part of the run left; a line that a kill cut short is dropped."""
        lines = self.path.read_text().splitlines() if self.path is not None and self.path.exists() else []
        for line in lines:
            try:
                self.moments.append(TypeAdapter(Moment).validate_json(line))
            except ValidationError:
                break

    def __call__(self, step: int, metrics: Values, state: State) -> None:
        before, seconds = self.clock.tick(state)
        if _moments_by(seconds) > _moments_by(before):
            found = self.attack.reconstruction(state)
            report = None if self.data is None else compare(found, self.data, protocol=self.protocol)
            self.add(step, seconds, found, report)
        self.clock.tock()

    def add(self, step: int, seconds: float, found: Reconstruction, report: ScoreReport | None) -> None:
        """Keep a moment; a step that a resumed run repeats is taken once."""
        counts = None if report is None else dict(report.counts)
        self.moments = [moment for moment in self.moments if moment.step < step]
        self.moments.append(Moment(step, seconds, len(found), found.count_above(SURE), counts))
        if self.path is not None:
            text = "".join(json.dumps(asdict(moment)) + "\n" for moment in self.moments)
            files.write_bytes(self.path, text.encode())


def _moments_by(seconds: float) -> int:
    """How many moments lie before so many seconds."""
    if seconds < FIRST_MOMENT:
        return 0
    return 1 + int(math.log(seconds / FIRST_MOMENT) / math.log(GROWTH))
