"""Reconstruction: the candidates an attack returns, and the two ways of thinning them out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from engram import files
from engram.errors import CheckpointError


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Candidates in the network's input coordinates: images [m, *shape], duals [m], labels [m].

    `scores` [m], where the attack gives them: the chance, judged blind, that a candidate shows a training image.
    """

    images: Tensor
    duals: Tensor
    labels: Tensor
    scores: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    def take(self, kept: Tensor) -> Reconstruction:
        """The candidates at an index or mask."""
        scores = None if self.scores is None else self.scores[kept]
        return replace(
            self, images=self.images[kept], duals=self.duals[kept], labels=self.labels[kept], scores=scores
        )

    def pruned(self, dual_threshold: float) -> Reconstruction:
        """Without the candidates whose dual is below the threshold: they hardly touch the params."""
        return self.take(self.duals >= dual_threshold)

    def deduplicated(self, distance: float, generator: torch.Generator) -> Reconstruction:
        """Greedily, in random order, drop every candidate closer than `distance` to one already kept."""
        points = self.images.flatten(1)
        kept: list[int] = []
        for index in torch.randperm(len(points), generator=generator).tolist():
            if not kept or bool((points[kept] - points[index]).norm(dim=1).min() >= distance):
                kept.append(index)
        return self.take(torch.tensor(sorted(kept), dtype=torch.int64))

    def save(self, path: Path) -> None:
        tensors = {"images": self.images.float(), "duals": self.duals.float(), "labels": self.labels}
        if self.scores is not None:
            tensors["scores"] = self.scores.float()
        files.write_tensors(path, tensors)

    @staticmethod
    def load(path: Path) -> Reconstruction:
        tensors = files.read_tensors(path)
        try:
            found = Reconstruction(tensors["images"], tensors["duals"], tensors["labels"], tensors.get("scores"))
        except KeyError as missing:
            raise CheckpointError(f"{path} has no tensor {missing}; is it a reconstruction?") from missing
        if not len(found.images) == len(found.duals) == len(found.labels):
            raise CheckpointError(f"{path}: images, duals and labels differ in number; write it again")
        return found
