"""Figures: each takes finished numbers and returns PNG bytes; nothing is computed here."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHART = "chart: numbers alone, no images of data"


@dataclass(frozen=True, eq=False)
class Pair:
    """A reconstruction and the training image it stands for, both [C, H, W] in [0, 1], with a caption."""

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
    """A chart shows numbers alone, no image of anybody's data, and the file says so."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=130, metadata={"Comment": CHART} if chart else None)
    return stream.getvalue()


def is_chart(content: bytes) -> bool:
    """Whether a PNG was drawn as one."""
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
        return bool(image.info.get("Comment") == CHART)
