"""ImageSet: images in [0, 1] with integer labels, the noun every data source returns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engram.errors import DataError


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images [n, *shape] as float32 with values in [0, 1] (or vectors of any values), labels [n] int64.

    `name` says where they come from; `classes` names the label values 0, 1, ...
    """

    images: Tensor
    labels: Tensor
    name: str
    classes: tuple[str, ...]

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

    def take(self, indices: Tensor) -> ImageSet:
        """The images at `indices`, in that order."""
        return replace(self, images=self.images[indices], labels=self.labels[indices])
