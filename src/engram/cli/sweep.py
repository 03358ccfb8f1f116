"""`engram sweep`: many attacks on a model, or on many models, on one machine or on a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli import options as opt
from engram.cli.data import AskedData

if TYPE_CHECKING:
    from engram.models.tasks import Task
    from engram.sweep.executors import Executor
    from engram.sweep.space import SweepSpec


EXAMPLES = (
    "Examples: engram sweep runs/gate --trials 100 --jobs 2 --set steps=3000 --set candidates=100 -o runs/sweep; "
    "engram sweep runs/gate --with-data --space engine --trials 8 -o runs/starts; "
    "engram sweep model.pt --input-shape 3x32x32 --space engine --trials 16 -o runs/sweep; "
    "engram sweep --targets models/* --space engine --trials 4 -o runs/fleet; engram sweep --list runs/sweep"
)
WHERE, WATCH = "Where trials run", "Watching"


def sweep(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL...",
            help="A directory from `engram train`, or a .pt, .pth, .pt2 or .safetensors file; several: --targets.",
        ),
    ],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Directory of the sweep.")] = None,
    trials: Annotated[int, typer.Option("--trials", help="Number of trials (per model).")] = 100,
    space: Annotated[
        str | None,
        typer.Option(
            "--space",
            help="What to vary: haim2022 (default for binary models), buzaglo2023 (default for others), engine, "
            "or a TOML file.",
        ),
    ] = None,
    settings: opt.Set = None,
    sampler: Annotated[
        str, typer.Option("--sampler", help="random (reproducible), tpe or gp (learn from trials).")
    ] = "random",
    seed: Annotated[int, typer.Option("--seed", help="Seed of all draws and starts.")] = 0,
    keep: Annotated[
        float,
        typer.Option(
            "--keep",
            help="From the 11th trial on, stop those that explain less than the best KEEP (a share) of the first "
            "10 did; 1 stops none.",
        ),
    ] = 0.5,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget", help="Time for all trials, e.g. 25m or 2h: cuts their steps and prints by how much."
        ),
    ] = None,
    input_shape: opt.InputShape = None,
    task: opt.TaskName = None,
    arch: opt.Arch = None,
    activation: opt.ActivationName = None,
    normalize: opt.Normalize = None,
    head: opt.Head = None,
    targets: Annotated[
        bool, typer.Option("--targets", help="Audit several models; one table compares them.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the sweep in the output directory, or join it.")
    ] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="Only list the finished trials of a sweep, given in place of MODEL.")
    ] = False,
    as_json: opt.AsJson = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", min=0, help="Local processes, 1 by default; 0 runs in this one.", rich_help_panel=WHERE
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            metavar="URL",
            help="Database that machines share, e.g. sqlite:////shared/study.db; default: a file in -o.",
            rich_help_panel=WHERE,
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option("--ray", help="A Ray cluster: auto, HOST:PORT, or local.", rich_help_panel=WHERE),
    ] = None,
    cpus: Annotated[
        float | None,
        typer.Option("--cpus-per-trial", help="With --ray; 1 by default.", rich_help_panel=WHERE),
    ] = None,
    gpus: Annotated[
        float | None,
        typer.Option("--gpus-per-trial", help="With --ray; 0 by default.", rich_help_panel=WHERE),
    ] = None,
    device: opt.Device = "cpu",
    oracle: Annotated[
        bool,
        typer.Option(
            "--oracle",
            help="Judge trials by good images, counted with data; an attacker can't.",
        ),
    ] = False,
    with_data: opt.WithData = False,
    data: opt.DataName = None,
    n: opt.Number = None,
    labels: opt.Labels = None,
    classes: opt.Classes = None,
    data_root: opt.DataRoot = None,
    data_seed: opt.DataSeed = None,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", help="Also write event files here.", rich_help_panel=WATCH)
    ] = None,
    wandb: Annotated[
        str | None, typer.Option("--wandb", help="Also log to W&B: offline or online.", rich_help_panel=WATCH)
    ] = None,
) -> None:
    """Try many settings, keep what the weights confirm, and pool the candidates of all trials.

    --data or --with-data scores the pooled result at the end; only --oracle uses data to judge trials.
    """
    from functools import partial

    from engram.core.errors import ConfigError, optional

    if listed:
        for directory in models:
            show_trials(directory, as_json=as_json)
        return
    if out is None:
        raise ConfigError("there is no directory to write to; give one with -o, e.g. -o runs/sweep")
    optuna = optional("optuna", wanted_by="engram sweep", install="'engram[sweep]'")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found = chosen_models(models) if targets else models
    if len(found) != 1 and not targets:
        raise ConfigError(f"got {len(found)} models; give one, or --targets to audit them all")
    from engram.cli.sweep_run import Opening, Trackers, run_fleet, run_one

    asked = AskedData(data=data, n=n, labels=labels, classes=classes, data_seed=data_seed, with_data=with_data)
    spec_for = partial(
        chosen_spec,
        space=space,
        settings=settings or [],
        trials=trials,
        seed=seed,
        sampler=sampler,
        keep=keep,
        oracle=oracle,
    )
    how = {"input_shape": input_shape, "task": task, "arch": arch, "activation": activation}
    how |= {"normalize": normalize, "head": head}
    opening = Opening(spec_for, how, asked, data_root, oracle, storage, device, resume)
    trackers = Trackers(tensorboard, wandb)
    seconds = None if budget is None else opt.parse_seconds(budget)
    if seconds is not None and (targets or storage is not None):
        raise ConfigError("--budget plans for one model and one machine; give --set steps=NUMBER instead")
    executor = chosen_executor(jobs, ray, cpus, gpus, device)
    try:
        if seconds is not None:
            opening = opening.within(seconds, found[0], out, executor)
        if targets:
            run_fleet(found, out, opening, executor, trackers, as_json=as_json)
        else:
            run_one(found[0], out, opening, executor, trackers, as_json=as_json)
    except KeyboardInterrupt:
        typer.echo(f"stopped; finished trials are in {out}; resume with the same command and --resume", err=True)
        raise
    finally:
        executor.close()


def chosen_spec(
    task: Task,
    *,
    space: str | None,
    settings: list[str],
    trials: int,
    seed: int,
    sampler: str,
    keep: float,
    oracle: bool,
) -> SweepSpec:
    """The sweep of a model with this task; without a space, the papers' search for the task."""
    from engram.attacks.registry import parse_setting
    from engram.sweep.space import SweepSpec, default_space, find_space

    chosen = find_space(space or default_space(task))
    fixed = dict(parse_setting(chosen.recipe, text) for text in settings)
    return SweepSpec(
        space=chosen.fixing(fixed),
        trials=trials,
        seed=seed,
        sampler=sampler,
        keep=keep,
        objective="oracle" if oracle else "blind",
    )


