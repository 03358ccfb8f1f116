"""Your own data: arrays (.npz, .npy, .safetensors), pictures (a folder, a subfolder per class), a table (.csv)."""

from __future__ import annotations

import csv
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from engram.core.errors import CheckpointError, DataError
from engram.core.files import BROKEN, aligned, read_tensors
from engram.data.sets import ImageSet, numbered, to_unit, within_bound

Array = np.ndarray[Any, np.dtype[Any]]
ORIENTATION = 0x0112  # the EXIF tag that says how the camera was held
MAX_CLASSES = 10_000  # larger labels are identifiers, not classes
_CURE = "write it with numpy.savez(path, images=..., labels=...)"


def load_npz(path: Path) -> ImageSet:
    """Read images [n, H, W], [n, H, W, C], [n, C, H, W] (bytes or floats in [0, 1]) or vectors [n, d], labels [n].

    Vectors, such as table rows or embeddings, may be any finite floats; bytes are pixels. Four axes mean
    [n, C, H, W] if the second has 1 or 3 entries, else [n, H, W, C].
    """
    arrays = _read(path)
    return arrays_set(path, arrays["images"], arrays["labels"])


def arrays_set(path: Path, images: Array, labels: Array) -> ImageSet:
    """Images or vectors with their labels, checked."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        raise DataError(f"{path}: labels must be whole numbers [n], got {labels.dtype} {labels.shape}; {_CURE}")
    if not 0 <= int(labels.min()) <= int(labels.max()) < MAX_CLASSES:
        raise DataError(
            f"{path}: labels must be classes 0, 1, ... below {MAX_CLASSES}, "
            f"got {labels.min()}..{labels.max()}; renumber them"
        )
    return ImageSet(
        _channels_first(path, _unit(path, images)),
        torch.from_numpy(labels.astype(np.int64)),
        path.stem,
        numbered(int(labels.max()) + 1),
    )


def _read(path: Path) -> dict[str, Array]:
    """Both arrays; declared sizes are checked before a byte is unpacked, and nothing is unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            within_bound(str(path), [sum(member.file_size for member in archive.infolist())])
        with np.load(path, allow_pickle=False) as arrays:
            found = {key: arrays[key] for key in ("images", "labels")}
        if not all(isinstance(array, np.ndarray) for array in found.values()):
            raise ValueError("a member that is no array")
        return found
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}; check the path") from error
    except KeyError as error:
        raise DataError(f"{path} lacks an array: {error.args[0]}; {_CURE}") from error
    except ValueError as error:
        raise DataError(f"{path} contains something other than plain numbers ({error}); {_CURE}") from error
    except BROKEN as error:
        raise DataError(f"{path} is not a complete .npz file ({error}); {_CURE}") from error


def _unit(path: Path, images: Array) -> Tensor:
    if images.dtype == np.uint8:
        return to_unit(images)
    if images.dtype.kind != "f":
        raise DataError(
            f"{path}: images must be uint8 0..255 or floats in [0, 1], got {images.dtype}; convert them"
        )
    if images.ndim == 2:
        if images.size and not np.abs(images).max() <= np.finfo(np.float32).max:  # written so that NaN fails too
            raise DataError(f"{path}: vectors must be finite in float32; remove or scale such values")
        return aligned(torch.from_numpy(images.astype(np.float32)))
    low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 1.0)
    if low >= 0 and 1 < high <= 255 and high > 2:  # bytes as floats
        return aligned(torch.from_numpy((images / 255).astype(np.float32)))
    if not (low >= 0 and high <= 1):  # written so that NaN fails too
        raise DataError(
            f"{path}: float images must lie in [0, 1], got {low:.4g}..{high:.4g}. If they are normalised already, "
            "save the pixels themselves and give the normalisation with --normalize; in Python, engram.membership "
            "takes inputs as they are"
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


SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})
_GRAY = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "F"})
MAX_SIDE = 16_384


