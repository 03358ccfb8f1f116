"""The data sets that engram knows by name: where they are, how they are fetched, and loading by name or path."""

from __future__ import annotations

import difflib
import hashlib
import http.client
import os
import re
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engram.core.errors import ConfigError, DataError, require, require_path

if TYPE_CHECKING:
    from engram.core.loop import Progress
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
    """Load a data set by name, by a plain path, or by kind and path: npz, npy, folder, csv, parquet, safetensors.

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
    if kind in ("csv", "parquet", "npy"):
        place, _, label = str(path).partition("#")
        file = own_files.require_file(Path(place))
        if kind == "parquet":
            from engram.data.parquet import load_parquet

            return load_parquet(file, label or None)
        return (own_files.load_csv if kind == "csv" else own_files.load_npy)(file, label or None)
    own_files.require_file(path)
    return own_files.load_npz(path) if kind == "npz" else own_files.load_safetensors(path)


FILES = ("npz", "npy", "csv", "parquet", "safetensors")
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
    require_path(name)
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
    require_path(name)
    kind, colon, place = name.partition(":")
    if colon and kind in ("folder", *FILES):
        return kind, Path(place).expanduser()
    path = Path(name).expanduser()
    if (suffix := Path(name.partition("#")[0]).suffix.removeprefix(".")) in FILES:
        return suffix, path
    if path.is_dir():
        return "folder", path
    close = difflib.get_close_matches(name, CATALOG, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise ConfigError(
        f"there is no data set {name!r}; {hint}choose one of {', '.join(CATALOG)}, "
        "or your own as npz:PATH (arrays images, labels), folder:PATH (one subfolder per class), csv:PATH or "
        "parquet:PATH (a table), npy:PATH or safetensors:PATH (embeddings, labels)"
    )


@dataclass(frozen=True)
class Remote:
    """One file to fetch into ROOT/`folder`.

    For an archive, `holds` lists its files; it is unpacked in ROOT and creates `folder`.
    """

    url: str
    md5: str
    folder: str
    holds: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        return self.url.rpartition("/")[2]

    def target(self, root: Path) -> Path:
        """What exists once it is fetched."""
        return root / self.folder if self.holds else root / self.folder / self.file_name

    def by_hand(self, root: Path) -> str:
        """What to do if this machine can't fetch it."""
        if self.holds:
            return f"to place it by hand, unpack {self.url} in {root} so that {self.target(root)} exists"
        return f"to place it by hand, save {self.url} as {self.target(root)}"


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_CIFAR = "https://www.cs.toronto.edu/~kriz"
_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))

