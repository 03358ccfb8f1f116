"""The same photographs at two sizes, and a target trained on each: what does the size of an image cost?

Doubling pixels by repetition and halving their values is an isometry: all inner products of images stay, and so
does the path of training. What differs is the noise of the start, spread over four times as many columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from engram.attacker import AttackerView
from engram.data.catalog import load
from engram.data.choice import DataChoice
from engram.errors import DataError
from engram.loop import Observer
from engram.targets.recipe import Recipe
from engram.targets.spec import MLPSpec
from engram.targets.train import train
from engram.task import Binary

RECIPE = Recipe(lr=0.1, epochs=300)
"""Short, yet 500 photographs are fitted (loss 0.05) and have written a row space of about their final rank."""
START_STD = {1: 1e-4, 2: 0.65e-4}
"""At 0.65 of the noise on four times as many columns, the faintest direction that stands out is equally strong."""


@dataclass(frozen=True, eq=False)
class Photographs:
    """Images [n, 3, 32, 32] in [0, 1] and labels [n]; `source` says where they come from."""

    images: Tensor
    labels: Tensor
    source: str


def photographs(n: int, root: Path | None = None) -> Photographs:
    """CIFAR-10, or where it is missing, images of its shape made from the embedded faces."""
    try:
        train_set = DataChoice(name="cifar10", labels="vehicles-animals", n=n).load(root, held_out=0).train
    except DataError:
        return from_faces(n)
    return Photographs(train_set.images, train_set.labels, "cifar10, vehicles against animals")


def from_faces(n: int) -> Photographs:
    """Faces and non-faces at 32 x 32, mirrored and shifted until there are n; labels alternate.

    >>> from_faces(500).images.shape
    torch.Size([500, 3, 32, 32])
    """
    grey = torch.nn.functional.interpolate(load("faces").images, size=(32, 32), mode="bilinear")
    copies = []
    for shift in range(-(-n // (2 * len(grey)))):
        moved = grey.roll(3 * shift, dims=3)
        copies += [moved, moved.flip(3)]
    images = torch.cat(copies)[:n].expand(-1, 3, -1, -1)
    return Photographs(images, torch.arange(n) % 2, "synthesised from the embedded faces: CIFAR-10 is not here")


def trained_view(
    photos: Photographs,
    enlarged: int,
    *,
    recipe: Recipe = RECIPE,
    widths: tuple[int, ...] = (1000, 1000),
    observers: Sequence[Observer] = (),
) -> AttackerView:
    """A target trained on the photographs, enlarged 1 or 2 times."""
    images = photos.images.repeat_interleave(enlarged, 2).repeat_interleave(enlarged, 3) / enlarged
    spec = MLPSpec(inputs=images[0].numel(), widths=widths, first_layer_std=START_STD[enlarged])
    centred = images - images.mean(0)
    network, solution = train(spec, recipe, Binary(), centred, photos.labels, observers=observers)
    solution.require_finite()
    return AttackerView(network, tuple(images.shape[1:]), Binary(), pixel_range=(0.0, 1.0 / enlarged))