def load_folder(path: Path, shape: tuple[int, ...] | None = None) -> ImageSet:
    """Read subfolders (classes) and their pictures, sorted by name, as a person sees them.

    They are turned as their camera says, and transparent parts are white. With a shape [C, H, W] they are resized
    to it, like torchvision's Resize; without one they must have one size, and images are [n, 1, H, W] if all
    pictures are gray, else [n, 3, H, W].
    """
    if not path.is_dir():
        raise DataError(f"there is no folder {path}; check the path")
    classes = sorted(sub for sub in path.iterdir() if sub.is_dir() and not sub.name.startswith("."))
    files = [(file, label) for label, sub in enumerate(classes) for file in _pictures(sub)]
    if not files:
        raise DataError(f"{path} contains no classes; put the pictures of each class into its own subfolder")
    channels, height, width, is_resized = _common_form([file for file, _ in files], shape)
    pixels = np.empty((len(files), height, width, channels), np.float32)
    for place, (file, _) in enumerate(files):
        with _opened(file) as picture:
            pixels[place] = _seen(picture, channels, (width, height))
    images = aligned(torch.from_numpy(pixels)).permute(0, 3, 1, 2).contiguous()
    labels = torch.tensor([label for _, label in files])
    note = f", resized to {channels}x{height}x{width}" if is_resized else ""
    return ImageSet(images, labels, path.resolve().name + note, tuple(_text(sub.name) for sub in classes))


def _text(name: str) -> str:
    """The name of a folder as it can be printed and written: bytes that are not UTF-8 are shown as such."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _seen(picture: Image.Image, channels: int, size: tuple[int, int]) -> Array:
    """Pixels [H, W, C] in [0, 1] of a picture as a person sees it, in that size."""
    picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I") or picture.mode == "F":  # 16 bits a pixel, which convert() would cut off
        values = np.asarray(picture, np.float32)
        depth = 65535.0 if values.max() > 255 else 255.0
        picture = Image.fromarray(np.clip(values / depth * 255, 0, 255), "F")
    elif picture.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in picture.info:
        above = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", above.size, "white"), above)
    if picture.mode != "F" or channels == 3:
        picture = picture.convert("RGB" if channels == 3 else "L")
    if picture.size != size:
        picture = picture.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(picture, np.float32).reshape(size[1], size[0], channels) / np.float32(255)


def _pictures(folder: Path) -> list[Path]:
    files = (file for file in folder.iterdir() if not file.name.startswith("."))
    found = sorted(file for file in files if file.suffix.lower() in SUFFIXES)
    if not found:
        raise DataError(f"class folder {folder} contains no pictures; add some, or delete it")
    return found


def _common_form(files: list[Path], shape: tuple[int, ...] | None) -> tuple[int, int, int, bool]:
    """Channels, height and width of all pictures, and whether any is resized to it.

    Only headers are read, so that a wrong size is reported before anything is decoded.
    """
    colour = False
    sizes: dict[tuple[int, int], Path] = {}
    for file in files:
        with _opened(file) as picture:
            if max(picture.size) > MAX_SIDE:
                raise DataError(f"{file} is {picture.width}x{picture.height}; resize it to {MAX_SIDE} at most")
            turned = picture.getexif().get(ORIENTATION, 1) in (5, 6, 7, 8)
            sizes.setdefault((picture.height, picture.width) if not turned else picture.size, file)
            colour |= picture.mode not in _GRAY
    if shape is None:
        if len(sizes) > 1:
            (one, first), (other, second) = list(sizes.items())[:2]
            raise DataError(
                f"pictures must all have the same size: {second} is {other[1]}x{other[0]} but {first.name} is "
                f"{one[1]}x{one[0]}; give the size to resize them to, e.g. folder:PATH@3x32x32"
            )
        shape = (3 if colour else 1, *next(iter(sizes)))
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise DataError(f"pictures have 1 or 3 channels, a height and a width; they can't become {shape}")
    within_bound(str(files[0].parent.parent), [len(files), *shape, 4])
    return shape[0], shape[1], shape[2], list(sizes) != [tuple(shape[1:])]


@contextmanager
def _opened(file: Path) -> Iterator[Image.Image]:
    """An open picture; one that would unpack to an enormous size is an error, not Pillow's warning."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(require_file(file)) as picture:
                yield picture
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(
            f"refused: {file} would unpack to an enormous picture ({error}); resize or delete it"
        ) from error
    except UnidentifiedImageError as error:
        raise DataError(f"{file} is not a picture; delete it or save it again") from error
    # Pillow raises SyntaxError for a broken PNG, and reads as many bytes as a part of one says that it has
    except (OSError, SyntaxError, ValueError, MemoryError) as error:
        raise DataError(f"{file} is truncated or damaged ({error}); delete it or save it again") from error


