"""SweepSpec: what a sweep is. Two commands with the same one work on the same study."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from engram.errors import require
from engram.sweep.sampling import SAMPLERS
from engram.sweep.space import PRESETS, Space


@dataclass(frozen=True, kw_only=True)
class SweepSpec:
    """`trials` in all; with the random sampler, a trial's settings and seed follow from `seed` and its number.

    `keep` is the share of the warm-up trials that a trial is measured by, 1 to prune nothing. The objective is
    "blind", the unexplained share, or "oracle", good images counted with the training data.
    """

    space: Space = field(default_factory=lambda: PRESETS["haim2022"])
    trials: int = 100
    seed: int = 0
    sampler: str = "random"
    keep: float = 0.5
    objective: Literal["blind", "oracle"] = "blind"

    def __post_init__(self) -> None:
        require(self.trials >= 1, "trials", "must be at least 1", self.trials)
        require(self.sampler in SAMPLERS, "sampler", f"must be one of {', '.join(SAMPLERS)}", self.sampler)
        require(0 < self.keep <= 1, "keep", "must lie in (0, 1]", self.keep, "1 prunes nothing")

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        return "minimize" if self.objective == "blind" else "maximize"

    def identity(self, weights_sha256: str) -> dict[str, Any]:
        """All that the trials depend on; their number can be raised later."""
        return {
            "weights_sha256": weights_sha256,
            "space": self.space.to_json(),
            "seed": self.seed,
            "sampler": self.sampler,
            "keep": self.keep,
            "objective": self.objective,
        }

    def study_name(self, weights_sha256: str) -> str:
        text = json.dumps(self.identity(weights_sha256), sort_keys=True)
        return f"engram-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
