"""Figures over one setting of the target: classes, weight decay, kernels; and the papers' threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engram.experiments.drawings import Draw, Figures, good_words, pair, scatter_panel
from engram.experiments.records import CaseRecord, Finished
from engram.report.curves import CurvePanel, Line, curves_figure
from engram.report.figures import pairs_figure
from engram.report.heat import heat_figure
from engram.report.kernels import kernels_figure
from engram.report.scatter import scatter_figure

AROUND = 60
"""Pairs shown around the threshold."""


def over_classes(cases: Sequence[Finished]) -> Figures:
    """Good images over the number of classes, and SSIM against margin for each number."""
    records = [case.record for case in cases]
    classes = [int(record.network.rpartition("-")[2]) for record in records]
    counts = CurvePanel("classes", "good reconstructions (SSIM > 0.4)", _count_lines(classes, records))
    panels = [scatter_panel(one, f"{count} classes") for one, count in zip(records, classes, strict=True)]
    title = "SSIM of each training sample against its margin"
    return {
        "counts": curves_figure([counts], title="Good reconstructions over the number of classes"),
        "scatter": scatter_figure(panels, columns=len(panels), title=title, x_label="margin"),
    }


def over_decay(baselines: Mapping[str, str]) -> Draw:
    """Good images over weight decay, beside targets without: `baselines` names presets for the legend."""

    def draw(cases: Sequence[Finished]) -> Figures:
        records = [case.record for case in cases]
        levels = {
            f"{baselines[one.preset]}: good": float(one.good.train) for one in records if one.preset in baselines
        }
        decayed = _decayed(records)
        decays = list(decayed)
        lines = _count_lines(decays, list(decayed.values()))
        label = "good reconstructions (SSIM > 0.4)"
        panel = CurvePanel("weight decay", label, lines, levels, log=True)
        return {"": curves_figure([panel], title="Good reconstructions over weight decay")}

    return draw


def decay_scatters(cases: Sequence[Finished]) -> Figures:
    """SSIM against output for every weight decay, with training and test errors; the errors over weight decay."""
    decayed = _decayed([case.record for case in cases])
    panels = [scatter_panel(record, f"{decay:g}, errors {_errors(record)}") for decay, record in decayed.items()]
    test = [_error(record.training.test_accuracy) for record in decayed.values()]
    lines = [Line("training error", list(decayed), [_error(one.training.accuracy) for one in decayed.values()])]
    if all(record.training.test_accuracy is not None for record in decayed.values()):
        lines.append(Line("test error", list(decayed), test, "tab:orange"))
    errors = CurvePanel("weight decay", "error, %", lines, log=True)
    title = "SSIM against output by weight decay"
    return {
        "scatter": scatter_figure(panels, columns=4, title=title),
        "errors": curves_figure([errors], title="Errors over weight decay"),
    }


def over_kernels(cases: Sequence[Finished]) -> Figures:
    """A panel for each kernel size (rows) and number of channels (columns), and the counts as a table."""
    cells = {_convolution(case.record): case.record for case in cases}
    kernels, channels = (sorted({cell[axis] for cell in cells}) for axis in (0, 1))
    ordered = {(k, c): cells[k, c] for k in kernels for c in channels}
    panels = [scatter_panel(record, f"k={k}, C={c}") for (k, c), record in ordered.items()]
    return {
        "scatter": scatter_figure(panels, columns=len(channels), title="SSIM against output, conv(k, C)"),
        "counts": heat_figure(
            [[cells[k, c].good.train for c in channels] for k in kernels],
            rows=[str(k) for k in kernels],
            columns=[str(c) for c in channels],
            row_name="kernel size k",
            column_name="channels C",
            title="Good reconstructions (SSIM > 0.4)",
        ),
    }


def first_kernels(cases: Sequence[Finished]) -> Figures:
    """The kernels of the first convolution as colour images."""
    record = cases[0].record
    return {"": kernels_figure(cases[0].tensors["kernels"], title=f"{record.data}, {record.network}: kernels")}


def around_threshold(cases: Sequence[Finished]) -> Figures:
    """Pairs on both sides of SSIM 0.4, best first: above in blue, below in red."""
    case = cases[0]
    order = sorted(range(case.record.n), key=lambda index: -case.record.samples["ssim"][index])
    first = max(0, min(case.record.good.train - AROUND // 2, len(order) - AROUND))
    shown = [pair(case, index) for index in order[first : first + AROUND]]
    title = f"{case.record.data}, n = {case.record.n}: around SSIM 0.4; good {good_words(case.record)}"
    return {"": pairs_figure(shown, title=title, columns=15)}


def _count_lines(x: Sequence[float], records: Sequence[CaseRecord]) -> tuple[Line, Line]:
    """Good training images, and the same count of held-out ones."""
    return (
        Line("training", x, [record.good.train for record in records]),
        Line("held-out", x, [record.good.held_out or 0 for record in records], "tab:grey", dashed=True),
    )


def _decayed(records: Sequence[CaseRecord]) -> dict[float, CaseRecord]:
    """The records of targets with weight decay, by its value."""
    named = {record.preset.removeprefix("decay-"): record for record in records if record.preset[:6] == "decay-"}
    return {float(value): record for value, record in named.items() if float(value) > 0}


def _convolution(record: CaseRecord) -> tuple[int, int]:
    """Kernel size and channels, from the name of the preset.

    >>> from types import SimpleNamespace
    >>> _convolution(SimpleNamespace(preset="conv3x32"))
    (3, 32)
    """
    kernel, _, channels = record.preset.removeprefix("conv").partition("x")
    return int(kernel), int(channels)


def _errors(record: CaseRecord) -> str:
    test = record.training.test_accuracy
    return f"{_error(record.training.accuracy):.0f} %" + ("" if test is None else f", {_error(test):.0f} %")


def _error(accuracy: float | None) -> float:
    return float("nan") if accuracy is None else 100 * (1 - accuracy)
