"""What every task provides for training, attacks and scoring, and the tasks: two classes, several, regression."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engram.core.errors import require


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


@dataclass(frozen=True)
class Binary(OneDual):
    """Two classes, one output. Labels 0 and 1 stand for y = -1 and y = +1.

    >>> Binary().margins(torch.tensor([[2.0], [-3.0]]), torch.tensor([1, 1]))
    tensor([ 2., -3.])
    >>> Binary().loss(torch.zeros(4, 1), torch.tensor([0, 1, 0, 1]))  # log 2
    tensor(0.6931)
    """

    name: str = "binary"

    @property
    def outputs(self) -> int:
        return 1

    @property
    def label_count(self) -> int:
        return 2

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """mean_i log(1 + exp(-y_i Phi(x_i)))."""
        return torch.nn.functional.softplus(-self.margins(logits, labels)).mean()

    def log_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return log_mean_softplus(-self.margins(logits, labels))

    def correct(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.margins(logits, labels) > 0

    def margins(self, logits: Tensor, labels: Tensor) -> Tensor:
        """y_i Phi(x_i)."""
        return self.signs(labels, logits.dtype) * logits.squeeze(1)

    def output_weights(self, labels: Tensor, duals: Tensor, logits: Tensor) -> Tensor:
        """c_i = lambda_i y_i, [m, 1].

        >>> Binary().output_weights(torch.tensor([0, 1]), torch.tensor([2.0, 3.0]), torch.zeros(2, 1))
        tensor([[-2.],
                [ 3.]])
        """
        return (duals * self.signs(labels, duals.dtype))[:, None]

    def sides(self, labels: Tensor, duals: Tensor, logits: Tensor) -> Tensor:
        """s_i = y_i, [m, 1]."""
        return self.signs(labels, logits.dtype)[:, None]

    def with_all_duals(self) -> Binary:
        return self

    @staticmethod
    def signs(labels: Tensor, dtype: torch.dtype) -> Tensor:
        """y in {-1, +1} for labels in {0, 1}.

        >>> Binary.signs(torch.tensor([0, 1]), torch.float64)
        tensor([-1.,  1.], dtype=torch.float64)
        """
        return (2 * labels - 1).to(dtype)


@dataclass(frozen=True)
class Multiclass(OneDual):
    """C classes, C outputs, cross-entropy; one dual per sample, which acts between its class and the runner-up.

    Stationarity as Buzaglo et al. 2023 solve it, Eq. (12):
    theta = sum_i lambda_i d (Phi_{y_i}(x_i) - max_{j != y_i} Phi_j(x_i)) / d theta.

    >>> logits = torch.tensor([[5.0, 1.0, 3.0], [0.0, 0.0, 4.0]])
    >>> Multiclass(3).margins(logits, torch.tensor([0, 1]))
    tensor([ 2., -4.])
    >>> Multiclass(4).loss(torch.zeros(2, 4), torch.tensor([0, 3]))  # log 4
    tensor(1.3863)
    """

    classes: int

    def __post_init__(self) -> None:
        require(
            self.classes >= 2,
            "classes",
            "must be at least 2, one output each",
            self.classes,
            "a network with one output is binary",
        )

    @property
    def name(self) -> str:
        return "multiclass"

    @property
    def outputs(self) -> int:
        return self.classes

    @property
    def label_count(self) -> int:
        return self.classes

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """mean_i log sum_j exp(Phi_j(x_i) - Phi_{y_i}(x_i))."""
        return torch.nn.functional.cross_entropy(logits, labels)

    def log_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """With a_i = log sum_{j != y_i} exp(Phi_j(x_i) - Phi_{y_i}(x_i)) the loss is mean_i log(1 + exp(a_i))."""
        own = logits.gather(1, labels[:, None])
        others = (logits - own).scatter(1, labels[:, None], -torch.inf)
        return log_mean_softplus(others.logsumexp(1))

    def correct(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.margins(logits, labels) > 0

    def margins(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Phi_{y_i}(x_i) - max_{j != y_i} Phi_j(x_i)."""
        pair = torch.stack([labels, runner_up(logits, labels)], 1)
        own, best_other = logits.gather(1, pair).unbind(1)
        return own - best_other

    def output_weights(self, labels: Tensor, duals: Tensor, logits: Tensor) -> Tensor:
        """c_i = lambda_i (e_{y_i} - e_{runner-up of i}), [m, C].

        >>> logits = torch.tensor([[5.0, 1.0, 3.0], [0.0, 0.0, 4.0]])
        >>> Multiclass(3).output_weights(torch.tensor([0, 2]), torch.tensor([2.0, 3.0]), logits)
        tensor([[ 2.,  0., -2.],
                [-3.,  0.,  3.]])
        """
        return duals[:, None] * self.sides(labels, duals, logits)

    def sides(self, labels: Tensor, duals: Tensor, logits: Tensor) -> Tensor:
        """s_i = e_{y_i} - e_{runner-up of i}, [m, C]."""
        one_hot = torch.nn.functional.one_hot
        return (one_hot(labels, self.classes) - one_hot(runner_up(logits, labels), self.classes)).to(logits.dtype)

    def with_all_duals(self) -> Multiclass:
        """With two classes there is only one other class."""
        return self if self.classes == 2 else MulticlassPairs(self.classes)


