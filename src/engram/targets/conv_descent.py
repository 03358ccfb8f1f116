"""Descent of networks with convolutions, without an array for the gradient of their fully-connected layers.

Those hold nearly all the parameters, so an epoch is as quick as they are read and written: the convolutions'
gradients come from autograd, and the layers above are moved as in `minibatch`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.loop import State
from engram.targets.convolutional import ConvNetwork
from engram.targets.descent import GradientDescent
from engram.targets.minibatch import backward, move


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
