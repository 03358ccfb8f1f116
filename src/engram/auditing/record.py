"""AuditRecord: everything an audit found, as a value; `to_json` is documented in docs/report-schema.md."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from engram.auditing.baselines import Baseline
from engram.auditing.comparison import BlindView, Comparison, Risk
from engram.auditing.inspect import Description
from engram.auditing.reach import Verdict, inspection_record
from engram.auditing.timeline import Moment
from engram.auditing.verdict import AuditVerdict
from engram.core import files
from engram.models.networks import ConvNetwork, Network
from engram.models.view import AttackerView

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
    """The outcome of `engram.audit`; `comparison` is None in the blind mode."""

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
    """What was typed, where a person typed it."""

    @property
    def architecture(self) -> str | None:
        """The layers of a network with convolutions, as --arch describes them."""
        return self.view.network.architecture.text if isinstance(self.view.network, ConvNetwork) else None

    @property
    def mode(self) -> str:
        return "blind" if self.comparison is None else "with data"

    def to_json(self) -> dict[str, Any]:
        """One JSON object; what is not known is null."""
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
        """One line for each record, the worst first; only the header in the blind mode."""
        stream = io.StringIO()
        writer = csv.DictWriter(stream, [field.name for field in fields(Risk)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(risk) for risk in self.risks)
        return stream.getvalue()

    @property
    def risks(self) -> tuple[Risk, ...]:
        """The worst first: recovered, then by NCC, then by membership."""
        risks = () if self.comparison is None else self.comparison.risks
        return tuple(sorted(risks, key=_risk_order))

    def to_html(self) -> str:
        """The report: one page without outside parts."""
        from engram.auditing.page import page_of
        from engram.render.html import render

        return render(page_of(self))

    def save(self, directory: Path) -> None:
        """report.html, report.json, risk.csv and reconstruction.safetensors, its scores the blind confidence."""
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
