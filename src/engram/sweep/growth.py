"""What more trials give: confident candidates, and with data good images, against the number of trials pooled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engram.data.sampling import Split
from engram.matching import ScoreReport, ScoringProtocol
from engram.pipeline import compare
from engram.reconstruct.candidates import Reconstruction
from engram.sweep.pool import Load, pool_trials


@dataclass(frozen=True)
class Grown:
    """The pool of the first `trials` complete trials: candidates, how many of them at 90 %, counts with data."""

    trials: int
    candidates: int
    sure: int
    train: dict[str, int] | None = None
    held_out: dict[str, int] | None = None


def sizes(trials: int) -> list[int]:
    """1, 2, 4, ... and all: pooling each of them anew takes about as long again as pooling all.

    >>> sizes(10), sizes(1)
    ([1, 2, 4, 8, 10], [1])
    """
    return [*(2**power for power in range(trials.bit_length()) if 2**power < trials), trials]


def grown(pooled: Reconstruction, trials: int, score: ScoreReport | None) -> Grown:
    """The point of a pool whose score is known."""
    train = held_out = None
    if score is not None:
        train = {row.threshold.text: row.train for row in score.counts}
        held_out = {row.threshold.text: row.held_out for row in score.counts if row.held_out is not None} or None
    return Grown(trials, len(pooled), pooled.count_above(0.9), train, held_out)


def growth(
    best_first: Sequence[int],
    load: Load,
    data: Split | None,
    protocol: ScoringProtocol | None,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Grown]:
    """Pools of the first trials by number, smaller than all of them; within a pool the best trials come first."""
    curve, wanted = [], sizes(len(best_first))[:-1]
    for done, size in enumerate(wanted, start=1):
        first = set(sorted(best_first)[:size])
        pooled = pool_trials([number for number in best_first if number in first], load)
        score = None if data is None else compare(pooled, data, protocol=protocol)
        curve.append(grown(pooled, size, score))
        progress(done, len(wanted))
    return curve
