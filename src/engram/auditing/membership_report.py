"""The membership test with records as images: preprocessing, the test, and a report that a person can read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engram.auditing.comparison import LEARNT
from engram.auditing.preprocessing import Preprocessing, chosen_preprocessing, doubts
from engram.auditing.record import SCHEMA_VERSION
from engram.auditing.verdict import Outcome, in_doubt, kind_of_target
from engram.auditing.visuals import THUMBNAIL, advice_lines, advice_section, rates_table, roc_chart
from engram.core import files
from engram.core.errors import require
from engram.core.loop import Progress, silent
from engram.core.runs import versions
from engram.data.sets import ImageSet
from engram.members.membership import MembershipRecord, membership, task_of
from engram.members.scores import Runner, in_process
from engram.models.networks import Network
from engram.models.open.lora import read_adapter, with_adapter
from engram.models.view import AttackerView, Normalization
from engram.render.html import (
    PAGE_FILE,
    Brief,
    Cell,
    Decided,
    Gallery,
    Page,
    Picture,
    Section,
    ShownDecision,
    Table,
    Tile,
    data_uri,
    page_bytes,
    render,
)
from engram.scoring.curves import CONFIDENCE, DELTA

SNAPSHOT_FILE = "membership.snapshot.safetensors"
MOST_PICTURES = 60
MOST_ROWS = 200
LIMITS = (
    "No leak found is not a proof of safety: it means that these tests do not tell the records apart. A better "
    "test may.",
    "The control is only as good as the held-out records: they must be of the same kind as the training records "
    "and never seen in training.",
    "A record is identified if it scores higher than every held-out record. With more held-out records the "
    "threshold rises; the bounds say how sure the rate is.",
    "The pool contains all records, as the owner has them. An attacker with fewer training records identifies "
    "fewer.",
)


@dataclass(frozen=True, eq=False)
class InputBatches:
    """Images as the model takes them, batch by batch, so that no second copy is held."""

    images: ImageSet
    preprocessing: Preprocessing
    batch: int

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, len(self.images), self.batch):
            some = slice(start, start + self.batch)
            yield self.preprocessing(self.images.images[some]), self.images.labels[some]


@dataclass(frozen=True, eq=False)
class MembershipReport:
    """A membership record with what it was asked about."""

    model: str
    record: MembershipRecord
    train: ImageSet
    held_out: ImageSet
    preprocessing: Preprocessing
    command: str | None = None
    not_tried: str | None = None
    """Why no attack tried to reconstruct images, where an audit wanted it."""
    doubts: tuple[str, ...] = ()
    """What is probably wrong about how the model was read."""
    weights_sha256: str | None = None

    @property
    def outcome(self) -> Outcome:
        return "not enough evidence" if self.doubts else self.record.outcome

    @property
    def sentence(self) -> str:
        return in_doubt(self.doubts, self.record.sentence) if self.doubts else self.record.sentence

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the numbers doubtful, worst first."""
        found = [*(f"{one[0].upper()}{one[1:]}." for one in self.doubts), *self.record.control.warnings]
        if self.preprocessing.accuracy < LEARNT and not self.doubts:
            found.append(
                f"The model gets only {self.preprocessing.accuracy:.0%} of the training records right: they may "
                "not be what it was trained on, or labels or preprocessing (--normalize, --mean) are wrong."
            )
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.record.to_json(),
            "outcome": self.outcome,
            "sentence": self.sentence,
            "model": self.model,
            "weights_sha256": self.weights_sha256,
            "data": {
                "train": self.train.name,
                "held_out": self.held_out.name,
                "mean": self.preprocessing.name,
                "train_sha256": self.train.digest(),
                "held_out_sha256": self.held_out.digest(),
            },
            "accuracy": self.preprocessing.accuracy,
            "warnings": list(self.warnings),
            "doubts": list(self.doubts),
            "versions": versions(),
            "command": self.command,
        }

    def audit_json(self) -> dict[str, Any]:
        """The report.json of an audit that could ask for membership only."""
        record = self.record
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "audit",
            "mode": "membership only",
            "verdict": {
                "outcome": self.outcome,
                "sentence": self.sentence,
                "leaks": record.leaks,
                "p_reconstruction": None,
                "p_membership": record.roc.p_value,
            },
            "not_tried": {"reconstruction": self.not_tried},
            "membership": self.to_json(),
        }

    def save(self, directory: Path) -> None:
        """Write report.html, its content, membership.json and membership.csv; for an audit also report.json."""
        files.prepare_directory(directory)
        files.write_bytes(directory / "membership.csv", self.record.to_csv().encode())
        page = page_of(self)
        files.write_bytes(directory / PAGE_FILE, page_bytes(page))
        files.write_bytes(directory / "report.html", render(page).encode())
        files.write_json(directory / "membership.json", self.to_json())
        if self.not_tried is not None:
            files.write_json(directory / "report.json", self.audit_json())
        (directory / SNAPSHOT_FILE).unlink(missing_ok=True)


