"""The data sets that engram knows by name, where they are stored, and loading by name or path."""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engram.core.errors import ConfigError, require

if TYPE_CHECKING:
    from engram.data.sets import ImageSet


def data_root(explicit: Path | None = None) -> Path:
    """The folder of the data sets: the argument, else ENGRAM_DATA, else ~/.cache/engram.

    >>> data_root(Path("photos")).name
    'photos'
    """
    chosen = explicit or os.environ.get("ENGRAM_DATA") or "~/.cache/engram"
    return Path(chosen).expanduser()


@dataclass(frozen=True)
class Entry:
    """One data set: any one of the files `signs` under the data root shows that it is present."""

    name: str
    description: str
    labels: str  # the label map that fits it best
    signs: tuple[str, ...] = ()

    @property
    def embedded(self) -> bool:
        """Comes with engram, so there is nothing to fetch."""
        return not self.signs

    @property
    def has_test(self) -> bool:
        """Only the published sets come with a test split."""
        return not self.embedded

    def found(self, root: Path) -> Path | None:
        """Its folder under `root`, or None."""
        return next(((root / sign).parent for sign in self.signs if (root / sign).is_file()), None)


_IDX = "raw/train-images-idx3-ubyte"
CATALOG: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry("faces", "100 faces and 100 non-faces, 25×25 gray", "face"),
        Entry("circle", "20 points on the unit circle", "identity"),
        Entry(
            "mnist",
            "handwritten digits, 28×28 gray",
            "odd-even",
            (f"MNIST/{_IDX}", f"MNIST/{_IDX}.gz"),
        ),
        Entry(
            "fashion-mnist",
            "ten kinds of clothing, 28×28 gray",
            "identity",
            (f"FashionMNIST/{_IDX}", f"FashionMNIST/{_IDX}.gz"),
        ),
        Entry(
            "cifar10",
            "photographs of animals and vehicles, 32×32 RGB",
            "vehicles-animals",
            ("cifar-10-batches-py/data_batch_1", "cifar-10-batches-bin/data_batch_1.bin"),
        ),
        Entry(
            "cifar100",
            "photographs of a hundred things, 32×32 RGB",
            "identity",
            ("cifar-100-python/train", "cifar-100-binary/train.bin"),
        ),
    )
}


def load(name: str, *, root: Path | None = None, train: bool = True) -> ImageSet:
    """Load a data set by name, `npz:PATH`, `folder:PATH`, `csv:PATH`, `safetensors:PATH`, or by a plain path.

    >>> load("circle").shape
    (2,)
    """
    if name in CATALOG:
        entry = CATALOG[name]
        require(train or entry.has_test, "train", f"must be True for {name}, which has no test split", train)
        from engram.data.readers import READERS  # here, so that listing the catalogue does not import torch

        return READERS[name](data_root(root), train)
    name, sides = split_size(name)
    kind, path = _own_data(name)
    require(train, "train", f"must be True for {kind}:{path}, which has no test split", train)
    from engram.data import own_files

    if kind == "folder":
        return own_files.load_folder(path, sides)
    if kind == "csv":
        place, _, label = str(path).partition("#")
        return own_files.load_csv(Path(place), label or None)
    return own_files.load_npz(path) if kind == "npz" else own_files.load_safetensors(path)


FILES = ("npz", "csv", "safetensors")
_SIZE = re.compile(r"^(?P<name>.+)@(?P<sides>[0-9]{1,5}x[0-9]{1,5}x[0-9]{1,5})$")


def split_size(name: str) -> tuple[str, tuple[int, ...] | None]:
    """The size that pictures of a folder are resized to, as written after an @.

    >>> split_size("folder:photos@3x32x32"), split_size("folder:photos")
    (('folder:photos', (3, 32, 32)), ('folder:photos', None))
    """
    found = _SIZE.match(name)
    if found is None:
        return name, None
    return found["name"], tuple(int(side) for side in found["sides"].split("x"))


def sized(name: str, shape: tuple[int, ...] | None) -> str:
    """The name of a folder with the size that its pictures should have, unless it has one; other names as they
    are.

    >>> sized("folder:photos", (3, 32, 32)), sized("cifar10", (3, 32, 32))
    ('folder:photos@3x32x32', 'cifar10')
    """
    is_folder = name.startswith("folder:") or (name not in CATALOG and Path(name).expanduser().is_dir())
    if shape is None or len(shape) != 3 or not is_folder or split_size(name)[1] is not None:
        return name
    return f"{name}@{'x'.join(map(str, shape))}"


def default_labels(name: str, *, own_classes: bool = False) -> str:
    """The default label map; tasks that use all classes keep the data set's own.

    >>> default_labels("mnist"), default_labels("mnist", own_classes=True), default_labels("folder:photos")
    ('odd-even', 'identity', 'identity')
    """
    return CATALOG[name].labels if name in CATALOG and not own_classes else "identity"


def _own_data(name: str) -> tuple[str, Path]:
    """Split `npz:PATH` and the like, and find the kind of a plain path."""
    kind, colon, place = name.partition(":")
    if colon and kind in ("folder", *FILES):
        return kind, Path(place).expanduser()
    path = Path(name).expanduser()
    if (suffix := path.suffix.partition("#")[0].removeprefix(".")) in FILES:
        return suffix, path
    if path.is_dir():
        return "folder", path
    close = difflib.get_close_matches(name, CATALOG, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise ConfigError(
        f"there is no data set {name!r}; {hint}choose one of {', '.join(CATALOG)}, "
        "or your own as npz:PATH (arrays images, labels), folder:PATH (one subfolder per class), csv:PATH (a "
        "table) or safetensors:PATH (embeddings, labels)"
    )
