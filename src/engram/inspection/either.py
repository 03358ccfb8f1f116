"""Inspection of either kind of network, fully-connected or with convolutions, by one set of names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engram.attacker import AttackerView
from engram.inspection.convolutional import (
    ConvDescription,
    convolutional_record,
    describe_convolutional,
    judge_convolutional,
)
from engram.inspection.dense_part import DensePart
from engram.inspection.describe import Description, describe
from engram.inspection.examine import Examination, examine, require_shape
from engram.inspection.progress import Progress, silent
from engram.inspection.record import inspection_record
from engram.inspection.verdict import Verdict, judge
from engram.reconstruct.engine.row_space import RowSpace
from engram.targets.convolutional import ConvNetwork
from engram.targets.networks import DenseNetwork, Network

AnyDescription = Description | ConvDescription


def describe_either(
    view: AttackerView[Network], *, samples: int | None = None, progress: Progress = silent
) -> AnyDescription:
    """What a stranger sees; equations are counted for `samples` where there are no convolutions."""
    if isinstance(view.network, ConvNetwork):
        return describe_convolutional(view.narrowed(ConvNetwork), progress=progress)
    return describe(view.narrowed(DenseNetwork), samples=samples, progress=progress)


def examine_either(
    part: DensePart,
    space: RowSpace,
    images: Tensor,
    labels: Tensor,
    mean: Tensor,
    *,
    held_out: Tensor | None = None,
    progress: Progress = silent,
) -> Examination:
    """`examine` images [n, *shape], or the features that the convolutions make of them.

    Of features, the ceiling is a share of their energy alone: what a projected feature looks like is not known.
    """
    if not isinstance(part.whole, ConvNetwork):
        return examine(part.view, space, images, labels, mean, held_out=held_out, progress=progress)
    require_shape(images, part.whole.input_shape)
    features = part.entering(images - mean)
    found = examine(
        part.view,
        space,
        features,
        labels,
        torch.zeros_like(features[0]),
        held_out=None if held_out is None else part.entering(held_out - mean),
        width=part.width,
        progress=progress,
    )
    below = len(part.whole.weights) - len(part.view.network.weights)
    layers = tuple(replace(gap, name=f"layers.{below + place}") for place, gap in enumerate(found.kkt.layers))
    return replace(found, ceiling=replace(found.ceiling, ncc=None), kkt=replace(found.kkt, layers=layers))


def judge_either(description: AnyDescription, examination: Examination | None = None) -> Verdict:
    """In reach or not."""
    if isinstance(description, ConvDescription):
        return judge_convolutional(description, examination)
    return judge(description, examination)


def record_of_either(
    view: AttackerView[Network],
    description: AnyDescription,
    verdict: Verdict,
    examination: Examination | None = None,
) -> dict[str, Any]:
    """One JSON object, as docs/inspect.md says."""
    if isinstance(description, ConvDescription):
        return convolutional_record(view.narrowed(ConvNetwork), description, verdict, examination)
    return inspection_record(view.narrowed(DenseNetwork), description, verdict, examination)
