"""The papers' figures from finished cases; each returns one PNG per part, named `""` if it is the only one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from engram.papers.records import CaseRecord, Finished
from engram.render.figures import (
    CurvePanel,
    Line,
    Pair,
    PlanePanel,
    ScatterPanel,
    curves_figure,
    heat_figure,
    kernels_figure,
    mosaic_figure,
    pairs_figure,
    plane_figure,
    scatter_figure,
)
from engram.scoring.metrics import stretched

Figures = dict[str, bytes]
Draw = Callable[[Sequence[Finished]], Figures]
GALLERY, COLUMNS = 45, 15
"""The papers show the 45 best in three double rows of 15."""
PER_ROW = 4
SHOWN, GRID_COLUMNS = 500, 25
"""Haim et al. 2022, Figs. 12 and 13: every 80th of 40,000 inverted images."""
WEIGHT_COLUMNS = 40


def no_figure(cases: Sequence[Finished]) -> Figures:
    """For tables, which have no figure."""
    return {}


def own_figures(cases: Sequence[Finished]) -> Figures:
    """Figures of cases that draw their own."""
    return {name: case.figure for name, case in part_names(cases).items() if case.figure is not None}


def together(*draws: Draw) -> Draw:
    """Several drawings of the same cases; the names of their parts must differ."""

    def draw(cases: Sequence[Finished]) -> Figures:
        return {part: content for one in draws for part, content in one(cases).items()}

    return draw


def galleries(*, best: int = GALLERY, columns: int = COLUMNS) -> Draw:
    """The best pairs of each case, reconstruction above training image."""
    return partial(_galleries, best=best, columns=columns)


def scatters(*, columns: int = PER_ROW, part: str = "") -> Draw:
    """SSIM against output, or against the margin for several classes, one panel per case."""
    return partial(_scatters, columns=columns, part=part)


def _galleries(cases: Sequence[Finished], *, best: int, columns: int) -> Figures:
    return {
        name: pairs_figure(pairs(case, best), title=gallery_title(case.record, best), columns=columns)
        for name, case in part_names(cases).items()
    }


def _scatters(cases: Sequence[Finished], *, columns: int, part: str) -> Figures:
    panels = [scatter_panel(case.record) for case in cases]
    x_label = "output of the network" if "output" in cases[0].record.samples else "margin"
    title = "SSIM of each training sample against " + x_label
    return {part: scatter_figure(panels, columns=min(columns, len(panels)), title=title, x_label=x_label)}


def inverted_images(cases: Sequence[Finished]) -> Figures:
    """A selection of the inverted images, evenly spaced, by increasing output."""
    return {
        name: mosaic_figure(
            evenly(case.tensors["candidates"], SHOWN),
            title=f"{case.record.data}, n = {case.record.n}: inverted images by increasing output",
            columns=GRID_COLUMNS,
        )
        for name, case in part_names(cases).items()
    }


def weight_images(cases: Sequence[Finished]) -> Figures:
    """All rows of the first layer, largest norm first."""
    return {
        name: mosaic_figure(
            stretched(case.tensors["candidates"].float()),
            title=f"{case.record.data}, n = {case.record.n}: first-layer weights",
            columns=WEIGHT_COLUMNS,
        )
        for name, case in part_names(cases).items()
    }


def baselines(cases: Sequence[Finished]) -> Figures:
    """Haim et al. 2022, Fig. 5: both in the plane, then per data set ten inverted images and ten best weights."""
    figures = {"plane": plane_figure([_plane(case) for case in cases if "points" in case.tensors], columns=2)}
    for case in cases:
        record = case.record
        if "points" in case.tensors:
            continue
        if record.attack == "inversion":
            title = f"{record.data}: inverted images, from the smallest output to the largest"
            shown = mosaic_figure(evenly(case.tensors["candidates"], 10), title=title, columns=10)
        else:
            title = f"{record.data}: the ten weights most like a training image, with SSIM"
            shown = pairs_figure(pairs(case, 10), title=title, columns=10)
        figures[f"{record.attack}-{record.preset}"] = shown
    return figures


def _plane(case: Finished) -> PlanePanel:
    """Inverted points by the sign of their output; weights scaled to length 1, since their scale means nothing."""
    points, labels = case.tensors["points"], case.tensors["point_labels"]
    found = case.tensors["candidates"].float()
    if case.record.attack == "inversion":
        signs = (case.tensors["outputs"] > 0).long()
        title = f"model inversion: {good_words(case.record)}"
        return PlanePanel(title, points, labels, candidates=found, candidate_labels=signs)
    longest = found.norm(dim=1).max().clamp(min=1e-12)
    title = "first-layer weights (longest: 1)"
    return PlanePanel(title, points, labels, found / longest, torch.ones(len(found), dtype=torch.int64))


def evenly(images: Tensor, count: int) -> Tensor:
    """Up to `count` images, evenly spaced, each stretched to [0, 1]."""
    chosen = torch.linspace(0, len(images) - 1, min(count, len(images))).round().long()
    return stretched(images[chosen].float())


def part_names(cases: Sequence[Finished]) -> Mapping[str, Finished]:
    """A name for each case's figure: empty if there is one, else the preset, with the attack if presets repeat."""
    if len(cases) == 1:
        return {"": cases[0]}
    presets = [case.record.preset for case in cases]
    if len(set(presets)) == len(presets):
        return dict(zip(presets, cases, strict=True))
    return {f"{case.record.preset}-{case.record.attack}": case for case in cases}


