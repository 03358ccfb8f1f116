"""Galleries and charts of the report, from finished numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from markupsafe import Markup
from torch import Tensor

from engram.attacks.reconstruction import Reconstruction
from engram.auditing.comparison import Baseline
from engram.auditing.inspect import Spectrum
from engram.data.sets import ImageSet
from engram.render.figures import kernel_pictures
from engram.render.html import Gallery, Picture, data_uri
from engram.render.svg import Axis, Series, chart
from engram.scoring.curves import Reliability, Roc
from engram.scoring.metrics import stretched
from engram.scoring.report import ScoreReport

if TYPE_CHECKING:
    from engram.auditing.comparison import Comparison
    from engram.auditing.record import AuditRecord


MOST_PAIRS = 500
MOST_CANDIDATES = 200
MOST_BASELINE = 60


def pair_gallery(score: ScoreReport, train: ImageSet) -> Gallery:
    """Reconstructions above originals, best SSIM first."""
    table = score.train.top(MOST_PAIRS)
    assert table.ssim is not None
    pictures = []
    for row, (sample, ssim) in enumerate(zip(table.sample.tolist(), table.ssim.tolist(), strict=True)):
        label = train.classes[int(train.labels[sample])]
        pictures.append(
            Picture(
                image=data_uri(table.reconstruction[row]),
                alt=f"Reconstruction of record {sample}",
                caption=f"{ssim:.2f}",
                original=data_uri(train.images[sample]),
                original_alt=f"Training record {sample}, {label}",
                anchor=f"pair-{sample}",
            )
        )
    return Gallery(pictures, len(score.train), has_originals=True)


def pair_anchor(score: ScoreReport, index: int) -> str | None:
    """Where a record's pair is shown, if it is."""
    if score.train.ssim is None:
        return None
    shown = len(score.train) <= MOST_PAIRS or index in set(score.train.top(MOST_PAIRS).sample.tolist())
    return f"pair-{index}" if shown else None


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
    return Gallery(pictures, len(found), has_originals=False)


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
    return Gallery(pictures, len(baseline.images), has_originals=False)


def _captions(outputs: Tensor | None, chosen: Tensor) -> list[str]:
    if outputs is None:
        return [str(index) for index in chosen.tolist()]
    return [f"{value:.3g}" for value in outputs[chosen].tolist()]


LOWEST_RATE = 1e-3


def roc_chart(title: str, curves: Mapping[str, Roc]) -> Markup:
    """True- against false-positive rate on logarithmic axes, which show the small rates."""
    series = [
        Series(name, _floored(curve.false_positive.tolist()), _floored(curve.true_positive.tolist()), colour=index)
        for index, (name, curve) in enumerate(curves.items())
    ]
    areas = ", ".join(f"{name} {curve.auc:.3f}" for name, curve in curves.items())
    chance = Series("", [LOWEST_RATE, 1], [LOWEST_RATE, 1], kind="dashed", colour=4)
    x, y = (Axis(f"{what}-positive rate", LOWEST_RATE, 1, log=True) for what in ("false", "true"))
    return chart(
        title, x, y, [chance, *series], summary=f"Area under the curve: {areas}; the dashed line is chance."
    )


def output_chart(comparison: Comparison) -> Markup:
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
    return chart(
        f"{name} against the model's output",
        x,
        axis,
        series,
        summary=f"{good} of {len(values)} records above 0.4; records near the margin come back best.",
    )


def spectrum_chart(spectrum: Spectrum, layer: str) -> Markup:
    """Singular values of the layer, and where its noise ends."""
    values = [value for value in spectrum.values.tolist() if value > 0]
    top = max(values, default=1.0)
    floor = max(min(values, default=1.0), 1e-6 * top)
    x = Axis("index", 1, max(2, len(values)), log=True)
    y = Axis("singular value", 0.8 * floor, 1.3 * top, log=True)
    series = [Series("singular values", range(1, len(values) + 1), values, kind="dots")]
    if spectrum.threshold is not None:
        series.append(
            Series("noise threshold", [x.low, x.high], 2 * [spectrum.threshold], kind="dashed", colour=1)
        )
    summary = f"{spectrum.rank} directions of {layer} stand above its noise"
    summary += f", {spectrum.hidden} of them only at low frequencies." if spectrum.hidden else "."
    return chart(f"Spectrum of {layer}", x, y, series, summary=summary)


def confidence_chart(reliability: Reliability) -> Markup:
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
    return chart("Reliability of the confidence", x, y, series, summary=listed)


def timeline_chart(record: AuditRecord) -> Markup:
    """Counts over the seconds of the attack; confident candidates in blind mode."""
    moments = record.timeline
    seconds = [max(moment.seconds, 0.01) for moment in moments]
    lines: dict[str, Sequence[float]] = {"confident candidates": [moment.sure for moment in moments]}
    if record.comparison is not None:
        name = record.comparison.threshold.text
        counts = [moment.counts[name] for moment in moments if moment.counts is not None]
        lines = {f"training, {name}": [count.train for count in counts]}
        if len(record.comparison.data.held_out):
            lines[f"held-out, {name}"] = [count.held_out or 0 for count in counts]
    most = max(1.0, *(max(line) for line in lines.values()))
    series = [Series(name, seconds, line, colour=index) for index, (name, line) in enumerate(lines.items())]
    x = _axis("seconds of the attack", [0.0, *seconds])
    summary = "; ".join(f"{name}: {line[-1]:g} at the end" for name, line in lines.items())
    return chart("Good images over time", x, Axis("images", 0, most), series, summary=summary)


def _axis(label: str, values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    return Axis(label, low, high if high > low else low + 1)


def _floored(rates: Sequence[float]) -> list[float]:
    """Zero can't be drawn on a logarithmic axis."""
    return [max(rate, LOWEST_RATE) for rate in rates]
