"""The records an audit compares with: checked before any work is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engram.core.errors import require
from engram.core.files import aligned
from engram.data.sets import ImageSet, Split
from engram.models.networks import Network
from engram.models.view import AttackerView

Samples = ImageSet | Sequence[Tensor]
"""An ImageSet, or (images [n, *shape] in [0, 1], labels [n])."""


@dataclass(frozen=True, eq=False)
class AuditData:
    """Training records, held-out ones or None, and what is subtracted from both before the network sees them."""

    train: ImageSet
    held_out: ImageSet | None
    mean: Tensor

    @property
    def split(self) -> Split:
        nothing = torch.zeros(0, dtype=torch.int64)
        return Split(self.train, self.train.take(nothing) if self.held_out is None else self.held_out, self.mean)


def audit_data(
    view: AttackerView[Network], train: Samples, held_out: Samples | None, mean: Tensor | None = None
) -> AuditData:
    """Both sets in the model's shape and labels, disjoint; `mean` None is the training mean, as in the papers."""
    records = _image_set(view, train, "train")
    others = None if held_out is None else _image_set(view, held_out, "held_out")
    if others is not None:
        shared = len(_rows(records.images) & _rows(others.images))
        require(
            shared == 0,
            "held_out",
            "must hold no training record: it is the control",
            f"{shared} that are in train too",
            "give records that training never saw",
        )
    centre = records.images.mean(0) if mean is None else mean.to(torch.float32)
    require(
        tuple(centre.shape) == tuple(view.input_shape),
        "mean",
        f"must have the model's input shape {_shape(view.input_shape)}",
        _shape(centre.shape),
    )
    return AuditData(records, others, centre)


def _image_set(view: AttackerView[Network], samples: Samples, name: str) -> ImageSet:
    if not isinstance(samples, ImageSet):
        require(len(samples) == 2, name, "must be (images, labels)", f"{len(samples)} parts")
        images, labels = (torch.as_tensor(part) for part in samples)
        classes = tuple(map(str, range(view.task.label_count)))
        require(labels.ndim == 1, name, "must have labels [n]", tuple(labels.shape))
        samples = ImageSet(aligned(images.detach().cpu().float()), labels.detach().cpu().long(), name, classes)
    require(len(samples) > 0, name, "must hold at least one record", 0, "choose other data")
    require(
        samples.shape == tuple(view.input_shape),
        name,
        f"must have the model's input shape {_shape(view.input_shape)}",
        _shape(samples.shape),
        "choose the data that the model was trained on, or another input shape",
    )
    require(
        int(samples.labels.max()) < view.task.label_count,
        name,
        f"must have labels below {view.task.label_count} for a {view.task.name} task",
        int(samples.labels.max()),
        "choose another label map with --labels",
    )
    require(bool(samples.images.isfinite().all()), name, "must hold finite numbers", "NaN or infinity")
    return samples


def _rows(images: Tensor) -> set[bytes]:
    return {row.numpy().tobytes() for row in images.flatten(1)}


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
