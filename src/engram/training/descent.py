"""Gradient descent as in the papers: full batch or mini-batches, constant rate, weight decay.

`begin_drift` and `record_drift` measure how fast training still moves: the norm of its mean gradient over a
stretch, ||theta(s) - theta(t)|| / (t - s). With weight decay a ReLU network comes to rest where samples lie on
the edges of neurons. There the gradient jumps from side to side and never vanishes, but its mean along the path,
the velocity of the descent, does. Stretches start at epochs 100, 200, 400, ...: each is as long as all training
before it, so that ever smaller velocities can be distinguished from the jumping."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

import torch
from torch import Tensor

from engram.core.loop import Metrics, State, Values
from engram.models.networks import N
from engram.models.tasks import Task
from engram.training.recipe import Recipe

FIRST_STRETCH = 100  # epochs


def begin_drift(point: State, epochs: int = 0) -> State:
    """What to store in the state from here on."""
    here = {f"_from.{name}": value.clone() for name, value in point.items()}
    return {
        **here,
        "_elapsed": torch.zeros((), dtype=torch.float64),
        "_epochs": torch.tensor(epochs),
        "_until": torch.tensor(max(FIRST_STRETCH, 2 * epochs)),
    }


def record_drift(state: State, time: Tensor | float, epochs: int, squares: Callable[[State], Tensor]) -> None:
    """Record a step; at the end of a stretch `_drift` becomes the norm of its mean gradient."""
    state["_elapsed"] = state["_elapsed"] + time
    state["_epochs"] = state["_epochs"] + epochs
    if bool(state["_epochs"] >= state["_until"]):
        point = {name.removeprefix("_from."): state[name.removeprefix("_from.")] for name in _kept(state)}
        moved = {name: value - state[f"_from.{name}"] for name, value in point.items()}
        drift = squares(moved).sum().double().sqrt() / state["_elapsed"]
        state.update({**begin_drift(point, int(state["_epochs"])), "_drift": drift})


def _kept(state: State) -> list[str]:
    return [name for name in state if name.startswith("_from.")]


@dataclass(frozen=True, eq=False)
class Slope:
    """The objective at a point: gradient by coordinate, loss or its log, which samples are correct [n]."""

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
        watched = {} if self.recipe.gradient_threshold is None else begin_drift(point)
        if self.recipe.forget is not None:
            watched["_epoch"] = torch.tensor(0)
        return {**point, **watched, "_shuffle": generator.get_state()}

    def step(self, state: State) -> Metrics:
        losses, hits = [], []
        for batch in self._batches(state):
            loss, correct = self.descend(state, batch)
            losses.append(loss * len(correct))
            hits.append(correct)
            if self.recipe.gradient_threshold is not None:
                record_drift(state, self._rate(loss), 1, self.layer_squares)
        if self.recipe.forget is not None:
            state["_epoch"] += 1
            if int(state["_epoch"]) == self.recipe.forget:
                self.forget(state, (1 - self.recipe.lr * self.recipe.weight_decay) ** self.recipe.forget)
        metrics = {
            "loss": torch.stack(losses).sum() / len(self.inputs),
            "accuracy": torch.cat(hits).double().mean(),
        }
        return {**metrics, "gradient": state["_drift"]} if "_drift" in state else metrics

    def forget(self, state: State, kept: float) -> None:
        """Subtract what is left of the initialisation, the share `kept`, from every parameter."""
        for name, value in self.start.params.items():
            state[name].sub_(value, alpha=kept)

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
        """Gradient of the loss, or of its log, including weight decay's w theta; the loss excludes it."""
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
        """||.||² of each layer's parameters, for a displacement or gradient given by coordinates; [layers]."""
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
        # The generator's state is in the snapshot, so a resumed run draws the same batches.
        generator = torch.Generator()
        generator.set_state(state["_shuffle"].cpu())
        order = torch.randperm(len(self.inputs), generator=generator).to(self.inputs.device)
        state["_shuffle"] = generator.get_state()
        return list(torch.split(order, self.recipe.batch))

    def descend(self, state: State, batch: Tensor | slice) -> tuple[Tensor, Tensor]:
        """One step in place; the loss before it, and which samples were correct [b]."""
        slope = self.slope(state, batch)
        rate = self._rate(slope.loss)
        for name, gradient in slope.gradient.items():
            # If possible, one pass over the weights, which may be far larger than the data.
            if isinstance(rate, float):
                state[name].sub_(gradient, alpha=rate)
            else:
                state[name].sub_(rate * gradient)
        return slope.loss, slope.correct

    def _rate(self, loss: Tensor) -> Tensor | float:
        if self.recipe.normalise_below is None:
            return self.recipe.lr
        return self.recipe.lr * (self.recipe.normalise_below / loss).clamp(min=1.0)
