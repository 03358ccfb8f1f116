"""Gradient descent as in the papers: full batch or mini-batches, constant rate, weight decay.

`begin_drift` and `record_drift` measure how fast training still moves: the norm of its mean gradient over a
stretch, ||theta(s) - theta(t)|| / (t - s). With weight decay a ReLU network comes to rest where samples lie on
the edges of neurons. There the gradient jumps from side to side and never vanishes, but its mean along the path,
the velocity of the descent, does. Stretches start at epochs 100, 200, 400, ...: each is as long as all training
before it, so that ever smaller velocities can be distinguished from the jumping.

The second half is descent without an array for the gradient of a wide layer.

With few samples a layer's gradient is the product of two thin matrices, the samples' signals delta_l = dL/da_l
[b, out] and what enters the layer, h_{l-1} [b, in]. It is added to the weights as it is multiplied:

    W_l <- (1 - rate w) W_l - rate delta_lᵀ h_{l-1},    b_l <- (1 - rate w) b_l - rate sum_i delta_{l,i}

so that a wide network is in memory only twice: in the state, and as it was at the start.

`GramDescent` avoids pixel-sized weights altogether: exact, and faster with fewer images than pixels. The
first layer's gradient is dZᵀ X, a combination of the training images, so descent never leaves

    W = c W(0) - Sᵀ X,   b = c b(0) - sum_i S_i

and can be followed in the coordinates S [n, h] and c, of which the pre-activations are an affine function:

    Z = X Wᵀ + b = c Z(0) - G S,   G = X Xᵀ + 1        (the 1 only where the layer has a bias)
    S <- (1 - rate w) S + rate dZ,  c <- (1 - rate w) c        (w the weight decay)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic

import torch
from torch import Tensor

from engram.core.loop import Metrics, State, Values
from engram.models.networks import ConvNetwork, DenseNetwork, N
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


@dataclass(frozen=True, eq=False)
class Backward:
    """A loss on a batch, its logits, and by layer the inputs h_{l-1} and the signals delta_l."""

    loss: Tensor
    logits: Tensor
    entering: list[Tensor]
    signals: list[Tensor]


def backward(network: DenseNetwork, inputs: Tensor, loss: Callable[[Tensor], Tensor]) -> Backward:
    """Backpropagate only to the pre-activations; the weights need no gradient."""
    hidden: list[Tensor] = []

    def watched(pre: Tensor) -> Tensor:
        hidden.append(pre if pre.requires_grad else pre.requires_grad_())
        return torch.relu(pre)

    logits = network(inputs, watched)
    value = loss(logits if hidden else logits.requires_grad_())
    signals = torch.autograd.grad(value, [*hidden, logits])
    entering = [inputs, *(torch.relu(pre.detach()) for pre in hidden)]
    return Backward(value.detach(), logits.detach(), entering, list(signals))


def move(network: DenseNetwork, done: Backward, rate: float, weight_decay: float) -> None:
    """The step, in place."""
    kept = 1 - rate * weight_decay
    layers = zip(network.weights, network.biases, done.entering, done.signals, strict=True)
    for weight, bias, entering, signal in layers:
        weight.addmm_(signal.T, entering, beta=kept, alpha=-rate)
        if bias is not None:
            bias.mul_(kept).sub_(signal.sum(0), alpha=rate)


@dataclass(frozen=True, eq=False)
class BatchDescent(GradientDescent[DenseNetwork]):
    """`GradientDescent` with mini-batches."""

    def descend(self, state: State, batch: Tensor | slice) -> tuple[Tensor, Tensor]:
        labels, network = self.labels[batch], self.network(state)
        done = backward(network, self.inputs[batch], lambda logits: self.task.loss(logits, labels))
        move(network, done, float(self._rate(done.loss)), self.recipe.weight_decay)
        return done.loss, self.task.correct(done.logits, labels)


@dataclass(frozen=True, eq=False)
class GramDescent(GradientDescent[DenseNetwork]):
    """`GradientDescent` in the n-dimensional space of the training images."""

    @cached_property
    def gram(self) -> Tensor:
        """G [n, n]."""
        gram = self.inputs @ self.inputs.T
        return gram if self.start.biases[0] is None else gram + 1

    @cached_property
    def first(self) -> Tensor:
        """Z(0) [n, h]."""
        return torch.nn.functional.linear(self.inputs, self.start.weights[0], self.start.biases[0])

    def coordinates(self) -> State:
        upper = {name: value for name, value in super().coordinates().items() if name in self._upper_names}
        return {"spent": torch.zeros_like(self.first), "kept": torch.ones_like(self.first[0, 0]), **upper}

    def forget(self, state: State, kept: float) -> None:
        """In the first layer the initialisation has its own coordinate."""
        state["kept"].zero_()
        for name in self._upper_names:
            state[name].sub_(self.start.params[name], alpha=kept)

    @property
    def names(self) -> list[str]:
        return ["spent", "kept", *self._upper_names]

    def network(self, state: State) -> DenseNetwork:
        """Back to weights: W = c W(0) - Sᵀ X, b = c b(0) - sum_i S_i."""
        bias = self.start.biases[0]
        weight = state["kept"] * self.start.weights[0] - state["spent"].T @ self.inputs
        lower = {"layers.0.weight": weight}
        if bias is not None:
            lower["layers.0.bias"] = state["kept"] * bias - state["spent"].sum(0)
        return self.start.with_params({**lower, **{name: state[name] for name in self._upper_names}})

    def slope(self, point: State, batch: Tensor | slice = slice(None), *, log: bool = False) -> Slope:
        params = {name: point[name].detach().requires_grad_() for name in self._upper_names}
        first = point["kept"] * self.first[batch] - self.gram[batch] @ point["spent"]
        logits = self._upper(params)(torch.relu(first.requires_grad_()))
        labels = self.labels[batch]
        loss = (self.task.log_loss if log else self.task.loss)(logits, labels)
        signal, *gradients = torch.autograd.grad(loss, [first, *params.values()])
        spent = torch.zeros_like(point["spent"])
        spent[batch] = -signal
        named = {
            "spent": spent,
            "kept": torch.zeros_like(point["kept"]),
            **dict(zip(params, gradients, strict=True)),
        }
        decayed = {name: self._decayed(gradient, point[name]) for name, gradient in named.items()}
        return Slope(decayed, loss.detach(), self.task.correct(logits.detach(), labels))

    def layer_squares(self, vector: State) -> Tensor:
        """In the first layer ||c W(0) - Sᵀ X||² = c² ||W(0)||² - 2 c <Z(0), S> + <S, G S>, biases included."""
        spent, kept = vector["spent"], vector["kept"]
        noise = sum(self.start.params[name].square().sum() for name in self.start.layer_names[0])
        mixed = (self.first * spent).sum()
        first = kept.square() * noise - 2 * kept * mixed + (spent * (self.gram @ spent)).sum()
        upper = [sum(vector[name].square().sum() for name in names) for names in self.start.layer_names[1:]]
        return torch.stack([first.clamp(min=0), *map(torch.as_tensor, upper)])

    def descend(self, state: State, batch: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Apart from weight decay, a mini-batch moves only its own rows of S, and the layers above in place."""
        if isinstance(batch, slice):
            return super().descend(state, batch)
        labels, upper = self.labels[batch], self._upper(state)
        first = state["kept"] * self.first[batch] - self.gram[batch] @ state["spent"]
        done = backward(upper, torch.relu(first), lambda logits: self.task.loss(logits, labels))
        signal = (done.signals[0] @ upper.weights[0]) * (first > 0)
        rate, weight_decay = float(self._rate(done.loss)), self.recipe.weight_decay
        move(upper, done, rate, weight_decay)
        if weight_decay:
            for name in ("spent", "kept"):
                state[name].mul_(1 - rate * weight_decay)
        state["spent"].index_add_(0, batch, signal, alpha=rate)
        return done.loss, self.task.correct(done.logits, labels)

    @property
    def _upper_names(self) -> list[str]:
        return [name for names in self.start.layer_names[1:] for name in names]

    def _upper(self, params: State) -> DenseNetwork:
        """All layers above the first, reading its activations."""
        layers = range(1, len(self.start.weights))
        return replace(
            self.start,
            weights=tuple(params[f"layers.{layer}.weight"] for layer in layers),
            biases=tuple(params.get(f"layers.{layer}.bias") for layer in layers),
        )


@dataclass(frozen=True, eq=False)
class ConvDescent(GradientDescent[ConvNetwork]):
    """`GradientDescent` of a network that has a `head`."""

    def descend(self, state: State, batch: Tensor | slice) -> tuple[Tensor, Tensor]:
        labels, network = self.labels[batch], self.network(state)
        lower = {name: state[name].detach().requires_grad_() for name in network.lower_names}
        features = network.with_params({**network.params, **lower}).features(self.inputs[batch])
        done = backward(network.head, features.detach(), lambda logits: self.task.loss(logits, labels))
        by_features = done.signals[0] @ network.head.weights[0]
        gradients = torch.autograd.grad(features, list(lower.values()), by_features)
        rate = float(self._rate(done.loss))
        for name, gradient in zip(lower, gradients, strict=True):
            state[name].sub_(self._decayed(gradient, state[name]), alpha=rate)
        move(network.head, done, rate, self.recipe.weight_decay)
        return done.loss, self.task.correct(done.logits, labels)
