"""Tensors as images inside a page."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image
from torch import Tensor

LARGEST_PNG = 64 * 64
"""Up to so many pixels an image is stored exactly; larger ones as JPEG."""
LARGEST_SIDE = 112
"""Larger images are shrunk: a report of a thousand must stay small enough to send."""
JPEG_QUALITY = 85


def data_uri(image: Tensor) -> str:
    """An image [C, H, W] in [0, 1] as a data URI; other than 1 or 3 channels are shown by their mean.

    >>> import torch
    >>> data_uri(torch.zeros(1, 2, 2))[:22]
    'data:image/png;base64,'
    """
    pixels = image.detach().cpu().float().clamp(0, 1)
    if len(pixels) not in (1, 3):
        pixels = pixels.mean(0, keepdim=True)
    values = (pixels * 255).round().numpy().astype(np.uint8)
    picture = Image.fromarray(values[0] if len(values) == 1 else values.transpose(1, 2, 0))
    exact = picture.width * picture.height <= LARGEST_PNG
    if not exact:
        picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    stream = io.BytesIO()
    if exact:
        picture.save(stream, "PNG")
    else:
        picture.save(stream, "JPEG", quality=JPEG_QUALITY)
    kind = "png" if exact else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"
