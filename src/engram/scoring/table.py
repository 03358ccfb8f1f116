"""MatchTable: for every training image, the reconstruction found for it and how good it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from engram.core.errors import require

HIGHER_IS_BETTER = {"ssim": True, "ncc": True, "relative_l2": False, "distance": False}


@dataclass(frozen=True)
class Threshold:
    """A reconstruction passes if its metric is strictly on the better side of the value.

    >>> Threshold("ssim", 0.4).text, Threshold("relative_l2", 0.1).text
    ('ssim>0.4', 'relative_l2<0.1')
    """

    metric: str
    value: float

    def __post_init__(self) -> None:
        require(self.metric in HIGHER_IS_BETTER, "metric", f"must be one of {[*HIGHER_IS_BETTER]}", self.metric)

    @property
    def text(self) -> str:
        return f"{self.metric}{'>' if HIGHER_IS_BETTER[self.metric] else '<'}{self.value:g}"


@dataclass(frozen=True, eq=False)
class MatchTable:
    """One row for each training image; every tensor has n rows, and a metric that is undefined is None.

    Each training image is one row, so a count over rows counts distinct training images. Several rows may
    share a candidate: `distinct_candidates` says how many different ones stand behind them.
    """

    sample: Tensor
    """Index of the training image in the batch that was scored, int64."""
    candidate: Tensor
    """Index of its best candidate, int64; -1 if it got none (one-to-one with too few candidates)."""
    votes: Tensor
    """How many candidates were averaged, int64."""
    distance: Tensor
    """Distance to the best candidate alone, before the vote, as the protocol measures it."""
    reconstruction: Tensor
    """[n, *shape], ready to show: mean added, and for images stretched to [0, 1]."""
    ssim: Tensor | None = None
    """Between the reconstruction as shown and the training image in [0, 1]."""
    ncc: Tensor | None = None
    """In network coordinates: the vote's average before the mean is added, against image minus mean.
    The mean image alone therefore gains nothing here."""
    relative_l2: Tensor | None = None
    """||candidate - x|| / ||x|| in network coordinates; vectors only: images are matched up to scale."""
    label: Tensor | None = None
    model_output: Tensor | None = None

    def __len__(self) -> int:
        return len(self.sample)

    @property
    def primary(self) -> str:
        """The metric that sorts the table: SSIM for images, relative L2 for vectors."""
        return "relative_l2" if self.ssim is None else "ssim"

    def passing(self, metric: str, threshold: float) -> Tensor:
        """Which rows are strictly better than the threshold, [n] bool; unmatched rows (NaN) never are."""
        values = self._metric(metric)
        return values > threshold if HIGHER_IS_BETTER[metric] else values < threshold

    def count(self, metric: str, threshold: float) -> int:
        """How many distinct training images pass."""
        return int(self.passing(metric, threshold).sum())

    def distinct_candidates(self, metric: str | None = None, threshold: float = 0.0) -> int:
        """How many different best candidates stand behind all rows, or behind those that pass."""
        used = self.candidate >= 0
        if metric is not None:
            used = used & self.passing(metric, threshold)
        return len(set(self.candidate[used].tolist()))

    def take(self, rows: Tensor) -> MatchTable:
        """The given rows, in that order."""
        columns: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        taken: dict[str, Any] = {
            name: None if column is None else column[rows.to(column.device)] for name, column in columns.items()
        }
        return MatchTable(**taken)

    def top(self, k: int, metric: str | None = None) -> MatchTable:
        """The k best rows, best first, by `metric` (the primary one by default); unmatched rows last."""
        metric = metric or self.primary
        values = self._metric(metric)
        worst = -torch.inf if HIGHER_IS_BETTER[metric] else torch.inf
        order = values.nan_to_num(nan=worst).argsort(descending=HIGHER_IS_BETTER[metric], stable=True)
        return self.take(order[: max(k, 0)])

    def to_records(self) -> list[dict[str, Any]]:
        """One JSON-ready dict for each row, without the images; undefined and non-finite numbers are None."""
        names = [field.name for field in fields(self) if field.name != "reconstruction"]
        columns = {name: getattr(self, name) for name in names}
        lists = {name: column.tolist() for name, column in columns.items() if column is not None}
        return [
            {name: _plain(lists[name][row]) if name in lists else None for name in names}
            for row in range(len(self))
        ]

    def _metric(self, name: str) -> Tensor:
        require(name in HIGHER_IS_BETTER, "metric", f"must be one of {[*HIGHER_IS_BETTER]}", name)
        values: Tensor | None = getattr(self, name)
        known = [metric for metric in HIGHER_IS_BETTER if getattr(self, metric) is not None]
        require(values is not None, "metric", f"must be one that this protocol defines, {known}", name)
        assert values is not None  # for the type checker
        return values


def _plain(value: Any) -> Any:
    """NaN and infinity are not JSON."""
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
