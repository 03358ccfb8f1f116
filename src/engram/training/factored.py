"""Descent without an array for the gradient of a wide layer.

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

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from engram.core.loop import State
from engram.models.networks import ConvNetwork, DenseNetwork
from engram.training.descent import GradientDescent, Slope


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
