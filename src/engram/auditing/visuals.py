"""What the pages of audits are made of: galleries, charts, tables and advice, from finished numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engram.attacks.reconstruction import Reconstruction
from engram.auditing.comparison import SURE, Baseline
from engram.auditing.inspect import Spectrum
from engram.auditing.verdict import MEASURED, NO_PROOF, TARGETS, Measured
from engram.data.sets import ImageSet
from engram.render.figures import kernel_pictures
from engram.render.html import Cell, Gallery, Picture, Section, Table, data_uri
from engram.render.svg import Axis, Chart, Series
from engram.scoring.curves import CONFIDENCE, RATES, Reliability, Roc, clopper_pearson
from engram.scoring.metrics import stretched
from engram.scoring.report import ScoreReport

if TYPE_CHECKING:
    from engram.auditing.comparison import Comparison
    from engram.auditing.record import AuditRecord, Moment


MOST_PAIRS, MOST_OPEN = 500, 60
"""Pairs on the page, and how many of them are not folded away."""
ILLUSTRATED = (
    "An illustration, not a measurement. These pictures were not read out of the weights: an embedding was, and "
    "the smoothest picture was searched for whose embedding is near it, through the backbone. What the backbone "
    "ignores is made up. The counts of this report compare embeddings; pictures are not scored."
)


def illustration_sections(record: AuditRecord) -> list[Section]:
    """Pictures made from embeddings that came back, above the records, and beside them the control."""
    shown = record.illustration
    if shown is None:
        return []
    parts = (
        (
            "illustration",
            "What the embeddings that came back may look like",
            [ILLUSTRATED],
            shown.made,
            shown.records,
        ),
        (
            "illustration-control",
            "The control of the illustration",
            [
                "The same search from the candidates nearest to held-out records. A likeness here comes from the "
                "backbone and from chance, and one above has to be better than this."
            ],
            shown.held_out_made,
            shown.held_out,
        ),
    )
    return [
        Section(anchor, title, text, gallery=_made_gallery(made, records), reader="engineer")
        for anchor, title, text, made, records in parts
        if len(made)
    ]


def _made_gallery(made: Tensor, records: Tensor) -> Gallery:
    pictures = [
        Picture(data_uri(one), "Picture made from an embedding", "made", data_uri(record), "The record itself")
        for one, record in zip(made, records, strict=True)
    ]
    return Gallery(pictures, len(made), has_originals=True)


MOST_CANDIDATES = 200
MOST_BASELINE = 60
SOME_OPEN = 12
"""Pictures that are not folded away where none is a hit: one row on a desktop."""
THUMBNAIL = 32


def pair_gallery(score: ScoreReport, train: ImageSet, hits: Tensor | None = None) -> Gallery:
    """Reconstructions above originals: the hits [n] first, best SSIM first, then the others, folded away."""
    table = score.train
    assert table.ssim is not None
    order = table.ssim.nan_to_num(nan=-1.0).argsort(descending=True, stable=True)
    first = min(MOST_OPEN, len(order))
    if hits is not None:
        order = torch.cat([order[hits[order]], order[~hits[order]]])
        first = min(MOST_OPEN, int(hits.sum()))
    pictures = []
    for row in order[:MOST_PAIRS].tolist():
        sample = int(table.sample[row])
        label = train.classes[int(train.labels[sample])]
        pictures.append(
            Picture(
                image=data_uri(table.reconstruction[row]),
                alt=f"Reconstruction of record {sample}",
                caption=f"{float(table.ssim[row]):.2f}",
                original=data_uri(train.images[sample]),
                original_alt=f"Training record {sample}, {label}",
                anchor=f"pair-{sample}",
            )
        )
    return Gallery(pictures, len(table), has_originals=True, first=first)


def candidate_gallery(found: Reconstruction, input_shape: Sequence[int]) -> Gallery | None:
    """The most confident candidates, or those with the largest duals where there is no confidence."""
    if len(input_shape) != 3:
        return None
    order = torch.arange(len(found)) if found.has_confidence else found.duals.abs().argsort(descending=True)
    chosen = order[:MOST_CANDIDATES]
    images = stretched(found.shown[chosen])
    pictures = []
    for image, index in zip(images, chosen.tolist(), strict=True):
        score = "" if found.scores is None else f"{float(found.scores[index]):.2f}"
        caption = score if found.has_confidence else f"dual {float(found.duals[index]):.2g}"
        pictures.append(Picture(data_uri(image), f"Candidate {index}", caption))
    sure = min(MOST_OPEN, found.count_above(SURE)) if found.has_confidence else 0
    return Gallery(pictures, len(found), has_originals=False, first=max(SOME_OPEN, sure))


def baseline_gallery(baseline: Baseline, input_shape: Sequence[int]) -> Gallery | None:
    """Evenly spaced, so that both ends of the order are seen; the paper shows every 80th."""
    if len(input_shape) != 3:
        return None
    chosen = torch.linspace(0, len(baseline.images) - 1, min(MOST_BASELINE, len(baseline.images))).round().long()
    if baseline.name == "first-layer kernels":  # on one scale for all, as the paper draws them
        images = kernel_pictures(baseline.images)[chosen]
    else:
        images = stretched(baseline.images[chosen].float())
    captions = _captions(baseline.outputs, chosen)
    pictures = [
        Picture(data_uri(image), f"{baseline.name} {index}", caption)
        for image, index, caption in zip(images, chosen.tolist(), captions, strict=True)
    ]
    return Gallery(pictures, len(baseline.images), has_originals=False, first=SOME_OPEN)


def _captions(outputs: Tensor | None, chosen: Tensor) -> list[str]:
    if outputs is None:
        return [str(index) for index in chosen.tolist()]
    return [f"{value:.3g}" for value in outputs[chosen].tolist()]


LOWEST_RATE = 1e-3


def roc_chart(title: str, curves: Mapping[str, Roc]) -> Chart:
    """True- against false-positive rate on logarithmic axes, which show the small rates."""
    series = [
        Series(name, _floored(curve.false_positive.tolist()), _floored(curve.true_positive.tolist()), colour=index)
        for index, (name, curve) in enumerate(curves.items())
    ]
    areas = ", ".join(f"{name} {curve.auc:.3f}" for name, curve in curves.items())
    chance = Series("", [LOWEST_RATE, 1], [LOWEST_RATE, 1], kind="dashed", colour=4)
    x, y = (Axis(f"{what}-positive rate", LOWEST_RATE, 1, log=True) for what in ("false", "true"))
    return Chart(
        title, x, y, [chance, *series], summary=f"Area under the curve: {areas}; the dashed line is chance."
    )


def output_chart(comparison: Comparison) -> Chart:
    """Quality against the network's output on the record, as in Fig. 4 of Haim et al. 2022."""
    table = comparison.score.train
    assert table.model_output is not None
    metric = "ncc" if table.ssim is None and table.ncc is not None else table.primary
    values = getattr(table, metric).nan_to_num(nan=0.0).tolist()
    outputs = table.model_output
    flat = (outputs if outputs.ndim == 1 else outputs.amax(1)).tolist()
    x = _axis("model output on the record", flat)
    name = {"ssim": "SSIM", "ncc": "NCC"}.get(metric, "relative L2")
    axis = Axis(name, min(0.0, *values), max(1.0, *values))
    series = [Series("", flat, values, kind="dots")]
    if metric == "ssim":
        series.append(Series("good above 0.4", [x.low, x.high], [0.4, 0.4], kind="dashed", colour=1))
    good = sum(value > 0.4 for value in values)
    return Chart(
        f"{name} against the model's output",
        x,
        axis,
        series,
        summary=f"{good} of {len(values)} records above 0.4; records near the margin come back best.",
    )


