"""Balanced choice of training and held-out images, and the mean image that training subtracts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.data.image_set import ImageSet
from engram.errors import ConfigError, DataError, require


@dataclass(frozen=True, eq=False)
class Split:
    """Training images, images of the same kind that training never sees, and the training mean [*shape]."""

    train: ImageSet
    held_out: ImageSet
    mean: Tensor


def balanced(images: ImageSet, n: int, *, seed: int | None = None, skip: int = 0) -> Tensor:
    """Indices [n] of n / C images of each of the C classes, in file order.

    Without a seed they are the first of each class; with one, a random choice. `skip` passes over as many
    images, equally many of each class: `balanced(..., skip=n)` is disjoint from `balanced(..., n)`.

    >>> from engram.data.sources.circle import load_circle
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
            f"{images.name} has no {n} balanced images{after}: it holds {counts}; "
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
    """Train on `balanced` n images; hold out the next `held_out` (by default n, or as many as are left)."""
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
            f"{argument} must be a multiple of the {classes} classes of {images.name}, got {n}; try {nearest}"
        )
    return n // classes
