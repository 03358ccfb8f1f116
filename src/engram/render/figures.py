"""Figures that show images; each takes finished numbers and returns PNG bytes."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from engram.core.errors import ConfigError
from engram.data.sets import ImageSet

if TYPE_CHECKING:
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
