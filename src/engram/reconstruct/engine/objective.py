"""The engine's objective: stationarity of the first layer under its metric, margin, prior."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.loop import State
from engram.reconstruct.engine.closed_form import Pass, explained, parameters, pull_back, run_pass
from engram.reconstruct.engine.metric import neuron_metric
from engram.reconstruct.engine.prior import total_variation
from engram.reconstruct.engine.scales import Scales
from engram.reconstruct.engine.settings import EngineSettings
from engram.task import Binary

FAINT = 0.1
"""Neurons with less than this share of the median energy count as if they had it."""


def row_energies(weights: Tensor) -> Tensor:
    """||w_k||² [h], but no less than a share of the median: neurons that never learnt have nothing to say, and
    dividing by their norm would let them speak loudest.

    >>> row_energies(torch.tensor([[1.0], [2.0], [0.0]]))
    tensor([1.0000, 4.0000, 0.1000])
    """
    energies = weights.square().sum(1)
    return energies.clamp(min=FAINT * float(energies.median()))


@dataclass(frozen=True, eq=False)
class Objective:
    """Values and gradients for latents [m, r], duals [m] and labels [m] in a state."""

    scales: Scales
    settings: EngineSettings
    input_shape: tuple[int, ...]

    def __call__(self, state: State, metric: Tensor, prior: float) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The terms of F, and its gradients by latents [m, r] and duals [m]."""
        network, slope = self.scales.network, self.scales.slope
        latents, duals = state["latents"], state["duals"]
        signs = Binary.signs(state["labels"], latents.dtype)
        done = run_pass(network, latents, slope)
        left = parameters(network, 0) - explained(done, duals * signs, 0)
        pulled = torch.bmm(metric, left[:, :, None]).squeeze(2)
        margin, by_output = self.margin(done, signs, duals)
        by_latents, by_coefficient = pull_back(network, done, duals * signs, slope, {0: 2 * pulled}, by_output)
        losses = {"stationarity": (pulled * left).sum(), "margin": margin}
        if prior > 0:
            variation, by_variation = self.variation(latents, duals)
            losses["variation"] = prior * variation
            by_latents = by_latents + prior * by_variation
        return losses, by_latents, by_coefficient * signs

    def unexplained(self, state: State) -> Tensor:
        """What is left of each neuron, ||r_k||² / ||w_k||², [h]."""
        network = self.scales.network
        signs = Binary.signs(state["labels"], state["latents"].dtype)
        done = run_pass(network, state["latents"], self.scales.slope)
        weights = parameters(network, 0)
        left = weights - explained(done, state["duals"] * signs, 0)
        return left.square().sum(1) / row_energies(weights)

    def metric(self, latents: Tensor, duals: Tensor) -> Tensor:
        """M_k / ||w_k||² [h, r+1, r+1], scaled so that candidates that explain nothing have loss 1."""
        network = self.scales.network
        done = run_pass(network, latents, self.scales.slope)
        metric = neuron_metric(done.entering[0], done.gates[0], duals, self.settings.ridge)
        weights = parameters(network, 0)
        metric /= row_energies(weights)[:, None, None]
        metric /= torch.einsum("kp,kpq,kq->", weights, metric, weights)
        return metric

    def margin(self, done: Pass, signs: Tensor, duals: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distance of y Phi / gamma from [1 - tolerance, 1 + tolerance], duals as weights.

        gamma = ||[W_1 b_1]||² / sum lambda, since the first layer is homogeneous. Value, and gradient by Phi [m].
        """
        total = duals.sum().clamp(min=1e-12 * self.scales.dual)
        gamma = parameters(self.scales.network, 0).square().sum() / total
        excess = signs * done.outputs / gamma - 1
        outside = excess - excess.clamp(-self.settings.margin_tolerance, self.settings.margin_tolerance)
        share = self.settings.margin_weight * duals / total
        return (share * outside.square()).sum(), 2 * share * outside * signs / gamma

    def variation(self, latents: Tensor, duals: Tensor) -> tuple[Tensor, Tensor]:
        """Total variation of the images, duals as weights, and its gradient by the latents [m, r]."""
        basis = self.scales.space.basis.to(latents.dtype)
        images = (latents @ basis).view(-1, *self.input_shape)
        values, gradients = total_variation(images)
        share = duals / duals.sum().clamp(min=1e-12 * self.scales.dual)
        return (share * values).sum(), share[:, None] * (gradients.flatten(1) @ basis.T)
