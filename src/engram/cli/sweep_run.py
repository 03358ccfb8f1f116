"""`engram sweep` after its options are read: open the models, run the trials, conclude, report."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from engram.auditing.verdict import sweep_verdict
from engram.cli import options as opt
from engram.cli.data import AskedData, card_data
from engram.cli.options import progress_bar
from engram.cli.score import show_report
from engram.core.errors import ConfigError, EngramError
from engram.core.files import write_bytes, write_json
from engram.core.loop import TensorBoard, WeightsAndBiases
from engram.core.runs import RunDirectory
from engram.data.sets import Split
from engram.models.networks import Network
from engram.models.tasks import Task
from engram.models.view import AttackerView
from engram.render.html import render
from engram.sweep.executors import Executor, plan_steps, with_steps
from engram.sweep.page import sweep_page
from engram.sweep.space import SweepSpec
from engram.sweep.study import Row
from engram.sweep.summary import COLUMNS, Conclusion, conclude, failed_row, summary_row, table_csv, unique_names
from engram.sweep.sweep import OnRow, Oracle, Sweep, drive, recorded_steps


@dataclass(frozen=True)
class Opening:
    """How models become sweeps; the same for all models of a fleet."""

    spec_for: Callable[[Task], SweepSpec]
    how: Mapping[str, str | None]
    """The options that say how a model is opened."""
    data: AskedData
    data_root: Path | None
    oracle: bool
    storage: str | None
    device: str
    resume: bool
    steps: int | None = None
    """Steps of a trial, where --budget decides them."""

    def within(self, seconds: float, model: Path, directory: Path, executor: Executor) -> Opening:
        """The same with trials short enough that all fit into that time; a resumed sweep keeps its steps."""
        if self.resume and RunDirectory(directory).record.exists():
            steps = recorded_steps(directory)
            typer.echo(f"trials have {steps:,} steps, as at the start of the sweep in {directory}", err=True)
            return replace(self, steps=steps)
        view = self._view(model)
        plan = plan_steps(view, self._spec(view), executor, seconds=seconds)
        typer.echo(plan.sentence, err=True)
        return replace(self, steps=plan.steps)

    def opened(self, model: Path, directory: Path) -> tuple[Sweep, Split | None]:
        """The sweep of a model, and the data to score its result with."""
        view = self._view(model)
        choice = self.data.choice(model, view.task.name, view.input_shape)
        if choice is None and self.oracle:
            choice = card_data(model, "--oracle")
        data = None if choice is None else choice.load(self.data_root)
        if data is not None and view.normalization is not None and data.train.shape == view.input_shape:
            data = replace(data, mean=view.normalization.mean_of(view.input_shape))
        if data is not None and data.train.shape != view.input_shape:
            raise ConfigError(
                f"the data have shape {data.train.shape}, the model's inputs {view.input_shape}; "
                "give the data that it was trained on"
            )
        sweep = Sweep(
            view=view,
            spec=self._spec(view),
            directory=directory,
            model=str(model),
            storage=self.storage,
            device=self.device,
            oracle=Oracle(data) if self.oracle and data is not None else None,
            resume=self.resume,
        )
        return sweep, data

    def _view(self, model: Path) -> AttackerView[Network]:
        return opt.opened_view(model, self.how)

    def _spec(self, view: AttackerView[Network]) -> SweepSpec:
        spec = self.spec_for(view.task)
        spec = replace(spec, space=spec.space.for_task(view.task))
        return spec if self.steps is None else with_steps(spec, self.steps)


@dataclass(frozen=True)
class Trackers:
    """Observers of trials, besides the sweep's own files."""

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

        def track(_: Sweep, row: Row) -> None:
            numbers = {**row["params"], **{key: row[key] for key in ("objective", "unexplained", "seconds")}}
            known = {key: float(value) for key, value in numbers.items() if isinstance(value, int | float)}
            for observer in observers:
                observer(row["number"], known)

        try:
            yield track
        finally:
            for observer in observers:
                observer.close()


def concluded(sweep: Sweep, data: Split | None) -> Conclusion:
    """Pool, score, draw and write everything, with a progress bar."""
    with progress_bar() as progress:
        conclusion = conclude(sweep, data, progress=progress)
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
    with progress_bar() as progress:
        ended = len(finished)
        progress(f"sweeping: {ended} of {total} trials", ended / total)

        def show(_: Sweep, row: Row) -> None:
            nonlocal ended
            ended += 1
            if row["objective"] is not None:
                values.append(row["objective"])
                values[:] = [better(values)]
            best = f", best {values[0]:.4g}" if values else ""
            progress(f"sweeping: {ended} of {total} trials{best}", ended / total)

        yield show


