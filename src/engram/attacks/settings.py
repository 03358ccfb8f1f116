"""Settings of the attacks: what users can choose, and by name the results of the authors' searches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from engram.core.errors import require, require_numbers
from engram.models.tasks import Task

MOST_JOBS = 10_000
"""Processes of one attack, on a cluster."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """No tuning needed: None means derived from the weights.

    `steps` for each of `restarts` independent starts; all their candidates are pooled. With `seconds`, a budget,
    both are upper limits: each start gets its length when it begins, so that the starts fill the time. `jobs`
    processes make the starts, process j of them j, j + jobs, ...; a start depends on seed and number alone.
    `prior` "tv" means total variation, "learned" also what a small network learnt from public pictures
    (`engine/image_prior.py`), and None that where it pays: with several classes on a layer without much noise. The
    strength is `PRIORS` in turn, or with more than two classes `CLASSES_PRIOR`; where many images share the
    weights, that is what it falls to over a start. A number is the strength of total variation alone, 0 for none.
    For tables whose columns are named it is the strength with which one-hot values are pulled to 0 and 1; None
    means `CORNERS_PRIOR`.
    `ridge` belongs to the metric (None means `RIDGE` or `CLASSES_RIDGE`) and
    `margin_*` to the margin; see their modules.
    `memory` limits, in bytes, what grows with neurons times candidates or directions, half for the metric, half
    for everything else: beyond it neurons share metrics and candidates are processed in chunks.
    """

    recipe: ClassVar[str] = "engine"

    candidates: int | None = None
    steps: int = 500
    restarts: int = 4
    jobs: int = 1
    seconds: float | None = None
    prior: float | Literal["learned", "tv"] | None = None
    ridge: float | None = None
    margin_weight: float = 0.4
    margin_tolerance: float = 0.15
    metric_every: int = 50
    memory: int = 4_000_000_000
    dtype: Literal["float32", "float64"] = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        require_numbers(self)
        require(1 <= self.jobs <= MOST_JOBS, "jobs", f"must lie in 1..{MOST_JOBS:,}", self.jobs)
        for name in ("steps", "restarts", "metric_every", "memory"):
            require(getattr(self, name) > 0, name, "must be positive", getattr(self, name))
        for name in ("margin_weight", "margin_tolerance"):
            require(getattr(self, name) >= 0, name, "must not be negative", getattr(self, name))
        require(
            self.candidates is None or self.candidates >= 2, "candidates", "must be at least 2", self.candidates
        )
        require(self.seconds is None or self.seconds > 0, "seconds", "must be positive", self.seconds)
        require(self.ridge is None or self.ridge > 0, "ridge", "must be positive", self.ridge)
        if isinstance(self.prior, str):
            require(self.prior in ("learned", "tv"), "prior", "must be learned, tv or a number", self.prior)
        else:
            require(
                self.prior is None or self.prior >= 0, "prior", "must not be negative", self.prior, "0 means none"
            )
        require(self.dtype in ("float32", "float64"), "dtype", "must be float32 or float64", self.dtype)

    @property
    def room(self) -> int:
        """Bytes for the metric, and the same again for everything else."""
        return self.memory // 2

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == "float64" else torch.float32


@dataclass(frozen=True, kw_only=True)
class Haim2022:
    """Settings of the scheme for binary tasks; the defaults are the authors' best for CIFAR-10, 500 images.

    `candidates` is m (the papers use twice the number of training images). `dual_floor` is lambda_min and
    `relu_slope` is alpha. `squared_dual_loss` follows the released runs; False is the text of the paper.
    `margin_weight` pulls candidates in use towards a common margin; the papers do not, so it is 0.
    """

    recipe: ClassVar[str] = "haim2022"
    only_task: ClassVar[str | None] = "binary"

    candidates: int = 1000
    steps: int = 50_000
    lr_images: float = 0.555
    lr_duals: float = 1e-4
    image_std: float = 8.86e-4
    dual_floor: float = 0.498
    relu_slope: float = 19.1
    momentum: float = 0.9
    stationarity_weight: float = 1.0
    dual_weight: float = 5.0
    range_weight: float = 1.0
    margin_weight: float = 0.0
    squared_dual_loss: bool = True
    dtype: Literal["float32", "float64"] = "float64"
    seed: int = 0

    def __post_init__(self) -> None:
        require_numbers(self)
        for name in ("candidates", "steps", "lr_images", "lr_duals", "image_std", "relu_slope"):
            require(getattr(self, name) > 0, name, "must be positive", getattr(self, name))
        for name in ("stationarity_weight", "dual_weight", "range_weight", "margin_weight"):
            require(getattr(self, name) >= 0, name, "must not be negative", getattr(self, name))
        require(
            self.dual_weight > 0 or self.dual_floor == 0,
            "dual_floor",
            "must be 0 if dual_weight is 0, as for regression",
            self.dual_floor,
            "leave it out, or set dual_weight",
        )
        require(0 <= self.momentum < 1, "momentum", "must lie in [0, 1)", self.momentum)
        require(self.dtype in ("float32", "float64"), "dtype", "must be float32 or float64", self.dtype)

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == "float64" else torch.float32


@dataclass(frozen=True, kw_only=True)
class Buzaglo2023(Haim2022):
    """The scheme for all tasks; the defaults are the authors' best for ten classes of CIFAR-10, 500 images.

    Regression has duals of either sign and so no floor: `dual_weight` and `dual_floor` are 0.
    """

    recipe: ClassVar[str] = "buzaglo2023"
    only_task: ClassVar[str | None] = None

    lr_images: float = 1.36e-3
    lr_duals: float = 0.479
    image_std: float = 6.2e-5
    dual_floor: float = 0.203
    relu_slope: float = 39.5


KNOWN_SETTINGS: dict[str, Haim2022] = {
    "cifar10": Haim2022(),
    "cifar10-b": Haim2022(lr_images=0.346, image_std=4.47e-3, dual_floor=0.494, relu_slope=21.7),
    "mnist": Haim2022(lr_images=0.0305, image_std=0.0350, dual_floor=0.447, relu_slope=149.9),
    "mnist-b": Haim2022(lr_images=0.282, image_std=1.74e-3, dual_floor=0.415, relu_slope=19.2),
    "multiclass": Buzaglo2023(),
    "multiclass-b": Buzaglo2023(
        lr_images=2.42e-4, lr_duals=0.951, image_std=3.6e-4, dual_floor=0.040, relu_slope=326.0
    ),
    "regression": Buzaglo2023(
        lr_images=0.952, lr_duals=1e-4, image_std=0.0197, dual_floor=0.0, dual_weight=0.0, relu_slope=90.3
    ),
    "regression-b": Buzaglo2023(
        lr_images=0.872, lr_duals=1e-4, image_std=0.0137, dual_floor=0.0, dual_weight=0.0, relu_slope=107.4
    ),
}
"""For 500 training images and 1,000 candidates."""


def default_settings(task: Task) -> str:
    """The name of the settings to start from for a task.

    >>> from engram.models.tasks import Binary, Multiclass, Regression
    >>> [default_settings(task) for task in (Binary(), Multiclass(3), Regression("huber"))]
    ['cifar10', 'multiclass', 'regression']
    """
    kind = task.name.partition(":")[0]
    return {"binary": "cifar10"}.get(kind, kind)
