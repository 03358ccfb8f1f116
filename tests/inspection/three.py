"""A task other than binary."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ThreeClasses:
    """Three classes by softmax."""

    name: str = "three classes"

    @property
    def outputs(self) -> int:
        return 3

    @property
    def label_count(self) -> int:
        return 3

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(logits, labels)

    def correct(self, logits: Tensor, labels: Tensor) -> Tensor:
        return logits.argmax(1) == labels

    def margins(self, logits: Tensor, labels: Tensor) -> Tensor:
        own = logits.gather(1, labels[:, None]).squeeze(1)
        return own - logits.scatter(1, labels[:, None], -torch.inf).amax(1)
