"""Task: what the network's output means. Owns label convention, margin and the sign of the duals.

Nothing outside this file asks how many outputs a network has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engram.errors import ConfigError


class Task(Protocol):
    """The meaning of a network's outputs for training, for the attack and for scoring."""

    @property
    def name(self) -> str:
        """As the command line and the cards spell it."""

    @property
    def outputs(self) -> int:
        """How many outputs the network has."""

    @property
    def label_count(self) -> int:
        """Labels are the integers below this."""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean training loss; logits [n, outputs], labels [n]."""

    def correct(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Which samples are classified as labelled, [n] bool."""

    def margins(self, logits: Tensor, labels: Tensor) -> Tensor:
        """How far each sample is on the right side, [n]."""


@dataclass(frozen=True)
class Binary:
    """Two classes, one output. Labels 0 and 1 stand for y = -1 and y = +1.

    >>> Binary().margins(torch.tensor([[2.0], [-3.0]]), torch.tensor([1, 1]))
    tensor([ 2., -3.])
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

    def correct(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.margins(logits, labels) > 0

    def margins(self, logits: Tensor, labels: Tensor) -> Tensor:
        """y_i Phi(x_i)."""
        return self.signs(labels, logits.dtype) * logits.squeeze(1)

    @staticmethod
    def signs(labels: Tensor, dtype: torch.dtype) -> Tensor:
        """y in {-1, +1} for labels in {0, 1}.

        >>> Binary.signs(torch.tensor([0, 1]), torch.float64)
        tensor([-1.,  1.], dtype=torch.float64)
        """
        return (2 * labels - 1).to(dtype)


def task_named(name: str) -> Task:
    """The task of that name, as the command line and the cards spell it."""
    if name == "binary":
        return Binary()
    raise ConfigError(f"task must be 'binary', got {name!r}; other tasks are not supported yet")
