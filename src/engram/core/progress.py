"""Progress reports: to a callable, or to TensorBoard and Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from engram.core.errors import optional, require
from engram.core.loop import Observer, State, Values

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done, 0 to 1. Text after a colon may change."""


def silent(what: str, share: float) -> None:
    """Report nothing."""


def part(progress: Progress, first: float, last: float) -> Progress:
    """Progress of a part of the work, from share `first` to share `last` of the whole.

    >>> part(print, 0.5, 1.0)("second half", 0.5)
    second half 0.75
    """
    return lambda what, share: progress(what, first + (last - first) * share)


def by_steps(progress: Progress, what: str, steps: int) -> Observer:
    """An observer that reports the share of the steps, with the loss."""
    return by_share(progress, what, lambda step, metrics: step / steps)


def by_share(progress: Progress, what: str, share: Callable[[int, Values], float]) -> Observer:
    """An observer that reports what `share` makes of a step and its metrics, with the loss."""

    def observe(step: int, metrics: Values, state: State) -> None:
        progress(f"{what}: loss {metrics['loss']:.4g}", min(share(step, metrics), 1.0))

    return observe


WANDB_MODES = ("offline", "online")


class TensorBoard:
    """Scalars as event files; view them with `tensorboard --logdir DIRECTORY`."""

    def __init__(self, directory: Path) -> None:
        self.check()
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(directory))

    @staticmethod
    def check() -> None:
        """Check that it is installed, before any work starts."""
        optional("tensorboard", wanted_by="--tensorboard", install="tensorboard")

    def __call__(self, step: int, metrics: Values, state: State | None = None) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """One W&B run, resumed under its id; `offline` writes only to `directory` and sends nothing."""

    def __init__(self, mode: str, *, directory: Path, run_id: str, config: dict[str, Any]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._run: Any = self.check(mode).init(
            project="engram", id=run_id, resume="allow", mode=mode, dir=str(directory), config=config
        )

    @staticmethod
    def check(mode: str) -> ModuleType:
        """The package, if it is installed and the mode is valid."""
        require(mode in WANDB_MODES, "--wandb", f"must be {' or '.join(WANDB_MODES)}", mode)
        return optional("wandb", wanted_by="--wandb", install="wandb")

    def __call__(self, step: int, metrics: Values, state: State | None = None) -> None:
        # Trials end in any order, but W&B's own steps must increase: the number is logged like any other value.
        self._run.log({"number": step, **metrics})

    def close(self) -> None:
        self._run.finish()
