"""Gradient descent as in the papers: full batch or mini-batches, constant rate, weight decay."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal

import torch
from torch import Tensor

from engram.errors import require
from engram.loop import Metrics, State, Values
from engram.targets.networks import N
from engram.task import Task

DTypeName = Literal["float32", "float64"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train; the defaults are those of Haim et al. 2022.

    `batch` None is full-batch descent; otherwise every epoch shuffles and takes batches of that size.
    `normalise_below` c multiplies the rate by c / loss once the loss is below c: gradients shrink in
    proportion to the loss, so the steps go on along the same path where a constant rate would all but stop.
    `weight_decay` w adds w theta to the gradient, i.e. (w/2) ||theta||² to the loss.
    """

    lr: float = 0.01
    epochs: int = 1_000_000
    loss_threshold: float | None = None
    batch: int | None = None
    weight_decay: float = 0.0
    normalise_below: float | None = None
    dtype: DTypeName = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.lr > 0, "lr", "must be positive", self.lr, "the paper uses 0.01")
        require(self.epochs > 0, "epochs", "must be positive", self.epochs)
        require(self.batch is None or self.batch > 0, "batch", "must be positive", self.batch)
        require(self.weight_decay >= 0, "weight_decay", "must not be negative", self.weight_decay)
        require(self.dtype in ("float32", "float64"), "dtype", "must be float32 or float64", self.dtype)
        for name in ("loss_threshold", "normalise_below"):
            value = getattr(self, name)
            require(value is None or value > 0, name, "must be positive", value)

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == "float64" else torch.float32


@dataclass(frozen=True, eq=False)
class GradientDescent(Generic[N]):
    """The training iteration: one step is one epoch over inputs [n, ...] and labels [n]."""

    start: N
    task: Task
    recipe: Recipe
    inputs: Tensor
    labels: Tensor

    def init(self) -> State:
        generator = torch.Generator().manual_seed(self.recipe.seed)
        return {
            **{name: value.clone() for name, value in self.start.params.items()},
            "_shuffle": generator.get_state(),
        }

    def step(self, state: State) -> Metrics:
        losses, hits = [], []
        for batch in self._batches(state):
            loss, correct = self._descend(state, batch)
            losses.append(loss * len(correct))
            hits.append(correct)
        return {
            "loss": torch.stack(losses).sum() / len(self.inputs),
            "accuracy": torch.cat(hits).double().mean(),
        }

    def finished(self, metrics: Values) -> bool:
        return self.recipe.loss_threshold is not None and metrics["loss"] < self.recipe.loss_threshold

    def fingerprint(self) -> str:
        data = hashlib.sha256()
        for tensor in (self.inputs, self.labels):
            data.update(tensor.cpu().numpy().tobytes())
        return repr((self.recipe, self.task, self.start.digest(), data.hexdigest()))

    def hint(self) -> str:
        return f"lower the learning rate (lr is {self.recipe.lr:g})"

    def network(self, state: State) -> N:
        return self.start.with_params({name: state[name] for name in self.start.params})

    def _batches(self, state: State) -> Sequence[Tensor | slice]:
        if self.recipe.batch is None:
            return [slice(None)]
        # The generator's state travels in the snapshot, so a resumed run draws the same batches.
        generator = torch.Generator()
        generator.set_state(state["_shuffle"].cpu())
        order = torch.randperm(len(self.inputs), generator=generator).to(self.inputs.device)
        state["_shuffle"] = generator.get_state()
        return list(torch.split(order, self.recipe.batch))

    def _descend(self, state: State, batch: Tensor | slice) -> tuple[Tensor, Tensor]:
        inputs, labels = self.inputs[batch], self.labels[batch]
        params = {name: state[name].requires_grad_() for name in self.start.params}
        logits = self.start.with_params(params)(inputs)
        loss = self.task.loss(logits, labels)
        gradients = torch.autograd.grad(loss, list(params.values()))
        with torch.no_grad():
            rate = self._rate(loss.detach())
            for (name, value), gradient in zip(params.items(), gradients, strict=True):
                state[name] = self._moved(value.detach(), gradient, rate)
        return loss.detach(), self.task.correct(logits.detach(), labels)

    def _moved(self, value: Tensor, gradient: Tensor, rate: Tensor | float) -> Tensor:
        if self.recipe.weight_decay:
            gradient = gradient.add(value, alpha=self.recipe.weight_decay)
        # One pass over weights that may be far larger than the data, where it can be done in one.
        return value.sub_(gradient, alpha=rate) if isinstance(rate, float) else value.sub_(rate * gradient)

    def _rate(self, loss: Tensor) -> Tensor | float:
        if self.recipe.normalise_below is None:
            return self.recipe.lr
        return self.recipe.lr * (self.recipe.normalise_below / loss).clamp(min=1.0)
