"""`engram train`: make a target with the papers' recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engram.cli.options import (
    Classes,
    DataName,
    DataRoot,
    DataSeed,
    Device,
    Labels,
    Number,
    Resume,
    SnapshotEvery,
    TaskName,
)
from engram.cli.resumed import remember, remembered
from engram.cli.training import list_presets, make, plan_by_options, refuse_beside_preset

EXAMPLES = (
    "Examples: engram train --data faces --labels gate -n 50 --epochs 4000 --lr 0.02 -o runs/gate; "
    "engram train --data cifar10 -n 500 --epochs 10000 -o runs/cifar500; "
    "engram train --data cifar10 -n 500 --flow --loss-threshold 4e-6 -o runs/cifar500flow; "
    "engram train --preset cifar500 --scale cpu -o runs/cifar500; engram train --list; "
    "engram train --data cifar10 --task multiclass --classes 5 -n 500 --lr 0.5 --epochs 10000 -o runs/five; "
    "engram train --data cifar10 --task regression:l2 -n 300 --init standard --weight-decay 7.5e-4 --epochs 10000 "
    "-o runs/l2; "
    "engram train --data cifar10 -n 50 --arch 'conv3x32 relu flatten 1000 relu 1' --init standard "
    "--weight-decay 1e-3 --lr 0.1 --epochs 5000 -o runs/conv"
)


def train(
    context: typer.Context,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Directory for model.safetensors and card.json.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", help="A target of the papers by name, instead of the options below.")
    ] = None,
    scale: Annotated[
        str | None, typer.Option("--scale", help="Size of the preset: smoke, cpu (the default) or paper.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the presets and exit.")] = False,
    cache: Annotated[
        bool | None,
        typer.Option("--cache/--no-cache", help="Keep and reuse targets by content; on for presets."),
    ] = None,
    data: DataName = None,
    n: Number = None,
    task: TaskName = None,
    labels: Labels = None,
    classes: Classes = None,
    data_root: DataRoot = None,
    data_seed: DataSeed = None,
    widths: Annotated[
        str | None, typer.Option("--widths", help="Hidden layers; 1000,1000 where nothing is said.")
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(
            "--arch",
            metavar="LAYERS",
            help="A network with convolutions instead, e.g. 'conv3x32 relu flatten 1000 relu 1': "
            "conv{k}x{channels}[s{stride}][p{padding}], relu, avgpool{k}, flatten, {width}.",
        ),
    ] = None,
    bias: Annotated[
        str, typer.Option("--bias", help="Which hidden layers have biases: first, all, none.")
    ] = "first",
    init: Annotated[
        str, typer.Option("--init", help="Standard deviation of the first layer, or 'standard'.")
    ] = "1e-4",
    lr: Annotated[
        float, typer.Option("--lr", help="Learning rate; the papers take 0.5 for several classes.")
    ] = 0.01,
    epochs: Annotated[int, typer.Option("--epochs", help="Epochs at the most.")] = 1_000_000,
    loss_threshold: Annotated[
        float | None, typer.Option("--loss-threshold", help="Stop when the training loss is below.")
    ] = None,
    gradient_threshold: Annotated[
        float | None,
        typer.Option(
            "--gradient-threshold", help="Stop when the mean gradient, weight decay included, has a norm below."
        ),
    ] = None,
    flow: Annotated[
        bool,
        typer.Option("--flow", help="Large steps along the gradient flow: 10^6 plain epochs in a few thousand."),
    ] = False,
    flow_below: Annotated[
        float | None, typer.Option("--flow-below", help="With --flow: plain descent above this loss (0.3).")
    ] = None,
    flow_tolerance: Annotated[
        float | None,
        typer.Option("--flow-tolerance", help="With --flow: a step's error, as a share of a layer's norm (0.01)."),
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="Mini-batch size; else full batch.")] = None,
    weight_decay: Annotated[float, typer.Option("--weight-decay", help="Adds w theta to the gradient.")] = 0.0,
    normalise_below: Annotated[
        float | None,
        typer.Option("--normalise-below", help="Below this loss, scale the rate by 1/loss (a short cut in time)."),
    ] = None,
    forget: Annotated[
        int | None,
        typer.Option("--forget", help="With --weight-decay: drop what is left of the start after so many epochs."),
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32 or float64.")] = "float32",
    seed: Annotated[int, typer.Option("--seed", help="Seed of initialisation and batches.")] = 0,
    device: Device = "cpu",
    resume: Resume = False,
    snapshot_every: SnapshotEvery = 20.0,
) -> None:
    """Train a ReLU network, fully-connected or with convolutions, as the papers do and write it with its card."""
    from engram.errors import ConfigError

    if show_list:
        list_presets()
        return
    if out is None:
        raise ConfigError("there is no directory to write to; give one with -o, e.g. -o runs/target")
    options = remembered(context, out, resume=resume)
    if options["preset"] is not None:
        from engram.experiments.zoo import plan as preset_plan

        refuse_beside_preset(context)
        plan = preset_plan(options["preset"], options["scale"] or "cpu", seed=options["seed"])
    elif options["scale"] is not None:
        raise ConfigError(f"--scale {options['scale']} goes with --preset; see the presets with --list")
    else:
        plan = plan_by_options(**options)
    remember(options, out, resume=resume)
    make(
        plan,
        out=out,
        data_root=options["data_root"],
        device=device,
        resume=resume,
        snapshot_every=snapshot_every,
        cached=options["preset"] is not None if cache is None else cache,
    )