# The published checksums are MD5: enough against damage, not against malice, so the readers still treat every
# file as hostile.
REMOTES: dict[str, tuple[Remote, ...]] = {
    "mnist": (
        Remote(f"{_MNIST}/train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", "MNIST/raw"),
        Remote(f"{_MNIST}/train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", "MNIST/raw"),
        Remote(f"{_MNIST}/t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", "MNIST/raw"),
        Remote(f"{_MNIST}/t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", "MNIST/raw"),
    ),
    "fashion-mnist": (
        Remote(f"{_FASHION}/train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "FashionMNIST/raw"),
        Remote(f"{_FASHION}/train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", "FashionMNIST/raw"),
        Remote(f"{_FASHION}/t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", "FashionMNIST/raw"),
        Remote(f"{_FASHION}/t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", "FashionMNIST/raw"),
    ),
    "cifar10": (
        Remote(
            f"{_CIFAR}/cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            "cifar-10-batches-py",
            (*_BATCHES, "test_batch", "batches.meta"),
        ),
    ),
    "cifar100": (
        Remote(
            f"{_CIFAR}/cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            "cifar-100-python",
            ("train", "test", "meta"),
        ),
    ),
}


MAX_BYTES = 2**30  # far above any published set; a server that sends more is cut off
_CHUNK = 2**16
_SILENCE = 60.0  # seconds without a byte before a connection counts as dead
_RANGE_NOT_SATISFIABLE = 416


def fetch(
    name: str, root: Path, progress: Progress | None = None, *, files: Sequence[Remote] | None = None
) -> list[Path]:
    """Fetch what `name` lacks under `root`; return what was added. Existing files are never replaced."""
    if files is None:
        if name not in REMOTES:
            raise ConfigError(f"{name} can't be fetched; engram can fetch {', '.join(REMOTES)}")
        files = REMOTES[name]
    progress = progress or (lambda label, share: None)
    wanted = [remote for remote in files if not _is_here(remote, root)]
    for remote in wanted:
        try:
            _fetch_one(name, remote, root, progress)
        except (OSError, EOFError, http.client.HTTPException, tarfile.TarError, zlib.error) as error:
            raise DataError(f"can't fetch {remote.url}: {error}; {remote.by_hand(root)}") from error
    return [remote.target(root) for remote in wanted]


def _is_here(remote: Remote, root: Path) -> bool:
    """Whether it is in place; anything else there is the user's, so it is an error and is not replaced."""
    target = remote.target(root)
    if not target.exists():
        return False
    if remote.holds:
        flaw = next((f"lacks {file}" for file in remote.holds if not (target / file).is_file()), "")
    else:
        flaw = "" if _md5(target) == remote.md5 else "differs from the published file"
    if flaw:
        raise DataError(f"{target} exists but {flaw}; use it as it is, or move it away and fetch again")
    return True


def _fetch_one(name: str, remote: Remote, root: Path, progress: Progress) -> None:
    target = remote.target(root)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.parent / f"{remote.file_name}.part"
    _download(name, remote, part, progress)
    found = _md5(part)
    if found != remote.md5:
        part.unlink()
        raise DataError(
            f"{remote.url} has checksum {found}, not the published {remote.md5}, and was deleted; "
            f"try again, and if that fails, {remote.by_hand(root)}"
        )
    if remote.holds:
        _unpack(part, remote, root)
        part.unlink()
    else:
        os.replace(part, target)  # noqa: PTH105 - the atomic call itself


def _download(name: str, remote: Remote, part: Path, progress: Progress) -> None:
    """Append to `part` until it is complete; reconnect as long as each connection brings something."""
    while True:
        before = part.stat().st_size if part.exists() else 0
        total = _one_connection(remote, part, before, progress)
        size = part.stat().st_size
        if total is None or size >= total:
            return
        if size <= before:
            raise DataError(
                f"the connection to {remote.url} was cut off at {size:,} of {total:,} bytes; "
                f"run `engram data get {name}` again to resume from there"
            )


def _one_connection(remote: Remote, part: Path, start: int, progress: Progress) -> int | None:
    """Read until the server stops sending; return the size of the whole file, None if unknown."""
    request = urllib.request.Request(remote.url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(request, timeout=_SILENCE)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == _RANGE_NOT_SATISFIABLE and start:
                return None  # it was already complete; the checksum shows whether it is right
        raise
    with response:
        resumed = start > 0 and response.status == http.client.PARTIAL_CONTENT
        done = start if resumed else 0
        total = None if response.length is None else done + response.length
        with part.open("ab" if resumed else "wb") as stream:
            while chunk := _read(response, total):
                done += stream.write(chunk)
                if done > MAX_BYTES:
                    raise OSError(f"it sent more than {MAX_BYTES:,} bytes")
                shown = f"{done / 1e6:.1f} MB" + ("" if total is None else f" of {total / 1e6:.1f} MB")
                progress(f"{remote.file_name}: {shown}", 0.0 if not total else done / total)
    return total


def _read(response: http.client.HTTPResponse, total: int | None) -> bytes:
    """The next bytes; if the size is known, a broken connection counts as one that closed early."""
    try:
        return response.read1(_CHUNK)
    except (OSError, http.client.HTTPException):
        if total is None:
            raise
        return b""


def _unpack(archive: Path, remote: Remote, root: Path) -> None:
    """Unpack next to the target with tarfile's `data` filter, then rename: the folder appears atomically."""
    aside = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=root))
    try:
        with tarfile.open(archive, "r:gz") as members:
            size = 0
            for member in members:  # counted and unpacked one by one: a bomb stops at the limit
                size += member.size
                if size > MAX_BYTES:
                    raise OSError(f"it unpacks to more than {MAX_BYTES:,} bytes")
                members.extract(member, aside, filter="data")
        lacking = [file for file in remote.holds if not (aside / remote.folder / file).is_file()]
        if lacking:
            raise OSError(f"the archive lacks {remote.folder}/{lacking[0]}")
        os.replace(aside / remote.folder, remote.target(root))  # noqa: PTH105 - the atomic call itself
    except tarfile.FilterError as error:
        archive.unlink()
        raise DataError(
            f"refused: {remote.url} would write outside its folder ({error}); it was deleted"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _md5(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
