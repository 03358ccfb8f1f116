"""Binary: two classes, one output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.task.protocol import OneDual, log_mean_softplus


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
