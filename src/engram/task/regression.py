"""Regression: one output and two target values, under any of the 2023 paper's losses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.errors import require
from engram.task.binary import Binary


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
            "must be huber or l and a power above 1",
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
        """y_i Phi(x_i), which a perfect fit makes 1."""
        return Binary.signs(labels, logits.dtype) * logits.squeeze(1)

    def output_weights(self, labels: Tensor, duals: Tensor, logits: Tensor) -> Tensor:
        """c_i = lambda_i, [m, 1].

        >>> Regression().output_weights(torch.tensor([0, 0]), torch.tensor([2.0, -3.0]), torch.zeros(2, 1))
        tensor([[ 2.],
                [-3.]])
        """
        return duals[:, None]

    def sides(self, labels: Tensor, duals: Tensor, logits: Tensor) -> Tensor:
        """s_i = sign lambda_i, [m, 1]: the sign of the target that the sample is held short of."""
        return duals.sign()[:, None]

    def draw_duals(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """lambda_i ~ N(0, 1)."""
        return torch.randn(len(labels), generator=generator, dtype=torch.float64)

    def equal_duals(self, labels: Tensor, size: float) -> Tensor:
        """lambda_i = y_i size."""
        return size * Binary.signs(labels, torch.float64)

    def dual_shortfall(self, labels: Tensor, duals: Tensor, floor: float) -> Tensor:
        """Nothing: either sign is right."""
        return torch.zeros_like(duals)

    def sample_duals(self, duals: Tensor) -> Tensor:
        return duals

    def unit_duals(self, duals: Tensor) -> Tensor:
        return torch.ones_like(duals)

    def with_all_duals(self) -> Regression:
        return self

    def sample_labels(self, labels: Tensor, duals: Tensor) -> Tensor:
        """By the sign of the dual: weight decay holds outputs short of their targets, so lambda_i has y_i's sign.

        >>> Regression().sample_labels(torch.tensor([0, 0]), torch.tensor([2.0, -3.0]))
        tensor([1, 0])
        """
        return (duals > 0).long()
