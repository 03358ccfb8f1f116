"""Sections of the report that need data: pairs, control, the risk of every record, membership."""

from __future__ import annotations

from engram.auditing.galleries import pair_anchor, pair_gallery
from engram.auditing.graphs import output_chart, roc_chart
from engram.auditing.record import AuditRecord
from engram.auditing.words import read_layer
from engram.matching.roc import RATES
from engram.report.html import Cell, Section, Table

RISK_HEADS = {
    "index": "record",
    "label": "label",
    "recovered": "recovered",
    "member_told": "member told",
    "ssim": "SSIM",
    "ncc": "NCC",
    "relative_l2": "relative L2",
    "margin": "margin",
    "dual": "dual",
    "ceiling_ssim": "ceiling SSIM",
    "boundaries": "boundaries",
    "membership": "membership",
    "confidence": "confidence",
}


def pairs_section(record: AuditRecord) -> Section | None:
    if record.comparison is None or record.comparison.score.train.ssim is None:
        return None
    score = record.comparison.score
    heads = ("recovered", "training records", "held-out records", "excess", "from noise")
    rows = [(row.threshold.text, row.train, row.held_out, row.excess, row.noise) for row in score.counts]
    return Section(
        "pairs",
        "Training images read out of the weights",
        [
            "Each reconstruction stands above the training image it was matched to, best first, with their SSIM "
            "(1 is identical, above 0.4 is what the papers call good). Click to enlarge."
        ],
        gallery=pair_gallery(score, record.comparison.data.train),
        tables=[Table(heads, rows, f"Counts of {len(score.train)} records; the excess is what was recovered")],
    )


def control_section(record: AuditRecord) -> Section | None:
    if record.comparison is None:
        return None
    comparison = record.comparison
    charts = [output_chart(comparison)] if comparison.score.train.model_output is not None else []
    paragraphs, tables = [f"{warning[0].upper()}{warning[1:]}." for warning in comparison.warnings], []
    if comparison.roc is not None:
        charts.insert(0, roc_chart("Best match: training against held-out", {"best match": comparison.roc}))
        rows = [(f"{rate:.1%}", comparison.roc.at(rate)) for rate in RATES]
        caption = f"Share of records told by their best match (AUC {comparison.roc.auc:.3f})"
        tables.append(Table(("false-positive rate", "true-positive rate"), rows, caption))
        if comparison.roc.note is not None:
            paragraphs.append(comparison.roc.note + ".")
    lead = (
        "The same candidates are scored against held-out records of the same kind. What they match there is "
        "chance or blur; only what goes beyond is a leak."
    )
    return Section("control", "Control: is it more than chance?", [lead, *paragraphs], charts, tables=tables)


def risk_section(record: AuditRecord) -> Section | None:
    if record.comparison is None:
        return None
    risks = record.risks
    known = [name for name in RISK_HEADS if any(getattr(risk, name) is not None for risk in risks)]
    table = Table(
        heads=[RISK_HEADS[name] for name in known],
        rows=[[getattr(risk, name) for name in known] for risk in risks],
        caption=f"{len(risks)} records, those at most risk first; also in risk.csv",
        sortable=True,
        links=[pair_anchor(record.comparison.score, risk.index) for risk in risks],
    )
    text = (
        f"Recovered: a reconstruction with {record.comparison.threshold.text}. Member told: its membership score "
        "lies above that of every held-out record."
    )
    if "ceiling_ssim" in known:
        text += " The ceiling is the best SSIM that any method without an image prior can reach."
    if "dual" in known:
        text += " The dual is how much training leant on the record."
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
        "Was this record in training?",
        [
            "Asked of the weights: on how many neuron boundaries a record lies (boundaries), how much of "
            f"{read_layer(record)} it explains in one fit with the held-out records (dual), and the mean of both "
            "ranks (combined). Thresholding the loss is the usual way, for comparison. Nothing was fitted to who "
            "is a member.",
            *(f"{note}." for note in notes),
        ],
        [roc_chart("Membership", curves)],
        tables=[Table(heads, rows, "True-positive rates at fixed false-positive rates")],
    )
