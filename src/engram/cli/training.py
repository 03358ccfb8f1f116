"""What `engram train` does with its options: make a plan of them, carry it out, say what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from engram.cli.asked_data import AskedData
from engram.cli.bars import training_bar
from engram.cli.options import check_device, parse_widths

if TYPE_CHECKING:
    from engram.experiments.zoo import Plan
    from engram.targets.recipe import Flow
    from engram.targets.spec import ConvSpec, MLPSpec

# what goes with --preset; all else is the preset's own
BESIDE_PRESET = {"out", "preset", "scale", "cache", "data_root", "seed", "device", "resume", "snapshot_every"}
DATA_OPTIONS = ("data", "n", "labels", "classes", "data_seed")
RECIPE_OPTIONS = (
    "lr",
    "epochs",
    "loss_threshold",
    "gradient_threshold",
    "batch",
    "weight_decay",
    "normalise_below",
    "forget",
    "dtype",
    "seed",
)


def list_presets() -> None:
    """A line for each preset: where the papers use it, what it is, the paper's training loss."""
    from engram.experiments.zoo import PRESETS, SCALES

    for name, preset in PRESETS.items():
        plan = preset.plan
        loss = "" if preset.loss is None else f", loss {preset.loss:g}"
        what = f"{plan.data.name} n={plan.data.n}, {plan.network.name}, {plan.task}{loss}"
        typer.echo(f"{name:26s} {what}  ({preset.where})")
    typer.echo(f"scales: {', '.join(SCALES)}; e.g. engram train --preset cifar500 --scale cpu -o runs/cifar500")


def refuse_beside_preset(context: typer.Context) -> None:
    """No option is quietly ignored: what a preset decides can't be given as well."""
    from engram.errors import ConfigError

    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        given = source is not None and source.name == "COMMANDLINE"
        if given and name not in BESIDE_PRESET:
            raise ConfigError(f"{parameter.opts[0]} does not go with --preset, which decides it; leave one out")


def plan_by_options(**options: Any) -> Plan:
    """The plan that the options describe."""
    from engram.errors import ConfigError
    from engram.experiments.zoo import Plan
    from engram.targets.recipe import Recipe
    from engram.task import task_named

    if options["data"] is None:
        raise ConfigError("there is nothing to train on; give --data and -n, or --preset (see --list)")
    if options["widths"] is not None and options["arch"] is not None:
        raise ConfigError("--widths and --arch each describe the whole network; give one of them")
    task = options["task"] or "binary"
    choice = AskedData(**{name: options[name] for name in DATA_OPTIONS}).choice(None, task)
    assert choice is not None
    recipe = Recipe(**{name: options[name] for name in RECIPE_OPTIONS}, flow=_flow(options))
    images = choice.load(options["data_root"], held_out=0).train
    network = _network(options, tuple(images.images.shape[1:]), task_named(task, len(images.classes)).outputs)
    return Plan(data=choice, network=network, recipe=recipe, task=task)


def make(
    plan: Plan,
    *,
    out: Path,
    data_root: Path | None,
    device: str,
    resume: bool,
    snapshot_every: float,
    cached: bool,
) -> None:
    """Train by the plan, write the target, and say how well it does."""
    from engram.pipeline import build_target
    from engram.targets.cache import TargetCache, cache_root
    from engram.task import task_named

    for cut in plan.cuts:
        typer.echo(f"cut: {cut}")
    with training_bar(plan.recipe) as progress:
        target = build_target(
            plan.data,
            plan.network,
            plan.recipe,
            task_named(plan.task, plan.network.outputs),
            root=data_root,
            directory=out,
            device=check_device(device),
            resume=resume,
            snapshot_every=snapshot_every,
            observers=[progress],
            cache=TargetCache(cache_root()) if cached else None,
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

    from engram.errors import ConfigError, require
    from engram.targets.spec import ConvSpec, MLPSpec

    try:
        std = None if options["init"] == "standard" else float(options["init"])
    except ValueError as error:
        raise ConfigError(f"--init must be a number or 'standard', got {options['init']!r}") from error
    if options["arch"] is None:
        return MLPSpec(
            inputs=math.prod(shape),
            widths=parse_widths(options["widths"] or "1000,1000"),
            outputs=outputs,
            bias=options["bias"],
            first_layer_std=std,
        )
    spec = ConvSpec(input_shape=shape, layers=options["arch"], bias=options["bias"], first_layer_std=std)
    require(spec.outputs == outputs, "--arch", f"must end in {outputs} for this task", spec.outputs)
    return spec


def _flow(options: dict[str, Any]) -> Flow | None:
    from engram.errors import ConfigError
    from engram.targets.recipe import Flow

    given = {name: options[f"flow_{name}"] for name in ("below", "tolerance")}
    given = {name: value for name, value in given.items() if value is not None}
    if options["flow"]:
        return Flow(**given)
    if given:
        raise ConfigError(f"--flow-{next(iter(given))} goes with --flow; give both, or neither")
    return None
