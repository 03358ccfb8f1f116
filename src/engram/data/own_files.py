"""Your own data: one .npz file with the arrays `images` and `labels`, or a folder with one subfolder per class."""

from __future__ import annotations

import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from engram.core.errors import DataError
from engram.core.files import aligned
from engram.data.sets import ImageSet, numbered, to_unit, within_bound

Array = np.ndarray[Any, np.dtype[Any]]
MAX_CLASSES = 10_000  # larger labels are identifiers, not classes
_CURE = "write it with numpy.savez(path, images=..., labels=...)"


def load_npz(path: Path) -> ImageSet:
    """Read images [n, H, W], [n, H, W, C], [n, C, H, W] (bytes or floats in [0, 1]) or vectors [n, d], labels [n].

    Vectors, such as table rows or embeddings, may be any finite floats; bytes are pixels. Four axes mean
    [n, C, H, W] if the second has 1 or 3 entries, else [n, H, W, C].
    """
    arrays = _read(path)
    images, labels = arrays["images"], arrays["labels"]
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
            return {key: arrays[key] for key in ("images", "labels")}
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}; check the path") from error
    except KeyError as error:
        raise DataError(f"{path} lacks an array: {error.args[0]}; {_CURE}") from error
    except ValueError as error:
        raise DataError(f"{path} contains something other than plain numbers ({error}); {_CURE}") from error
    except (OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
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
    if images.size and not (images.min() >= 0 and images.max() <= 1):  # written so that NaN fails too
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


SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})
_GRAY = frozenset({"1", "L", "LA"})
_COLOUR = frozenset({"P", "RGB", "RGBA", "CMYK", "YCbCr"})


def load_folder(path: Path) -> ImageSet:
    """Read subfolders (classes) and their pictures, sorted by name.

    Images are [n, 1, H, W] if all pictures are gray, else [n, 3, H, W].
    """
    if not path.is_dir():
        raise DataError(f"there is no folder {path}; check the path")
    classes = sorted(sub for sub in path.iterdir() if sub.is_dir() and not sub.name.startswith("."))
    files = [(file, label) for label, sub in enumerate(classes) for file in _pictures(sub)]
    if not files:
        raise DataError(f"{path} contains no classes; put the pictures of each class into its own subfolder")
    mode = _common_mode([file for file, _ in files])
    pixels = []
    for file, _ in files:
        with _opened(file) as picture:
            pixels.append(np.asarray(picture.convert(mode)).reshape(picture.height, picture.width, -1))
    images = to_unit(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
    labels = torch.tensor([label for _, label in files])
    return ImageSet(images, labels, path.resolve().name, tuple(sub.name for sub in classes))


def _pictures(folder: Path) -> list[Path]:
    files = (file for file in folder.iterdir() if not file.name.startswith("."))
    found = sorted(file for file in files if file.suffix.lower() in SUFFIXES)
    if not found:
        raise DataError(f"class folder {folder} contains no pictures; add some, or delete it")
    return found


def _common_mode(files: list[Path]) -> str:
    """Read only headers, so that a wrong size or depth is reported before anything is decoded."""
    colour, first_size = False, (0, 0)
    for file in files:
        with _opened(file) as picture:
            if picture.mode not in _GRAY | _COLOUR:
                raise DataError(f"{file} has pixels of type {picture.mode}; convert it to 8-bit gray or RGB")
            first_size = picture.size if file is files[0] else first_size
            if picture.size != first_size:
                width, height = picture.size
                raise DataError(
                    f"pictures must all have the same size: {file} is {width}×{height} but {files[0].name} is "
                    f"{first_size[0]}×{first_size[1]}; resize them, e.g. with `mogrify -resize WxH!`"
                )
            colour |= picture.mode in _COLOUR
    within_bound(str(files[0].parent.parent), [len(files), 3 if colour else 1, *first_size])
    return "RGB" if colour else "L"


@contextmanager
def _opened(file: Path) -> Iterator[Image.Image]:
    """An open picture; one that would unpack to an enormous size is an error, not Pillow's warning."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file) as picture:
                yield picture
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise DataError(
            f"refused: {file} would unpack to an enormous picture ({error}); resize or delete it"
        ) from error
    except UnidentifiedImageError as error:
        raise DataError(f"{file} is not a picture; delete it or save it again") from error
    except (OSError, SyntaxError, ValueError) as error:  # Pillow raises SyntaxError for a broken PNG
        raise DataError(f"{file} is truncated or damaged ({error}); delete it or save it again") from error