def pairs(case: Finished, best: int) -> list[Pair]:
    """The best pairs by SSIM, best first; those above the papers' threshold in blue."""
    scores = torch.tensor(case.record.samples["ssim"])
    chosen = scores.argsort(descending=True, stable=True)[:best]
    return [pair(case, index) for index in chosen.tolist()]


def pair(case: Finished, index: int) -> Pair:
    score = case.record.samples["ssim"][index]
    shown, original = (case.tensors[name][index].float() / 255 for name in ("reconstruction", "original"))
    return Pair(shown, original, f"{score:.2f}", "tab:blue" if score > 0.4 else "tab:red")


def gallery_title(record: CaseRecord, best: int) -> str:
    shown = min(best, record.n)
    return (
        f"{record.data}, n = {record.n}, {record.network} ({record.attack}): the {shown} best by SSIM; "
        f"good {good_words(record)}"
    )


def good_words(record: CaseRecord) -> str:
    """The count with its null."""
    count = record.good
    held_out = "" if count.held_out is None else f" (held-out {count.held_out})"
    return f"{count.train} of {record.n}{held_out}"


def scatter_panel(record: CaseRecord, title: str | None = None) -> ScatterPanel:
    """Binary networks by output, with both margins marked; several classes by margin."""
    x, margin = record.samples.get("output"), record.training.smallest_margin
    title = title or f"n = {record.n}, {hidden(record)}"
    title = f"{title}: good {good_words(record)}"
    if x is None:
        return ScatterPanel(title, record.samples["margin"], record.samples["ssim"], (margin,))
    return ScatterPanel(title, x, record.samples["ssim"], (-margin, margin))


def hidden(record: CaseRecord) -> str:
    """The widths between inputs and outputs: '1000-1000' of '3072-1000-1000-1'."""
    return "-".join(record.network.split("-")[1:-1])


AROUND = 60
"""Pairs shown around the threshold."""


def over_classes(cases: Sequence[Finished]) -> Figures:
    """Good images over the number of classes, and SSIM against margin for each."""
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
    """Good images over weight decay, and for targets without it: `baselines` maps presets to legend labels."""

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
    """One panel per kernel size (rows) and number of channels (columns), and the counts as a table."""
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
    """Good training images, and the same count for held-out ones."""
    return (
        Line("training", x, [record.good.train for record in records]),
        Line("held-out", x, [record.good.held_out or 0 for record in records], "tab:grey", dashed=True),
    )


def _decayed(records: Sequence[CaseRecord]) -> dict[float, CaseRecord]:
    """The records of targets with weight decay, by its value."""
    named = {record.preset.removeprefix("decay-"): record for record in records if record.preset[:6] == "decay-"}
    return {float(value): record for value, record in named.items() if float(value) > 0}


def _convolution(record: CaseRecord) -> tuple[int, int]:
    """Kernel size and channels, from the preset's name.

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
