"""Small sweeps that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from engram.models.view import AttackerView
from engram.sweep.executors import Executor, InProcess
from engram.sweep.space import PRESETS, SweepSpec
from engram.sweep.summary import conclude
from engram.sweep.sweep import Sweep, drive
from tests import cases

SHAPE = (3, 2, 2)


def view(seed: int = 0) -> AttackerView:
    return cases.view(12, 9, 1, shape=SHAPE, seed=seed)


def spec(trials: int = 4, *, steps: int = 20, candidates: int = 6, **changes: Any) -> SweepSpec:
    space = PRESETS["haim2022"].fixing({"steps": steps, "candidates": candidates})
    return SweepSpec(space=space, trials=trials, **changes)


@contextmanager
def opened(directory: Path, chosen: SweepSpec | None = None, **changes: Any) -> Iterator[Sweep]:
    sweep = Sweep(view=view(), spec=chosen or spec(), directory=directory, **changes)
    try:
        yield sweep
    finally:
        sweep.close()


def run_whole(
    directory: Path, chosen: SweepSpec | None = None, executor: Executor | None = None, **changes: Any
) -> dict[str, Any]:
    """Run a sweep to its end and return its sweep.json."""
    with opened(directory, chosen, **changes) as sweep:
        drive([sweep], executor or InProcess())
        return conclude(sweep).summary


def pooled(directory: Path) -> dict[str, Tensor]:
    return load_file(directory / "reconstruction.safetensors")


def assert_same_pool(expected: Path, found: Path) -> None:
    a, b = pooled(expected), pooled(found)
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


WHAT_TIME_CHANGES = ("seconds", "host")


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in WHAT_TIME_CHANGES} for row in rows]
