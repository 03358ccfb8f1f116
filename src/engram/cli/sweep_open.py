"""What `engram sweep` needs before and around the trials: models, data for the oracle, observers, bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from engram.cli.options import named_data
from engram.cli.target import attacker_view
from engram.data.sampling import Split
from engram.errors import ConfigError
from engram.files import write_bytes
from engram.observers import TensorBoard, WeightsAndBiases
from engram.report.html import render
from engram.report.sweep import sweep_figure
from engram.sweep.ledger import Row
from engram.sweep.oracle import Oracle
from engram.sweep.page import sweep_page
from engram.sweep.record import Conclusion, conclude
from engram.sweep.spec import SweepSpec
from engram.sweep.sweep import OnRow, Sweep
from engram.targets.checkpoint import Target, open_target
from engram.targets.networks import DenseNetwork, Network


@dataclass(frozen=True)
class DataOptions:
    """The training data, by the options or by the model's card: to score the result, and for --oracle."""

    oracle: bool
    with_data: bool
    name: str | None
    n: int | None
    labels: str | None
    root: Path | None
    seed: int | None

    def __post_init__(self) -> None:
        described = {"-n": self.n, "--labels": self.labels, "--data-seed": self.seed}
        if self.name is None and (stray := [name for name, value in described.items() if value is not None]):
            raise ConfigError(f"{', '.join(stray)} goes with --data; give --data NAME -n NUMBER too")
        if self.name is not None and self.with_data:
            raise ConfigError("--with-data takes the data from the model's card; leave --data out")

    def for_model(self, target: Target[Network]) -> Split | None:
        if self.name is not None:
            return named_data(self.name, self.n, self.labels, self.seed).load(self.root)
        if not self.oracle and not self.with_data:
            return None
        if target.card is None:
            asked = "--oracle" if self.oracle else "--with-data"
            raise ConfigError(f"{asked} needs the training data: --data NAME -n NUMBER [--labels MAP]")
        return target.card.data.load(self.root)


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

    def opened(self, model: Path, directory: Path) -> tuple[Sweep, Split | None]:
        """The sweep of a model, and the data to score its result with."""
        target = open_target(model)
        view = attacker_view(target, model, self.input_shape, self.task).narrowed(DenseNetwork)
        data = self.data.for_model(target)
        if data is not None and data.train.shape != view.input_shape:
            raise ConfigError(
                f"the data have shape {data.train.shape}, the model's inputs {view.input_shape}; "
                "name the data that it was trained on"
            )
        sweep = Sweep(
            view=view,
            spec=self.spec,
            directory=directory,
            model=str(model),
            storage=self.storage,
            device=self.device,
            oracle=Oracle(data) if self.data.oracle and data is not None else None,
            resume=self.resume,
        )
        return sweep, data


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


def concluded(sweep: Sweep, data: Split | None) -> Conclusion:
    """Pool, score, write everything, draw; with a bar."""
    with _bar("pooling", 0) as update:
        conclusion = conclude(sweep, data, progress=lambda done, total: update(completed=done, total=total))
    write_bytes(sweep.directory / "sweep.png", sweep_figure(conclusion.summary))
    page = sweep_page(conclusion, None if data is None else data.train)
    write_bytes(sweep.directory / "sweep.html", render(page).encode())
    return conclusion


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
