"""`engram train`: train a target with the papers' recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli import options as opt
from engram.cli.data import AskedData
from engram.cli.options import is_given, progress_bar, remember, remembered

if TYPE_CHECKING:
    from engram.data.sets import Split
    from engram.training.presets import Plan
    from engram.training.recipe import ConvSpec, Flow, MLPSpec


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
        str | None,
        typer.Option("--preset", help="A target from the papers by name, instead of the options below."),
    ] = None,
    scale: Annotated[
        str | None, typer.Option("--scale", help="Size of the preset: smoke, cpu (the default) or paper.")
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the presets and exit.")] = False,
    cache: Annotated[
        bool | None,
        typer.Option("--cache/--no-cache", help="Store and reuse targets by content; on for presets."),
    ] = None,
    data: opt.DataName = None,
    n: opt.Number = None,
    task: opt.TaskName = None,
    labels: opt.Labels = None,
    classes: opt.Classes = None,
    data_root: opt.DataRoot = None,
    data_seed: opt.DataSeed = None,
    widths: Annotated[
        str | None, typer.Option("--widths", help="Widths of the hidden layers; default: 1000,1000.")
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
        float, typer.Option("--lr", help="Learning rate; the papers use 0.5 for several classes.")
    ] = 0.01,
    epochs: Annotated[int, typer.Option("--epochs", help="Maximum number of epochs.")] = 1_000_000,
    loss_threshold: Annotated[
        float | None, typer.Option("--loss-threshold", help="Stop when the training loss falls below this.")
    ] = None,
    gradient_threshold: Annotated[
        float | None,
        typer.Option(
            "--gradient-threshold",
            help="Stop when the norm of the mean gradient, weight decay included, falls below this.",
        ),
    ] = None,
    flow: Annotated[
        bool,
        typer.Option("--flow", help="Large steps along the gradient flow: a few thousand replace 10^6 epochs."),
    ] = False,
    flow_below: Annotated[
        float | None, typer.Option("--flow-below", help="With --flow: plain descent above this loss (0.3).")
    ] = None,
    flow_tolerance: Annotated[
        float | None,
        typer.Option("--flow-tolerance", help="With --flow: error per step, as a share of a layer's norm (0.01)."),
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="Mini-batch size; default: full batch.")] = None,
    weight_decay: Annotated[float, typer.Option("--weight-decay", help="Adds w theta to the gradient.")] = 0.0,
    normalise_below: Annotated[
        float | None,
        typer.Option("--normalise-below", help="Below this loss, scale the rate by 1/loss, to save time."),
    ] = None,
    forget: Annotated[
        int | None,
        typer.Option(
            "--forget", help="With --weight-decay: after this many epochs, remove what is left of the start."
        ),
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32 or float64.")] = "float32",
    seed: Annotated[int, typer.Option("--seed", help="Seed of initialisation and batches.")] = 0,
    device: opt.Device = "cpu",
    resume: opt.Resume = False,
    snapshot_every: opt.SnapshotEvery = 20.0,
) -> None:
    """Train a ReLU network, fully-connected or with convolutions, as the papers do, and write it with its card."""
    from engram.core.errors import ConfigError

    if show_list:
        list_presets()
        return
    if out is None:
        raise ConfigError("there is no directory to write to; give one with -o, e.g. -o runs/target")
    opt.check_device(device)
    options = remembered(context, out, resume=resume)
    if options["preset"] is not None:
        from engram.training.presets import plan as preset_plan

        refuse_with_preset(context)
        split = None
        plan = preset_plan(options["preset"], options["scale"] or "cpu", seed=options["seed"])
    elif options["scale"] is not None:
        raise ConfigError(
            f"--scale {options['scale']} can only be used with --preset; see the presets with --list"
        )
    else:
        plan, split = plan_by_options(**options)
    remember(options, out, resume=resume)
    make(
        plan,
        split,
        out=out,
        data_root=options["data_root"],
        device=device,
        resume=resume,
        snapshot_every=snapshot_every,
        cached=options["preset"] is not None if cache is None else cache,
    )


# may be used with --preset, which decides everything else
ALLOWED_WITH_PRESET = {
    "out",
    "preset",
    "scale",
    "cache",
    "data_root",
    "seed",
    "device",
    "resume",
    "snapshot_every",
}


def list_presets() -> None:
    """One line per preset: where the papers use it, what it is, the paper's training loss."""
    from engram.training.presets import PRESETS, SCALES

    for name, preset in PRESETS.items():
        plan = preset.plan
        loss = "" if preset.loss is None else f", loss {preset.loss:g}"
        what = f"{plan.data.name} n={plan.data.n}, {plan.network.name}, {plan.task}{loss}"
        typer.echo(f"{name:26s} {what}  ({preset.where})")
    typer.echo(f"scales: {', '.join(SCALES)}; e.g. engram train --preset cifar500 --scale cpu -o runs/cifar500")


