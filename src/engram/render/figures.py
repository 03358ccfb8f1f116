"""Figures that show images, and plots of numbers; each takes finished numbers and returns PNG bytes."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from engram.core.errors import ConfigError
from engram.data.sets import ImageSet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CHART = "chart: numbers alone, no images of data"


@dataclass(frozen=True, eq=False)
class Pair:
    """A reconstruction and the training image it was matched to, both [C, H, W] in [0, 1], with a caption."""

    reconstruction: Tensor
    original: Tensor
    caption: str
    colour: str = "black"


def pairs_figure(pairs: Sequence[Pair], *, title: str, columns: int = 10) -> bytes:
    """Reconstructions above their originals, as the papers lay out their galleries."""
    columns = max(1, min(columns, len(pairs)))
    rows = math.ceil(len(pairs) / columns)
    figure = new_figure(columns * 0.95 + 0.9, rows * 2.15 + 0.6)
    axes = figure.subplots(2 * rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for index, pair in enumerate(pairs):
        row, column = divmod(index, columns)
        upper, lower = axes[2 * row][column], axes[2 * row + 1][column]
        _show(upper, pair.reconstruction)
        _show(lower, pair.original)
        upper.set_title(pair.caption, fontsize=7, pad=2, color=pair.colour)
    for row in range(rows):
        for axis, text in (
            (axes[2 * row][0], "recon-\nstruction"),
            (axes[2 * row + 1][0], "training\nimage"),
        ):
            axis.text(-0.12, 0.5, text, fontsize=7, ha="right", va="center", transform=axis.transAxes)
    figure.suptitle(title, fontsize=10)
    return png(figure)


def _show(axis: object, image: Tensor) -> None:
    pixels = image.detach().cpu().clamp(0, 1)
    shown = pixels[0] if pixels.shape[0] == 1 else pixels.permute(1, 2, 0)
    axis.imshow(shown.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")  # type: ignore[attr-defined]


def new_figure(width: float, height: float) -> Figure:
    # Without pyplot there is no global state and no display needed.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def png(figure: Figure, *, chart: bool = False) -> bytes:
    """A chart shows only numbers, no image of anyone's data, and its metadata says so."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=130, metadata={"Comment": CHART} if chart else None)
    return stream.getvalue()


def is_chart(content: bytes) -> bool:
    """Whether a PNG was drawn as a chart."""
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
        return bool(image.info.get("Comment") == CHART)


