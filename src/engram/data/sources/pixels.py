"""What all file formats share: the size bound, bytes to [0, 1], numbered class names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.errors import DataError
from engram.files import aligned

MAX_BYTES = 2**30  # a declared size beyond this is a mistake or an attack; a full CIFAR has 0.2 GB


def within_bound(what: str, shape: Sequence[int]) -> int:
    """Number of bytes in `shape`, refused when it passes `MAX_BYTES`; exact integers, so no overflow.

    >>> within_bound("a batch", (10, 3, 32, 32))
    30720
    """
    size = math.prod(shape)
    if size > MAX_BYTES:
        raise DataError(
            f"refused: {what} declares {size:,} bytes, more than the {MAX_BYTES:,} engram reads; "
            f"check that it is the right file, or cut it into smaller ones"
        )
    return size


def to_unit(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    """Bytes 0..255 to float32 in [0, 1]: x / 255.

    >>> to_unit(np.array([0, 51, 255], np.uint8)).tolist()
    [0.0, 0.20000000298023224, 1.0]
    """
    return aligned(torch.from_numpy(pixels.astype(np.float32))).div_(255)


def numbered(count: int) -> tuple[str, ...]:
    """Class names for labels that come without: ('0', '1', ...)."""
    return tuple(str(label) for label in range(count))
