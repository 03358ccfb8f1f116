"""What every task provides for training, attacks and scoring."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor


class Task(Protocol):
    """The meaning of a network's outputs.

    Duals are what an attack multiplies the samples' gradients by: one per sample, [m], or, for a task with
    several constraints per sample, [m, outputs]. The attack passes them through without interpreting them.
    """

    @property
    def name(self) -> str:
        """As the command line and the cards write it."""

    @property
    def outputs(self) -> int:
        """How many outputs the network has."""

    @property
    def label_count(self) -> int:
        """Labels are the integers below this."""

    @property
    def has_signed_duals(self) -> bool:
        """Whether duals may have either sign, so that they have no lower bound."""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean training loss; logits [n, outputs], labels [n]."""

    def log_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """log of the loss, accurate even where the loss itself would underflow."""

    def correct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Which samples are classified correctly, [n] bool."""

    def margins(self, logits: Tensor, labels: Tensor) -> Tensor:
        """How far each sample is on the right side, [n]."""

    def output_weights(self, labels: Tensor, duals: Tensor, logits: Tensor) -> Tensor:
        """The rows c_i that turn stationarity into plain backpropagation, [m, outputs].

        Stationarity is theta = sum_i sum_k c_ik d Phi_k(x_i) / d theta: backpropagate row c_i from the outputs
        of sample i. c is linear in the duals and differentiable in them; logits [m, outputs] only select which
        outputs take part (a choice that is constant except at ties), and no gradient flows into them.
        """

    def sides(self, labels: Tensor, duals: Tensor, logits: Tensor) -> Tensor:
        """The rows s_i with margin_i = sum_k s_ik Phi_k(x_i), [m, outputs]; logits as in `output_weights`."""

    def draw_duals(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Duals to start from, drawn on the CPU in float64."""

    def equal_duals(self, labels: Tensor, size: float) -> Tensor:
        """Duals that give every sample the weight `size`, on the CPU in float64."""

    def dual_shortfall(self, labels: Tensor, duals: Tensor, floor: float) -> Tensor:
        """By how much each dual falls below its lower bound; never negative."""

    def sample_duals(self, duals: Tensor) -> Tensor:
        """The weight of each sample, [m]."""

    def unit_duals(self, duals: Tensor) -> Tensor:
        """Duals that give every sample the weight 1, shared among its constraints in the same proportions."""

    def sample_labels(self, labels: Tensor, duals: Tensor) -> Tensor:
        """The final labels of the candidates, [m]."""

    def with_all_duals(self) -> Task:
        """The same task with a dual for every constraint of a sample: the whole KKT condition."""


def log_mean_softplus(excess: Tensor) -> Tensor:
    """log mean_i log(1 + exp(a_i)) for a [n], without underflow: log(1 + exp(a)) is exp(a) to float64 below -40.

    >>> float(log_mean_softplus(torch.tensor([-2000.0, -2000.0])))
    -2000.0
    """
    # both branches of `where` are differentiated, so each must get inputs where it is finite
    moderate = torch.nn.functional.softplus(excess.clamp(min=-40)).log()
    return (torch.where(excess < -40, excess, moderate)).logsumexp(0) - math.log(len(excess))


class OneDual:
    """One dual per sample, which must not be negative: lambda_i >= 0, in the papers' scheme >= lambda_min."""

    @property
    def has_signed_duals(self) -> bool:
        return False

    def draw_duals(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """lambda_i ~ U(0, 1)."""
        return torch.rand(len(labels), generator=generator, dtype=torch.float64)

    def equal_duals(self, labels: Tensor, size: float) -> Tensor:
        return torch.full((len(labels),), size, dtype=torch.float64)

    def dual_shortfall(self, labels: Tensor, duals: Tensor, floor: float) -> Tensor:
        """max(floor - lambda_i, 0), [m].

        >>> OneDual().dual_shortfall(torch.tensor([0, 1]), torch.tensor([0.25, 1.0]), 0.5)
        tensor([0.2500, 0.0000])
        """
        return (floor - duals).clamp(min=0)

    def sample_duals(self, duals: Tensor) -> Tensor:
        return duals

    def unit_duals(self, duals: Tensor) -> Tensor:
        return torch.ones_like(duals)

    def sample_labels(self, labels: Tensor, duals: Tensor) -> Tensor:
        return labels