def spectrum_chart(spectrum: Spectrum, layer: str) -> Chart:
    """Singular values of the layer, and where its noise ends."""
    values = [value for value in spectrum.values.tolist() if value > 0]
    top = max(values, default=1.0)
    floor = max(min(values, default=1.0), 1e-6 * top)
    x = Axis("index", 1, max(2, len(values)), log=True)
    y = Axis("singular value", 0.8 * floor, 1.3 * top, log=True)
    series = [Series("singular values", list(range(1, len(values) + 1)), values, kind="dots")]
    if spectrum.threshold is not None:
        series.append(
            Series("noise threshold", [x.low, x.high], 2 * [spectrum.threshold], kind="dashed", colour=1)
        )
    summary = f"{spectrum.rank} directions of {layer} stand above its noise"
    summary += f", {spectrum.hidden} of them only at low frequencies" if spectrum.hidden else ""
    summary += f", {spectrum.at_edges} of them only at the edges of its uniform start" if spectrum.at_edges else ""
    summary += "."
    return Chart(f"Spectrum of {layer}", x, y, series, summary=summary)


def confidence_chart(reliability: Reliability) -> Chart:
    """Predicted against observed."""
    predicted = [one.predicted for one in reliability.bins]
    observed = [one.observed for one in reliability.bins]
    x, y = (
        Axis(name, 0, 1)
        for name in ("predicted: confidence, judged blind", "observed: share that shows a training image")
    )
    pairs = zip(predicted, observed, strict=True)
    listed = "; ".join(f"predicted {a:.2f}, observed {b:.2f}" for a, b in pairs)
    series = [
        Series("perfect", [0, 1], [0, 1], kind="dashed", colour=4),
        Series("candidates", predicted, observed),
        Series("", predicted, observed, kind="dots"),
    ]
    return Chart("Reliability of the confidence", x, y, series, summary=listed)