def require_file(path: Path) -> Path:
    """Refuse pipes and devices: reading one may wait for ever."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is not a file; check the path")
    return path


LABEL_NAMES = ("label", "labels", "target", "class", "y")
MOST_VALUES = 100
"""A column of texts with more different values is a name or an identifier, not a feature."""
MAX_COLUMNS = 100_000


def load_safetensors(path: Path) -> ImageSet:
    """Read `labels` [n] and one other tensor: embeddings or other vectors [n, d], or images as in an .npz file."""
    try:
        within_bound(str(path), [path.stat().st_size])
        tensors = read_tensors(path)
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}; check the path") from error
    except (CheckpointError, OSError) as error:
        raise DataError(f"{path} can't be read as safetensors ({error})") from error
    labels, others = tensors.pop("labels", None), list(tensors)
    if labels is None or len(others) != 1:
        raise DataError(
            f"{path} must contain the tensor labels and one other, e.g. embeddings; it contains "
            f"{', '.join([*others, *(['labels'] if labels is not None else [])])[:200] or 'nothing'}"
        )
    return arrays_set(path, tensors[others[0]].float().numpy(), labels.numpy())


def load_csv(path: Path, label: str | None = None) -> ImageSet:
    """Read a table with a header: numbers as they are, texts as one column for each value, in sorted order.

    The label is the column of that name, else one called label, target, class or y, else the last one.
    """
    try:
        within_bound(str(path), [path.stat().st_size])
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = list(csv.reader(stream))
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}; check the path") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a table of comma-separated values ({error}); save it as UTF-8") from error
    if len(rows) < 2 or len(set(rows[0])) != len(rows[0]) or len(rows[0]) < 2:
        raise DataError(f"{path} must have a line of different column names, and records below it")
    header, records = rows[0], [row for row in rows[1:] if row]
    if wrong := next((number for number, row in enumerate(records, 2) if len(row) != len(header)), None):
        raise DataError(f"{path}, line {wrong}: {len(header)} values expected; check the commas")
    named = {name: [row[place].strip() for row in records] for place, name in enumerate(header)}
    return labelled_table(path, header, label, named.__getitem__, lambda name: _columns(path, name, named[name]))


def labelled_table(
    path: Path,
    header: Sequence[str],
    label: str | None,
    texts: Callable[[str], list[str]],
    numbers: Callable[[str], dict[str, Array]],
) -> ImageSet:
    """The records of a table whose columns are read by name: the label's as texts, the others' as numbers."""
    own = label or next((name for name in header if name.lower() in LABEL_NAMES), header[-1])
    if own not in header:
        raise DataError(f"{path} has no column {own!r}; it has {', '.join(header)[:200]}")
    labels, classes = _labels(path, texts(own))
    columns: dict[str, Array] = {}
    for name in header:
        found = {} if name == own else numbers(name)
        if stray := next((key for key, values in found.items() if not _is_finite(values)), None):
            raise DataError(f"{path}: column {stray!r} has missing or infinite values; fill them in")
        if twice := next((key for key in found if key in columns), None):
            raise DataError(f"{path} gives two columns the name {twice!r}; rename one")
        columns |= found
        if len(columns) > MAX_COLUMNS:
            raise DataError(f"{path} has more than {MAX_COLUMNS:,} columns; is it the right file?")
    within_bound(str(path), [len(labels), len(columns), 8])
    table = aligned(torch.from_numpy(np.stack(list(columns.values()), 1).astype(np.float32)))
    return ImageSet(table, labels, path.stem, classes, tuple(columns))


def _is_finite(numbers: Array) -> bool:
    return bool(np.abs(numbers).max() <= np.finfo(np.float32).max)  # written so that NaN fails too


def _labels(path: Path, values: list[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Whole numbers from 0 stay; other values are numbered in sorted order."""
    classes = sorted(
        set(values), key=lambda value: (not value.isdecimal(), int(value) if value.isdecimal() else 0, value)
    )
    if len(classes) > MAX_CLASSES:
        raise DataError(
            f"{path}: the label has {len(classes):,} different values; name another column, PATH#COLUMN"
        )
    numbers = {value: place for place, value in enumerate(classes)}
    return torch.tensor([numbers[value] for value in values]), tuple(classes)


