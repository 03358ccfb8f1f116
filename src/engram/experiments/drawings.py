"""From finished cases to the papers' figures; each returns the PNG of every part, `""` for the only one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from engram.experiments.records import CaseRecord, Finished
from engram.matching.distances import stretched
from engram.report.figures import Pair, pairs_figure
from engram.report.mosaic import mosaic_figure
from engram.report.plane import PlanePanel, plane_figure
from engram.report.scatter import ScatterPanel, scatter_figure

Figures = dict[str, bytes]
Draw = Callable[[Sequence[Finished]], Figures]
GALLERY, COLUMNS = 45, 15
"""The papers show the 45 best in three double rows of 15."""
PER_ROW = 4
SHOWN, GRID_COLUMNS = 500, 25
"""Haim et al. 2022, Figs. 12 and 13: every 80th of 40,000 inverted images."""
WEIGHT_COLUMNS = 40


def no_figure(cases: Sequence[Finished]) -> Figures:
    """For tables, which are numbers alone."""
    return {}


def own_figures(cases: Sequence[Finished]) -> Figures:
    """Of cases that draw themselves."""
    return {name: case.figure for name, case in part_names(cases).items() if case.figure is not None}


def together(*draws: Draw) -> Draw:
    """Several drawings of the same cases; their parts must differ in name."""

    def draw(cases: Sequence[Finished]) -> Figures:
        return {part: content for one in draws for part, content in one(cases).items()}

    return draw


def galleries(*, best: int = GALLERY, columns: int = COLUMNS) -> Draw:
    """For each case its best pairs, reconstruction above training image."""
    return partial(_galleries, best=best, columns=columns)


def scatters(*, columns: int = PER_ROW, part: str = "") -> Draw:
    """SSIM against output, or against the margin for several classes, one panel a case."""
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
    """Evenly spaced among the inverted images by rising output."""
    return {
        name: mosaic_figure(
            evenly(case.tensors["candidates"], SHOWN),
            title=f"{case.record.data}, n = {case.record.n}: inverted images by rising output",
            columns=GRID_COLUMNS,
        )
        for name, case in part_names(cases).items()
    }


def weight_images(cases: Sequence[Finished]) -> Figures:
    """All rows of the first layer, those of largest norm first."""
    return {
        name: mosaic_figure(
            stretched(case.tensors["candidates"].float()),
            title=f"{case.record.data}, n = {case.record.n}: first-layer weights",
            columns=WEIGHT_COLUMNS,
        )
        for name, case in part_names(cases).items()
    }


def baselines(cases: Sequence[Finished]) -> Figures:
    """Haim et al. 2022, Fig. 5: the plane with both, then ten inverted images and the ten best weights a set."""
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
    """Inverted points by the sign of their output; weights scaled to length 1: their own means nothing."""
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
    """A name for the figure of each case; the only one needs none, one target under two attacks both words."""
    if len(cases) == 1:
        return {"": cases[0]}
    presets = [case.record.preset for case in cases]
    if len(set(presets)) == len(presets):
        return dict(zip(presets, cases, strict=True))
    return {f"{case.record.preset}-{case.record.attack}": case for case in cases}


def pairs(case: Finished, best: int) -> list[Pair]:
    """The best pairs by SSIM, best first; above the papers' threshold in blue."""
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
    """The count beside its null."""
    count = record.good
    held_out = "" if count.held_out is None else f" (held-out {count.held_out})"
    return f"{count.train} of {record.n}{held_out}"


def scatter_panel(record: CaseRecord, title: str | None = None) -> ScatterPanel:
    """Binary networks by output, with both margins; several classes by margin."""
    x, margin = record.samples.get("output"), record.training.smallest_margin
    title = title or f"n = {record.n}, {hidden(record)}"
    title = f"{title}: good {good_words(record)}"
    if x is None:
        return ScatterPanel(title, record.samples["margin"], record.samples["ssim"], (margin,))
    return ScatterPanel(title, x, record.samples["ssim"], (-margin, margin))


def hidden(record: CaseRecord) -> str:
    """The widths between inputs and outputs: '1000-1000' of '3072-1000-1000-1'."""
    return "-".join(record.network.split("-")[1:-1])
