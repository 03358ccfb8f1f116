"""What an audit records: the counts over time, in a file that survives a kill, and the whole result."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from engram.attacks.reconstruction import Attack, Reconstruction
from engram.auditing.comparison import SURE, Baseline, BlindView, Comparison, Risk, deciding_threshold
from engram.auditing.inspect import Description
from engram.auditing.verdict import NOTHING_LEARNT, AuditVerdict, Verdict, inspection_record
from engram.core import files
from engram.core.errors import ConfigError, require_numbers
from engram.core.loop import State, StepClock, StopReason, Values
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

    def __post_init__(self) -> None:
        require_numbers(self)
        for one in () if self.counts is None else self.counts.values():
            require_numbers(one)


@dataclass(eq=False)
class Timeline:
    """An observer that judges an attack at a few moments; its own time does not count as the attack's.

    With a path, the moments are also in a JSON-lines file, which a resumed run continues.
    """

    attack: Attack
    data: Split | None
    protocol: ScoringProtocol | None = None
    path: Path | None = None
    show: Callable[[Sequence[Moment], Reconstruction, str | None], None] | None = None
    """Is shown the moments so far, the candidates of the last one, and by what they are counted."""
    moments: list[Moment] = field(default_factory=list)
    clock: StepClock = field(default_factory=StepClock)

    def resume(self) -> None:
        """Read what an earlier part of the run wrote; a line cut short by a kill is dropped."""
        for row in [] if self.path is None else files.read_json_lines(self.path):
            try:
                self.moments.append(TypeAdapter(Moment).validate_python(row))
            except (ValidationError, ConfigError):
                break

    def __call__(self, step: int, metrics: Values, state: State) -> None:
        before, seconds = self.clock.tick(state)
        if _moments_by(seconds) > _moments_by(before):
            found = self.attack.reconstruction(state)
            report = None if self.data is None else compare(found, self.data, protocol=self.protocol)
            self.add(step, seconds, found, report)
            if self.show is not None:
                self.show(self.moments, found, None if report is None else deciding_threshold(report).text)
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
REPORT_FILE = "report.html"


@dataclass(frozen=True)
class AttackSummary:
    """How the attack ran."""

    recipe: str
    settings: dict[str, Any]
    steps: int
    seconds: float
    message: str


@dataclass(frozen=True, eq=False)
class Illustration:
    """Pictures [k, C, H, W] made from embeddings that came back, above the records, and the same for controls."""

    made: Tensor
    records: Tensor
    held_out_made: Tensor
    held_out: Tensor


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
    illustration: Illustration | None = None
    """Of embeddings that came back, if what made them can be inverted."""

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
                "columns": None if self.view.features is None else list(self.view.features.columns),
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
        """Write report.html, its content, report.json, risk.csv and reconstruction.safetensors, its scores the
        confidence."""
        from engram.auditing.page import page_of
        from engram.render.html import PAGE_FILE, page_bytes, render

        page = page_of(self)
        self.blind.found.save(directory / "reconstruction.safetensors")
        files.write_bytes(directory / "risk.csv", self.risk_csv().encode())
        files.write_json(directory / "report.json", self.to_json())
        files.write_bytes(directory / PAGE_FILE, page_bytes(page))
        files.write_bytes(directory / REPORT_FILE, render(page).encode())

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


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a report says that rules ask for; None where it was not measured."""

    mode: str
    audited: dict[str, Any]
    ran: frozenset[str]
    not_tried: str | None = None
    """Why reconstruction was not tried."""
    records: int | None = None
    controls: int | None = None
    hits: int | None = None
    control_hits: int | None = None
    curve: tuple[list[float], list[float]] | None = None
    """False- and true-positive rates of the membership test."""
    epsilon: float | None = None
    accuracy: float | None = None
    seconds: float | None = None
    confidence: tuple[float, ...] | None = None
    unjudged: str | None = None
    """Why the confidence of the candidates says nothing."""
    nothing_learnt: bool = False
    doubts: tuple[str, ...] = ()
    control_doubts: tuple[str, ...] = ()

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Evidence:
        if report.get("mode") == "membership only":
            return cls._of_membership(report["membership"], report["not_tried"]["reconstruction"])
        if "epsilon_lower" in report and "layers" in report:
            return cls._of_membership(report, "engram membership does not try it")
        return cls._of_audit(report)

    @classmethod
    def _of_membership(cls, found: Mapping[str, Any], not_tried: str) -> Evidence:
        data = found["data"]
        return cls(
            mode="membership only",
            audited={
                "model": found["model"],
                "weights_sha256": found.get("weights_sha256"),
                "train": {"name": data["train"], "records": found["records"], "sha256": data.get("train_sha256")},
                "held_out": {
                    "name": data["held_out"],
                    "records": found["held_out"],
                    "sha256": data.get("held_out_sha256"),
                },
                "seeds": {},
                "versions": found["versions"],
                "command": found["command"],
            },
            ran=frozenset({"membership"}),
            not_tried=not_tried,
            records=int(found["records"]),
            controls=int(found["held_out"]),
            curve=(found["fpr"], found["tpr"]),
            epsilon=float(found["epsilon_lower"]),
            accuracy=float(found["accuracy"]),
            doubts=tuple(found["doubts"]),
            control_doubts=tuple(found["control"]["warnings"]),
        )

    @classmethod
    def _of_audit(cls, report: Mapping[str, Any]) -> Evidence:
        attack, found, reach = report["attack"], report["comparison"], report["inspection"]["verdict"]
        inverted = [one for one in report["baselines"] if one["name"] == "model inversion"]
        settings = {"attack": attack["settings"], **{one["name"]: one["settings"] for one in inverted}}
        planned = attack["settings"].get("seconds") or 0.0
        cut_short = attack["message"].startswith(StopReason.TIME_LIMIT.value)
        confidence = report["candidates"]["confidence"]
        blind = cls(
            mode=report["mode"],
            audited={
                "model": report["model"]["name"],
                "weights_sha256": report["model"]["weights_sha256"],
                "train": None if found is None else found["train"],
                "held_out": None if found is None else found["held_out"],
                "seeds": {name: one["seed"] for name, one in settings.items() if "seed" in one},
                "versions": report["versions"],
                "command": report["command"],
            },
            ran=frozenset({"reconstruction", *(("model inversion",) if inverted else ())}),
            seconds=attack["seconds"] if cut_short else max(attack["seconds"], planned),
            confidence=None if confidence is None else tuple(one or 0.0 for one in confidence),
            unjudged=report["verdict"]["sentence"]
            if report["verdict"]["outcome"] == "not enough evidence"
            else None,
            nothing_learnt=reach["decided_by"] in NOTHING_LEARNT and not reach["in_reach"],
        )
        if found is None:
            return blind
        row, membership = found["scores"]["counts"][found["threshold"]], found["membership"]
        with_data = replace(
            blind,
            records=int(found["train"]["records"]),
            hits=int(row["train"]),
            accuracy=float(found["accuracy"]),
            doubts=tuple(found["doubts"]),
        )
        if membership is None:
            return with_data
        combined = membership["tests"]["combined"]
        return replace(
            with_data,
            ran=blind.ran | {"membership"},
            controls=int(found["held_out"]["records"]),
            control_hits=int(row["held_out"]),
            curve=(combined["fpr"], combined["tpr"]),
            epsilon=float(membership["epsilon_lower"]),
            control_doubts=tuple(found["control"]["warnings"]),
        )
