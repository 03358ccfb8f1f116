"""Good images over time: what an attack had found at a few moments, kept in a file that survives a kill."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from engram.attacks.reconstruction import Attack, Reconstruction
from engram.auditing.blind import SURE
from engram.auditing.samples import AuditData
from engram.core import files
from engram.core.loop import Metrics, State, Values
from engram.models.networks import Network
from engram.models.view import AttackerView
from engram.pipeline import compare
from engram.scoring.protocols import ScoringProtocol
from engram.scoring.report import ScoreReport

FIRST_MOMENT, GROWTH = 2.0, 1.5
"""Moments lie at 2, 3, 4.5, ... seconds of the attack: a dozen in two minutes, twenty in an hour."""


@dataclass(frozen=True)
class Moment:
    """After `step` steps and `seconds` of the attack itself: confident candidates, and with data the counts."""

    step: int
    seconds: float
    candidates: int
    sure: int
    train: dict[str, int] | None = None
    held_out: dict[str, int] | None = None


@dataclass(eq=False)
class Timeline:
    """Moments so far; with a path, also in a JSON-lines file, from which a resumed run goes on."""

    data: AuditData | None
    protocol: ScoringProtocol | None = None
    path: Path | None = None
    moments: list[Moment] = field(default_factory=list)

    def resume(self) -> None:
        """Take up what an earlier part of the run left; a line that a kill cut short is dropped."""
        lines = self.path.read_text().splitlines() if self.path is not None and self.path.exists() else []
        for line in lines:
            try:
                self.moments.append(TypeAdapter(Moment).validate_json(line))
            except ValidationError:
                break

    def add(self, step: int, seconds: float, found: Reconstruction) -> None:
        """Judge what the attack has now; a step that a resumed run repeats is taken once."""
        self.moments = [moment for moment in self.moments if moment.step < step]
        report = None if self.data is None else compare(found, self.data.split, protocol=self.protocol)
        self.moments.append(Moment(step, seconds, len(found), found.count_above(SURE), *_counts(report)))
        if self.path is not None:
            text = "".join(json.dumps(asdict(moment)) + "\n" for moment in self.moments)
            files.write_bytes(self.path, text.encode())


def _counts(report: ScoreReport | None) -> tuple[dict[str, int] | None, dict[str, int] | None]:
    if report is None:
        return None, None
    train = {row.threshold.text: row.train for row in report.counts}
    held_out = {row.threshold.text: row.held_out for row in report.counts if row.held_out is not None}
    return train, held_out or None


@dataclass(frozen=True, eq=False)
class Milestones:
    """An attack that tells `tell(step, seconds, reconstruction)` at a few moments; otherwise the attack itself.

    Seconds are those of its steps alone, so that judging takes no time on the clock. Steps and seconds lie in the
    state, so that a resumed run counts on.
    """

    scheme: Attack
    tell: Callable[[int, float, Reconstruction], None]

    @property
    def recipe(self) -> str:
        return self.scheme.recipe

    @property
    def view(self) -> AttackerView[Network]:
        return self.scheme.view

    @property
    def settings(self) -> Any:
        return self.scheme.settings

    @property
    def total_steps(self) -> int:
        return self.scheme.total_steps

    def init(self) -> State:
        return self.scheme.init()

    def step(self, state: State) -> Metrics:
        started = time.monotonic()
        metrics = self.scheme.step(state)
        before = float(state.get("audit_seconds", torch.tensor(0.0)))
        seconds = before + time.monotonic() - started
        state["audit_seconds"] = torch.tensor(seconds, dtype=torch.float64)
        state["audit_step"] = state.get("audit_step", torch.tensor(0)) + 1
        if _mark(seconds) > _mark(before):
            self.tell(int(state["audit_step"]), seconds, self.scheme.reconstruction(state))
        return metrics

    def finished(self, metrics: Values) -> bool:
        return self.scheme.finished(metrics)

    def fingerprint(self) -> str:
        return self.scheme.fingerprint()

    def hint(self) -> str:
        return self.scheme.hint()

    def reconstruction(self, state: State) -> Reconstruction:
        return self.scheme.reconstruction(state)


def _mark(seconds: float) -> int:
    """How many moments have passed."""
    if seconds < FIRST_MOMENT:
        return 0
    return 1 + int(math.log(seconds / FIRST_MOMENT) / math.log(GROWTH))
