"""What an attack is, and what it returns: candidates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engram.core import files
from engram.core.errors import CheckpointError
from engram.core.loop import Metrics, State, Values
from engram.models.networks import Network
from engram.models.view import AttackerView


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Candidates in the network's input coordinates: images [m, *shape], duals [m], labels [m].

    `scores` [m], if the attack provides them: the blind estimate of the chance that a candidate shows a training
    image. `pair_duals` [m, C], if there is one dual per other class: `duals` are their sums. `mean` [*shape], if
    the attack could estimate it: images + mean are pixels, found without any knowledge of the training data.
    """

    images: Tensor
    duals: Tensor
    labels: Tensor
    scores: Tensor | None = None
    pair_duals: Tensor | None = None
    mean: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    @property
    def has_confidence(self) -> bool:
        """Whether any candidate has a score; a single restart or trial has nothing to agree with."""
        return self.scores is not None and bool(self.scores.isfinite().any())

    @property
    def shown(self) -> Tensor:
        """The images as an attacker would show them, before they are stretched to a range."""
        return self.images if self.mean is None else self.images + self.mean

    def count_above(self, confidence: float) -> int:
        """How many candidates show a training image with more than that confidence."""
        return 0 if self.scores is None else int((self.scores > confidence).sum())

    def take(self, kept: Tensor) -> Reconstruction:
        """The candidates at an index or mask."""
        columns = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "mean"}
        return replace(self, **{name: value[kept] for name, value in columns.items() if value is not None})

    def pruned(self, dual_threshold: float) -> Reconstruction:
        """Without the candidates whose dual is below the threshold: they hardly affect the params."""
        return self.take(self.duals.abs() >= dual_threshold)

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
        for name, value in (("scores", self.scores), ("pair_duals", self.pair_duals), ("mean", self.mean)):
            if value is not None:
                tensors[name] = value.float()
        files.write_tensors(path, tensors)

    @staticmethod
    def load(path: Path) -> Reconstruction:
        tensors = files.read_tensors(path)
        try:
            found = Reconstruction(
                tensors["images"],
                tensors["duals"],
                tensors["labels"],
                scores=tensors.get("scores"),
                pair_duals=tensors.get("pair_duals"),
                mean=tensors.get("mean"),
            )
        except KeyError as missing:
            raise CheckpointError(f"{path} has no tensor {missing}; is it a reconstruction?") from missing
        columns = {"duals": found.duals, "labels": found.labels, "scores": found.scores}
        if found.images.ndim < 2 or any(one is not None and one.ndim != 1 for one in columns.values()):
            raise CheckpointError(f"{path}: images must be [m, *shape], {', '.join(columns)} [m]; write it again")
        every = (found.duals, found.labels, found.scores, found.pair_duals)
        if any(one is not None and len(one) != len(found) for one in every):
            raise CheckpointError(f"{path}: images, duals and labels differ in number; write it again")
        numbers = [one for one in (found.images, found.duals, found.pair_duals, found.mean) if one is not None]
        if not all(one.is_floating_point() and bool(one.isfinite().all()) for one in numbers):
            raise CheckpointError(f"{path} has values that are not finite numbers; write it again")
        if found.labels.is_floating_point() or found.labels.is_complex():
            raise CheckpointError(f"{path}: labels must be whole numbers; write it again")
        if found.scores is not None and not found.scores.is_floating_point():
            raise CheckpointError(f"{path}: scores must be numbers; write it again")
        if found.mean is not None and found.mean.shape != found.images.shape[1:]:
            raise CheckpointError(f"{path}: the mean has another shape than the images; write it again")
        return found


class ViewIteration(ABC):
    """An iteration on an AttackerView; it always uses all its steps."""

    view: AttackerView[Network]
    settings: Any
    """A frozen dataclass with everything the user chose."""

    def finished(self, metrics: Values) -> bool:
        return False

    def fingerprint(self) -> str:
        view = self.view
        defined = (self.settings, view.task, view.input_shape, view.network.digest())
        return repr(defined if view.features is None else (*defined, view.features))


class Attack(ViewIteration):
    """What the published scheme and the engine have in common: candidates at the end."""

    @property
    def closing(self) -> float:
        """Share of a time limit that is kept for what follows the last step: merging and scoring."""
        return 0.0

    @property
    def recipe(self) -> str:
        """The name for `engram reconstruct --recipe`."""
        return str(self.settings.recipe)

    @property
    @abstractmethod
    def total_steps(self) -> int:
        """Steps of the whole attack."""

    def share_done(self, step: int, metrics: Values) -> float:
        """How much of the attack is done after a step with these metrics."""
        return step / self.total_steps

    @abstractmethod
    def init(self) -> State: ...

    @abstractmethod
    def step(self, state: State) -> Metrics: ...

    @property
    def others(self) -> Sequence[Attack]:
        """The parts of this attack that other processes make, beside the one that this object makes."""
        return ()

    def begun(self, seconds: float) -> None:
        """Count time that passed before the attack began, in another process, against a time limit."""

    def joined(self, states: Sequence[State]) -> State:
        """The state of the whole attack from its own and those of the `others`, in that order."""
        (state,) = states
        return state

    @abstractmethod
    def hint(self) -> str:
        """What the user should change when it diverges."""

    @abstractmethod
    def reconstruction(self, state: State) -> Reconstruction:
        """The candidates of a state."""