def kernels_figure(kernels: Tensor, *, title: str, columns: int = 8) -> bytes:
    """Kernels [n, C, k, k] in a grid, on one scale with zero in the middle; three channels as colours, else their
    mean in grey."""
    columns = min(columns, len(kernels))
    rows = math.ceil(len(kernels) / columns)
    figure = new_figure(0.8 * columns + 0.4, 0.8 * rows + 0.7)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, picture in zip(axes.flat, kernel_pictures(kernels), strict=False):
        shown = picture[0] if len(picture) == 1 else picture.permute(1, 2, 0)
        axis.imshow(shown.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    figure.suptitle(title, fontsize=9)
    return png(figure)


def kernel_pictures(kernels: Tensor) -> Tensor:
    """Kernels as pictures [n, 3 or 1, k, k] in [0, 1]: 1/2 + w / (2 max |w|) over all of them.

    >>> import torch
    >>> kernel_pictures(torch.tensor([-2.0, 0.0, 1.0, 2.0]).view(2, 1, 1, 2)).flatten().tolist()
    [0.0, 0.5, 0.75, 1.0]
    """
    values = kernels.detach().cpu().double()
    values = values if values.shape[1] == 3 else values.mean(1, keepdim=True)
    return 0.5 + values / (2 * values.abs().max().clamp(min=1e-300))


def mosaic(images: Tensor, columns: int, *, gap: int = 1) -> Tensor:
    """Images [m, C, H, W] in [0, 1] side by side with white gaps, [C, rows (H + gap) + gap, ...].

    >>> mosaic(torch.zeros(3, 1, 1, 1), 2)[0].int().tolist()
    [[1, 1, 1, 1, 1], [1, 0, 1, 0, 1], [1, 1, 1, 1, 1], [1, 0, 1, 1, 1], [1, 1, 1, 1, 1]]
    """
    count, channels, height, width = images.shape
    rows = math.ceil(count / columns)
    sheet = torch.ones(channels, rows * (height + gap) + gap, columns * (width + gap) + gap)
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        top, left = row * (height + gap) + gap, column * (width + gap) + gap
        sheet[:, top : top + height, left : left + width] = image
    return sheet


def mosaic_figure(images: Tensor, *, title: str, columns: int) -> bytes:
    """The images [m, C, H, W] in [0, 1] under a title."""
    columns = max(1, min(columns, len(images)))
    sheet = mosaic(images.float().clamp(0, 1), columns)
    width = min(12.0, 0.45 * columns + 0.6)
    figure = new_figure(max(width, 4.0), max(width, 4.0) * sheet.shape[1] / sheet.shape[2] + 0.5)
    axis = figure.subplots()
    axis.set_axis_off()
    shown = sheet[0] if len(sheet) == 1 else sheet.permute(1, 2, 0)
    axis.imshow(shown.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    figure.suptitle(title, fontsize=9)
    return png(figure)


COLUMNS = 10
_TILE = 64  # small images are enlarged by a whole factor to about this many pixels, so that pixels stay square
_LARGEST = 128
_GAP, _TITLE, _MARGIN = 4, 26, 12


def contact_sheet(images: ImageSet, n: int) -> Image.Image:
    """About n images [C, H, W], the same number of each class, drawn class by class."""
    if len(images.shape) != 3:
        raise ConfigError(
            f"{images.name} contains points of shape {images.shape}, not images; choose another data set"
        )
    per_class = max(1, n // len(images.classes))
    groups = [
        [_tile(images, int(index)) for index in (images.labels == label).nonzero().flatten()[:per_class]]
        for label in range(len(images.classes))
    ]
    width, height = next(group[0].size for group in groups if group)
    rows = sum(-(-len(group) // COLUMNS) for group in groups)
    sheet = Image.new(
        "RGB",
        (
            2 * _MARGIN + COLUMNS * (width + _GAP) - _GAP,
            2 * _MARGIN + len(groups) * _TITLE + rows * (height + _GAP),
        ),
        "white",
    )
    draw, font, top = ImageDraw.Draw(sheet), ImageFont.load_default(size=15), _MARGIN
    counts = torch.bincount(images.labels, minlength=len(groups)).tolist()
    for name, count, group in zip(images.classes, counts, groups, strict=True):
        draw.text((_MARGIN, top), f"{name}  ({len(group)} of {count})", fill="black", font=font)
        top += _TITLE
        for position, tile in enumerate(group):
            row, column = divmod(position, COLUMNS)
            sheet.paste(tile, (_MARGIN + column * (width + _GAP), top + row * (height + _GAP)))
        top += -(-len(group) // COLUMNS) * (height + _GAP)
    return sheet


def _tile(images: ImageSet, index: int) -> Image.Image:
    pixels = (images.images[index] * 255).round().to(torch.uint8)
    picture = Image.fromarray(pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy())
    longest = max(picture.size)
    if longest > _LARGEST:
        picture.thumbnail((_LARGEST, _LARGEST))
        return picture
    factor = max(1, round(_TILE / longest))
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)


@dataclass(frozen=True)
class Line:
    """Values over x; dashed for a null."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = "tab:blue"
    dashed: bool = False


@dataclass(frozen=True)
class CurvePanel:
    """Lines over one axis, and named horizontal levels to compare them with."""

    x_label: str
    y_label: str
    lines: Sequence[Line]
    levels: dict[str, float] = field(default_factory=dict)
    log: bool = False


def curves_figure(panels: Sequence[CurvePanel], *, title: str) -> bytes:
    """The panels side by side."""
    figure = new_figure(4.8 * len(panels), 3.6)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        for line in panel.lines:
            style = "--" if line.dashed else "-"
            axis.plot(line.x, line.y, marker=".", ls=style, color=line.colour, label=line.name)
        for shade, (name, level) in enumerate(panel.levels.items()):
            axis.axhline(level, ls=":", color=f"C{3 + shade}", label=f"{name}: {level:g}")
        if panel.log:
            axis.set_xscale("log")
        else:
            axis.set_xticks(sorted({value for line in panel.lines for value in line.x}))
        axis.set(xlabel=panel.x_label, ylabel=panel.y_label)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, frameon=False)
    figure.suptitle(title, fontsize=10)
    return png(figure, chart=True)


def heat_figure(
    values: Sequence[Sequence[float]],
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    row_name: str,
    column_name: str,
    title: str,
) -> bytes:
    """One cell for each row and column, with its number in it."""
    figure = new_figure(0.9 * len(columns) + 2.2, 0.6 * len(rows) + 1.4)
    axis = figure.subplots()
    highest = max(max(row) for row in values)
    axis.imshow(values, cmap="Blues", vmin=0, vmax=max(highest, 1), aspect="auto")
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            colour = "white" if value > 0.6 * highest > 0 else "black"
            axis.text(column, row, f"{value:g}", ha="center", va="center", color=colour, fontsize=9)
    axis.set_xticks(range(len(columns)), columns)
    axis.set_yticks(range(len(rows)), rows)
    axis.set(xlabel=column_name, ylabel=row_name)
    figure.suptitle(title, fontsize=9)
    return png(figure, chart=True)


RADIUS = 1.6
CLASS_COLOURS = ("tab:blue", "tab:red")
CANDIDATE_COLOURS = ("tab:green", "magenta")


@dataclass(frozen=True, eq=False)
class PlanePanel:
    """Training points [n, 2] as crosses; optionally candidates [m, 2] as dots, or the output of a network."""

    title: str
    points: Tensor
    labels: Tensor
    candidates: Tensor | None = None
    candidate_labels: Tensor | None = None
    network: Callable[[Tensor], Tensor] | None = None


def plane_figure(panels: Sequence[PlanePanel], *, columns: int = 3) -> bytes:
    """The panels in a grid."""
    rows = -(-len(panels) // columns)
    figure = new_figure(3.2 * columns, 3.3 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis, panel in zip(axes, panels, strict=False):
        axis.set_title(panel.title, fontsize=10, loc="left")
        axis.set(xlim=(-RADIUS, RADIUS), ylim=(-RADIUS, RADIUS), aspect="equal")
        if panel.network is not None:
            values = _grid_outputs(panel.network)
            bound = float(values.abs().max())
            extent = (-RADIUS, RADIUS, -RADIUS, RADIUS)
            axis.imshow(values.numpy(), origin="lower", extent=extent, cmap="RdBu_r", vmin=-bound, vmax=bound)
        for label, colour in enumerate(CLASS_COLOURS):
            chosen = panel.points[panel.labels == label]
            axis.scatter(*chosen.T.tolist(), marker="x", s=45, color=colour, zorder=3)
        if panel.candidates is not None and panel.candidate_labels is not None:
            for label, colour in enumerate(CANDIDATE_COLOURS):
                chosen = panel.candidates[panel.candidate_labels == label]
                axis.scatter(*chosen.T.tolist(), marker="o", s=14, color=colour, alpha=0.8)
    return png(figure, chart=True)


@torch.no_grad()
def _grid_outputs(network: Callable[[Tensor], Tensor], side: int = 120) -> Tensor:
    line = torch.linspace(-RADIUS, RADIUS, side)
    grid = torch.cartesian_prod(line, line).flip(1)  # rows are y, columns x
    return network(grid).reshape(side, side)


GOOD_SSIM = 0.4


@dataclass(frozen=True)
class ScatterPanel:
    """One target: x and SSIM of each sample; vertical lines at `margins`, the outputs nearest to the boundary."""

    title: str
    x: Sequence[float]
    ssim: Sequence[float]
    margins: Sequence[float] = ()


def scatter_figure(
    panels: Sequence[ScatterPanel], *, columns: int, title: str, x_label: str = "output of the network"
) -> bytes:
    """The panels in a grid, with a line at SSIM 0.4, above which the papers call a reconstruction good."""
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(2.7 * columns, 2.3 * rows + 0.5)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axis, panel in zip(axes.flat, panels, strict=False):
        good = [score > GOOD_SSIM for score in panel.ssim]
        colours = ["tab:red" if one else "tab:blue" for one in good]
        axis.scatter(panel.x, panel.ssim, s=5, c=colours, alpha=0.6, linewidths=0)
        axis.axhline(GOOD_SSIM, lw=0.8, ls="--", color="tab:grey")
        for margin in panel.margins:
            axis.axvline(margin, lw=0.8, ls=":", color="tab:green")
        axis.set_title(panel.title, fontsize=8)
        axis.set_ylim(-0.05, 1.0)
        axis.tick_params(labelsize=7)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    figure.supxlabel(x_label, fontsize=8)
    figure.supylabel("SSIM", fontsize=8)
    figure.suptitle(title, fontsize=10)
    return png(figure, chart=True)


@dataclass(frozen=True, eq=False)
class SpectrumPanel:
    """Singular values [k], descending; where known, noise ends at `edge` and signal begins at `threshold`."""

    values: Tensor
    rank: int
    edge: float | None
    threshold: float | None


@dataclass(frozen=True, eq=False)
class SamplesPanel:
    """Ceilings [n] with their name and, if any, the value above which they are good; margins and duals [n]."""

    ceiling: Tensor
    ceiling_name: str
    good: float | None
    margins: Tensor
    duals: Tensor


def inspection_figure(spectrum: SpectrumPanel, samples: SamplesPanel | None = None, *, title: str) -> bytes:
    """One panel from the weights alone; two more with samples."""
    panels = 1 if samples is None else 3
    figure = new_figure(4.6 * panels, 3.8)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    _draw_spectrum(axes[0], spectrum)
    if samples is not None:
        _draw_ceiling(axes[1], samples)
        _draw_duals(axes[2], samples)
    figure.suptitle(title, fontsize=10)
    return png(figure, chart=True)


def _draw_spectrum(axis: Axes, panel: SpectrumPanel) -> None:
    values = panel.values.tolist()
    # Zeros can't be drawn on a logarithmic axis; the edge of a layer without noise is practically zero.
    floor = 1e-9 * max(values[0], 1e-300)
    axis.plot(range(1, len(values) + 1), [max(value, floor) for value in values], ".", ms=3, color="tab:blue")
    for height, style, name in ((panel.edge, ":", "noise edge"), (panel.threshold, "--", "row space above")):
        if height is not None and height > floor:
            axis.axhline(height, ls=style, lw=1, color="tab:red", label=f"{name} ({height:.3g})")
    axis.set(xscale="log", yscale="log", xlabel="index", ylabel="singular value of the first layer")
    above = "noise unknown" if panel.edge is None else "above noise"
    axis.set_title(f"spectrum: {panel.rank} directions, {above}", fontsize=9)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=7)


def _draw_ceiling(axis: Axes, panel: SamplesPanel) -> None:
    lowest = min(0.0, float(panel.ceiling.min()))
    edges = torch.linspace(lowest, max(1.0, float(panel.ceiling.max())), 26).tolist()
    axis.hist(panel.ceiling.tolist(), bins=edges, color="tab:blue")
    if panel.good is not None:
        axis.axvline(panel.good, ls="--", lw=1, color="tab:red", label=f"good above {panel.good:g}")
        axis.legend(fontsize=7)
    axis.set(xlabel=panel.ceiling_name, ylabel="training samples")
    axis.set_title("ceiling: projection on the row space", fontsize=9)


def _draw_duals(axis: Axes, panel: SamplesPanel) -> None:
    axis.scatter(panel.margins.tolist(), panel.duals.tolist(), s=8, color="tab:blue", alpha=0.6)
    axis.set(xlabel="margin", ylabel="dual (best fit of the first layer)")
    axis.set_title("margins and duals", fontsize=9)
