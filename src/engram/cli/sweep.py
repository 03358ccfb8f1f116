"""`engram sweep`: many attacks on a model, or on many models, on one machine or on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engram.cli.asked_data import AskedData
from engram.cli.options import (
    AsJson,
    Classes,
    DataName,
    DataRoot,
    DataSeed,
    Device,
    InputShape,
    Labels,
    Number,
    TaskName,
    WithData,
    parse_seconds,
)

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
            help="A directory of `engram train`, or a .pt, .pth or .safetensors file; several with --targets.",
        ),
    ],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Directory of the sweep.")] = None,
    trials: Annotated[int, typer.Option("--trials", help="How many in all (for each model).")] = 100,
    space: Annotated[
        str, typer.Option("--space", help="What to vary: haim2022, buzaglo2023, engine, or a TOML file.")
    ] = "haim2022",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Hold a setting fixed, e.g. steps=3000; repeat."),
    ] = None,
    sampler: Annotated[
        str, typer.Option("--sampler", help="random (repeatable), tpe or gp (learn from trials).")
    ] = "random",
    seed: Annotated[int, typer.Option("--seed", help="Of all draws and starts.")] = 0,
    keep: Annotated[
        float,
        typer.Option(
            "--keep",
            help="From the 11th trial on, stop those that explain less than the best KEEP of the first 10 did; "
            "1 stops none.",
        ),
    ] = 0.5,
    budget: Annotated[
        str | None,
        typer.Option("--budget", help="Time for all trials, 25m or 2h: cuts their steps, and says by how much."),
    ] = None,
    input_shape: InputShape = None,
    task: TaskName = None,
    targets: Annotated[
        bool, typer.Option("--targets", help="Audit several models; one table compares them.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the sweep in the output directory, or join it.")
    ] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="Only show the finished trials of the sweep in MODEL's place.")
    ] = False,
    as_json: AsJson = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", min=0, help="Local processes, 1 by default; 0 for this one.", rich_help_panel=WHERE
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            metavar="URL",
            help="Database that machines share, e.g. sqlite:////shared/study.db; else a file in the directory.",
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
    device: Device = "cpu",
    oracle: Annotated[
        bool,
        typer.Option(
            "--oracle",
            help="Judge trials by good images, counted with data; no attacker could.",
        ),
    ] = False,
    with_data: WithData = False,
    data: DataName = None,
    n: Number = None,
    labels: Labels = None,
    classes: Classes = None,
    data_root: DataRoot = None,
    data_seed: DataSeed = None,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", help="Also write event files here.", rich_help_panel=WATCH)
    ] = None,
    wandb: Annotated[
        str | None, typer.Option("--wandb", help="Also log to W&B: offline or online.", rich_help_panel=WATCH)
    ] = None,
) -> None:
    """Try many settings, keep what the weights confirm, and pool the candidates of all trials.

    --data or --with-data scores the pooled result at the end; trials are judged without it, but for --oracle.
    """
    from engram.cli.sweep_choices import chosen_executor, chosen_models, chosen_spec
    from engram.cli.sweep_list import show_trials
    from engram.errors import ConfigError

    if listed:
        for directory in models:
            show_trials(directory, as_json=as_json)
        return
    if out is None:
        raise ConfigError("say where the sweep goes: -o DIRECTORY")
    spec = chosen_spec(space, settings or [], trials, seed, sampler, keep, oracle)
    found = chosen_models(models) if targets else models
    if len(found) != 1 and not targets:
        raise ConfigError(f"got {len(found)} models; give one, or --targets to audit them all")
    from engram.cli.sweep_open import Opening, Trackers
    from engram.cli.sweep_run import run_fleet, run_one

    asked = AskedData(data=data, n=n, labels=labels, classes=classes, data_seed=data_seed, with_data=with_data)
    opening = Opening(spec, input_shape, task, asked, data_root, oracle, storage, device, resume)
    trackers = Trackers(tensorboard, wandb)
    seconds = None if budget is None else parse_seconds(budget)
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
        typer.echo(f"stopped; what has finished is in {out}: go on with the same command and --resume", err=True)
        raise
    finally:
        executor.close()
