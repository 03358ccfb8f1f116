"""Mini-batches without an array for the gradient.

With few samples a layer's gradient is the product of two thin matrices, the samples' signals delta_l = dL/da_l
[b, out] and what enters the layer, h_{l-1} [b, in]. It is added to the weights as it is multiplied:

    W_l <- (1 - rate w) W_l - rate delta_lᵀ h_{l-1},    b_l <- (1 - rate w) b_l - rate sum_i delta_{l,i}

so that a wide network is held once by its state, and once as it was at the start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engram.loop import State
from engram.targets.descent import GradientDescent
from engram.targets.networks import DenseNetwork


@dataclass(frozen=True, eq=False)
class Backward:
    """A loss on a batch, its logits, and layer by layer what enters, h_{l-1}, and the signals delta_l."""

    loss: Tensor
    logits: Tensor
    entering: list[Tensor]
    signals: list[Tensor]


def backward(network: DenseNetwork, inputs: Tensor, loss: Callable[[Tensor], Tensor]) -> Backward:
    """Backpropagate to the pre-activations alone; the weights need no gradient."""
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
    """`GradientDescent` by mini-batches."""

    def descend(self, state: State, batch: Tensor | slice) -> tuple[Tensor, Tensor]:
        labels, network = self.labels[batch], self.network(state)
        done = backward(network, self.inputs[batch], lambda logits: self.task.loss(logits, labels))
        move(network, done, float(self._rate(done.loss)), self.recipe.weight_decay)
        return done.loss, self.task.correct(done.logits, labels)
