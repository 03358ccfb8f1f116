"""Gradient descent as in the papers: full batch or mini-batches, constant rate, weight decay."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal

import torch
from torch import Tensor

from engram.errors import require
from engram.loop import Metrics, State, Values
from engram.targets import drift
from engram.targets.networks import N
from engram.task import Task

DTypeName = Literal["float32", "float64"]


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Follow the gradient flow once the loss is `below`, each step right to `tolerance` of every layer's norm."""

    below: float = 0.3
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        require(self.below > 0, "below", "must be positive", self.below, "0.3 is past the plateau")
        require(
            0 < self.tolerance <= 0.1,
            "tolerance",
            "must lie above 0 and be at most 0.1",
            self.tolerance,
            "0.01 keeps to the path, 0.03 halves the epochs",
        )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train; the defaults are those of Haim et al. 2022.

    `batch` None is full-batch descent; otherwise every epoch shuffles and takes batches of that size.
    `normalise_below` c multiplies the rate by c / loss once the loss is below c: gradients shrink in
    proportion to the loss, so the steps go on along the same path where a constant rate would all but stop.
    `weight_decay` w adds w theta to the gradient, i.e. (w/2) ||theta||² to the loss.
    `flow` goes on along the gradient flow by large steps of adapted size once the loss is low enough
    (`targets/flow.py`); an epoch is then an evaluation of the gradient.
    Training stops early when the loss is below `loss_threshold`, or the norm of the mean gradient of all that is
    minimised, weight decay included, below `gradient_threshold` (`targets/drift.py`).
    """

    lr: float = 0.01
    epochs: int = 1_000_000
    loss_threshold: float | None = None
    gradient_threshold: float | None = None
    batch: int | None = None
    weight_decay: float = 0.0
    normalise_below: float | None = None
    flow: Flow | None = None
    dtype: DTypeName = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.lr > 0, "lr", "must be positive", self.lr, "the paper uses 0.01")
        require(self.epochs > 0, "epochs", "must be positive", self.epochs)
        require(self.batch is None or self.batch > 0, "batch", "must be positive", self.batch)
        require(self.weight_decay >= 0, "weight_decay", "must not be negative", self.weight_decay)
        require(self.dtype in ("float32", "float64"), "dtype", "must be float32 or float64", self.dtype)
        for name in ("loss_threshold", "gradient_threshold", "normalise_below"):
            value = getattr(self, name)
            require(value is None or value > 0, name, "must be positive", value)
        for name in ("gradient_threshold", "flow"):
            alone = getattr(self, name) is None or self.batch is None
            require(alone, "batch", f"must be left out with {name}, which takes the full batch", self.batch)
        alone = self.flow is None or self.normalise_below is None
        require(
            alone,
            "normalise_below",
            "must be left out with flow, another way to the same",
            self.normalise_below,
        )

    def is_reached(self, metrics: Values) -> bool:
        """Whether the loss or the gradient is as small as wanted."""
        bounds = {"loss": self.loss_threshold, "gradient": self.gradient_threshold}
        return any(bound is not None and metrics.get(name, math.inf) < bound for name, bound in bounds.items())

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == "float64" else torch.float32


@dataclass(frozen=True, eq=False)
class Slope:
    """The training objective at a point: its gradient by coordinate, the loss or its log, who is right [n]."""

    gradient: State
    loss: Tensor
    correct: Tensor


@dataclass(frozen=True, eq=False)
class GradientDescent(Generic[N]):
    """The training iteration: one step is one epoch over inputs [n, ...] and labels [n].

    A point is given by coordinates, here the parameters themselves.
    """

    start: N
    task: Task
    recipe: Recipe
    inputs: Tensor
    labels: Tensor

    def init(self) -> State:
        generator = torch.Generator().manual_seed(self.recipe.seed)
        point = self.coordinates()
        watched = {} if self.recipe.gradient_threshold is None else drift.begin(point)
        return {**point, **watched, "_shuffle": generator.get_state()}

    def step(self, state: State) -> Metrics:
        losses, hits = [], []
        for batch in self._batches(state):
            loss, correct = self.descend(state, batch)
            losses.append(loss * len(correct))
            hits.append(correct)
            if self.recipe.gradient_threshold is not None:
                drift.record(state, self._rate(loss), 1, self.layer_squares)
        metrics = {
            "loss": torch.stack(losses).sum() / len(self.inputs),
            "accuracy": torch.cat(hits).double().mean(),
        }
        return {**metrics, "gradient": state["_drift"]} if "_drift" in state else metrics

    def finished(self, metrics: Values) -> bool:
        return self.recipe.is_reached(metrics)

    def fingerprint(self) -> str:
        data = hashlib.sha256()
        for tensor in (self.inputs, self.labels):
            data.update(tensor.cpu().numpy().tobytes())
        return repr((self.recipe, self.task, self.start.digest(), data.hexdigest()))

    def hint(self) -> str:
        return f"lower the learning rate (lr is {self.recipe.lr:g})"

    def network(self, state: State) -> N:
        return self.start.with_params({name: state[name] for name in self.start.params})

    def coordinates(self) -> State:
        """The starting point."""
        return {name: value.clone() for name, value in self.start.params.items()}

    @property
    def names(self) -> list[str]:
        """The names of the coordinates."""
        return list(self.start.params)

    def slope(self, point: State, batch: Tensor | slice = slice(None), *, log: bool = False) -> Slope:
        """Gradient of the loss, or of its log, with weight decay's w theta; the loss is without."""
        params = {name: point[name].detach().requires_grad_() for name in self.start.params}
        logits = self.start.with_params(params)(self.inputs[batch])
        labels = self.labels[batch]
        loss = (self.task.log_loss if log else self.task.loss)(logits, labels)
        gradients = torch.autograd.grad(loss, list(params.values()))
        named = {
            name: self._decayed(gradient, point[name]) for name, gradient in zip(params, gradients, strict=True)
        }
        return Slope(named, loss.detach(), self.task.correct(logits.detach(), labels))

    def layer_squares(self, vector: State) -> Tensor:
        """||.||² by layer, as parameters, of a displacement or gradient given by coordinates; [layers]."""
        return torch.stack(
            [
                torch.stack([vector[name].square().sum() for name in names]).sum()
                for names in self.start.layer_names
            ]
        )

    def _decayed(self, gradient: Tensor, value: Tensor) -> Tensor:
        return torch.add(gradient, value, alpha=self.recipe.weight_decay) if self.recipe.weight_decay else gradient

    def _batches(self, state: State) -> Sequence[Tensor | slice]:
        if self.recipe.batch is None:
            return [slice(None)]
        # The generator's state travels in the snapshot, so a resumed run draws the same batches.
        generator = torch.Generator()
        generator.set_state(state["_shuffle"].cpu())
        order = torch.randperm(len(self.inputs), generator=generator).to(self.inputs.device)
        state["_shuffle"] = generator.get_state()
        return list(torch.split(order, self.recipe.batch))

    def descend(self, state: State, batch: Tensor | slice) -> tuple[Tensor, Tensor]:
        """One step in place; the loss before it, and who was right [b]."""
        slope = self.slope(state, batch)
        rate = self._rate(slope.loss)
        for name, gradient in slope.gradient.items():
            # One pass over weights that may be far larger than the data, where it can be done in one.
            if isinstance(rate, float):
                state[name].sub_(gradient, alpha=rate)
            else:
                state[name].sub_(rate * gradient)
        return slope.loss, slope.correct

    def _rate(self, loss: Tensor) -> Tensor | float:
        if self.recipe.normalise_below is None:
            return self.recipe.lr
        return self.recipe.lr * (self.recipe.normalise_below / loss).clamp(min=1.0)
