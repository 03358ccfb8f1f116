"""Readers of the published data sets (MNIST, CIFAR) and of those that come with engram (faces, circle).

CIFAR's files are pickles, and a pickle may name any function and have it called. Here each permitted name is
replaced by an inert class that only stores its arguments, so not even numpy's own code runs; every other name is
refused.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import re
import struct
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from engram.core.errors import DataError, require
from engram.data.sets import ImageSet, numbered, to_unit, within_bound


class _Inert:
    """Stores what the pickle passes; BUILD finds `__setstate__`, so it cannot set attributes."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = ()

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(_Inert):
    """numpy's `_reconstruct(ndarray, (0,), b"b")`, then state (version, shape, dtype, fortran, data)."""


class _Buffer(_Inert):
    """numpy's `_frombuffer(data, dtype, shape, order)` of pickle protocol 5."""


class _Dtype(_Inert):
    """`dtype(code, align, copy)`, then state (version, byte order, ...)."""


class _Encoded(_Inert):
    """`_codecs.encode(text, "latin1")`: how Python 3 writes bytes in protocol 2."""


_ADMITTED: dict[str, type[_Inert]] = {
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "numpy.core.numeric._frombuffer": _Buffer,
    "numpy._core.numeric._frombuffer": _Buffer,
    "numpy.ndarray": _Inert,
    "numpy.dtype": _Dtype,
    "_codecs.encode": _Encoded,
}


class _ArraysOnly(pickle.Unpickler):
    """Looks up names only in `_ADMITTED`: nothing is imported, nothing is called."""

    def find_class(self, module: str, name: str) -> type[_Inert]:
        try:
            return _ADMITTED[f"{module}.{name}"]
        except KeyError:
            raise DataError(f"tries to load {module}.{name}") from None


def read_pickle(path: Path, wanted: Collection[str]) -> dict[str, Any]:
    """The `wanted` keys of a pickled dictionary, with numbers, text, lists and numpy arrays as values."""
    within_bound(str(path), [path.stat().st_size])
    try:
        content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="latin1").load()
        by_name = {_text(key): content[key] for key in content}
        return {key: _plain(by_name[key]) for key in wanted if key in by_name}
    except DataError as error:
        raise DataError(
            f"refused: {path} {error}; a data set needs only arrays, so this file may be hostile: "
            f"delete it and fetch it again"
        ) from error
    except Exception as error:  # damaged pickles can raise almost anything
        cause = str(error) or type(error).__name__
        raise DataError(
            f"{path} is truncated or damaged ({cause}); delete it and fetch or copy it again"
        ) from error


def _text(key: Any) -> Any:
    """A dictionary key as text, written by either Python 2 or 3."""
    if isinstance(key, _Encoded):
        return key.arguments[0]
    return key.decode("latin1") if isinstance(key, bytes) else key


def _plain(value: Any) -> Any:
    """Turn the record of an array into the array; leave everything else unchanged."""
    order: Any
    if isinstance(value, _Array):
        shape, dtype, fortran, data = value.state[-4:]
        order = "F" if fortran else "C"
    elif isinstance(value, _Buffer):
        data, dtype, shape, order = value.arguments
    else:
        return value
    if isinstance(data, _Encoded):
        data = data.arguments[0]
    code = dtype.arguments[0]
    if not re.fullmatch("[biu][1248]", code):
        raise DataError(f"contains an array of type {code!r}")
    numbers = np.frombuffer(
        data.encode("latin1") if isinstance(data, str) else data,
        np.dtype((dtype.state[1] if dtype.state else "=") + code),
    )
    return numbers.reshape(shape, order=order)


Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def missing(name: str, looked_for: Path) -> DataError:
    """The error for a data set whose files are missing: where they were looked for, and three cures."""
    return DataError(
        f"{name} was not found: there is no {looked_for}; fetch it with `engram data get {name}`, "
        f"or point --data-root or the variable ENGRAM_DATA at the folder with your copy"
    )