def run_membership(
    model: nn.Module,
    train: ImageSet,
    held_out: ImageSet,
    *,
    name: str,
    task: str | None = None,
    input_shape: tuple[int, ...] | None = None,
    mean: str = "auto",
    normalize: str | None = None,
    view: AttackerView[Network] | None = None,
    adapter: Path | None = None,
    batch: int = 64,
    command: str | None = None,
    not_tried: str | None = None,
    run: Runner = in_process,
    directory: Path | None = None,
    resume: bool = False,
    snapshot_every: float = 20.0,
    progress: Progress = silent,
) -> MembershipReport:
    """Ask a module which of `train` it was trained on; `held_out` is the control.

    `view` is what a file said about the model, if the module was made from it: then the module applies the scale
    of the normalisation itself. With an `adapter`, the module is the base model, and the adapter is asked.
    """
    whole = model if adapter is None else with_adapter(model, read_adapter(adapter))[0]
    for what, one, shape in (("the data", train, input_shape or train.shape), ("held_out", held_out, train.shape)):
        require(
            one.shape == tuple(shape),
            what,
            f"must have the shape {'x'.join(map(str, shape))}",
            "x".join(map(str, one.shape)),
            "choose the data that the model was trained on",
        )
    meaning = task_of(whole, train.images[:2], int(max(train.labels.max(), held_out.labels.max())), task)
    known = view.normalization if view is not None else None
    if view is None and normalize is not None:
        known = Normalization.parse(normalize)
    chosen = chosen_preprocessing(whole, meaning, train, held_out, mean, known, view=view)
    found = doubts(view, chosen, train)
    sources = (InputBatches(one, chosen, batch) for one in (train, held_out))
    record = membership(
        model,
        *sources,
        task=meaning.name,
        adapter=adapter,
        run=run,
        snapshot=None if directory is None else directory / SNAPSHOT_FILE,
        resume=resume,
        snapshot_every=snapshot_every,
        progress=progress,
    )
    digest = _digest(model) if view is None else view.network.digest()
    return MembershipReport(name, record, train, held_out, chosen, command, not_tried, found, digest)


def _digest(model: nn.Module) -> str:
    """SHA-256 of the names and values of a module's state."""
    found = hashlib.sha256()
    for name, value in model.state_dict().items():
        found.update(name.encode())
        if isinstance(value, Tensor):
            found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def page_of(report: MembershipReport, decision: Decided | None = None) -> Page:
    """First the brief, then the reviewer's sections, then the engineer's."""
    kind = kind_of_target(None, report.train.shape, len(report.train))
    exposed = _exposed_section(report)
    return Page(
        title=f"{report.model}: which records were in training?",
        outcome=report.outcome,
        sentence=report.sentence,
        tiles=_tiles(report),
        sections=[
            *_warning_sections(report),
            _rates_section(report),
            _control_section(report),
            _untried_section(report),
            Section("limits", "What the numbers do not say", LIMITS, reader="review"),
            exposed,
            _records_section(report),
            advice_section(kind, report.model),
            _layers_section(report),
            _settings_section(report),
        ],
        product="engram membership" if report.not_tried is None else "engram audit",
        brief=_brief(report, kind, exposed.gallery),
        decision=None if decision is None else ShownDecision.of(decision),
    )


