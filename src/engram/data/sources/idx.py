"""MNIST and Fashion-MNIST in their IDX files, plain or gzipped, where torchvision puts them."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from engram.data.image_set import ImageSet
from engram.data.places import missing
from engram.data.sources.pixels import numbered, to_unit, within_bound
from engram.errors import DataError

Folder = Literal["MNIST", "FashionMNIST"]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

FASHION = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
_NAMES: dict[Folder, tuple[str, tuple[str, ...]]] = {
    "MNIST": ("mnist", numbered(10)),
    "FashionMNIST": ("fashion-mnist", FASHION),
}
_UNSIGNED_BYTE = 0x08  # third byte of the magic number; the fourth is the number of dimensions


def load_idx(root: Path, folder: Folder, train: bool) -> ImageSet:
    """Read ROOT/<folder>/raw/{train,t10k}-...-ubyte[.gz]; images [n, 1, H, W]."""
    name, classes = _NAMES[folder]
    raw, part = root / folder / "raw", "train" if train else "t10k"
    images = read_idx(_find(name, raw / f"{part}-images-idx3-ubyte"), dims=3)
    labels = read_idx(_find(name, raw / f"{part}-labels-idx1-ubyte"), dims=1)
    return ImageSet(to_unit(images)[:, None], torch.from_numpy(labels.astype(np.int64)), name, classes)


def read_idx(path: Path, dims: int) -> Bytes:
    """One IDX file of unsigned bytes: magic 0 0 8 dims, big-endian sizes, then exactly that many bytes."""
    cure = "delete it and fetch or copy it again"
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            header = stream.read(4 + 4 * dims)
            if header[:4] != bytes([0, 0, _UNSIGNED_BYTE, dims]):
                raise DataError(
                    f"{path} is not an IDX file with {dims} dimensions: "
                    f"it starts with 0x{header[:4].hex()}; {cure}"
                )
            shape = struct.unpack(f">{dims}I", header[4:])
            size = within_bound(str(path), shape)
            body = stream.read(size + 1)  # one more than declared shows surplus without unpacking all of it
    except (EOFError, OSError, zlib.error, struct.error) as error:
        raise DataError(f"{path} is truncated or damaged ({error}); {cure}") from error
    if len(body) != size:
        found = "more" if len(body) > size else f"only {len(body):,}"
        raise DataError(f"{path} is truncated or damaged: it declares {size:,} bytes and holds {found}; {cure}")
    return np.frombuffer(body, np.uint8).reshape(shape)


def _find(name: str, plain: Path) -> Path:
    gzipped = plain.with_name(plain.name + ".gz")
    for path in (plain, gzipped):
        if path.is_file():
            return path
    raise missing(name, gzipped)
