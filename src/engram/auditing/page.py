"""The report's page: an audit's record as sections, in the order in which a reader asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engram.auditing.verdict import MEASURED, TARGETS, kind_of_target
from engram.auditing.visuals import (
    baseline_gallery,
    candidate_gallery,
    confidence_chart,
    output_chart,
    pair_anchor,
    pair_gallery,
    roc_chart,
    spectrum_chart,
    timeline_chart,
)
from engram.render.html import Cell, Page, Section, Table, Tile
from engram.scoring.curves import RATES

if TYPE_CHECKING:
    from torch import Tensor

    from engram.auditing.record import AuditRecord

READS_FEATURES = (
    "The network begins with convolutions, so the attack reads its first fully-connected layer. Directions, duals "
    "and neuron boundaries are those of that layer and of the features that enter it. How much of an image they "
    "could give back at best is unknown, so there is no ceiling and no count of equations."
)
LIMITS = (
    "No leak found is not a proof of safety: it means that this attack, with this budget, recovered nothing "
    "beyond the control. A better attack may recover more. Networks outside the supported family are refused or "
    "audited for membership alone, not declared safe.",
    "A leak is what an attacker with the weights can read out. What queries alone would reveal is not measured.",
    "The control is only as good as the held-out records: they must be of the same kind as the training records "
    "and never seen in training. Data of another kind can make chance look like a leak, or hide one.",
    "Matching uses the training images and their mean, which an attacker does not have. The candidates, their "
    "confidence and their order use neither.",
    'SSIM counts include what the mean image alone would match; see the column "from noise". NCC is not affected '
    "and decides the verdict.",
    "The confidence was calibrated on other targets of this kind. Where data were given, the report shows above "
    "how well it fits this one.",
)
FITTED_ELSEWHERE = (
    "The confidence was calibrated on fully-connected targets. With convolutions it was too low where it was "
    "checked, so use it only to rank candidates. Where data were given, the report shows above how well it fits."
)


def read_layer(record: AuditRecord) -> str:
    """The layer that row space, duals and boundaries belong to, in words."""
    return "the first fully-connected layer" if record.description.reads_features else "the first layer"


def limits(record: AuditRecord) -> tuple[str, ...]:
    """What the numbers do not say; the last entry is about the confidence."""
    return (*LIMITS[:-1], FITTED_ELSEWHERE) if record.description.reads_features else LIMITS


def reproduce(record: AuditRecord) -> list[str]:
    """The command that made this report; for an audit from Python, the matching command."""
    if record.command is not None:
        return [record.command]
    shape = "x".join(map(str, record.view.input_shape))
    layers = "" if record.architecture is None else f" --arch '{record.architecture}'"
    return [f"engram audit MODEL --input-shape {shape}{layers} --task {record.view.task.name} -o runs/audit"]


BASELINES = {
    "model inversion": "{:,} starts, half maximising an output and half minimising it, lowest output first.",
    "first-layer weights": "All {:,} rows of the first layer, each as an image, largest norm first.",
    "first-layer kernels": "All {:,} kernels of the first convolution. They are smaller than an image, so they "
    "are shown but not scored.",
}


def candidate_section(record: AuditRecord) -> Section:
    reliability = None if record.comparison is None else record.comparison.reliability
    paragraphs = [
        "What an attacker gets without any data: the candidates with the highest confidence that they show a "
        "training image. They are shown without the mean image, which an attacker does not know, and stretched to "
        "full contrast."
    ]
    if len(record.view.input_shape) != 3:
        paragraphs.append("The inputs are not images: the candidates are only in reconstruction.safetensors.")
    tables, charts = [], []
    if reliability is not None:
        paragraphs.append("With data, the confidence can be checked: predicted against observed.")
        charts = [confidence_chart(reliability)]
        rows = [(one.k, one.train, one.held_out) for one in reliability.precision]
        heads = ("most confident", "show a training image", "show a held-out image")
        tables = [Table(heads, rows, "Precision: share of the k most confident candidates with NCC above 0.8")]
    return Section(
        "candidates",
        "What an attacker would get",
        paragraphs,
        charts,
        candidate_gallery(record.blind.found, record.view.input_shape),
        tables,
    )


def weights_section(record: AuditRecord) -> Section:
    description = record.description
    counted = READS_FEATURES
    if description.equations is not None:
        most = description.equations.row_space_most_samples
        counted = f"The first layer has enough equations for up to {most:,} records."
    heads = ("layer", "inputs", "outputs", "norm", "noise share")
    rows = [
        (layer.name, layer.inputs, layer.outputs, layer.norm, None if layer.noise is None else layer.noise.share)
        for layer in description.layers
    ]
    return Section(
        "weights",
        "What the weights show before any attack",
        [record.reach.sentence, counted, *(_sentence(note) for note in record.view.notes)],
        [spectrum_chart(description.spectrum, read_layer(record))],
        tables=[Table(heads, rows, f"{description.name}, {description.parameters:,} parameters")],
    )


def course_section(record: AuditRecord) -> Section:
    return Section(
        "course", "Good images over time", [f"The attack {record.attack.message}."], [timeline_chart(record)]
    )


def baseline_sections(record: AuditRecord) -> list[Section]:
    sections = []
    for baseline in record.baselines:
        paragraphs, tables = [], []
        text = BASELINES[baseline.name].format(len(baseline.images))
        paragraphs.append(text + " A simpler way to look at the weights, to compare with the attack.")
        if baseline.score is not None:
            rows = [(text, one.train, one.held_out, one.excess) for text, one in baseline.score.counts.items()]
            tables = [Table(("recovered", "training", "held-out", "excess"), rows, "Scored like the attack")]
        anchor = baseline.name.replace(" ", "-")
        gallery = baseline_gallery(baseline, record.view.input_shape)
        title = f"Baseline: {baseline.name}"
        sections.append(Section(anchor, title, paragraphs, gallery=gallery, tables=tables))
    return sections


def settings_section(record: AuditRecord) -> Section:
    settings = {"recipe": record.attack.recipe, **record.attack.settings}
    rows = [
        (name, "derived from the weights" if value is None else str(value)) for name, value in settings.items()
    ]
    versions = [(name, value) for name, value in record.versions.items()]
    return Section(
        "reproduce",
        "Settings and how to reproduce",
        [f"Weights (SHA-256): {record.view.network.digest()}"],
        tables=[
            Table(("setting", "value"), rows, "Settings of the attack"),
            Table(("software", "version"), versions, "Versions"),
        ],
        code=reproduce(record),
    )


RISK_HEADS = {
    "index": "record",
    "label": "label",
    "recovered": "recovered",
    "member_identified": "identified as member",
    "ssim": "SSIM",
    "ncc": "NCC",
    "relative_l2": "relative L2",
    "margin": "margin",
    "dual": "dual",
    "ceiling_ssim": "ceiling SSIM",
    "boundaries": "boundaries",
    "membership": "membership",
    "line_up_rank": "line-up rank",
    "confidence": "confidence",
}


def pairs_section(record: AuditRecord) -> Section | None:
    if record.comparison is None or record.comparison.score.train.ssim is None:
        return None
    score = record.comparison.score
    heads = ("recovered", "training records", "held-out records", "excess", "from noise")
    rows = [(text, one.train, one.held_out, one.excess, one.noise) for text, one in score.counts.items()]
    return Section(
        "pairs",
        "Training images read out of the weights",
        [
            "Each reconstruction is shown above the training image it was matched to, best first, with its SSIM "
            "(1 is identical, the papers call above 0.4 good). Click to enlarge."
        ],
        gallery=pair_gallery(score, record.comparison.data.train),
        tables=[Table(heads, rows, f"Counts of {len(score.train)} records; the excess is what was recovered")],
    )


MOST_VALUES = 40


def values_section(record: AuditRecord) -> Section | None:
    """Of a table: the records that came back, value by value."""
    comparison = record.comparison
    if comparison is None or not comparison.data.train.columns:
        return None
    table, data = comparison.score.train, comparison.data
    recovered = table.passing(comparison.threshold.metric, comparison.threshold.value)
    order = [index for index in table.distance.argsort(stable=True).tolist() if bool(recovered[index])]
    rows: list[list[Cell]] = [
        [
            int(table.sample[index]),
            data.train.classes[int(data.train.labels[int(table.sample[index])])],
            ", ".join(
                f"{name} {found} ({true})"
                for name, found, true in said(
                    data.train.columns, table.reconstruction[index], data.train.images[int(table.sample[index])]
                )
            ),
        ]
        for index in order[:MOST_VALUES]
    ]
    held = comparison.count.held_out
    control = "there was no control" if held is None else f"{held} held-out records pass the same threshold"
    return Section(
        "values",
        "Records read out of the weights",
        [
            f"Each value as it came back, with the true one in brackets. {len(order)} records pass "
            f"{comparison.threshold.text}; {control}."
        ],
        tables=[Table(("record", "label", "came back (true)"), rows, "Best first")],
    )


def said(columns: Sequence[str], found: Tensor, true: Tensor) -> list[tuple[str, str, str]]:
    """Name, value that came back and true value; of a group of columns `name=value` the largest one.

    >>> import torch
    >>> said(("age", "sex=F", "sex=M"), torch.tensor([43.2, 0.7, 0.1]), torch.tensor([44.0, 1.0, 0.0]))
    [('age', '43.2', '44'), ('sex', 'F', 'F')]
    """
    groups: dict[str, list[int]] = {}
    for place, column in enumerate(columns):
        groups.setdefault(column.partition("=")[0], []).append(place)
    rows = []
    for name, places in groups.items():
        values = [columns[place].partition("=")[2] for place in places]
        if all(values):
            rows.append((name, *(values[int(row[places].argmax())] for row in (found, true))))
        else:
            rows.append((name, *(f"{float(row[places[0]]):.4g}" for row in (found, true))))
    return [(name, own, real) for name, own, real in rows]


def control_section(record: AuditRecord) -> Section | None:
    if record.comparison is None:
        return None
    comparison = record.comparison
    charts = [output_chart(comparison)] if comparison.score.train.model_output is not None else []
    paragraphs, tables = [_sentence(warning) for warning in comparison.warnings], []
    if comparison.roc is not None:
        charts.insert(0, roc_chart("Best match: training against held-out", {"best match": comparison.roc}))
        rows = [(f"{rate:.1%}", comparison.roc.at(rate)) for rate in RATES]
        caption = f"Share of records identified by their best match (AUC {comparison.roc.auc:.3f})"
        tables.append(Table(("false-positive rate", "true-positive rate"), rows, caption))
        if comparison.roc.note is not None:
            paragraphs.append(comparison.roc.note + ".")
    if comparison.line_up is not None:
        paragraphs.append(_sentence(comparison.line_up.sentence))
    lead = (
        "The same candidates are scored against held-out records of the same kind. What they match there is "
        "chance or blur; only what goes beyond that is a leak."
    )
    return Section("control", "Control: is it more than chance?", [lead, *paragraphs], charts, tables=tables)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}".removesuffix(".") + "."


def risk_section(record: AuditRecord) -> Section | None:
    if record.comparison is None:
        return None
    risks = record.risks
    known = [name for name in RISK_HEADS if any(getattr(risk, name) is not None for risk in risks)]
    table = Table(
        heads=[RISK_HEADS[name] for name in known],
        rows=[[getattr(risk, name) for name in known] for risk in risks],
        caption=f"{len(risks)} records, highest risk first; also in risk.csv",
        sortable=True,
        links=[pair_anchor(record.comparison.score, risk.index) for risk in risks],
    )
    text = (
        f"Recovered: a reconstruction matches it with {record.comparison.threshold.text}. Identified as member: "
        "its membership score is above that of every held-out record."
    )
    if "ceiling_ssim" in known:
        text += " The ceiling is the best SSIM that any method without an image prior can reach."
    if "dual" in known:
        text += " The dual is how strongly the record shaped the weights."
    return Section("risk", "Which records leak", [text], tables=[table])


def membership_section(record: AuditRecord) -> Section | None:
    membership = None if record.comparison is None else record.comparison.membership
    if membership is None:
        return None
    heads = ("test", "AUC", *(f"TPR at {rate:.1%} FPR" for rate in RATES))
    rows: list[list[Cell]] = [
        [test.name, test.roc.auc, *(test.roc.at(rate) for rate in RATES)] for test in membership.tests
    ]
    notes = [note for note in (membership.note, membership["combined"].roc.note) if note is not None]
    curves = {test.name: test.roc for test in membership.tests}
    return Section(
        "membership",
        "Was this record in the training set?",
        [
            "Tests on the weights: how many neuron boundaries a record lies on (boundaries), how much of "
            f"{read_layer(record)} it explains in one fit with the held-out records (dual), whether its gradient "
            "is in the weights of every layer (layers), and layers and boundaries together (combined). If the "
            "start of training is known: how little of it lies outside the span of what training added (span). "
            "For comparison, the usual test: a threshold on the loss. No test was fitted to known members.",
            *(f"{note}." for note in notes),
        ],
        [roc_chart("Membership", curves)],
        tables=[Table(heads, rows, "True-positive rates at fixed false-positive rates")],
    )


ADVICE_HEADS = (
    "what was done",
    "members identified",
    "held-out accuracy",
    "images beyond the control",
    "try it",
)


def advice_section(kind: str, model: str) -> Section:
    """What was measured to help a target like this one, best first, each with the command that tries it."""
    rows: list[list[Cell]] = [
        [
            one.way,
            f"{one.members[0]:.0%} -> {one.members[1]:.1%}",
            f"{one.accuracy[0]:.1%} -> {one.accuracy[1]:.1%}",
            None if one.images is None else f"{one.images[0]} -> {one.images[1]}",
            one.command.format(model=model),
        ]
        for one in MEASURED
        if one.kind == kind
    ]
    return Section(
        "advice",
        "What you can do",
        [
            f"Measured on the target most like this one: {TARGETS[kind]} (docs/defences.md has all of it). Yours "
            "will differ: the command in the last column tries it, and attacks the result anew.",
            "What did not help on any target that was measured: rounding the weights (even to one bit), pruning, "
            "weight decay and dropout.",
        ],
        tables=[Table(ADVICE_HEADS, rows, "Before and after, means over seeds")],
    )


def page_of(record: AuditRecord) -> Page:
    """Every section for which this audit has results."""
    sections = [
        pairs_section(record),
        values_section(record),
        control_section(record),
        risk_section(record),
        membership_section(record),
        advice_section(kind_of_target(record.view, record.view.input_shape, _records(record)), record.model),
        candidate_section(record),
        weights_section(record),
        course_section(record),
        *baseline_sections(record),
        settings_section(record),
        Section("limits", "What the numbers do not say", limits(record)),
    ]
    return Page(
        title=f"{record.model}: what its weights give away",
        outcome=record.verdict.outcome,
        sentence=record.verdict.sentence,
        tiles=_tiles(record),
        sections=[section for section in sections if section is not None],
    )


def _records(record: AuditRecord) -> int | None:
    return None if record.comparison is None else len(record.comparison.data.train)


def _tiles(record: AuditRecord) -> list[Tile]:
    blind, comparison = record.blind, record.comparison
    tiles = []
    if comparison is not None:
        count = comparison.count
        held = "unknown" if count.held_out is None else str(count.held_out)
        tiles += [
            Tile(
                "records recovered", f"{count.train} of {len(comparison.score.train)}", comparison.threshold.text
            ),
            Tile("control: held-out records", held, "the same count for records never trained on"),
        ]
        if comparison.membership is not None:
            curve = comparison.membership["combined"].roc
            tiles.append(Tile("members identified", f"{curve.at(0):.0%}", "of the records, without a false alarm"))
    if blind.found.has_confidence:
        tiles.append(
            Tile("confident candidates", f"{blind.sure} of {len(blind.found)}", "at 90 % confidence, judged blind")
        )
    else:
        tiles.append(Tile("candidates", str(len(blind.found)), "this attack gives no confidence"))
    tiles.append(Tile("attack", f"{record.attack.seconds:.0f} s", f"{record.attack.steps:,} steps"))
    return tiles
