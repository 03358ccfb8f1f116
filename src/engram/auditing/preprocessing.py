"""What was subtracted from the inputs before the network saw them: the training mean, or nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engram.core.errors import require
from engram.data.sets import ImageSet
from engram.members.layers import as_fed
from engram.models.tasks import Task

AT_ONCE = 500
WAYS = ("auto", "train", "zero")


@dataclass(frozen=True, eq=False)
class ChosenMean:
    """The mean [*shape] that was chosen, by name, and the share of training records that are then right."""

    mean: Tensor
    name: str
    accuracy: float


@torch.no_grad()
def chosen_mean(
    model: nn.Module, task: Task, train: ImageSet, held_out: ImageSet | None, way: str = "auto"
) -> ChosenMean:
    """Take the mean that is asked for, or the one with which the model does better on all records.

    Held-out records count as much as training records, so that the choice can't favour either.
    """
    require(way in WAYS, "--mean", f"must be one of {', '.join(WAYS)}", way)
    means = {"train": train.images.mean(0), "zero": torch.zeros(train.shape)}
    names = [way] if way in means else list(means)
    sets = [one for one in (train, held_out) if one is not None and len(one)]
    found = {}
    for name in names:
        outputs = [_outputs(model, one.images, means[name]) for one in sets]
        right = [task.correct(some, one.labels).double().mean() for some, one in zip(outputs, sets, strict=True)]
        loss = [task.loss(some, one.labels) for some, one in zip(outputs, sets, strict=True)]
        found[name] = (float(torch.stack(right).mean()), -float(torch.stack(loss).mean())), float(right[0])
    best = max(found, key=lambda name: found[name][0])
    return ChosenMean(means[best], best, found[best][1])


def _outputs(model: nn.Module, images: Tensor, mean: Tensor) -> Tensor:
    parts = [model(as_fed(model, some - mean)) for some in torch.split(images, AT_ONCE)]
    return torch.cat([part.detach().cpu().double().reshape(len(part), -1) for part in parts])