Folder = Literal["MNIST", "FashionMNIST"]

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
            body = stream.read(size + 1)  # one byte more shows any surplus without unpacking all of it
    except (EOFError, OSError, zlib.error, struct.error) as error:
        raise DataError(f"{path} is truncated or damaged ({error}); {cure}") from error
    if len(body) != size:
        found = "more" if len(body) > size else f"only {len(body):,}"
        raise DataError(f"{path} is truncated or damaged: it declares {size:,} bytes but contains {found}; {cure}")
    return np.frombuffer(body, np.uint8).reshape(shape)


def _find(name: str, plain: Path) -> Path:
    gzipped = plain.with_name(plain.name + ".gz")
    for path in (plain, gzipped):
        if path.is_file():
            return path
    raise missing(name, gzipped)


Name = Literal["cifar10", "cifar100"]
Batch = tuple[Bytes, list[int]]

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Layout:
    """Folder and file names of one data set; a record of the binary version is `label_bytes`, then the pixels."""

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

    A copy with only some of the training batches is fine: whatever it contains is loaded.
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
        raise DataError(f"{path} contains no `data` of bytes [n, {_PIXELS}]; fetch CIFAR's python version again")
    if not (isinstance(labels, list) and all(isinstance(label, int) for label in labels)):
        raise DataError(f"{path} contains no list of numbers `{label_key}`; fetch CIFAR's python version again")
    return pixels, labels


def _read_binary(path: Path, label_bytes: int) -> Batch:
    size, record = within_bound(str(path), [path.stat().st_size]), label_bytes + _PIXELS
    if size == 0 or size % record:
        raise DataError(
            f"{path} is truncated: {size:,} bytes are not a whole number of {record}-byte records; "
            f"delete it and fetch or copy it again"
        )
    records = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, record)
    return records[:, label_bytes:], records[:, label_bytes - 1].tolist()


def _fine_names(root: Path, layout: _Layout) -> tuple[str, ...]:
    """CIFAR-100's class names from whichever version is there; numbers if neither has them."""
    meta, text = root / layout.python / "meta", root / layout.binary / "fine_label_names.txt"
    names: object = None
    if meta.is_file():
        names = read_pickle(meta, ("fine_label_names",)).get("fine_label_names")
    elif text.is_file():
        names = text.read_text().split()
    if isinstance(names, list) and len(names) == 100:
        return tuple(str(name) for name in names)
    return numbered(100)


def load_circle(points: int = 20) -> ImageSet:
    """x_k = (cos 2 pi k / n, sin 2 pi k / n) with labels k mod 2; images [n, 2].

    >>> load_circle(4).labels.tolist()
    [0, 1, 0, 1]
    >>> load_circle(4).images.norm(dim=1).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    require(points >= 2 and points % 2 == 0, "points", "must be even, so that the colours alternate", points)
    which = torch.arange(points)
    angle = which * (2 * math.pi / points)
    images = torch.stack([angle.cos(), angle.sin()], dim=1)
    return ImageSet(images, which % 2, "circle", ("blue", "red"))


def load_faces() -> ImageSet:
    """Labelled Faces in the Wild, a subset: images [200, 1, 25, 25], label 0 = face, 1 = non-face."""
    from skimage.data import lfw_subset  # here, because the import takes a second

    pixels = lfw_subset()  # type: ignore[no-untyped-call]
    images = torch.tensor(pixels, dtype=torch.float32)[:, None]
    return ImageSet(images, torch.arange(len(images)) // 100, "faces", ("face", "non-face"))


READERS: dict[str, Callable[[Path, bool], ImageSet]] = {
    "faces": lambda root, train: load_faces(),
    "circle": lambda root, train: load_circle(),
    "mnist": lambda root, train: load_idx(root, "MNIST", train),
    "fashion-mnist": lambda root, train: load_idx(root, "FashionMNIST", train),
    "cifar10": lambda root, train: load_cifar(root, "cifar10", train),
    "cifar100": lambda root, train: load_cifar(root, "cifar100", train),
}
"""Readers by name in the catalogue; the arguments are the data root and whether to read the training images."""
