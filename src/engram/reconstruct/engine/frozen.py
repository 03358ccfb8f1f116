"""Between refreshes the layers above the first stand still: a step then costs products with the first layer only.

With the gates above frozen, the network is linear in the first layer's output h_1, sample by sample,

    output_i = a_i · h_1(z_i) + rest_i,    signal arriving at the first layer = lambda_i a_i,

with output_i what the dual lambda_i weighs (for classes the margin) and a_i its gradient by h_1 at the refresh.
What this leaves out of the gradient by the latents (the gates above that move, and the prior) hardly changes over
a few steps; it is taken once and added as a constant: `correction`. At the refresh itself the gradient is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.loop import State
from engram.reconstruct.engine.closed_form import Pass, explained, with_constant
from engram.reconstruct.engine.metric import Metric
from engram.reconstruct.engine.objective import Objective
from engram.reconstruct.engine.passes import Passes


@dataclass(frozen=True, eq=False)
class Frozen:
    """a [m, h], rest [m], the correction [m, r], and the value of the prior, all at the refresh."""

    arriving: Tensor
    rest: Tensor
    correction: Tensor
    variation: Tensor | None

    @classmethod
    def at(cls, objective: Objective, state: State, metric: Metric, prior: float) -> Frozen:
        """Everything that is dear, from the state's latents, duals and labels."""
        latents, labels = state["latents"], state["labels"]
        units = torch.ones_like(state["duals"])
        unit = objective.run(latents, units, labels)
        hidden = unit.entering[1][:, : objective.scales.network.weights[1].shape[1]]
        weighed = (unit.signals[-1] * unit.outputs).sum(1)
        rest = weighed - (hidden * unit.arriving[0]).sum(1)
        still = cls(unit.arriving[0], rest, torch.zeros_like(latents), None)
        weighted = _weighted(unit, state["duals"])
        passes = Passes.over(lambda _: weighted, [slice(len(latents))])
        losses, exact, _ = objective.from_passes(state, passes, metric, prior)
        _, near, _ = still.gradients(objective, state, metric)
        return cls(unit.arriving[0], rest, exact - near, losses.get("variation"))

    def gradients(
        self, objective: Objective, state: State, metric: Metric
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The terms of F, and its gradients by latents [m, r] and duals [m]."""
        latents, duals = state["latents"], state["duals"]
        done = self._pass(objective, latents, duals)
        (entering,), (gates,), (arriving,), signals = done.entering, done.gates, done.arriving, done.signals
        stationarity, by_residual = objective.stationarity(explained(done, 0), metric)
        sides = duals.sign() if objective.task.has_signed_duals else torch.ones_like(duals)
        margin, by_margin = objective.margin(sides * done.outputs[:, 0], duals)
        by_signal = -(entering @ by_residual.T)
        by_duals = (by_signal * gates * self.arriving).sum(1)
        slope = objective.scales.slope
        by_pre = (
            by_signal * arriving * (slope * gates * (1 - gates))
            + (by_margin * sides)[:, None] * self.arriving * gates
        )
        weight = objective.scales.network.weights[0]
        by_latents = by_pre @ weight - (signals[0] @ by_residual)[:, : weight.shape[1]] + self.correction
        losses = {"stationarity": stationarity, "margin": margin}
        if self.variation is not None:
            losses["variation"] = self.variation
        return losses, by_latents, by_duals

    def _pass(self, objective: Objective, latents: Tensor, duals: Tensor) -> Pass:
        """The first layer as in `closed_form.run_pass`; what the duals weigh, [m, 1], in place of the outputs."""
        network = objective.scales.network
        weight, bias = network.weights[0], network.biases[0]
        pre = torch.nn.functional.linear(latents, weight, bias)
        gates = torch.sigmoid(objective.scales.slope * pre)
        arriving = duals[:, None] * self.arriving
        weighed = (pre.clamp(min=0) * self.arriving).sum(1) + self.rest
        return Pass([with_constant(latents, bias)], [gates], [arriving], [gates * arriving], weighed[:, None])


def _weighted(unit: Pass, duals: Tensor) -> Pass:
    """The pass with these duals, from that with unit ones: signals are linear in them."""
    arriving = [duals[:, None] * one for one in unit.arriving]
    signals = [duals[:, None] * one for one in unit.signals]
    return Pass(unit.entering, unit.gates, arriving, signals, unit.outputs)
