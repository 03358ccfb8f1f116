"""ImageSet: images with labels, returned by every reader; Split: training images and held-out ones."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.core.errors import ConfigError, DataError, require
from engram.core.files import aligned

MAX_BYTES = 2**30  # a declared size beyond this is a mistake or an attack; a full CIFAR has 0.2 GB


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images [n, *shape] as float32 with values in [0, 1] (or vectors of any values), labels [n] int64.

    `name` is their source; `classes` names the label values 0, 1, ...
    """

    images: Tensor
    labels: Tensor
    name: str
    classes: tuple[str, ...]
    columns: tuple[str, ...] = ()
    """Of a table, the name of every value; one value of a group is written `group=value`."""

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise DataError(f"{self.name}: {len(self.images)} images but {len(self.labels)} labels")
        if self.images.dtype != torch.float32 or self.labels.dtype != torch.int64:
            raise DataError(
                f"{self.name}: images must be float32 and labels int64, "
                f"got {self.images.dtype} and {self.labels.dtype}"
            )
        if len(self.labels) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.classes):
            raise DataError(f"{self.name}: labels must lie in 0..{len(self.classes) - 1}")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image, e.g. (3, 32, 32)."""
        return tuple(self.images.shape[1:])

    def digest(self) -> str:
        """SHA-256 of shape, values and labels: identifies the records of a result."""
        found = hashlib.sha256(repr(tuple(self.images.shape)).encode())
        for part in (self.images, self.labels):
            found.update(part.contiguous().numpy().ravel().data)
        return found.hexdigest()

    def take(self, indices: Tensor) -> ImageSet:
        """The images at `indices`, in that order."""
        return replace(self, images=self.images[indices], labels=self.labels[indices])

    def first(self, count: int) -> ImageSet:
        """The first `count` images."""
        require(0 < count <= len(self), "the number of images", f"must be in 1..{len(self)} of {self.name}", count)
        return self.take(torch.arange(count))


@dataclass(frozen=True, eq=False)
class Split:
    """Training images, images of the same kind that training never sees, and the training mean [*shape]."""

    train: ImageSet
    held_out: ImageSet
    mean: Tensor


def balanced(images: ImageSet, n: int, *, seed: int | None = None, skip: int = 0) -> Tensor:
    """Indices [n] of n / C images of each of the C classes, in file order.

    Without a seed they are the first of each class; with one, a random choice. `skip` skips that many
    images, equally many of each class: `balanced(..., skip=n)` is disjoint from `balanced(..., n)`.

    >>> from engram.data.readers import load_circle
    >>> balanced(load_circle(8), 4).tolist(), balanced(load_circle(8), 4, skip=4).tolist()
    ([0, 1, 2, 3], [4, 5, 6, 7])
    """
    each, passed = _per_class(images, "n", n), _per_class(images, "skip", skip)
    if passed + each > min(class_counts(images)):
        counts = ", ".join(
            f"{count} {name}" for name, count in zip(images.classes, class_counts(images), strict=True)
        )
        after = f" after the first {skip}" if skip else ""
        raise DataError(
            f"{images.name} does not have {n} balanced images{after}: it contains {counts}; "
            f"ask for at most {max(largest(images) - skip, 0)}"
        )
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    chosen = []
    for label in range(len(images.classes)):
        members = (images.labels == label).nonzero().flatten()
        if generator is not None:
            members = members[torch.randperm(len(members), generator=generator)]
        chosen.append(members[passed : passed + each])
    return torch.cat(chosen).sort().values


def split(images: ImageSet, n: int, *, held_out: int | None = None, seed: int | None = None) -> Split:
    """Train on `balanced` n images; hold out the next `held_out` (default: n, or as many as are left)."""
    require(n > 0, "n", "must be positive", n)
    train = images.take(balanced(images, n, seed=seed))
    wanted = min(n, largest(images) - n) if held_out is None else held_out
    rest = images.take(balanced(images, wanted, seed=seed, skip=n))
    return Split(train, rest, train.images.mean(0))


def centred(images: Tensor, mean: Tensor) -> Tensor:
    """x - mean, for images [n, *shape] and mean [*shape].

    >>> centred(torch.tensor([[1.0, 2.0], [3.0, 6.0]]), torch.tensor([2.0, 4.0])).tolist()
    [[-1.0, -2.0], [1.0, 2.0]]
    """
    return images - mean


def class_counts(images: ImageSet) -> list[int]:
    """How many images each class has."""
    return torch.bincount(images.labels, minlength=len(images.classes)).tolist()


def largest(images: ImageSet) -> int:
    """The largest balanced n."""
    return min(class_counts(images)) * len(images.classes)


def _per_class(images: ImageSet, argument: str, n: int) -> int:
    classes = len(images.classes)
    require(n >= 0, argument, "must not be negative", n)
    if n % classes:
        nearest = classes * max(1, round(n / classes))
        raise ConfigError(
            f"{argument} must be a multiple of {classes}, the classes of {images.name}, got {n}; try {nearest}"
        )
    return n // classes


def within_bound(what: str, shape: Sequence[int]) -> int:
    """Number of bytes in `shape`, refused if above `MAX_BYTES`; exact integers, so no overflow.

    >>> within_bound("a batch", (10, 3, 32, 32))
    30720
    """
    size = math.prod(shape)
    if size > MAX_BYTES:
        raise DataError(
            f"refused: {what} declares {size:,} bytes, more than the {MAX_BYTES:,} engram reads; "
            f"check that it is the right file, or cut it into smaller ones"
        )
    return size


def to_unit(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    """Bytes 0..255 to float32 in [0, 1]: x / 255.

    >>> to_unit(np.array([0, 51, 255], np.uint8)).tolist()
    [0.0, 0.20000000298023224, 1.0]
    """
    return aligned(torch.from_numpy(pixels.astype(np.float32))).div_(255)


def numbered(count: int) -> tuple[str, ...]:
    """Class names for labels without names: ('0', '1', ...)."""
    return tuple(str(label) for label in range(count))
