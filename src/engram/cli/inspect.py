"""`engram inspect`: is a model in reach, before any attack."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engram.cli.inspect_tables import show, write_figure
from engram.cli.options import Arch, Classes, DataName, DataRoot, InputShape, Labels, TaskName, named_data
from engram.cli.target import attacker_view, opened

if TYPE_CHECKING:
    from engram.data.choice import DataChoice
    from engram.inspection.progress import Progress
    from engram.targets.checkpoint import Target
    from engram.targets.networks import Network
    from engram.task import Task

EXAMPLES = (
    "Examples: engram inspect model.pt --input-shape 3x32x32; engram inspect model.pt --input-shape 3x32x32 "
    "--data folder:my_training_images -n 500 --plot inspection.png; engram inspect runs/gate --with-data --json"
)


def inspect(
    model: Annotated[
        Path, typer.Argument(help="A directory of `engram train`, or a .pt, .pth, .pt2 or .safetensors file.")
    ],
    input_shape: InputShape = None,
    arch: Arch = None,
    task: TaskName = None,
    data: DataName = None,
    n: Annotated[
        int | None,
        typer.Option("-n", min=1, help="Number of training images, also where the data are not at hand."),
    ] = None,
    labels: Labels = None,
    classes: Classes = None,
    data_root: DataRoot = None,
    data_seed: Annotated[
        int | None, typer.Option("--data-seed", help="As in training; else the first of each class.")
    ] = None,
    with_data: Annotated[
        bool, typer.Option("--with-data", help="Take the data from the card of a model that engram trained.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--plot",
            metavar="FILE.png",
            help="Draw the spectrum (with convolutions: the kernels); with data also ceiling and duals.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")] = False,
) -> None:
    """Show a model's layers, what training wrote into them, and whether the attack can work with it.

    Without data: what a stranger sees. With --data or --with-data: also margins, KKT gap and the best that can
    come back of every training sample. The JSON's keys are in docs/inspect.md.
    """
    from engram.errors import ConfigError, require
    from engram.inspection import dense_part, describe_either, examine_either, judge_either, record_of_either
    from engram.targets.convolutional import ConvNetwork

    require(plot is None or plot.suffix == ".png", "--plot", "must end in .png", str(plot))
    target = opened(model, arch, input_shape)
    view = attacker_view(target, model, input_shape, task)
    choice = _chosen(target, view.task, data, n, labels, classes, data_seed, with_data)
    if choice is None and n is not None and isinstance(view.network, ConvNetwork):
        raise ConfigError("-n alone counts equations, which is not done with convolutions; leave it out")
    split = None if choice is None else choice.load(data_root)
    samples = n if choice is None else choice.n
    examination = None
    with _part_bar("weights") as progress:
        description = describe_either(view, samples=samples, progress=progress)
    if split is not None:
        train, unseen = split.train, split.held_out.images
        with _part_bar("samples") as progress:
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


def _chosen(
    target: Target[Network],
    task: Task,
    data: str | None,
    n: int | None,
    labels: str | None,
    classes: int | None,
    seed: int | None,
    with_data: bool,
) -> DataChoice | None:
    """The data named by the options, or by the card if that is asked for; None: a stranger's view."""
    from engram.errors import ConfigError
    from engram.task import own_classes

    if data is None and any(given is not None for given in (labels, classes, seed)):
        raise ConfigError(
            "--labels, --classes and --data-seed do nothing without --data; name the data with --data NAME -n N"
        )
    if not with_data:
        own = own_classes(task.name)
        return None if data is None else named_data(data, n, labels, seed, classes=classes, own_classes=own)
    if data is not None or n is not None:
        raise ConfigError("--with-data takes the data from the model's card; leave --data and -n out")
    if target.card is None:
        raise ConfigError("--with-data needs a directory of `engram train`; else say --data NAME -n NUMBER")
    return target.card.data


@contextmanager
def _part_bar(title: str) -> Iterator[Progress]:
    """A bar on standard error for work that is told in shares; it goes away at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda part, done: bar.update(task, completed=done, description=f"{title}: {part}")
