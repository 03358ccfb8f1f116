"""Sections of the report that every audit has: candidates, weights, course, baselines, settings."""

from __future__ import annotations

from engram.auditing.galleries import baseline_gallery, candidate_gallery
from engram.auditing.graphs import confidence_chart, spectrum_chart, timeline_chart
from engram.auditing.record import AuditRecord
from engram.auditing.words import READS_FEATURES, read_layer, reproduce
from engram.inspection import ConvDescription
from engram.report.html import Section, Table

BASELINES = {
    "model inversion": "{:,} starts, half climbing the output and half descending, by rising output.",
    "first-layer weights": "All {:,} rows of the first layer, each as an image, the largest first.",
    "first-layer kernels": "All {:,} kernels of the first convolution; smaller than an image, they are shown and "
    "not scored.",
}


def candidate_section(record: AuditRecord) -> Section:
    reliability = None if record.comparison is None else record.comparison.reliability
    paragraphs = [
        "What a stranger holds in hand, without any data: the candidates with the highest confidence that they "
        "show a training image. They are shown without the mean image, which a stranger does not know, stretched "
        "to full contrast."
    ]
    if len(record.view.input_shape) != 3:
        paragraphs.append("The inputs are no images, so there is nothing to show; see reconstruction.safetensors.")
    tables, charts = [], []
    if reliability is not None:
        paragraphs.append("With data at hand, the confidence can be checked: what was said against what was true.")
        charts = [confidence_chart(reliability)]
        rows = [(one.k, one.train, one.held_out) for one in reliability.precision]
        heads = ("most confident", "show a training image", "show a held-out image")
        tables = [Table(heads, rows, "Precision: share of the k most confident candidates with NCC above 0.8")]
    return Section(
        "candidates",
        "What a stranger would hold in hand",
        paragraphs,
        charts,
        candidate_gallery(record.blind.found, record.view.input_shape),
        tables,
    )


def weights_section(record: AuditRecord) -> Section:
    description = record.description
    if isinstance(description, ConvDescription):
        told = READS_FEATURES
    else:
        told = f"Equations enough for up to {description.equations.row_space_most_samples:,} records."
    heads = ("layer", "inputs", "outputs", "norm", "share of noise")
    rows = [
        (layer.name, layer.inputs, layer.outputs, layer.norm, None if layer.noise is None else layer.noise.share)
        for layer in description.layers
    ]
    return Section(
        "weights",
        "What the weights say before any attack",
        [record.reach.sentence, told],
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
        paragraphs.append(text + " A simpler way of looking at the weights, to stand beside the attack.")
        if baseline.score is not None:
            rows = [(row.threshold.text, row.train, row.held_out, row.excess) for row in baseline.score.counts]
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
