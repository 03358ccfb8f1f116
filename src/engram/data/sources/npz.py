"""Your own data as one .npz file with the arrays `images` and `labels`."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.data.image_set import ImageSet
from engram.data.sources.pixels import numbered, to_unit, within_bound
from engram.errors import DataError
from engram.files import aligned

Array = np.ndarray[Any, np.dtype[Any]]
MAX_CLASSES = 10_000  # labels beyond are identifiers, not classes
_CURE = "write it with numpy.savez(path, images=..., labels=...)"


def load_npz(path: Path) -> ImageSet:
    """Read images [n, H, W], [n, H, W, C], [n, C, H, W] (bytes or floats in [0, 1]) or vectors [n, d], labels [n].

    Vectors, such as table rows or embeddings, may be any finite floats; bytes count as pixels. Four axes mean
    [n, C, H, W] when the second has 1 or 3 entries, else [n, H, W, C].
    """
    arrays = _read(path)
    images, labels = arrays["images"], arrays["labels"]
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        raise DataError(f"{path}: labels must be whole numbers [n], got {labels.dtype} {labels.shape}; {_CURE}")
    if not 0 <= int(labels.min()) <= int(labels.max()) < MAX_CLASSES:
        raise DataError(
            f"{path}: labels must count classes 0, 1, ... below {MAX_CLASSES}, "
            f"got {labels.min()}..{labels.max()}; number them anew"
        )
    return ImageSet(
        _channels_first(path, _unit(path, images)),
        torch.from_numpy(labels.astype(np.int64)),
        path.stem,
        numbered(int(labels.max()) + 1),
    )


def _read(path: Path) -> dict[str, Array]:
    """Both arrays; their declared sizes are checked before a byte is unpacked, and no object is unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            within_bound(str(path), [sum(member.file_size for member in archive.infolist())])
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in ("images", "labels")}
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}; check the path") from error
    except KeyError as error:
        raise DataError(f"{path} lacks an array: {error.args[0]}; {_CURE}") from error
    except ValueError as error:
        raise DataError(f"{path} holds something other than plain numbers ({error}); {_CURE}") from error
    except (OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path} is not a whole .npz file ({error}); {_CURE}") from error


def _unit(path: Path, images: Array) -> Tensor:
    if images.dtype == np.uint8:
        return to_unit(images)
    if images.dtype.kind != "f":
        raise DataError(
            f"{path}: images must be uint8 0..255 or floats in [0, 1], got {images.dtype}; convert them"
        )
    if images.ndim == 2:
        if images.size and not np.abs(images).max() <= np.finfo(np.float32).max:  # said so that NaN fails it too
            raise DataError(f"{path}: vectors must be finite in float32; remove or scale such values")
        return aligned(torch.from_numpy(images.astype(np.float32)))
    if images.size and not (images.min() >= 0 and images.max() <= 1):  # said so that NaN fails it too
        raise DataError(
            f"{path}: float images must lie in [0, 1], got {images.min()}..{images.max()}; "
            f"scale them, or save bytes as uint8"
        )
    return aligned(torch.from_numpy(images.astype(np.float32)))


def _channels_first(path: Path, images: Tensor) -> Tensor:
    """[n, d] stays; [n, H, W] and [n, H, W, C] become [n, C, H, W]."""
    if images.ndim == 2:
        return images
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return images
    if images.ndim == 4 and images.shape[3] in (1, 3):
        return images.permute(0, 3, 1, 2).contiguous()
    raise DataError(
        f"{path}: images must be [n, H, W], [n, H, W, C], [n, C, H, W] with C = 1 or 3, or [n, d], "
        f"got {tuple(images.shape)}; reshape them"
    )
