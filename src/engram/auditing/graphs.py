"""Charts of the report, each from finished numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from engram.auditing.reliability import Reliability
from engram.inspection import Spectrum
from engram.matching.roc import Roc
from engram.report.html.charts import Axis, Series, chart

if TYPE_CHECKING:
    from engram.auditing.comparison import Comparison
    from engram.auditing.record import AuditRecord

LOWEST_RATE = 1e-3


def roc_chart(title: str, curves: Mapping[str, Roc]) -> Markup:
    """True- against false-positive rate on logarithmic axes, where the small rates can be seen."""
    series = [
        Series(name, _floored(curve.false_positive.tolist()), _floored(curve.true_positive.tolist()), colour=index)
        for index, (name, curve) in enumerate(curves.items())
    ]
    said = ", ".join(f"{name} {curve.auc:.3f}" for name, curve in curves.items())
    chance = Series("", [LOWEST_RATE, 1], [LOWEST_RATE, 1], kind="dashed", colour=4)
    x, y = (Axis(f"{what}-positive rate", LOWEST_RATE, 1, log=True) for what in ("false", "true"))
    return chart(title, x, y, [chance, *series], summary=f"Area under the curve: {said}; dashed is chance.")


def output_chart(comparison: Comparison) -> Markup:
    """Quality against the network's output on the record, as in Fig. 4 of Haim et al. 2022."""
    table = comparison.score.train
    assert table.model_output is not None
    metric = "ncc" if table.ssim is None and table.ncc is not None else table.primary
    values = getattr(table, metric).nan_to_num(nan=0.0).tolist()
    outputs = table.model_output
    flat = (outputs if outputs.ndim == 1 else outputs.amax(1)).tolist()
    x = _axis("output of the model on the record", flat)
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
            Series("above the noise", [x.low, x.high], 2 * [spectrum.threshold], kind="dashed", colour=1)
        )
    summary = f"{spectrum.rank} directions of {layer} stand above its noise"
    summary += f", {spectrum.hidden} of them among low frequencies alone." if spectrum.hidden else "."
    return chart(f"Spectrum of {layer}", x, y, series, summary=summary)


def confidence_chart(reliability: Reliability) -> Markup:
    """What was said against what was true."""
    said, true = [one.said for one in reliability.bins], [one.true for one in reliability.bins]
    x, y = (Axis(name, 0, 1) for name in ("confidence, as said blind", "share that shows a training image"))
    listed = "; ".join(f"said {a:.2f}, true {b:.2f}" for a, b in zip(said, true, strict=True))
    series = [
        Series("perfect", [0, 1], [0, 1], kind="dashed", colour=4),
        Series("candidates", said, true),
        Series("", said, true, kind="dots"),
    ]
    return chart("Reliability of the confidence", x, y, series, summary=listed)


def timeline_chart(record: AuditRecord) -> Markup:
    """Counts over the seconds of the attack; confident candidates in the blind mode."""
    moments = record.timeline
    seconds = [max(moment.seconds, 0.01) for moment in moments]
    lines: dict[str, Sequence[float]] = {"confident candidates": [moment.sure for moment in moments]}
    if record.comparison is not None:
        name = record.comparison.threshold.text
        lines = {f"training, {name}": [(moment.train or {}).get(name, 0) for moment in moments]}
        if record.comparison.data.held_out is not None:
            lines[f"held-out, {name}"] = [(moment.held_out or {}).get(name, 0) for moment in moments]
    most = max(1.0, *(max(line) for line in lines.values()))
    series = [Series(name, seconds, line, colour=index) for index, (name, line) in enumerate(lines.items())]
    x = _axis("seconds of the attack", [0.0, *seconds])
    summary = "; ".join(f"{name}: {line[-1]:g} at the end" for name, line in lines.items())
    return chart("Good images over time", x, Axis("images", 0, most), series, summary=summary)


def _axis(label: str, values: Sequence[float]) -> Axis:
    low, high = min(values), max(values)
    return Axis(label, low, high if high > low else low + 1)


def _floored(rates: Sequence[float]) -> list[float]:
    """Zero has no place on a logarithmic axis."""
    return [max(rate, LOWEST_RATE) for rate in rates]
