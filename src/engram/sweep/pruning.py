"""Which trials are hopeless: a rule that depends on the sweep alone, not on the order in which trials end.

The first `WARM_UP` trials run to their end. At each checkpoint a later trial must explain the weights no worse
than the best `keep` share of those did at the same point. Pruners that compare with whatever has finished so far
give another result after every kill and for every number of workers; this one does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

WARM_UP = 10
CHECKPOINTS = (0.1, 0.25, 0.5)
"""Shares of a trial's steps at which it is looked at."""


def checkpoint_steps(total: int) -> tuple[int, ...]:
    """The steps of the checkpoints in a trial of `total` steps.

    >>> checkpoint_steps(1000), checkpoint_steps(2)
    ((100, 250, 500), (1, 1, 1))
    """
    return tuple(math.ceil(share * total) for share in CHECKPOINTS)


def limits(warm_up: Sequence[Sequence[float]], keep: float) -> tuple[float, ...]:
    """At each checkpoint the largest unexplained share that the best `keep` of the warm-up trials had.

    >>> limits([(0.9, 0.5), (0.8, 0.6), (1.0, 1.0), (0.7, 0.1)], keep=0.5)
    (0.8, 0.5)
    """
    kept = max(1, math.ceil(keep * len(warm_up)))
    return tuple(sorted(column)[kept - 1] for column in zip(*warm_up, strict=True))


def is_hopeless(values: Sequence[float], limited: Sequence[float]) -> bool:
    """Whether any checkpoint reached (those not reached are negative) lies above its limit."""
    return any(value > limit for value, limit in zip(values, limited, strict=False))
