"""How to train: the settings of the papers' recipe."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from engram.core.errors import require
from engram.core.loop import Observer, State, Values
from engram.core.progress import Progress, by_steps

DTypeName = Literal["float32", "float64"]


@dataclass(frozen=True, kw_only=True)
class Flow:
    """Follow the gradient flow once the loss is `below`, with errors of at most `tolerance` of a layer's norm."""

    below: float = 0.3
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        require(self.below > 0, "below", "must be positive", self.below, "0.3 is past the plateau")
        require(
            0 < self.tolerance <= 0.1,
            "tolerance",
            "must be above 0 and at most 0.1",
            self.tolerance,
            "0.01 stays on the path, 0.03 halves the epochs",
        )


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train; the defaults are those of Haim et al. 2022.

    `batch` None is full-batch descent; otherwise every epoch shuffles and takes batches of that size.
    `normalise_below` c multiplies the rate by c / loss once the loss is below c: gradients shrink in
    proportion to the loss, so the steps continue along the same path where a constant rate would almost stop.
    `weight_decay` w adds w theta to the gradient, i.e. (w/2) ||theta||² to the loss.
    `flow` follows the gradient flow in large adaptive steps once the loss is low enough (`flow.py`); an epoch is
    then one evaluation of the gradient.
    `forget` removes after that many epochs what weight decay has left of the initialisation, (1 - lr w)^t
    theta(0), which would otherwise take many more epochs to fade; later epochs settle what has been learnt.
    Training stops early when the loss is below `loss_threshold`, or when the norm of the mean gradient, weight
    decay included, is below `gradient_threshold` (`descent.py`).
    """

    lr: float = 0.01
    epochs: int = 1_000_000
    loss_threshold: float | None = None
    gradient_threshold: float | None = None
    batch: int | None = None
    weight_decay: float = 0.0
    normalise_below: float | None = None
    forget: int | None = None
    flow: Flow | None = None
    dtype: DTypeName = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.lr > 0, "lr", "must be positive", self.lr, "the paper uses 0.01")
        require(self.epochs > 0, "epochs", "must be positive", self.epochs)
        require(self.batch is None or self.batch > 0, "batch", "must be positive", self.batch)
        require(self.weight_decay >= 0, "weight_decay", "must not be negative", self.weight_decay)
        require(self.dtype in ("float32", "float64"), "dtype", "must be float32 or float64", self.dtype)
        for name in ("loss_threshold", "gradient_threshold", "normalise_below"):
            value = getattr(self, name)
            require(value is None or value > 0, name, "must be positive", value)
        for name in ("gradient_threshold", "flow"):
            alone = getattr(self, name) is None or self.batch is None
            require(alone, "batch", f"must be left out with {name}, which needs the full batch", self.batch)
        alone = self.flow is None or self.normalise_below is None
        require(
            alone,
            "normalise_below",
            "must be left out with flow, which serves the same purpose",
            self.normalise_below,
        )
        if self.forget is not None:
            require(0 < self.forget < self.epochs, "forget", "must lie between 0 and the epochs", self.forget)
            require(self.weight_decay > 0, "forget", "needs weight_decay, whose effect it completes", self.forget)
            plain = self.batch is None and self.normalise_below is None and self.flow is None
            require(plain, "forget", "needs full batches and a constant rate", self.forget)

    def settings(self) -> dict[str, Any]:
        """Fields by name, for cache keys; `forget`, a later addition, only if it is used."""
        return {name: value for name, value in asdict(self).items() if name != "forget" or value is not None}

    def is_reached(self, metrics: Values) -> bool:
        """Whether the loss or the gradient is below its threshold."""
        bounds = {"loss": self.loss_threshold, "gradient": self.gradient_threshold}
        return any(bound is not None and metrics.get(name, math.inf) < bound for name, bound in bounds.items())

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == "float64" else torch.float32


def training_progress(progress: Progress, recipe: Recipe) -> Observer:
    """An observer that reports the share of the epochs; along the flow, where log-loss falls evenly, the share of
    the way of log-loss to its goal.

    >>> shares = []
    >>> recipe = Recipe(loss_threshold=0.01, flow=Flow())
    >>> observe = training_progress(lambda _, share: shares.append(share), recipe)
    >>> for step, loss in enumerate((1.0, 0.1, 0.005)):
    ...     observe(step, {"loss": loss}, {})
    >>> [round(share, 6) for share in shares]
    [0.0, 0.5, 1.0]
    """
    goal = recipe.loss_threshold
    if recipe.flow is None or goal is None:
        return by_steps(progress, "training", recipe.epochs)
    first: list[float] = []

    def observe(step: int, metrics: Values, state: State) -> None:
        first[:] = first or [max(metrics["loss"], 2 * goal)]
        share = math.log(first[0] / max(metrics["loss"], goal)) / math.log(first[0] / goal)
        progress(f"training: loss {metrics['loss']:.3g} of {goal:g}, epoch {step:,}", max(share, 0.0))

    return observe
