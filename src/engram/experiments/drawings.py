"""From finished cases to the papers' figures; each returns the PNG of every part, `""` for the only one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from engram.experiments.records import CaseRecord, Finished
from engram.report.figures import Pair, pairs_figure
from engram.report.scatter import ScatterPanel, scatter_figure

Figures = dict[str, bytes]
Draw = Callable[[Sequence[Finished]], Figures]
GALLERY, COLUMNS = 45, 15
"""The papers show the 45 best in three double rows of 15."""
PER_ROW = 4


def no_figure(cases: Sequence[Finished]) -> Figures:
    """For tables, which are numbers alone."""
    return {}


def own_figures(cases: Sequence[Finished]) -> Figures:
    """Of cases that draw themselves."""
    return {name: case.figure for name, case in part_names(cases).items() if case.figure is not None}


def galleries(*, best: int = GALLERY, columns: int = COLUMNS) -> Draw:
    """For each case its best pairs, reconstruction above training image."""
    return partial(_galleries, best=best, columns=columns)


def scatters(*, columns: int = PER_ROW) -> Draw:
    """SSIM against output, one panel a case."""
    return partial(_scatters, columns=columns)


def _galleries(cases: Sequence[Finished], *, best: int, columns: int) -> Figures:
    return {
        name: pairs_figure(pairs(case, best), title=gallery_title(case.record, best), columns=columns)
        for name, case in part_names(cases).items()
    }


def _scatters(cases: Sequence[Finished], *, columns: int) -> Figures:
    panels = [scatter_panel(case.record) for case in cases]
    x_label = "output of the network" if "output" in cases[0].record.samples else "margin"
    title = "SSIM of each training sample against " + x_label
    return {"": scatter_figure(panels, columns=min(columns, len(panels)), title=title, x_label=x_label)}


def part_names(cases: Sequence[Finished]) -> Mapping[str, Finished]:
    """A name for the figure of each case; the only one needs none."""
    return {"": cases[0]} if len(cases) == 1 else {case.record.preset: case for case in cases}


def pairs(case: Finished, best: int) -> list[Pair]:
    """The best pairs by SSIM, best first; above the papers' threshold in blue."""
    scores = torch.tensor(case.record.samples["ssim"])
    chosen = scores.argsort(descending=True, stable=True)[:best]
    return [pair(case, index) for index in chosen.tolist()]


def pair(case: Finished, index: int) -> Pair:
    score = case.record.samples["ssim"][index]
    shown, original = (pixels(case.tensors[name][index]) for name in ("reconstruction", "original"))
    return Pair(shown, original, f"{score:.2f}", "tab:blue" if score > 0.4 else "tab:red")


def pixels(image: Tensor) -> Tensor:
    """Stored bytes as values in [0, 1]."""
    return image.float() / 255


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
