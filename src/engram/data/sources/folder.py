"""Your own pictures: one subfolder a class, all pictures of one size."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from engram.data.image_set import ImageSet
from engram.data.sources.pixels import to_unit, within_bound
from engram.errors import DataError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})
_GRAY = frozenset({"1", "L", "LA"})
_COLOUR = frozenset({"P", "RGB", "RGBA", "CMYK", "YCbCr"})


def load_folder(path: Path) -> ImageSet:
    """Read subfolders (classes) and their pictures sorted by name.

    Images are [n, 1, H, W] if all pictures are gray, else [n, 3, H, W].
    """
    if not path.is_dir():
        raise DataError(f"there is no folder {path}; check the path")
    classes = sorted(sub for sub in path.iterdir() if sub.is_dir() and not sub.name.startswith("."))
    files = [(file, label) for label, sub in enumerate(classes) for file in _pictures(sub)]
    if not files:
        raise DataError(f"{path} holds no class; put the pictures of each class into a subfolder of its own")
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
        raise DataError(f"class folder {folder} holds no picture; add some, or delete it")
    return found


def _common_mode(files: list[Path]) -> str:
    """Read headers only, so that a wrong size or depth is said before anything is decoded."""
    colour, first_size = False, (0, 0)
    for file in files:
        with _opened(file) as picture:
            if picture.mode not in _GRAY | _COLOUR:
                raise DataError(f"{file} has pixels of type {picture.mode}; convert it to 8-bit gray or RGB")
            first_size = picture.size if file is files[0] else first_size
            if picture.size != first_size:
                width, height = picture.size
                raise DataError(
                    f"pictures must have one size: {file} is {width}×{height} but {files[0].name} is "
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
    except (OSError, SyntaxError, ValueError) as error:  # SyntaxError is Pillow's word for a broken PNG
        raise DataError(f"{file} is truncated or damaged ({error}); delete it or save it again") from error