def _brief(report: MembershipReport, kind: str, exposed: Gallery | None) -> Brief:
    record, preprocessing = report.record, report.preprocessing
    advice = advice_lines(kind, leaks=record.leaks)
    if report.doubts:
        advice = ["Read the model as the warning says, and ask again: these numbers say little.", *advice[:1]]
    layers = {one.layer for one in record.tests}
    tried = [
        ("Attack", f"membership from the weights of {len(layers)} layers, {record.seconds:.0f} s"),
        (
            "Records",
            f"{len(report.train):,} records of {report.train.name}, {preprocessing.accuracy:.0%} classified right",
        ),
        ("Control", f"{len(report.held_out):,} records of {report.held_out.name}, never trained on"),
        ("Compared with", "the margin alone, which needs only queries"),
        ("Reconstruction", "not tried" if report.not_tried is None else f"not tried: {report.not_tried}"),
    ]
    few = None if exposed is None else Gallery(exposed.pictures[:5], 5, has_originals=False)
    return Brief(tried, few, "The most exposed training records", advice, "advice")


def _tiles(report: MembershipReport) -> list[Tile]:
    record = report.record
    none, some = record.bounds(0.0), record.bounds(0.01)
    return [
        Tile("members identified", f"{none.rate:.0%}", f"no false alarm; {none.low:.0%} to {none.high:.0%}"),
        Tile("at 1 % false alarms", f"{some.rate:.0%}", f"{some.low:.0%} to {some.high:.0%}"),
        Tile("AUC", f"{record.roc.auc:.3f}", "0.5 is chance"),
        Tile(
            "epsilon at least", f"{record.epsilon_lower:.1f}", f"at {CONFIDENCE:.0%} confidence, delta {DELTA:g}"
        ),
        Tile("seconds", f"{record.seconds:.0f}", f"for {len(record.train) + len(record.held_out):,} records"),
    ]


def _warning_sections(report: MembershipReport) -> list[Section]:
    return [Section("warnings", "Read this first", report.warnings, reader="review")] if report.warnings else []


def _untried_section(report: MembershipReport) -> Section:
    why = "`engram membership` asks only who was in training; `engram audit` tries it"
    said = [
        f"Reconstruction of images: {report.not_tried or why}. That is no proof that images can't be read out of "
        "the weights.",
        "Shadow models: none were trained; this test reads the weights of one model.",
        *(f"Layer {name}: {why}." for name, why in report.record.left_out.items()),
    ]
    return Section("untried", "What was not tried, and why", said, reader="review")


def _control_section(report: MembershipReport) -> Section:
    control = report.record.control
    said = (
        f"Without the model, a simple classifier tells the {len(report.train):,} records from the "
        f"{len(report.held_out):,} held-out ones with an AUC of {control.roc.auc:.2f}; 0.50 means that they are "
        f"of one kind. Label counts differ this much by chance with probability {control.labels_p:.2g}."
    )
    return Section("control", "Control: are both sets of one kind?", [said], reader="review")


def _exposed_section(report: MembershipReport) -> Section:
    record, train = report.record, report.train
    order = record.train.argsort(descending=True, stable=True)
    gallery = None
    if len(train.shape) == 3:
        pictures = [
            Picture(
                data_uri(train.images[index]),
                f"Training record {index}, {train.classes[int(train.labels[index])]}",
                f"{float(record.train[index]):.1f}",
                anchor=f"record-{index}",
            )
            for index in order[:MOST_PICTURES].tolist()
        ]
        gallery = Gallery(pictures, len(train), has_originals=False)
    return Section(
        "exposed",
        "The most exposed records",
        ["Highest score first. A high score means that the record's own gradient stands out in the weights."],
        gallery=gallery,
        reader="engineer",
    )


