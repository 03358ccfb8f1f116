"""The oracle objective: good images counted with the training data, which no attacker has."""

from __future__ import annotations

from dataclasses import dataclass

from engram.data.sampling import Split
from engram.pipeline import compare
from engram.reconstruct.candidates import Reconstruction


@dataclass(frozen=True, eq=False)
class Oracle:
    """Training images beyond the same count on held-out ones, at the protocol's first threshold (SSIM > 0.4)."""

    data: Split

    def count(self, found: Reconstruction) -> float:
        first = compare(found, self.data).counts[0]
        return float(first.train if first.excess is None else first.excess)
