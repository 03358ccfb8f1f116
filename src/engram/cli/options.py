"""Options that several commands share, and the reading of their values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

if TYPE_CHECKING:
    from engram.data.choice import DataChoice
    from engram.loop import Observer, Values
    from engram.targets.descent import Recipe


class ShowShare(Protocol):
    """Shows how much of the work of a title is done."""

    def __call__(self, title: str, share: float, note: str = "") -> None: ...


DataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", help="Folder with the data sets; else ENGRAM_DATA, else ~/.cache/engram."),
]
DataName = Annotated[
    str | None, typer.Option("--data", help="A name from `engram data list`, npz:PATH or folder:PATH.")
]
Labels = Annotated[
    str | None, typer.Option("--labels", metavar="MAP", help="Label map; the data set's own by default.")
]
InputShape = Annotated[
    str | None,
    typer.Option(
        "--input-shape",
        metavar="CxHxW",
        help="Shape of one input, e.g. 3x32x32, or 784 for vectors; read from the card.",
    ),
]
Arch = Annotated[
    str | None,
    typer.Option(
        "--arch",
        metavar="LAYERS",
        help="The layers of a file with convolutions, e.g. 'conv3x32 relu flatten 1000 relu 1'; a .pt2 file of "
        "torch.export.save and fully-connected networks need none.",
    ),
]
TaskName = Annotated[
    str | None,
    typer.Option(
        "--task",
        help="What the outputs mean: binary, multiclass (multiclass:pairs attacks with a dual for each pair of "
        "sample and class), regression:l2, regression:l2.5, regression:huber.",
    ),
]
Classes = Annotated[
    int | None, typer.Option("--classes", min=2, help="Only the first so many classes of the label map.")
]
Device = Annotated[str, typer.Option("--device", help="Where to compute: cpu, cuda or mps.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last snapshot in the output directory.")]

SnapshotEvery = Annotated[
    float, typer.Option("--snapshot-every", min=0, help="Seconds between snapshots, for --resume.")
]


def parse_shape(text: str) -> tuple[int, ...]:
    """'3x32x32' -> (3, 32, 32).

    >>> parse_shape("3x32x32")
    (3, 32, 32)
    """
    from engram.errors import ConfigError

    parts = text.lower().replace("×", "x").split("x")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"--input-shape must be positive numbers joined by x, got {text!r}; for example 3x32x32")
    return tuple(int(part) for part in parts)


def parse_widths(text: str) -> tuple[int, ...]:
    """'1000,1000' -> (1000, 1000)."""
    from engram.errors import ConfigError

    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise ConfigError(f"--widths must be numbers joined by commas, got {text!r}; for example 1000,1000")
    return tuple(int(part) for part in parts)


def parse_seconds(text: str) -> float:
    """A time such as 30s, 5m or 1h in seconds; a plain number is seconds.

    >>> parse_seconds("90"), parse_seconds("1.5m"), parse_seconds("1h")
    (90.0, 90.0, 3600.0)
    """
    from engram.errors import ConfigError

    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = (text[:-1], units[text[-1]]) if text and text[-1] in units else (text, 1.0)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"--budget must be a positive time, got {text!r}; for example 30s, 5m or 1h")
    return seconds


def parse_bytes(text: str) -> int:
    """An amount of memory such as 500MB or 4GB.

    >>> parse_bytes("500MB"), parse_bytes("1.5GB")
    (500000000, 1500000000)
    """
    from engram.errors import ConfigError

    units = {"MB": 1e6, "GB": 1e9}
    try:
        amount = float(text[:-2]) * units[text[-2:].upper()]
    except (KeyError, ValueError):
        amount = 0.0
    if not 1 <= amount < float("inf"):
        raise ConfigError(f"--memory must be an amount with its unit, got {text!r}; for example 500MB or 4GB")
    return int(amount)


def named_data(
    name: str,
    n: int | None,
    labels: str | None,
    seed: int | None,
    *,
    classes: int | None = None,
    own_classes: bool = False,
) -> DataChoice:
    """The data that the options name; `own_classes`: no map onto two classes by default."""
    from engram.data.catalog import default_labels
    from engram.data.choice import DataChoice
    from engram.errors import ConfigError

    if n is None:
        raise ConfigError("--data needs -n, the number of training images, e.g. -n 500")
    chosen = labels or default_labels(name, own_classes=own_classes)
    return DataChoice(name=name, labels=chosen, n=n, seed=seed, classes=classes)


def check_device(name: str) -> str:
    """The device, or an error that says why it is not to be had."""
    import torch

    from engram.errors import ConfigError

    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--device {name} can't be used here ({reason}); use --device cpu") from error
    return name


@contextmanager
def progress_bar(title: str, steps: int) -> Iterator[Observer]:
    """An observer that shows a bar with loss and time left on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4g}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=steps, loss=float("nan"))

        def observe(step: int, metrics: Values) -> None:
            bar.update(task, completed=step, loss=metrics["loss"])

        yield observe


@contextmanager
def training_bar(recipe: Recipe) -> Iterator[Observer]:
    """A bar over the epochs; along the flow, where log-loss falls evenly, over log-loss down to its goal."""
    goal = recipe.loss_threshold
    if recipe.flow is None or goal is None:
        with progress_bar("training", recipe.epochs) as observer:
            yield observer
        return
    from math import log

    first: list[float] = []
    with share_bar("training") as show:

        def observe(step: int, metrics: Values) -> None:
            first[:] = first or [max(metrics["loss"], 2 * goal)]
            done = log(first[0] / max(metrics["loss"], goal)) / log(first[0] / goal)
            show("training", max(done, 0.0), f"loss {metrics['loss']:.3g} of {goal:g}, epoch {step:,}")

        yield observe


@contextmanager
def share_bar(*titles: str) -> Iterator[ShowShare]:
    """Bars on standard error for work that ends by the clock or by parts: title, the share done, a note."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    note = TextColumn("{task.fields[note]}")
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), note, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks = {title: bar.add_task(title, total=1.0, start=False, note="") for title in titles}

        def show(title: str, share: float, note: str = "") -> None:
            bar.start_task(tasks[title])
            bar.update(tasks[title], completed=share, note=note)

        yield show