@dataclass(frozen=True)
class MulticlassPairs(Multiclass):
    """The same task with a dual for each pair of a sample and another class: the whole KKT condition.

    theta = sum_i sum_{j != y_i} lambda_ij d (Phi_{y_i}(x_i) - Phi_j(x_i)) / d theta, lambda_ij >= 0. It holds at a
    KKT point of the maximum margin, and exactly at a stationary point of cross-entropy with weight decay w, where
    lambda_ij = softmax_j(x_i) / (n w). Duals [m, C]; the column of the sample's own class is always zero.
    """

    @property
    def name(self) -> str:
        return "multiclass:pairs"

    def output_weights(self, labels: Tensor, duals: Tensor, logits: Tensor) -> Tensor:
        """c_i = sum_{j != y_i} lambda_ij (e_{y_i} - e_j), [m, C].

        >>> duals = torch.tensor([[0.0, 1.0, 2.0]])
        >>> MulticlassPairs(3).output_weights(torch.tensor([0]), duals, torch.zeros(1, 3))
        tensor([[ 3., -1., -2.]])
        """
        others = self._others(labels, duals)
        return torch.where(self._is_own(labels), others.sum(1, keepdim=True), -others)

    def draw_duals(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """lambda_ij ~ U(0, 1) / (C - 1): their sum is about as large as the one dual of `Multiclass`."""
        drawn = torch.rand(len(labels), self.classes, generator=generator, dtype=torch.float64)
        return self._others(labels.cpu(), drawn / (self.classes - 1))

    def equal_duals(self, labels: Tensor, size: float) -> Tensor:
        """lambda_ij = size / (C - 1)."""
        whole = torch.full((len(labels), self.classes), size / (self.classes - 1), dtype=torch.float64)
        return self._others(labels.cpu(), whole)

    def dual_shortfall(self, labels: Tensor, duals: Tensor, floor: float) -> Tensor:
        """No pair below zero, and no sample's sum below the floor, [m, C + 1].

        >>> duals = torch.tensor([[0.0, -1.0, 1.5]])
        >>> MulticlassPairs(3).dual_shortfall(torch.tensor([0]), duals, 0.75)
        tensor([[0.0000, 1.0000, 0.0000, 0.2500]])
        """
        others = self._others(labels, duals)
        return torch.cat([0 - others, floor - others.sum(1, keepdim=True)], 1).clamp(min=0)

    def sample_duals(self, duals: Tensor) -> Tensor:
        """sum_j lambda_ij."""
        return duals.sum(1)

    def unit_duals(self, duals: Tensor) -> Tensor:
        """lambda_ij / sum_j lambda_ij, or zero if all are zero."""
        return duals / duals.sum(1, keepdim=True).clamp(min=torch.finfo(duals.dtype).tiny)

    def _is_own(self, labels: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(labels, self.classes).bool()

    def _others(self, labels: Tensor, duals: Tensor) -> Tensor:
        return duals.masked_fill(self._is_own(labels), 0)


def runner_up(logits: Tensor, labels: Tensor) -> Tensor:
    """The strongest class other than the sample's own, [m]; no gradient flows through the choice.

    >>> runner_up(torch.tensor([[5.0, 1.0, 3.0]]), torch.tensor([0]))
    tensor([2])
    """
    return logits.detach().scatter(1, labels[:, None], -torch.inf).argmax(1)


@dataclass(frozen=True)
class Regression:
    """One output fitted to y = -1 and +1 (labels 0 and 1) by mean |Phi - y|^p ("l2", "l2.5") or Huber's loss.

    With weight decay w every loss ends where theta = sum_i lambda_i d Phi(x_i) / d theta, Eq. (15), with
    lambda_i = -loss'(Phi(x_i) - y_i) / (n w): of either sign, so the attack needs no labels.

    >>> logits, labels = torch.tensor([[3.0], [-1.5]]), torch.tensor([1, 0])
    >>> Regression("l2").loss(logits, labels)  # mean of 2² and 0.5²
    tensor(2.1250)
    >>> Regression("huber").loss(logits, labels)  # mean of 2 - 1/2 and 0.5²/2
    tensor(0.8125)
    >>> Regression("l2.5").loss(torch.tensor([[5.0]]), torch.tensor([1]))  # 4^2.5
    tensor(32.)
    """

    kind: str = "l2"

    def __post_init__(self) -> None:
        require(
            self.kind == "huber" or (self.power is not None and self.power > 1),
            "loss",
            "must be huber, or l followed by a power above 1",
            self.kind,
            "for example l2, l2.5 or huber",
        )

    @property
    def power(self) -> float | None:
        """p of |Phi - y|^p, or None."""
        digits = self.kind.removeprefix("l")
        is_number = digits != self.kind and digits.replace(".", "", 1).isdecimal()
        return float(digits) if is_number else None

    @property
    def name(self) -> str:
        return f"regression:{self.kind}"

    @property
    def outputs(self) -> int:
        return 1

    @property
    def label_count(self) -> int:
        return 2

    @property
    def has_signed_duals(self) -> bool:
        return True

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        difference = logits.squeeze(1) - Binary.signs(labels, logits.dtype)
        if self.power is None:
            return torch.nn.functional.huber_loss(difference, torch.zeros_like(difference))
        return difference.abs().pow(self.power).mean()

    def log_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.loss(logits, labels).log()

    def correct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The output has the target's sign."""
        return self.margins(logits, labels) > 0

    def margins(self, logits: Tensor, labels: Tensor) -> Tensor:
        """y_i Phi(x_i), which is 1 for a perfect fit."""
        return Binary.signs(labels, logits.dtype) * logits.squeeze(1)

    def output_weights(self, labels: Tensor, duals: Tensor, logits: Tensor) -> Tensor:
        """c_i = lambda_i, [m, 1].

        >>> Regression().output_weights(torch.tensor([0, 0]), torch.tensor([2.0, -3.0]), torch.zeros(2, 1))
        tensor([[ 2.],
                [-3.]])
        """
        return duals[:, None]

    def sides(self, labels: Tensor, duals: Tensor, logits: Tensor) -> Tensor:
        """s_i = sign lambda_i, [m, 1]: the sign of the target that the output falls short of."""
        return duals.sign()[:, None]

    def draw_duals(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """lambda_i ~ N(0, 1)."""
        return torch.randn(len(labels), generator=generator, dtype=torch.float64)

    def equal_duals(self, labels: Tensor, size: float) -> Tensor:
        """lambda_i = y_i size."""
        return size * Binary.signs(labels, torch.float64)

    def dual_shortfall(self, labels: Tensor, duals: Tensor, floor: float) -> Tensor:
        """None: either sign is allowed."""
        return torch.zeros_like(duals)

    def sample_duals(self, duals: Tensor) -> Tensor:
        return duals

    def unit_duals(self, duals: Tensor) -> Tensor:
        return torch.ones_like(duals)

    def with_all_duals(self) -> Regression:
        return self

    def sample_labels(self, labels: Tensor, duals: Tensor) -> Tensor:
        """The dual's sign: weight decay keeps outputs short of their targets, so lambda_i has y_i's sign.

        >>> Regression().sample_labels(torch.tensor([0, 0]), torch.tensor([2.0, -3.0]))
        tensor([1, 0])
        """
        return (duals > 0).long()