def _columns(path: Path, name: str, values: list[str]) -> dict[str, Array]:
    """Numbers as they are, true and false as 1 and 0, other texts as one column for each."""
    lowered = {value.lower() for value in values}
    if lowered <= {"true", "false"}:
        return {name: np.array([value.lower() == "true" for value in values], np.float64)}
    try:
        return {name: np.array([float(value) for value in values])}
    except ValueError:
        if "" in lowered and all(_is_number(value) for value in lowered if value):
            raise DataError(f"{path}: column {name!r} has missing or infinite values; fill them in") from None
        return text_columns(path, name, values)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def text_columns(path: Path, name: str, values: list[str]) -> dict[str, Array]:
    """One column of 0 and 1 for each of the texts, in sorted order."""
    different = sorted(set(values))
    if len(different) > MOST_VALUES:
        raise DataError(
            f"{path}: column {name!r} has {len(different):,} different texts: is it a name? Leave it out"
        )
    return {f"{name}={one}": np.array([value == one for value in values], np.float64) for one in different}


def load_npy(path: Path, labels: str | None = None) -> ImageSet:
    """Read vectors or images as in an .npz file, with labels from another .npy file or the last column.

    The labels are in the file of that name beside it, else in NAME_labels.npy, else the last column of a table
    [n, d + 1], if that has whole numbers.
    """
    array = _mapped(path)
    beside = path.with_name(labels or f"{path.stem}_labels.npy")
    if labels is not None or beside.exists():
        return arrays_set(path, array, _mapped(beside))
    last = (
        array[:, -1] if array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind in "fiu" else np.array([0.5])
    )
    if not len(last) or not np.array_equal(last, np.floor(last)) or len(np.unique(last)) < 2:
        raise DataError(
            f"{path} has no labels: put them beside it as {beside.name}, name their file (npy:PATH#FILE.npy), or "
            "add them as the last column, as whole numbers"
        )
    if not -1 < float(last.min()) <= float(last.max()) < MAX_CLASSES:  # before they are made whole numbers
        raise DataError(f"{path}: labels must be classes 0, 1, ... below {MAX_CLASSES}; renumber them")
    return arrays_set(path, array[:, :-1].astype(np.float64), last.astype(np.int64))


def _mapped(path: Path) -> Array:
    """The array of an .npy file; its declared size must be that of the file, and nothing is unpickled."""
    try:
        within_bound(str(path), [require_file(path).stat().st_size])
        return np.array(np.lib.format.open_memmap(path, mode="r"))
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}; check the path") from error
    except Exception as error:  # damaged headers raise almost anything, down to an error of the tokenizer
        raise DataError(
            f"{path} is not a whole .npy file of numbers ({error}); write it with numpy.save"
        ) from error