def _records_section(report: MembershipReport) -> Section:
    record, train = report.record, report.train
    chances, _ = record.p_values()
    chosen = record.train.argsort(descending=True, stable=True)[:MOST_ROWS].tolist()
    has_pictures = len(train.shape) == 3
    highest = float(record.held_out.max())
    rows: list[list[Cell]] = [
        [
            index,
            train.classes[int(train.labels[index])],
            float(record.train[index]),
            float(chances[index]),
            float(record.train[index]) > highest,
        ]
        for index in chosen
    ]
    shown = "" if len(train) <= MOST_ROWS else f"The {MOST_ROWS} highest of "
    return Section(
        "records",
        "Record by record",
        [
            "The p-value says how likely a held-out record scores as high. Identified: the score is above that of "
            "every held-out record."
        ],
        tables=[
            Table(
                ("record", "label", "score", "p-value", "identified"),
                rows,
                f"{shown}{len(train):,} records; all are in membership.csv",
                sortable=True,
                links=[f"record-{index}" if place < MOST_PICTURES else None for place, index in enumerate(chosen)]
                if has_pictures
                else (),
                thumbnails=[data_uri(train.images[index], largest_side=THUMBNAIL) for index in chosen]
                if has_pictures
                else (),
            )
        ],
        reader="engineer",
    )


def _rates_section(report: MembershipReport) -> Section:
    record = report.record
    epsilon = (
        f"Training that is (epsilon, {DELTA:g})-differentially private with an epsilon below "
        f"{record.epsilon_lower:.2f} would give such scores with a probability of at most {1 - CONFIDENCE:.0%}."
    )
    if record.epsilon_lower == 0:
        epsilon = "The scores rule out no epsilon: training with perfect privacy could give them."
    return Section(
        "rates",
        "How many, and how sure",
        [
            "The margin alone is what an attacker gets who only queries the model: a threshold on how sure it is.",
            epsilon,
            *([] if record.roc.note is None else [f"{record.roc.note}."]),
        ],
        [roc_chart("Members identified", {"from the weights": record.roc, "margin alone": record.margin_roc})],
        tables=[
            rates_table(record.roc, len(record.train), "the weights", {"by the margin alone": record.margin_roc})
        ],
        reader="review",
    )


def _layers_section(report: MembershipReport) -> Section:
    record = report.record
    words = {"filter": "matched filter", "fit": "pooled fit"}
    rows = [(one.layer, words[one.test], one.weight, one.roc.auc, one.roc.at(0)) for one in record.tests]
    answers = ""
    if record.answers is not None:
        answers = " An answer counts too: a score changes by {1:+.2g} if the model is right, by {0:+.2g} if not."
        answers = answers.format(*record.answers)
    return Section(
        "layers",
        "Which layers speak",
        [
            "Each layer is asked twice: whether the record's gradient is in its weights (matched filter), and how "
            "much of them it explains that no other record does (pooled fit). The weights of the tests are found "
            f"without asking who is a member.{answers}",
            *(f"{note[0].upper()}{note[1:]}." for note in record.notes),
        ],
        tables=[Table(("layer", "test", "weight", "AUC", "TPR at 0 FPR"), rows, "Tests, highest weight first")],
        reader="engineer",
    )


def _settings_section(report: MembershipReport) -> Section:
    rows = [
        ("training records", f"{len(report.train):,} of {report.train.name}"),
        ("held-out records", f"{len(report.held_out):,} of {report.held_out.name}"),
        ("preprocessing", report.preprocessing.described),
        ("training records classified right", f"{report.preprocessing.accuracy:.1%}"),
        ("AUC of a classifier between both sets, without the model", f"{report.record.control.roc.auc:.2f}"),
    ]
    return Section(
        "reproduce",
        "Settings and how to reproduce",
        tables=[
            Table(("setting", "value"), rows, "What was asked"),
            Table(("software", "version"), list(versions().items()), "Versions"),
        ],
        code=[] if report.command is None else [report.command],
        reader="engineer",
    )
