"""Settings of the engine: what a person may choose; everything else is derived from the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from engram.errors import require


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """No tuning needed: `None` means derived from the weights.

    `steps` for each of `restarts` independent starts; all their candidates are pooled. `prior` is the strength of
    total variation, 0 for none; None tries `PRIOR_GRID` on short starts first and takes what predicts neurons that
    were left out best (more than two classes: `CLASSES_PRIOR`, to which the strength falls over a start).
    `ridge` and `margin_*` are the metric's and the margin's, see their modules.
    `memory` bounds in bytes what grows with neurons times candidates or directions, half for the metric, half for
    everything else: beyond it neurons share metrics and candidates come in chunks.
    """

    candidates: int | None = None
    steps: int = 500
    restarts: int = 4
    prior: float | None = None
    ridge: float = 0.01
    margin_weight: float = 0.4
    margin_tolerance: float = 0.15
    metric_every: int = 50
    memory: int = 4_000_000_000
    dtype: Literal["float32", "float64"] = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "restarts", "ridge", "metric_every", "memory"):
            require(getattr(self, name) > 0, name, "must be positive", getattr(self, name))
        for name in ("margin_weight", "margin_tolerance"):
            require(getattr(self, name) >= 0, name, "must not be negative", getattr(self, name))
        require(
            self.candidates is None or self.candidates >= 2, "candidates", "must be at least 2", self.candidates
        )
        require(self.prior is None or self.prior >= 0, "prior", "must not be negative", self.prior, "0 is none")
        require(self.dtype in ("float32", "float64"), "dtype", "must be float32 or float64", self.dtype)

    @property
    def room(self) -> int:
        """Bytes for the metric, and as many for everything else."""
        return self.memory // 2

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == "float64" else torch.float32
