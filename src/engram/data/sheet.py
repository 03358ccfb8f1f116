"""A contact sheet: the first images of each class under the class's name."""

from __future__ import annotations

import torch
from PIL import Image, ImageDraw, ImageFont

from engram.data.image_set import ImageSet
from engram.errors import ConfigError

COLUMNS = 10
_TILE = 64  # small images are enlarged by a whole factor to about this many pixels, so that pixels stay square
_LARGEST = 128
_GAP, _TITLE, _MARGIN = 4, 26, 12


def contact_sheet(images: ImageSet, n: int) -> Image.Image:
    """About n images [C, H, W], equally many of each class, drawn class by class."""
    if len(images.shape) != 3:
        raise ConfigError(
            f"{images.name} holds points of shape {images.shape}, not pictures; choose another data set"
        )
    per_class = max(1, n // len(images.classes))
    groups = [
        [_tile(images, int(index)) for index in (images.labels == label).nonzero().flatten()[:per_class]]
        for label in range(len(images.classes))
    ]
    width, height = next(group[0].size for group in groups if group)
    rows = sum(-(-len(group) // COLUMNS) for group in groups)
    sheet = Image.new(
        "RGB",
        (
            2 * _MARGIN + COLUMNS * (width + _GAP) - _GAP,
            2 * _MARGIN + len(groups) * _TITLE + rows * (height + _GAP),
        ),
        "white",
    )
    draw, font, top = ImageDraw.Draw(sheet), ImageFont.load_default(size=15), _MARGIN
    counts = torch.bincount(images.labels, minlength=len(groups)).tolist()
    for name, count, group in zip(images.classes, counts, groups, strict=True):
        draw.text((_MARGIN, top), f"{name}  ({len(group)} of {count})", fill="black", font=font)
        top += _TITLE
        for position, tile in enumerate(group):
            row, column = divmod(position, COLUMNS)
            sheet.paste(tile, (_MARGIN + column * (width + _GAP), top + row * (height + _GAP)))
        top += -(-len(group) // COLUMNS) * (height + _GAP)
    return sheet


def _tile(images: ImageSet, index: int) -> Image.Image:
    pixels = (images.images[index] * 255).round().to(torch.uint8)
    picture = Image.fromarray(pixels[0].numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).numpy())
    longest = max(picture.size)
    if longest > _LARGEST:
        picture.thumbnail((_LARGEST, _LARGEST))
        return picture
    factor = max(1, round(_TILE / longest))
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
