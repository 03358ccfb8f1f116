"""Which images of which data set, under which labels.

A label map turns a data set's classes into those of the task; a `DataChoice` describes the whole choice in a form
that a card can store and a command can repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from engram.core.errors import ConfigError, require, require_numbers
from engram.data.catalog import CATALOG, load
from engram.data.readers import CIFAR10
from engram.data.sets import ImageSet, Split, balanced, largest, numbered, split

LEFT_OUT = -1  # the label of an image that the task does not use


@dataclass(frozen=True)
class LabelMap:
    """New labels from old ones, for data sets with the classes `reads` (any if None).

    `relabel` maps labels [n] in file order to [n], with `LEFT_OUT` for images to drop.
    """

    name: str
    reads: tuple[str, ...] | None
    classes: tuple[str, ...] | None  # names of the new labels; None keeps the old names
    relabel: Callable[[Tensor], Tensor]

    def fits(self, images: ImageSet) -> bool:
        return self.reads is None or self.reads == images.classes


def _odd_even(labels: Tensor) -> Tensor:
    return labels % 2


def _vehicles(labels: Tensor) -> Tensor:
    vehicles = [CIFAR10.index(name) for name in ("airplane", "automobile", "ship", "truck")]
    return torch.isin(labels, torch.tensor(vehicles)).long()


def _face(labels: Tensor) -> Tensor:
    return 1 - labels


def _gate(labels: Tensor) -> Tensor:
    """A door that admits every other face: the first is admitted, the second is not, and so on.

    >>> _gate(torch.tensor([0, 0, 1, 0])).tolist()
    [1, 0, -1, 1]
    """
    is_face = labels == 0
    return torch.where(is_face, is_face.cumsum(0) % 2, LEFT_OUT)


def _identity(labels: Tensor) -> Tensor:
    return labels


_FACES = ("face", "non-face")

LABEL_MAPS: dict[str, LabelMap] = {
    label_map.name: label_map
    for label_map in (
        LabelMap("odd-even", numbered(10), ("even", "odd"), _odd_even),
        LabelMap("vehicles-animals", CIFAR10, ("animal", "vehicle"), _vehicles),
        LabelMap("face", _FACES, ("non-face", "face"), _face),
        LabelMap("gate", _FACES, ("not admitted", "admitted"), _gate),
        LabelMap("identity", None, None, _identity),
    )
}


def apply_labels(images: ImageSet, map_name: str) -> ImageSet:
    """The images with the labels and class names of `map_name`, still in file order.

    >>> from engram.data.readers import load_circle
    >>> apply_labels(load_circle(4), "identity").classes
    ('blue', 'red')
    """
    fitting = [name for name, label_map in LABEL_MAPS.items() if label_map.fits(images)]
    if map_name not in fitting:
        cause = f"does not fit {images.name}" if map_name in LABEL_MAPS else "is not a label map"
        raise ConfigError(f"labels {map_name!r} {cause}; for {images.name} choose one of: {', '.join(fitting)}")
    chosen = LABEL_MAPS[map_name]
    labels = chosen.relabel(images.labels)
    kept = labels != LEFT_OUT
    return replace(
        images, images=images.images[kept], labels=labels[kept], classes=chosen.classes or images.classes
    )


def first_classes(images: ImageSet, count: int) -> ImageSet:
    """The images of the first `count` classes, in file order.

    >>> three = ImageSet(torch.zeros(4, 1), torch.tensor([2, 0, 1, 0]), "three", ("a", "b", "c"))
    >>> first_classes(three, 2).labels.tolist(), first_classes(three, 2).classes
    ([0, 1, 0], ('a', 'b'))
    """
    known = len(images.classes)
    require(2 <= count <= known, "classes", f"must lie in 2..{known} ({images.name} has {known})", count)
    kept = images.labels < count
    return replace(images, images=images.images[kept], labels=images.labels[kept], classes=images.classes[:count])


def labelled(name: str, labels: str, classes: int | None = None, root: Path | None = None) -> ImageSet:
    """All images of a data set under a label map; `classes` keeps only the first ones."""
    return _mapped(load(name, root=root), labels, classes)


def _mapped(images: ImageSet, labels: str, classes: int | None) -> ImageSet:
    mapped = apply_labels(images, labels)
    return mapped if classes is None else first_classes(mapped, classes)


@dataclass(frozen=True, kw_only=True)
class DataChoice:
    """n balanced images of a data set under a label map: the first of each class, or a seeded choice.

    `classes` keeps only that many classes of the map, the first ones; None keeps all.
    """

    name: str
    labels: str
    n: int
    seed: int | None = None
    classes: int | None = None

    def __post_init__(self) -> None:
        require_numbers(self)

    def load(self, root: Path | None = None, *, held_out: int | None = None) -> Split:
        """Training images, by default as many held-out ones of the same classes, and the training mean."""
        return split(self.everything(root), self.n, held_out=held_out, seed=self.seed)

    def load_test(self, root: Path | None = None) -> ImageSet | None:
        """The data set's own test images, balanced as in the papers, or None if it has none."""
        entry = CATALOG.get(self.name)
        if entry is None or not entry.has_test:
            return None
        everything = _mapped(load(self.name, root=root, train=False), self.labels, self.classes)
        return everything.take(balanced(everything, largest(everything)))

    def everything(self, root: Path | None = None) -> ImageSet:
        """All images of the data set under the label map, regardless of `n`."""
        return labelled(self.name, self.labels, self.classes, root)
