"""What `engram sweep` needs before and around the trials: models, data for the oracle, observers, bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from engram.cli.target import attacker_view
from engram.errors import ConfigError
from engram.files import write_bytes
from engram.observers import TensorBoard, WeightsAndBiases
from engram.report.sweep import sweep_figure
from engram.sweep.ledger import Row
from engram.sweep.oracle import Oracle
from engram.sweep.record import conclude
from engram.sweep.spec import SweepSpec
from engram.sweep.sweep import OnRow, Sweep
from engram.targets.checkpoint import Target, open_target


@dataclass(frozen=True)
class DataOptions:
    """What --oracle counts with: the options, else the model's card."""

    oracle: bool
    name: str | None
    n: int | None
    labels: str | None
    root: Path | None
    seed: int | None

    def __post_init__(self) -> None:
        if self.name is not None and not self.oracle:
            raise ConfigError("--data does nothing without --oracle; leave it out, or score the sweep afterwards")
        if self.name is not None and self.n is None:
            raise ConfigError("--data needs -n, the number of training images, e.g. -n 500")

    def for_model(self, target: Target) -> Oracle | None:
        if not self.oracle:
            return None
        from engram.data.catalog import default_labels
        from engram.data.choice import DataChoice

        if self.name is not None and self.n is not None:
            labels = self.labels or default_labels(self.name)
            choice = DataChoice(name=self.name, labels=labels, n=self.n, seed=self.seed)
        elif target.card is not None:
            choice = target.card.data
        else:
            raise ConfigError("--oracle needs the training data: --data NAME -n NUMBER [--labels MAP]")
        return Oracle(choice.load(self.root))


@dataclass(frozen=True)
class Opening:
    """How models become sweeps; the same for all of a fleet."""

    spec: SweepSpec
    input_shape: str | None
    task: str | None
    data: DataOptions
    storage: str | None
    device: str
    resume: bool

    def opened(self, model: Path, directory: Path) -> Sweep:
        target = open_target(model)
        return Sweep(
            view=attacker_view(target, model, self.input_shape, self.task),
            spec=self.spec,
            directory=directory,
            model=str(model),
            storage=self.storage,
            device=self.device,
            oracle=self.data.for_model(target),
            resume=self.resume,
        )


@dataclass(frozen=True)
class Trackers:
    """Observers of trials beside the sweep's own files."""

    tensorboard: Path | None
    wandb: str | None

    def __post_init__(self) -> None:
        if self.tensorboard is not None:
            TensorBoard.check()
        if self.wandb is not None:
            WeightsAndBiases.check(self.wandb)

    @contextmanager
    def watching(self, sweep: Sweep, name: str = "") -> Iterator[OnRow]:
        observers: list[TensorBoard | WeightsAndBiases] = []
        if self.tensorboard is not None:
            observers.append(TensorBoard(self.tensorboard / name))
        if self.wandb is not None:
            config, place = sweep.spec.identity(sweep.weights_sha256), sweep.directory / "wandb"
            observers.append(WeightsAndBiases(self.wandb, directory=place, run_id=sweep.study_name, config=config))

        def tell(_: Sweep, row: Row) -> None:
            numbers = {**row["params"], **{key: row[key] for key in ("objective", "unexplained", "seconds")}}
            known = {key: float(value) for key, value in numbers.items() if isinstance(value, int | float)}
            for observer in observers:
                observer(row["number"], known)

        try:
            yield tell
        finally:
            for observer in observers:
                observer.close()


def concluded(sweep: Sweep) -> dict[str, Any]:
    """Pool, write everything, draw; with a bar."""
    with _bar("pooling", 0) as update:
        summary = conclude(sweep, progress=lambda done, total: update(completed=done, total=total))
    write_bytes(sweep.directory / "sweep.png", sweep_figure(summary))
    return summary


@contextmanager
def trial_bar(sweeps: Sequence[Sweep]) -> Iterator[OnRow]:
    """A bar over all trials of all sweeps that shows the best objective so far."""
    total = sum(sweep.spec.trials for sweep in sweeps)
    finished = [row for sweep in sweeps for row in sweep.rows()]
    better: Callable[..., float] = max if any(sweep.spec.objective == "oracle" for sweep in sweeps) else min
    values = [row["objective"] for row in finished if row["objective"] is not None]
    with _bar("sweeping", total) as update:
        update(completed=len(finished))

        def show(_: Sweep, row: Row) -> None:
            if row["objective"] is not None:
                values.append(row["objective"])
                values[:] = [better(values)]
            update(advance=1, told=f"best {values[0]:.4g}" if values else "")

        yield show


@contextmanager
def _bar(title: str, total: int) -> Iterator[Callable[..., None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, told="")
        yield lambda **changes: bar.update(task, **changes)
