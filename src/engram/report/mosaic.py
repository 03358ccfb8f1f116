"""Many images in one picture, row after row (Haim et al. 2022, Figs. 12 to 15)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engram.report.figures import new_figure, png


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
