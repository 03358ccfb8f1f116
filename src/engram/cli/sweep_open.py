"""What `engram sweep` needs before and around the trials: models, data, observers, bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from engram.cli.asked_data import AskedData, card_data
from engram.cli.bars import count_bar
from engram.cli.target import attacker_view
from engram.data.sampling import Split
from engram.errors import ConfigError
from engram.files import write_bytes
from engram.observers import TensorBoard, WeightsAndBiases
from engram.report.html import render
from engram.report.sweep import sweep_figure
from engram.runs import RunDirectory
from engram.sweep.budget import plan_steps, with_steps
from engram.sweep.executors import Executor
from engram.sweep.home import recorded_steps
from engram.sweep.ledger import Row
from engram.sweep.oracle import Oracle
from engram.sweep.page import sweep_page
from engram.sweep.record import Conclusion, conclude
from engram.sweep.spec import SweepSpec
from engram.sweep.sweep import OnRow, Sweep
from engram.targets.checkpoint import open_target
from engram.targets.networks import DenseNetwork


@dataclass(frozen=True)
class Opening:
    """How models become sweeps; the same for all of a fleet."""

    spec: SweepSpec
    input_shape: str | None
    task: str | None
    data: AskedData
    data_root: Path | None
    oracle: bool
    storage: str | None
    device: str
    resume: bool

    def within(self, seconds: float, model: Path, directory: Path, executor: Executor) -> Opening:
        """The same with trials so short that all take that time; a sweep that is gone on with keeps its own."""
        if self.resume and RunDirectory(directory).record.exists():
            steps = recorded_steps(directory)
            typer.echo(f"trials have {steps:,} steps, as the sweep in {directory} began with", err=True)
            return replace(self, spec=with_steps(self.spec, steps))
        target = open_target(model)
        view = attacker_view(target, model, self.input_shape, self.task).narrowed(DenseNetwork)
        plan = plan_steps(view, self.spec, executor, seconds=seconds)
        typer.echo(plan.sentence, err=True)
        return replace(self, spec=with_steps(self.spec, plan.steps))

    def opened(self, model: Path, directory: Path) -> tuple[Sweep, Split | None]:
        """The sweep of a model, and the data to score its result with."""
        target = open_target(model)
        view = attacker_view(target, model, self.input_shape, self.task).narrowed(DenseNetwork)
        choice = self.data.choice(target.card, view.task.name)
        if choice is None and self.oracle:
            choice = card_data(target.card, "--oracle")
        data = None if choice is None else choice.load(self.data_root)
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
            oracle=Oracle(data) if self.oracle and data is not None else None,
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
    with count_bar("pooling", 0) as update:
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
    with count_bar("sweeping", total) as update:
        update(completed=len(finished))

        def show(_: Sweep, row: Row) -> None:
            if row["objective"] is not None:
                values.append(row["objective"])
                values[:] = [better(values)]
            update(advance=1, told=f"best {values[0]:.4g}" if values else "")

        yield show