def run_one(
    model: Path, out: Path, opening: Opening, executor: Executor, trackers: Trackers, *, as_json: bool
) -> None:
    """One model: the output directory is its sweep."""
    with ExitStack() as stack:
        sweep, data = opening.opened(model, out)
        stack.callback(sweep.close)
        track = stack.enter_context(trackers.watching(sweep))
        _driven([sweep], executor, [track])
        conclusion = concluded(sweep, data)
    if as_json:
        typer.echo(json.dumps(conclusion.summary))
    else:
        _report(conclusion, out)


def run_fleet(
    models: Sequence[Path], out: Path, opening: Opening, executor: Executor, trackers: Trackers, *, as_json: bool
) -> None:
    """Many models: a directory for each, their trials side by side, and fleet.json, fleet.csv over all."""
    named = dict(zip(unique_names(models), models, strict=True))
    rows: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        sweeps: dict[str, tuple[Sweep, Split | None]] = {}
        tracked: dict[Path, OnRow] = {}
        for name, model in named.items():
            try:
                sweep, _ = sweeps[name] = opening.opened(model, out / name)
            except EngramError as error:
                rows[name] = failed_row(name, model, error)
                continue
            stack.callback(sweep.close)
            tracked[sweep.directory] = stack.enter_context(trackers.watching(sweep, name))
        _driven(
            [sweep for sweep, _ in sweeps.values()],
            executor,
            [lambda sweep, row: tracked[sweep.directory](sweep, row)],
        )
        for name, (sweep, data) in sweeps.items():
            try:
                rows[name] = summary_row(name, concluded(sweep, data).summary)
            except EngramError as error:
                rows[name] = failed_row(name, named[name], error)
    table = [rows[name] for name in named]
    write_json(out / "fleet.json", {"schema_version": 1, "kind": "fleet", "models": table})
    write_bytes(out / "fleet.csv", table_csv(table))
    if as_json:
        typer.echo(json.dumps(table))
    else:
        _show_table(table)
        typer.echo(f"wrote {out / 'fleet.json'} and {out / 'fleet.csv'}")
    if all(row["error"] is not None for row in table):
        raise EngramError("none of the models could be audited; the table shows why")


def _driven(sweeps: Sequence[Sweep], executor: Executor, observers: Sequence[OnRow]) -> None:
    with trial_bar(sweeps) as show:

        def on_row(sweep: Sweep, row: Row) -> None:
            for observer in (show, *observers):
                observer(sweep, row)

        drive(sweeps, executor, on_row)


def _report(conclusion: Conclusion, out: Path) -> None:
    summary = conclusion.summary
    counts, best, pooled = summary["counts"], summary["best"], summary["pooled"]
    ended = ", ".join(f"{count} {state}" for state, count in counts.items() if state != "asked")
    typer.echo(f"{counts['asked']} trials: {ended}")
    typer.echo(f"best {summary['objective']['name']} {best['objective']:.4g} in trial {best['number']}:")
    typer.echo("  " + " ".join(f"{name}={value}" for name, value in best["params"].items()))
    typer.echo(
        f"pooled {pooled['candidates']} candidates of {pooled['trials']} trials; judged without any data, "
        f"{pooled['confident']['90%']} of them show a training image at 90 % confidence, "
        f"{pooled['confident']['50%']} at 50 %"
    )
    if pooled["elsewhere"]:
        typer.echo(
            f"note: {pooled['elsewhere']} complete trials are on other machines; copy their trials/ directories "
            "here and run again with --resume to pool them"
        )
    if conclusion.score is None:
        typer.echo(f"Open {out / 'sweep.html'}; compare with your data: engram score {out} --data ... -n ...")
        return
    show_report(conclusion.score)
    typer.echo(sweep_verdict(conclusion.pooled, conclusion.score, pooled["trials"]).sentence)
    typer.echo(f"Open {out / 'sweep.html'}; for programs: {out / 'sweep.json'}")


def _show_table(rows: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*("" if row[column] is None else str(row[column]) for column in COLUMNS))
    Console().print(table)
