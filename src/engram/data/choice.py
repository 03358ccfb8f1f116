"""DataChoice: which images of which data set, in words that a card can store and a command can repeat."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engram.data.catalog import CATALOG, load
from engram.data.image_set import ImageSet
from engram.data.labels import apply_labels, first_classes
from engram.data.sampling import Split, balanced, largest, split


@dataclass(frozen=True, kw_only=True)
class DataChoice:
    """n balanced images of a data set under a label map: the first of each class, or a seeded choice.

    `classes` keeps the first so many classes of the map; None keeps all.
    """

    name: str
    labels: str
    n: int
    seed: int | None = None
    classes: int | None = None

    def load(self, root: Path | None = None, *, held_out: int | None = None) -> Split:
        """Training images, as many held-out ones of the same classes, and the training mean."""
        return split(self.everything(root), self.n, held_out=held_out, seed=self.seed)

    def load_test(self, root: Path | None = None) -> ImageSet | None:
        """The data set's own test images, balanced as the papers do, or None where there are none."""
        entry = CATALOG.get(self.name)
        if entry is None or not entry.has_test:
            return None
        everything = self._mapped(load(self.name, root=root, train=False))
        return everything.take(balanced(everything, largest(everything)))

    def everything(self, root: Path | None = None) -> ImageSet:
        """All images of the data set under the label map, however many `n` asks for."""
        return self._mapped(load(self.name, root=root))

    def _mapped(self, images: ImageSet) -> ImageSet:
        mapped = apply_labels(images, self.labels)
        return mapped if self.classes is None else first_classes(mapped, self.classes)
