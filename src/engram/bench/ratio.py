"""From two curves of counts over time to one ratio, and to the word that says what the ratio is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Curve = Sequence[tuple[float, float]]
"""(seconds, excess over held-out) at every scored moment, in order; the first is the random start."""

Kind = Literal["measured", "lower bound", "upper bound", "chance", "unknown"]


@dataclass(frozen=True)
class Ratio:
    """published_seconds / engine_seconds to `count` images.

    measured     both reached the count, and these are the first moments at which they were seen to have it
    lower bound  the published scheme had not one image in all its seconds; the count is the engine's first
    upper bound  the engine, in all its seconds, never reached the count of the published scheme
    chance       a random start has the count already, so that reaching it is no achievement; no value
    unknown      neither had an image, or one of them was not run; no value
    """

    metric: str
    kind: Kind
    count: float | None = None
    published_seconds: float | None = None
    engine_seconds: float | None = None

    @property
    def value(self) -> float | None:
        if self.published_seconds is None or not self.engine_seconds:
            return None
        return self.published_seconds / self.engine_seconds

    @property
    def sentence(self) -> str:
        if self.kind == "chance":
            return (
                f"{self.metric}: no ratio, a random start already has {self.count:g} or more beyond held-out, "
                "so that reaching this is no recovery"
            )
        if self.value is None or self.published_seconds is None or self.engine_seconds is None:
            return f"{self.metric}: no ratio, neither scheme has an image beyond held-out yet"
        slow, fast = f"{self.published_seconds:.3g} s", f"{self.engine_seconds:.3g} s"
        if self.kind == "lower bound":
            return (
                f"{self.metric}: published has none after {slow}, the engine has {self.count:g} after {fast}: "
                f"ratio at least {self.value:.3g} (a lower bound)"
            )
        if self.kind == "upper bound":
            return (
                f"{self.metric}: published has {self.count:g} after {slow}, the engine never, in {fast}: "
                f"ratio at most {self.value:.3g} (an upper bound)"
            )
        return (
            f"{self.metric}: published has its best, {self.count:g}, after {slow}, the engine after {fast}: "
            f"ratio {self.value:.3g}"
        )


def time_ratio(metric: str, published: Curve, engine: Curve) -> Ratio:
    """How much sooner the engine has as many images beyond held-out as the published scheme at its best.

    >>> time_ratio("ncc>0.8", [(10, 2.0), (20, 9.0), (60, 9.0)], [(1, 0.0), (4, 12.0)]).value
    5.0
    >>> time_ratio("ssim>0.4", [(1, 0.0), (60, 7.0)], [(1, 22.0), (4, 30.0)]).kind
    'chance'
    >>> none_yet = time_ratio("ncc>0.8", [(60, 0.0)], [(1, -1.0), (2, 3.0), (4, 12.0)])
    >>> none_yet.kind, none_yet.value
    ('lower bound', 30.0)
    """
    if not published or not engine:
        return Ratio(metric, "unknown")
    best = max(excess for _, excess in published)
    by_chance = max(published[0][1], engine[0][1])
    if by_chance >= max(best, 1):
        return Ratio(metric, "chance", max(best, 1))
    if best < 1:
        reached = first_time(engine, 1)
        if reached is None:
            return Ratio(metric, "unknown")
        count = next(excess for _, excess in engine if excess >= 1)
        return Ratio(metric, "lower bound", count, published[-1][0], reached)
    slow, fast = first_time(published, best), first_time(engine, best)
    if fast is None:
        return Ratio(metric, "upper bound", best, slow, engine[-1][0])
    return Ratio(metric, "measured", best, slow, fast)


def first_time(curve: Curve, count: float) -> float | None:
    """Seconds of the first moment with at least `count`, or None."""
    return next((seconds for seconds, excess in curve if excess >= count), None)


def time_to_count(curve: Curve) -> list[tuple[float, float]]:
    """(count, seconds) for every new best of at least one image.

    >>> time_to_count([(1, 0.0), (2, 5.0), (3, 4.0), (4, 7.0)])
    [(5.0, 2), (7.0, 4)]
    """
    records: list[tuple[float, float]] = []
    for seconds, excess in curve:
        if excess >= 1 and (not records or excess > records[-1][0]):
            records.append((excess, seconds))
    return records
