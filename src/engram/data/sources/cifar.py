"""CIFAR-10 and CIFAR-100, python or binary version, where torchvision puts them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from engram.data.image_set import ImageSet
from engram.data.places import missing
from engram.data.sources.pixels import numbered, to_unit, within_bound
from engram.data.sources.unpickle import read_pickle
from engram.errors import DataError

Name = Literal["cifar10", "cifar100"]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Batch = tuple[Bytes, list[int]]

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Layout:
    """Folder and file names of one version; in the binary one a record is `label_bytes`, then the pixels."""

    python: str
    binary: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    label_key: str
    label_bytes: int  # the last of them is the (fine) label


_LAYOUTS: dict[Name, _Layout] = {
    "cifar10": _Layout(
        python="cifar-10-batches-py",
        binary="cifar-10-batches-bin",
        train=tuple(f"data_batch_{number}" for number in range(1, 6)),
        test=("test_batch",),
        label_key="labels",
        label_bytes=1,
    ),
    "cifar100": _Layout(
        python="cifar-100-python",
        binary="cifar-100-binary",
        train=("train",),
        test=("test",),
        label_key="fine_labels",
        label_bytes=2,
    ),
}


def load_cifar(root: Path, name: Name, train: bool) -> ImageSet:
    """Read the batches that are there, in order; images [n, 3, 32, 32].

    A copy with only some training batches is fine: what it holds is what is loaded.
    """
    layout = _LAYOUTS[name]
    stems = layout.train if train else layout.test
    python = [path for stem in stems if (path := root / layout.python / stem).is_file()]
    binary = [path for stem in stems if (path := root / layout.binary / f"{stem}.bin").is_file()]
    if not python and not binary:
        raise missing(name, root / layout.python / stems[0])
    if python:
        batches = [_read_python(path, layout.label_key) for path in python]
    else:
        batches = [_read_binary(path, layout.label_bytes) for path in binary]
    images = to_unit(np.concatenate([pixels for pixels, _ in batches])).reshape(-1, 3, 32, 32)
    labels = torch.tensor([label for _, batch in batches for label in batch])
    return ImageSet(images, labels, name, CIFAR10 if name == "cifar10" else _fine_names(root, layout))


def _read_python(path: Path, label_key: str) -> Batch:
    content = read_pickle(path, ("data", label_key))
    pixels, labels = content.get("data"), content.get(label_key)
    labels = labels.tolist() if isinstance(labels, np.ndarray) else labels
    if not (isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.shape[1:] == (_PIXELS,)):
        raise DataError(f"{path} holds no `data` of bytes [n, {_PIXELS}]; fetch CIFAR's python version again")
    if not (isinstance(labels, list) and all(isinstance(label, int) for label in labels)):
        raise DataError(f"{path} holds no list of numbers `{label_key}`; fetch CIFAR's python version again")
    return pixels, labels


def _read_binary(path: Path, label_bytes: int) -> Batch:
    size, record = within_bound(str(path), [path.stat().st_size]), label_bytes + _PIXELS
    if size == 0 or size % record:
        raise DataError(
            f"{path} is truncated: {size:,} bytes are no whole number of {record}-byte records; "
            f"delete it and fetch or copy it again"
        )
    records = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, record)
    return records[:, label_bytes:], records[:, label_bytes - 1].tolist()


def _fine_names(root: Path, layout: _Layout) -> tuple[str, ...]:
    """CIFAR-100's class names from whichever version is there; numbers when neither brings them."""
    meta, text = root / layout.python / "meta", root / layout.binary / "fine_label_names.txt"
    names: object = None
    if meta.is_file():
        names = read_pickle(meta, ("fine_label_names",)).get("fine_label_names")
    elif text.is_file():
        names = text.read_text().split()
    if isinstance(names, list) and len(names) == 100:
        return tuple(str(name) for name in names)
    return numbered(100)