def chosen_executor(
    jobs: int | None, ray: str | None, cpus: float | None, gpus: float | None, device: str
) -> Executor:
    from engram.cli.options import check_device
    from engram.core.errors import ConfigError

    if ray is not None and jobs is not None:
        raise ConfigError("--jobs does nothing with --ray, which fills the cluster; leave it out")
    if ray is not None:
        from engram.sweep.executors import RayTasks

        return RayTasks(ray, cpus=cpus or 1.0, gpus=gpus or 0.0)
    if cpus is not None or gpus is not None:
        raise ConfigError("--cpus-per-trial and --gpus-per-trial do nothing without --ray; leave them out")
    check_device(device)
    if jobs == 0:
        from engram.sweep.executors import InProcess

        return InProcess()
    from engram.sweep.executors import Processes

    return Processes(1 if jobs is None else jobs)


def chosen_models(models: list[Path]) -> list[Path]:
    """Expand a pattern that the shell did not expand (quoted, or on Windows)."""
    found: list[Path] = []
    for model in models:
        pattern = "*" in model.name and not model.exists()
        found += sorted(model.parent.glob(model.name)) if pattern else [model]
    return found


def show_trials(directory: Path, *, as_json: bool) -> None:
    """One line per trial; plain text, since tables of ten thousand rows are slow to lay out."""
    from engram.core.errors import CheckpointError, ConfigError
    from engram.core.runs import INDEX, read_index, read_record

    if not (directory / INDEX).exists():
        raise ConfigError(f"{directory} contains no sweep; give the directory that was the sweep's -o")
    record, rows = read_record(directory), read_index(directory)
    if as_json:
        typer.echo(json.dumps({**record, "finished": rows}))
        return
    try:
        objective = record["sweep"]["objective"]
        lines = [f"{'trial':>6}  {'state':9}{objective:>10}{'seconds':>10}  settings"]
        lines += [_line(row) for row in rows]
        lines.append(f"{len(rows):,} of {record['trials']:,} trials finished in {directory}")
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{directory} is damaged: run.json or {INDEX} lacks a value ({error!r})") from error
    typer.echo("\n".join(lines))


def _line(row: dict[str, Any]) -> str:
    value = "-" if row["objective"] is None else f"{row['objective']:.4f}"
    settings = " ".join(f"{name}={_short(value)}" for name, value in row["params"].items())
    if row["state"] != "complete":
        settings += f"  ({row['reason']})"
    return f"{row['number']:6d}  {row['state']:9}{value:>10}{row.get('seconds', 0.0):10.1f}  {settings}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
