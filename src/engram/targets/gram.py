"""The same descent without pixel-sized weights: exact, and faster with fewer images than pixels.

The first layer's gradient is dZᵀ X, a combination of the training images, so full-batch or mini-batch descent
can be followed in the pre-activations Z = X Wᵀ + b alone:

    Z <- (1 - rate w) Z - rate (X Xᵀ + 1) dZ        (the 1 only where the layer has a bias)
    S <- (1 - rate w) S + rate dZ,  c <- (1 - rate w) c

and W = c W(0) - Sᵀ X, b = c b(0) - sum_i S_i at the end. Z [n, h], S [n, h], w the weight decay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engram.loop import State
from engram.targets.descent import GradientDescent
from engram.targets.networks import DenseNetwork


@dataclass(frozen=True, eq=False)
class GramDescent(GradientDescent[DenseNetwork]):
    """`GradientDescent` in the n-dimensional space of the training images."""

    def init(self) -> State:
        state = super().init()
        first = torch.nn.functional.linear(self.inputs, self.start.weights[0], self.start.biases[0])
        del state["layers.0.weight"]
        state.pop("layers.0.bias", None)
        gram = self.inputs @ self.inputs.T
        return {
            **state,
            "first": first,
            "spent": torch.zeros_like(first),
            "kept": torch.ones((), dtype=first.dtype, device=first.device),
            "gram": gram if self.start.biases[0] is None else gram + 1,
        }

    def network(self, state: State) -> DenseNetwork:
        """Back to weights: W = c W(0) - Sᵀ X, b = c b(0) - sum_i S_i."""
        bias = self.start.biases[0]
        weight = state["kept"] * self.start.weights[0] - state["spent"].T @ self.inputs
        upper = {name: state[name] for name in self.start.params if not name.startswith("layers.0.")}
        lower = {"layers.0.weight": weight}
        if bias is not None:
            lower["layers.0.bias"] = state["kept"] * bias - state["spent"].sum(0)
        return self.start.with_params({**lower, **upper})

    def _descend(self, state: State, batch: Tensor | slice) -> tuple[Tensor, Tensor]:
        names = [name for name in self.start.params if not name.startswith("layers.0.")]
        params = {name: state[name].requires_grad_() for name in names}
        first = state["first"][batch].requires_grad_()
        upper = self._upper(params)
        labels = self.labels[batch]
        logits = upper(torch.relu(first))
        loss = self.task.loss(logits, labels)
        signal, *gradients = torch.autograd.grad(loss, [first, *params.values()])
        with torch.no_grad():
            rate = self._rate(loss.detach())
            for name, gradient in zip(names, gradients, strict=True):
                state[name] = self._moved(params[name].detach(), gradient, rate)
            shrink = 1 - rate * self.recipe.weight_decay
            state["first"] = shrink * state["first"] - rate * (state["gram"][:, batch] @ signal)
            state["spent"] = shrink * state["spent"]
            state["spent"][batch] += rate * signal
            state["kept"] = shrink * state["kept"]
        return loss.detach(), self.task.correct(logits.detach(), labels)

    def _upper(self, params: dict[str, Tensor]) -> DenseNetwork:
        """All layers above the first, reading its activations."""
        layers = range(1, len(self.start.weights))
        return replace(
            self.start,
            weights=tuple(params[f"layers.{layer}.weight"] for layer in layers),
            biases=tuple(params.get(f"layers.{layer}.bias") for layer in layers),
        )
