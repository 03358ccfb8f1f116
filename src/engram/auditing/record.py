"""What an audit records: the counts over time, in a file that survives a kill, and the whole result."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from engram.attacks.reconstruction import Attack, Reconstruction
from engram.auditing.comparison import SURE, Baseline, BlindView, Comparison, Risk
from engram.auditing.inspect import Description
from engram.auditing.verdict import AuditVerdict, Verdict, inspection_record
from engram.core import files
from engram.core.loop import State, StepClock, Values
from engram.data.sets import Split
from engram.models.networks import ConvNetwork, Network
from engram.models.view import AttackerView
from engram.pipeline import compare
from engram.scoring.protocols import ScoringProtocol
from engram.scoring.report import Count, ScoreReport

FIRST_MOMENT, GROWTH = 2.0, 1.5
"""Moments are at 2, 3, 4.5, ... seconds of the attack: a dozen in two minutes, twenty in an hour."""


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
    """An observer that judges an attack at a few moments; its own time does not count as the attack's.

    With a path, the moments are also in a JSON-lines file, which a resumed run continues.
    """

    attack: Attack
    data: Split | None
    protocol: ScoringProtocol | None = None
    path: Path | None = None
    moments: list[Moment] = field(default_factory=list)
    clock: StepClock = field(default_factory=StepClock)

    def resume(self) -> None:
        """Read what an earlier part of the run wrote; a line cut short by a kill is dropped."""
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
        """Add a moment; a step that a resumed run repeats is kept once."""
        counts = None if report is None else dict(report.counts)
        self.moments = [moment for moment in self.moments if moment.step < step]
        self.moments.append(Moment(step, seconds, len(found), found.count_above(SURE), counts))
        if self.path is not None:
            text = "".join(json.dumps(asdict(moment)) + "\n" for moment in self.moments)
            files.write_bytes(self.path, text.encode())


def _moments_by(seconds: float) -> int:
    """How many moments there are up to this time."""
    if seconds < FIRST_MOMENT:
        return 0
    return 1 + int(math.log(seconds / FIRST_MOMENT) / math.log(GROWTH))


SCHEMA_VERSION = 2


@dataclass(frozen=True)
class AttackSummary:
    """How the attack ran."""

    recipe: str
    settings: dict[str, Any]
    steps: int
    seconds: float
    message: str


@dataclass(frozen=True, eq=False)
class AuditRecord:
    """The result of `engram.audit`; `comparison` is None in blind mode."""

    model: str
    view: AttackerView[Network]
    verdict: AuditVerdict
    description: Description
    reach: Verdict
    attack: AttackSummary
    blind: BlindView
    timeline: tuple[Moment, ...]
    comparison: Comparison | None
    baselines: tuple[Baseline, ...]
    versions: dict[str, str]
    seconds: float
    command: str | None = None
    """The command line, if the audit was started from one."""

    @property
    def architecture(self) -> str | None:
        """The layers of a network with convolutions, as --arch describes them."""
        return self.view.network.architecture.text if isinstance(self.view.network, ConvNetwork) else None

    @property
    def mode(self) -> str:
        return "blind" if self.comparison is None else "with data"

    def to_json(self) -> dict[str, Any]:
        """One JSON object; what is unknown is null."""
        examination = None if self.comparison is None else self.comparison.examination
        found = self.blind.found
        scores = None if found.scores is None else [_finite(value) for value in found.scores.tolist()]
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "audit",
            "mode": self.mode,
            "verdict": {**asdict(self.verdict), "leaks": self.verdict.leaks},
            "model": {
                "name": self.model,
                "network": self.view.network.name,
                "architecture": self.architecture,
                "weights_sha256": self.view.network.digest(),
                "input_shape": list(self.view.input_shape),
                "task": self.view.task.name,
                "activation": str(self.view.network.activation),
                "normalization": None if self.view.normalization is None else self.view.normalization.text,
                "head": self.view.head,
                "base": self.view.base,
                "samples_by_base": None if self.view.update is None else self.view.update.samples,
                "notes": list(self.view.notes),
            },
            "inspection": inspection_record(self.view, self.description, self.reach, examination),
            "attack": asdict(self.attack),
            "candidates": {
                "count": len(found),
                "sure": self.blind.sure,
                "likely": self.blind.likely,
                "boundaries_by_chance": self.blind.by_chance,
                "confidence": scores,
                "labels": found.labels.tolist(),
                "duals": found.duals.tolist(),
                "boundaries": self.blind.boundaries.tolist(),
            },
            "timeline": [asdict(moment) for moment in self.timeline],
            "comparison": None if self.comparison is None else self.comparison.to_json(),
            "baselines": [baseline.to_json() for baseline in self.baselines],
            "versions": self.versions,
            "command": self.command,
            "seconds": self.seconds,
        }

    def risk_csv(self) -> str:
        """One line per record, highest risk first; only the header in blind mode."""
        stream = io.StringIO()
        writer = csv.DictWriter(stream, [field.name for field in fields(Risk)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(risk) for risk in self.risks)
        return stream.getvalue()

    @property
    def risks(self) -> tuple[Risk, ...]:
        """Highest risk first: recovered, then by NCC, then by membership."""
        risks = () if self.comparison is None else self.comparison.risks
        return tuple(sorted(risks, key=_risk_order))

    def to_html(self) -> str:
        """The report as one self-contained page."""
        from engram.auditing.page import page_of
        from engram.render.html import render

        return render(page_of(self))

    def save(self, directory: Path) -> None:
        """Write report.html, report.json, risk.csv and reconstruction.safetensors, its scores the confidence."""
        self.blind.found.save(directory / "reconstruction.safetensors")
        files.write_bytes(directory / "risk.csv", self.risk_csv().encode())
        files.write_json(directory / "report.json", self.to_json())
        files.write_bytes(directory / "report.html", self.to_html().encode())

    def _repr_html_(self) -> str:
        """The verdict and the gallery, for notebooks."""
        from engram.auditing.page import page_of
        from engram.render.html import render_gallery

        return render_gallery(page_of(self))


def _risk_order(risk: Risk) -> tuple[bool, float, float]:
    likeness = risk.ncc if risk.ncc is not None else -(risk.relative_l2 or 0.0)
    return not risk.recovered, -likeness, -(risk.membership or 0.0)


def _finite(value: float) -> float | None:
    return value if value == value else None
