"""What a piece of work costs: seconds, operations, and extrapolation from small pieces to large ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

REPEATS, LONG = 3, 10.0
"""Work that takes longer than LONG seconds is run only once."""
FACTOR = {"mm": 0, "bmm": 0, "addmm": 1, "addmm_": 1, "baddbmm": 1}
"""Position of a product's first factor among its arguments."""
T = TypeVar("T")


class Price(NamedTuple):
    """Seconds of a piece of work, and the multiplications and additions in its matrix products.

    Seconds are CPU time per thread, which other load on the machine affects less.
    """

    seconds: float
    flops: float


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of all matrix products while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name in FACTOR:
            self.flops += 2.0 * out.numel() * args[FACTOR[name]].shape[-1]
        return out


def timed(work: Callable[[], T]) -> tuple[T, Price]:
    """The best of a few runs, or one run if the work takes long; each result is freed before the next run."""
    started = time.process_time()
    with Products() as counter:
        result: T | None = work()
    seconds = time.process_time() - started
    if seconds < LONG:
        taken = []
        for _ in range(REPEATS):
            result = None
            started = time.process_time()
            result = work()
            taken.append(time.process_time() - started)
        seconds = min(taken)
    seconds /= torch.get_num_threads()
    return cast("T", result), Price(seconds, counter.flops)


def at(size: float, sizes: Sequence[int], values: Sequence[float]) -> float:
    """The value at `size` on the line through two measurements; proportional if noise makes the line fall.

    >>> at(40, (10, 20), (3.0, 5.0)), at(40, (10, 20), (5.1, 5.0))
    (9.0, 10.0)
    """
    slope = (values[1] - values[0]) / (sizes[1] - sizes[0])
    return values[1] + slope * (size - sizes[1]) if slope > 0 else values[1] * size / sizes[1]