def refuse_with_preset(context: typer.Context) -> None:
    """No option is silently ignored: what a preset decides can't also be given."""
    from engram.core.errors import ConfigError

    for parameter in context.command.params:
        name = parameter.name or ""
        if is_given(context, name) and name not in ALLOWED_WITH_PRESET:
            raise ConfigError(f"{parameter.opts[0]} can't be used with --preset, which decides it; leave one out")


def plan_by_options(**options: Any) -> tuple[Plan, Split]:
    """The plan that the options describe, and its data."""
    from dataclasses import fields

    from engram.core.errors import ConfigError
    from engram.models.tasks import task_named
    from engram.training.presets import Plan
    from engram.training.recipe import Recipe

    if options["data"] is None:
        raise ConfigError("there is nothing to train on; give --data and -n, or --preset (see --list)")
    if options["widths"] is not None and options["arch"] is not None:
        raise ConfigError("--widths and --arch each describe the whole network; give one of them")
    task = options["task"] or "binary"
    choice = AskedData.of(options).choice(None, task)
    assert choice is not None
    named = {field.name: options[field.name] for field in fields(Recipe) if field.name != "flow"}
    recipe = Recipe(**named, flow=_flow(options))
    data = choice.load(options["data_root"])
    network = _network(options, data.train.shape, task_named(task, len(data.train.classes)).outputs)
    return Plan(data=choice, network=network, recipe=recipe, task=task), data


def make(
    plan: Plan,
    data: Split | None,
    *,
    out: Path,
    data_root: Path | None,
    device: str,
    resume: bool,
    snapshot_every: float,
    cached: bool,
) -> None:
    """Train by the plan, write the target, and print how well it does."""
    from engram.models.tasks import task_named
    from engram.pipeline import build_target
    from engram.training.recipe import training_progress
    from engram.training.target import TargetCache, cache_root

    for cut in plan.cuts:
        typer.echo(f"cut: {cut}")
    with progress_bar() as progress:
        target = build_target(
            plan.data,
            plan.network,
            plan.recipe,
            task_named(plan.task, plan.network.outputs),
            root=data_root,
            directory=out,
            device=device,
            resume=resume,
            snapshot_every=snapshot_every,
            observers=[training_progress(progress, plan.recipe)],
            cache=TargetCache(cache_root()) if cached else None,
            data=data,
        )
    card = target.card
    assert card is not None
    done = f"{card.stopped}, {card.epochs:,} epochs, {card.seconds:.0f} s"
    typer.echo(f"{plan.network.name} ({card.task}), {plan.data.n} images of {plan.data.name}: {done}")
    for name, quality in (("training", card.train), ("held-out", card.held_out), ("test", card.test)):
        if quality is not None:
            typer.echo(f"  {name:9s} loss {quality.loss:.3g}, accuracy {quality.accuracy:.1%}")
    typer.echo(f"wrote {out}")


def _network(options: dict[str, Any], shape: tuple[int, ...], outputs: int) -> MLPSpec | ConvSpec:
    """The network that the options describe, for inputs of that shape."""
    import math

    from engram.core.errors import ConfigError, require
    from engram.training.recipe import ConvSpec, MLPSpec

    try:
        std = None if options["init"] == "standard" else float(options["init"])
    except ValueError as error:
        raise ConfigError(f"--init must be a number or 'standard', got {options['init']!r}") from error
    if options["arch"] is None:
        return MLPSpec(
            inputs=math.prod(shape),
            widths=opt.parse_widths(options["widths"] or "1000,1000"),
            outputs=outputs,
            bias=options["bias"],
            first_layer_std=std,
        )
    spec = ConvSpec(input_shape=shape, layers=options["arch"], bias=options["bias"], first_layer_std=std)
    require(spec.outputs == outputs, "--arch", f"must end in {outputs} for this task", spec.outputs)
    return spec


def _flow(options: dict[str, Any]) -> Flow | None:
    from engram.core.errors import ConfigError
    from engram.training.recipe import Flow

    given = {name: options[f"flow_{name}"] for name in ("below", "tolerance")}
    given = {name: value for name, value in given.items() if value is not None}
    if options["flow"]:
        return Flow(**given)
    if given:
        raise ConfigError(f"--flow-{next(iter(given))} can only be used with --flow; give both or neither")
    return None
