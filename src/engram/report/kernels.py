"""The kernels of a first convolution as pictures (Buzaglo et al. 2023, Fig. 16)."""

from __future__ import annotations

import math

from torch import Tensor

from engram.report.figures import new_figure, png


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
