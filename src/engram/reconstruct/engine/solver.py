"""The engine's iteration: Adam on candidates in the row space and their duals, restart after restart.

    F = sum_k r_kᵀ M_k r_k / sum_k w_kᵀ M_k w_k  +  margin  +  prior

with r_k neuron k's residual of stationarity, w_k its own weights and M_k its metric; `margin` asks every candidate
in use to lie within a tolerance of the margin that homogeneity gives, and `prior` is total variation.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from engram.attacker import AttackerView
from engram.loop import Metrics, State, Values
from engram.reconstruct.candidates import Reconstruction
from engram.reconstruct.engine.closed_form import Pass, explained, parameters, pull_back, run_pass
from engram.reconstruct.engine.consensus import consensus
from engram.reconstruct.engine.metric import neuron_metric
from engram.reconstruct.engine.prior import total_variation
from engram.reconstruct.engine.scales import Scales, derive_scales
from engram.reconstruct.engine.settings import EngineSettings
from engram.task import Binary

LATENT_RATE = 0.08
"""Adam's rate as a share of the latents' own spread."""
DUAL_RATE = 0.05
"""Adam's rate as a share of the mean dual."""
BETAS = (0.9, 0.999)


@dataclass(frozen=True, eq=False)
class Engine:
    """Stationarity of the first layer with its bias: the layer that carries the images."""

    recipe: ClassVar[str] = "engine"

    view: AttackerView
    settings: EngineSettings
    _metric: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def scales(self) -> Scales:
        return derive_scales(self.view, self.settings)

    @property
    def total_steps(self) -> int:
        return self.settings.steps * self.settings.restarts

    def init(self) -> State:
        scales, restarts = self.scales, self.settings.restarts
        device, dtype = scales.network.weights[0].device, self.settings.torch_dtype
        m, rank = scales.candidates, scales.space.rank
        pool = {
            "pool_latents": torch.zeros(restarts, m, rank, device=device, dtype=dtype),
            "pool_duals": torch.zeros(restarts, m, device=device, dtype=dtype),
            "labels": torch.arange(m, device=device) % self.view.task.label_count,
            "step": torch.tensor(0),
        }
        return {**pool, **self._fresh_start(0)}

    def step(self, state: State) -> Metrics:
        restart, step = divmod(int(state["step"]), self.settings.steps)
        if step == 0 and restart > 0:
            state.update(self._fresh_start(restart))
        if step % self.settings.metric_every == 0:
            state["metric_latents"], state["metric_duals"] = state["latents"].clone(), state["duals"].clone()
            self._metric.clear()
        losses, by_latents, by_duals = self._objective(state)
        decay = 0.5 * (1 + math.cos(math.pi * step / self.settings.steps))
        scales = self.scales
        _adam(state, "latents", by_latents, LATENT_RATE * scales.latent_std * decay, step + 1)
        _adam(state, "duals", by_duals, DUAL_RATE * scales.dual * decay, step + 1)
        state["duals"].clamp_(min=0)
        state["step"] += 1
        if step + 1 == self.settings.steps:
            state["pool_latents"][restart] = state["latents"]
            state["pool_duals"][restart] = state["duals"]
        return {**losses, "loss": torch.stack(list(losses.values())).sum()}

    def finished(self, metrics: Values) -> bool:
        return False

    def fingerprint(self) -> str:
        digest = hashlib.sha256(repr((self.settings, self.view.task, self.view.input_shape)).encode())
        for value in self.view.network.params.values():
            digest.update(value.cpu().numpy().tobytes())
        return digest.hexdigest()

    def hint(self) -> str:
        return "this should not happen: please report the model's layers as `engram inspect` shows them"

    def reconstruction(self, state: State) -> Reconstruction:
        """The candidates of all finished restarts, merged, scored and sorted; of the first one if none has."""
        done = int(state["step"]) // self.settings.steps
        latents, duals = (state[f"pool_{name}"][:done] for name in ("latents", "duals"))
        if done == 0:
            latents, duals = state["latents"][None], state["duals"][None]
        images = latents.flatten(0, 1) @ self.scales.space.basis.to(latents.dtype)
        labels = state["labels"].repeat(len(latents))
        pool = Reconstruction(images.view(-1, *self.view.input_shape).cpu(), duals.flatten().cpu(), labels.cpu())
        return consensus(pool, len(latents))

    def _fresh_start(self, restart: int) -> State:
        scales = self.scales
        device, dtype = scales.network.weights[0].device, self.settings.torch_dtype
        generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + restart)
        shape = (scales.candidates, scales.space.rank)
        latents = scales.latent_std * torch.randn(shape, generator=generator, dtype=torch.float64)
        latents = latents.to(device=device, dtype=dtype)
        duals = torch.full((scales.candidates,), scales.dual, device=device, dtype=dtype)
        moments = {
            f"{name}_{moment}": torch.zeros_like(value)
            for name, value in (("latents", latents), ("duals", duals))
            for moment in ("mean", "square")
        }
        return {"latents": latents, "duals": duals, **moments}

    def _objective(self, state: State) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The terms of F, and its gradients by latents [m, r] and duals [m]."""
        network, slope = self.scales.network, self.scales.slope
        latents, duals = state["latents"], state["duals"]
        signs = Binary.signs(state["labels"], latents.dtype)
        done = run_pass(network, latents, slope)
        weights = parameters(network, 0)
        metric = self._current_metric(state)
        left = weights - explained(done, duals * signs, 0)
        pulled = torch.bmm(metric, left[:, :, None]).squeeze(2)
        stationarity = (pulled * left).sum()
        margin, by_output = self._margin(done, signs, duals, weights)
        by_latents, by_coefficient = pull_back(network, done, duals * signs, slope, {0: 2 * pulled}, by_output)
        losses = {"stationarity": stationarity, "margin": margin}
        if self.scales.prior > 0:
            variation, by_variation = self._variation(latents, duals)
            losses["prior"] = variation
            by_latents = by_latents + by_variation
        return losses, by_latents, by_coefficient * signs

    def _current_metric(self, state: State) -> Tensor:
        """M_k [h, r+1, r+1] with its normalisation; from stored copies, so that a resumed run has the same."""
        if 0 not in self._metric:
            network = self.scales.network
            done = run_pass(network, state["metric_latents"], self.scales.slope)
            metric = neuron_metric(done.entering[0], done.gates[0], state["metric_duals"], self.settings.ridge)
            weights = parameters(network, 0)
            metric /= weights.square().sum(1).clamp(min=1e-30)[:, None, None]
            metric /= torch.einsum("kp,kpq,kq->", weights, metric, weights)
            self._metric[0] = metric
        return self._metric[0]

    def _margin(self, done: Pass, signs: Tensor, duals: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Squared distance of y Phi / gamma from [1 - tolerance, 1 + tolerance], duals as weights.

        gamma = ||[W_1 b_1]||² / sum lambda, since the first layer is homogeneous.
        """
        total = duals.sum().clamp(min=1e-12 * self.scales.dual)
        gamma = weights.square().sum() / total
        excess = signs * done.outputs / gamma - 1
        outside = excess - excess.clamp(-self.settings.margin_tolerance, self.settings.margin_tolerance)
        share = self.settings.margin_weight * duals / total
        return (share * outside.square()).sum(), 2 * share * outside * signs / gamma

    def _variation(self, latents: Tensor, duals: Tensor) -> tuple[Tensor, Tensor]:
        basis = self.scales.space.basis.to(latents.dtype)
        images = (latents @ basis).view(-1, *self.view.input_shape)
        values, gradients = total_variation(images)
        share = self.scales.prior * duals / duals.sum().clamp(min=1e-12 * self.scales.dual)
        return (share * values).sum(), share[:, None] * (gradients.flatten(1) @ basis.T)


def _adam(state: State, name: str, gradient: Tensor, rate: float, step: int) -> None:
    """One step of Adam (Kingma & Ba) in place; the moments lie beside the value in the state."""
    mean, square = state[f"{name}_mean"], state[f"{name}_square"]
    mean.lerp_(gradient, 1 - BETAS[0])
    square.lerp_(gradient.square(), 1 - BETAS[1])
    spread = (square / (1 - BETAS[1] ** step)).sqrt_().add_(1e-12)
    state[name].addcdiv_(mean / (1 - BETAS[0] ** step), spread, value=-rate)
