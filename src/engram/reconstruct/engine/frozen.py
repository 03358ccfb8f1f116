"""Between refreshes the layers above the first stand still: a step then costs products with the first layer only.

With the gates above frozen, the network is linear in the first layer's output h_1, sample by sample,

    margin_i = b_i · h_1(z_i) + rest_i,    signal arriving at the first layer = lambda_i a_i,

with a_i and b_i the gradients by h_1, at the refresh, of what the dual lambda_i weighs and of the margin: the same
where a sample has one dual.
What this leaves out of the gradient by the latents (the gates above that move, and the prior) hardly changes over
a few steps; it is taken once and added as a constant: `correction`. At the refresh itself the gradient is exact.
Where a sample has several duals, how they share its weight stands still too, and so does their gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.loop import State
from engram.reconstruct.engine.closed_form import Pass, explained, send_down, with_constant
from engram.reconstruct.engine.metric import Metric
from engram.reconstruct.engine.objective import Objective
from engram.reconstruct.engine.passes import Passes


@dataclass(frozen=True, eq=False)
class Frozen:
    """a and b [m, h], rest [m], the correction [m, r], the gradient by the duals and the prior, at the refresh."""

    arriving: Tensor
    holding: Tensor
    rest: Tensor
    correction: Tensor
    by_duals: Tensor
    variation: Tensor | None

    @classmethod
    def at(cls, objective: Objective, state: State, metric: Metric, prior: float) -> Frozen:
        """Everything that is dear, from the state's latents, duals and labels."""
        latents, labels = state["latents"], state["labels"]
        task, network, duals = objective.task, objective.scales.network, state["duals"]
        unit = objective.run(latents, task.unit_duals(duals), labels)
        sides, arriving = unit.signals[-1], unit.arriving[0]
        holding = arriving
        if duals.ndim > 1:
            sides = task.sides(labels, duals, unit.outputs)
            holding = send_down(network, unit.gates, sides)[0][0]
        hidden = unit.entering[1][:, : network.weights[1].shape[1]]
        rest = (sides * unit.outputs).sum(1) - (hidden * holding).sum(1)
        still = cls(arriving, holding, rest, torch.zeros_like(latents), duals, None)
        weighted = _weighted(unit, task.sample_duals(duals))
        passes = Passes.over(lambda _: weighted, [slice(len(latents))])
        losses, exact, by_duals = objective.from_passes(state, passes, metric, prior)
        _, near, _ = still.gradients(objective, state, metric)
        return cls(arriving, holding, rest, exact - near, by_duals, losses.get("variation"))

    def gradients(
        self, objective: Objective, state: State, metric: Metric
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The terms of F, and its gradients by latents [m, r] and duals."""
        latents, duals, sizes = state["latents"], state["duals"], objective.task.sample_duals(state["duals"])
        done = self._pass(objective, latents, sizes)
        (entering,), (gates,), (arriving,), signals = done.entering, done.gates, done.arriving, done.signals
        stationarity, by_residual = objective.stationarity(explained(done, 0), metric)
        sides = sizes.sign() if objective.task.has_signed_duals else torch.ones_like(sizes)
        margin, by_margin = objective.margin(sides * done.outputs[:, 0], duals)
        by_signal = -(entering @ by_residual.T)
        by_duals = (by_signal * gates * self.arriving).sum(1) if duals.ndim == 1 else self.by_duals
        slope = objective.scales.slope
        by_pre = (
            by_signal * arriving * (slope * gates * (1 - gates))
            + (by_margin * sides)[:, None] * self.holding * gates
        )
        weight = objective.scales.network.weights[0]
        by_latents = by_pre @ weight - (signals[0] @ by_residual)[:, : weight.shape[1]] + self.correction
        losses = {"stationarity": stationarity, "margin": margin}
        if self.variation is not None:
            losses["variation"] = self.variation
        return losses, by_latents, by_duals

    def _pass(self, objective: Objective, latents: Tensor, sizes: Tensor) -> Pass:
        """The first layer as in `closed_form.run_pass`; the margins, [m, 1], in place of the outputs."""
        network = objective.scales.network
        weight, bias = network.weights[0], network.biases[0]
        pre = torch.nn.functional.linear(latents, weight, bias)
        gates = torch.sigmoid(objective.scales.slope * pre)
        arriving = sizes[:, None] * self.arriving
        weighed = (pre.clamp(min=0) * self.holding).sum(1) + self.rest
        return Pass([with_constant(latents, bias)], [gates], [arriving], [gates * arriving], weighed[:, None])


def _weighted(unit: Pass, sizes: Tensor) -> Pass:
    """The pass in which sample i counts sizes_i, from that in which each counts 1: signals are linear in them."""
    arriving = [sizes[:, None] * one for one in unit.arriving]
    signals = [sizes[:, None] * one for one in unit.signals]
    return Pass(unit.entering, unit.gates, arriving, signals, unit.outputs)