def timeline_chart(moments: Sequence[Moment], counted: str | None = None) -> Chart:
    """Counts over the seconds of the attack, by the threshold `counted`; confident candidates in blind mode."""
    seconds = [max(moment.seconds, 0.01) for moment in moments]
    counts = [moment.counts[counted] for moment in moments if counted and moment.counts is not None]
    lines: dict[str, Sequence[float]] = {"confident candidates": [moment.sure for moment in moments]}
    if counts:
        lines = {f"training, {counted}": [count.train for count in counts]}
        if counts[-1].held_out is not None:
            lines[f"held-out, {counted}"] = [count.held_out or 0 for count in counts]
    most = max(1.0, *(max(line) for line in lines.values()))
    series = [Series(name, seconds, line, colour=index) for index, (name, line) in enumerate(lines.items())]
    x = _axis("seconds of the attack", [0.0, *seconds])
    summary = "; ".join(f"{name}: {line[-1]:g} at the end" for name, line in lines.items())
    return Chart("Good images over time", x, Axis("images", 0, most), series, summary=summary)


def _axis(label: str, values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    return Axis(label, low, high if high > low else low + 1)


def _floored(rates: Sequence[float]) -> list[float]:
    """Zero can't be drawn on a logarithmic axis."""
    return [max(rate, LOWEST_RATE) for rate in rates]


MOST_VALUES = 40


def values_section(record: AuditRecord) -> Section | None:
    """Of a table of records: those that came back, value by value."""
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
        reader="engineer",
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


BASELINES = {
    "model inversion": "{:,} starts, half maximising an output and half minimising it, lowest output first.",
    "first-layer weights": "All {:,} rows of the first layer, each as an image, largest norm first.",
    "first-layer kernels": "All {:,} kernels of the first convolution. They are smaller than an image, so they "
    "are shown but not scored.",
}


def baseline_sections(record: AuditRecord) -> list[Section]:
    """What each baseline gives, where there are any."""
    sections = []
    for baseline in record.baselines:
        paragraphs, tables = [], []
        text = BASELINES[baseline.name].format(len(baseline.images))
        paragraphs.append(text + " A simpler way to look at the weights, to compare with the attack.")
        if baseline.score is not None:
            rows = [(text, one.train, one.held_out, one.excess) for text, one in baseline.score.counts.items()]
            tables = [
                Table(
                    ("recovered", "training", "held-out", "excess"),
                    rows,
                    f"{baseline.name}, scored like the attack",
                )
            ]
        anchor = baseline.name.replace(" ", "-")
        gallery = baseline_gallery(baseline, record.view.input_shape)
        title = f"Baseline: {baseline.name}"
        sections.append(Section(anchor, title, paragraphs, gallery=gallery, tables=tables, reader="engineer"))
    return sections


RATE_HEADS = ("false-positive rate", "identified", "at least", "at most", "controls", "controls needed")


def rates_table(curve: Roc, records: int, test: str, others: Mapping[str, Roc] | None = None) -> Table:
    """Members identified at each rate of false alarms, with bounds; `others` are columns to compare with."""
    rows: list[list[Cell]] = []
    others = others or {}
    for rate in RATES:
        bounds = clopper_pearson(round(curve.at(rate) * records), records)
        needed = "any" if rate == 0 else f"{round(1 / rate):,}"
        compared = [one.at(rate) for one in others.values()]
        rows.append([f"{rate:.1%}", bounds.rate, bounds.low, bounds.high, curve.held_out, needed, *compared])
    caption = f"Members identified by {test}, with bounds at {CONFIDENCE:.0%} confidence (Clopper-Pearson)"
    return Table((*RATE_HEADS, *others), rows, caption)


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
        reader="engineer",
    )


def advice_lines(kind: str, *, leaks: bool) -> list[str]:
    """The same in two lines, for whoever decides."""
    if not leaks:
        return [
            "Nothing needs mending on this evidence. " + NO_PROOF,
            "Audit again when the model, its training or the attack changes.",
        ]
    best = [one for one in MEASURED if one.kind == kind][:2]
    return ["Do not publish these weights as they are.", *map(_way, best)]


def _way(one: Measured) -> str:
    (before, after), (worse, better) = one.members, one.accuracy
    return (
        f"{one.way[0].upper()}{one.way[1:]}: members identified {before:.0%} -> {after:.1%}, held-out accuracy "
        f"{worse:.0%} -> {better:.0%}, measured on {TARGETS[one.kind]}."
    )
