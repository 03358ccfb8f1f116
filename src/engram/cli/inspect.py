"""`engram inspect`: is a model in reach, before any attack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from engram.cli.asked_data import AskedData
from engram.cli.bars import part_bar
from engram.cli.inspect_tables import show, write_figure
from engram.cli.options import (
    Arch,
    AsJson,
    Classes,
    DataName,
    DataRoot,
    DataSeed,
    InputShape,
    Labels,
    Model,
    Number,
    TaskName,
    WithData,
)
from engram.cli.target import attacker_view, opened

EXAMPLES = (
    "Examples: engram inspect model.pt --input-shape 3x32x32; engram inspect model.pt --input-shape 3x32x32 "
    "--data folder:my_training_images -n 500 --plot inspection.png; engram inspect runs/gate --with-data --json"
)


def inspect(
    model: Model,
    input_shape: InputShape = None,
    arch: Arch = None,
    task: TaskName = None,
    data: DataName = None,
    n: Number = None,
    labels: Labels = None,
    classes: Classes = None,
    data_root: DataRoot = None,
    data_seed: DataSeed = None,
    with_data: WithData = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--plot",
            metavar="FILE.png",
            help="Draw the spectrum (with convolutions: the kernels); with data also ceiling and duals.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a model's layers, what training wrote into them, and whether the attack can work with it.

    Without data: what a stranger sees; -n alone counts the equations for so many samples. With --data or
    --with-data: also margins, KKT gap and the best that can come back of every training sample. The keys of the
    JSON are in docs/inspect.md.
    """
    from engram.errors import ConfigError, require
    from engram.inspection import dense_part, describe_either, examine_either, judge_either, record_of_either
    from engram.targets.convolutional import ConvNetwork

    require(plot is None or plot.suffix == ".png", "--plot", "must end in .png", str(plot))
    target = opened(model, arch, input_shape)
    view = attacker_view(target, model, input_shape, task)
    asked = AskedData(
        data=data,
        n=n if data is not None or with_data else None,
        labels=labels,
        classes=classes,
        data_seed=data_seed,
        with_data=with_data,
    )
    choice = asked.choice(target.card, view.task.name)
    if choice is None and n is not None and isinstance(view.network, ConvNetwork):
        raise ConfigError("-n alone counts equations, which is not done with convolutions; leave it out")
    split = None if choice is None else choice.load(data_root)
    samples = n if choice is None else choice.n
    examination = None
    with part_bar("weights") as progress:
        description = describe_either(view, samples=samples, progress=progress)
    if split is not None:
        train, unseen = split.train, split.held_out.images
        with part_bar("samples") as progress:
            examination = examine_either(
                dense_part(view),
                description.space,
                train.images,
                train.labels,
                split.mean,
                held_out=unseen,
                progress=progress,
            )
    verdict = judge_either(description, examination)
    if as_json:
        record = record_of_either(view, description, verdict, examination)
        typer.echo(json.dumps({"model": str(model), **record}, indent=2, allow_nan=False))
    else:
        show(description, examination, verdict)
    if plot is not None:
        write_figure(plot, view, description, examination, title=f"{model}: {description.name}")
        typer.echo(f"wrote {plot}", err=as_json)
