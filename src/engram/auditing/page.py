"""The report's page: an audit's record as sections, in the order in which a reader asks."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from engram.attacks.registry import RECIPES
from engram.auditing.verdict import kind_of_target
from engram.auditing.visuals import (
    THUMBNAIL,
    advice_lines,
    advice_section,
    baseline_sections,
    candidate_gallery,
    confidence_chart,
    illustration_sections,
    output_chart,
    pair_gallery,
    rates_table,
    roc_chart,
    spectrum_chart,
    timeline_chart,
    values_section,
)
from engram.render.html import (
    Brief,
    Cell,
    Decided,
    Gallery,
    Page,
    Section,
    ShownDecision,
    Table,
    Tile,
    data_uri,
)
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
    "The confidence was calibrated on eleven small convolutional networks. Where data were given, the report "
    "shows above how well it fits this one."
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
        reader="engineer",
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
        reader="engineer",
    )


def course_section(record: AuditRecord) -> Section:
    said = [f"The attack {record.attack.message}."]
    counted = None if record.comparison is None else record.comparison.threshold.text
    chart = timeline_chart(record.timeline, counted)
    return Section("course", "Good images over time", said, [chart], reader="engineer")


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
        reader="engineer",
    )


MOST_THUMBNAILS = 1000
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
            "Each reconstruction is shown above the training image it was matched to, with its SSIM (1 is "
            f"identical, the papers call above 0.4 good): first those that were recovered "
            f"({record.comparison.threshold.text}), best first. Click to enlarge."
        ],
        gallery=pair_gallery(score, record.comparison.data.train, _hits(record)),
        tables=[Table(heads, rows, f"Counts of {len(score.train)} records; the excess is what was recovered")],
        reader="engineer",
    )


def _hits(record: AuditRecord) -> Tensor:
    """Which records were recovered, [n]."""
    assert record.comparison is not None
    threshold = record.comparison.threshold
    return record.comparison.score.train.passing(threshold.metric, threshold.value)


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
    return Section(
        "control", "Control: is it more than chance?", [lead, *paragraphs], charts, tables=tables, reader="review"
    )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}".removesuffix(".") + "."


def risk_section(record: AuditRecord, shown: Collection[str | None]) -> Section | None:
    """`shown` are the anchors of the pictures that a row can link to."""
    if record.comparison is None:
        return None
    risks, train = record.risks, record.comparison.data.train
    known = [name for name in RISK_HEADS if any(getattr(risk, name) is not None for risk in risks)]
    table = Table(
        heads=[RISK_HEADS[name] for name in known],
        rows=[[getattr(risk, name) for name in known] for risk in risks],
        caption=f"{len(risks)} records, highest risk first; also in risk.csv",
        sortable=True,
        links=[f"pair-{risk.index}" if f"pair-{risk.index}" in shown else None for risk in risks],
        thumbnails=[
            data_uri(train.images[risk.index], largest_side=THUMBNAIL) if place < MOST_THUMBNAILS else None
            for place, risk in enumerate(risks)
        ]
        if len(train.shape) == 3
        else (),
    )
    text = (
        f"Recovered: a reconstruction matches it with {record.comparison.threshold.text}. Identified as member: "
        "its membership score is above that of every held-out record."
    )
    if "ceiling_ssim" in known:
        text += " The ceiling is the best SSIM that any method without an image prior can reach."
    if "dual" in known:
        text += " The dual is how strongly the record shaped the weights."
    return Section("risk", "Which records leak", [text], tables=[table], reader="engineer")


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
        tables=[
            rates_table(membership["combined"].roc, len(membership["combined"].train), "the combined test"),
            Table(heads, rows, "Every test: true-positive rates at fixed false-positive rates"),
        ],
        reader="review",
    )


def untried_section(record: AuditRecord) -> Section:
    """What this audit left out, and why: each absence is a reason not to call the model safe."""
    view, comparison = record.view, record.comparison
    said = []
    if comparison is None:
        said.append(
            "Comparing with records: none were given, so the verdict rests on the attack's own confidence, and "
            "nobody was asked for membership. Give --data and --held-out."
        )
    elif comparison.membership is None:
        said.append(
            "A control and the membership tests: there are no held-out records. Give --held-out; without it "
            "chance can't be told from a leak."
        )
    else:
        asked = {test.name for test in comparison.membership.tests}
        if "boundaries" not in asked:
            said.append(f"The boundary test: {view.network.activation} has no kink, so there are no boundaries.")
        if "span" not in asked:
            said.append("The span test: the start of training is not known. Give --base or --base-seed.")
        if comparison.examination is None:
            said.append("Margins, duals and the ceiling of each record: they are defined for two classes only.")
    others = [name for name in RECIPES if name != record.attack.recipe]
    said.append(f"Other attacks on the weights: {' and '.join(others)} (`engram reconstruct --recipe`).")
    if not record.baselines:
        said.append("Baselines (model inversion, the raw weights): they were switched off with --baselines none.")
    said.append(
        "Shadow models, and attacks by queries alone beyond a threshold on the loss: this audit reads the weights "
        "of one model."
    )
    return Section("untried", "What was not tried, and why", said, reader="review")


def page_of(record: AuditRecord, decision: Decided | None = None) -> Page:
    """Every section for which this audit has results: the brief, then the reviewer's, then the engineer's."""
    pairs = pairs_section(record)
    shown = [] if pairs is None or pairs.gallery is None else [one.anchor for one in pairs.gallery.pictures]
    sections = [
        control_section(record),
        membership_section(record),
        untried_section(record),
        Section("limits", "What the numbers do not say", limits(record), reader="review"),
        pairs,
        values_section(record),
        *illustration_sections(record),
        risk_section(record, shown),
        advice_section(_kind(record), record.model),
        candidate_section(record),
        weights_section(record),
        course_section(record),
        *baseline_sections(record),
        settings_section(record),
    ]
    return Page(
        title=f"{record.model}: what its weights give away",
        outcome=record.verdict.outcome,
        sentence=record.verdict.sentence,
        tiles=_tiles(record),
        sections=[section for section in sections if section is not None],
        brief=_brief(record, pairs),
        decision=None if decision is None else ShownDecision.of(decision),
    )


def _brief(record: AuditRecord, pairs: Section | None) -> Brief:
    gallery, title = None if pairs is None else pairs.gallery, "What came back, above the original"
    if gallery is None:
        gallery = candidate_gallery(record.blind.found, record.view.input_shape)
        title = "The attack's best candidates"
    elif not gallery.first:
        title = "The best matches; none counts as recovered"
    few = None if gallery is None else Gallery(gallery.pictures[:FIVE], FIVE, gallery.has_originals)
    advice = advice_lines(_kind(record), leaks=record.verdict.leaks)
    if record.comparison is None:
        advice = ["Measure it: audit again with your training records and held-out ones (--data, --held-out)."]
        advice += advice_lines(_kind(record), leaks=record.verdict.leaks)[: 1 + record.verdict.leaks]
    elif record.comparison.doubts:
        advice = ["Read the model as the warning says, and audit again: these numbers say little.", *advice[:1]]
    return Brief(_tried(record), few, title, advice, "advice")


FIVE = 5


def _tried(record: AuditRecord) -> list[tuple[str, str]]:
    attack, comparison = record.attack, record.comparison
    rows = [("Attack", f"{attack.recipe}: {attack.message}, {attack.seconds:.0f} s")]
    if comparison is None:
        rows += [("Records", "none given: judged blind"), ("Control", "none")]
    else:
        train, held_out = comparison.data.train, comparison.data.held_out
        right = f"{comparison.accuracy:.0%} of them classified right"
        rows.append(("Records", f"{len(train):,} records of {train.name}, {right}"))
        rows.append(
            (
                "Control",
                f"{len(held_out):,} records of {held_out.name}, never trained on" if len(held_out) else "none",
            )
        )
    tests = None if comparison is None else comparison.membership
    rows.append(("Membership", "not asked" if tests is None else ", ".join(one.name for one in tests.tests)))
    rows.append(("Compared with", ", ".join(one.name for one in record.baselines) or "no baselines"))
    return rows


def _kind(record: AuditRecord) -> str:
    return kind_of_target(record.view, record.view.input_shape, _records(record))


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
