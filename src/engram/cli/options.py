"""Options that several commands share: their values, how `--resume` remembers them, and the progress bar."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from engram.core.errors import path_problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from engram.core.loop import Progress
    from engram.models.networks import Network
    from engram.models.view import AttackerView


class CheckedCommand(TyperCommand):
    """A command that refuses values which no option can use, whatever it is: numbers that are not finite or need
    more than 64 bits, and texts that no file can hold. What else is wrong, the option itself says."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        parameters: list[Any] = list(self.params)
        for parameter in parameters:
            value = ctx.params.get(parameter.name)
            for one in value if isinstance(value, list | tuple) else [value]:
                if (problem := _problem(one)) is not None:
                    raise typer.BadParameter(problem, ctx, parameter)
        return rest


LONGEST_TEXT = 10_000


def _problem(value: object) -> str | None:
    """What makes a value useless for every option.

    >>> _problem(float("nan")), _problem(2**64), _problem("plain")
    ('nan is not a finite number', '18446744073709551616 needs more than 64 bits', None)
    """
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not a finite number"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return f"{value} needs more than 64 bits"
    if isinstance(value, str | Path):
        text = str(value)
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            return "it is not valid UTF-8"
        if "\0" in text or isinstance(value, Path):
            return path_problem(text)
        if len(text) > LONGEST_TEXT:
            return f"it has {len(text):,} characters, more than any option needs"
    return None


class Commands(typer.Typer):
    """A set of commands, each of them checked."""

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = CheckedCommand, **kept: Any
    ) -> Callable[..., Any]:
        return super().command(name, cls=cls, **kept)


Model = Annotated[
    Path,
    typer.Argument(
        help="A directory from `engram train`, or a file: .pt, .pth, .pt2, .safetensors, .onnx, .keras, .h5 or "
        ".skops."
    ),
]
DataRoot = Annotated[
    Path | None,
    typer.Option("--data-root", help="Folder with the data sets; default: ENGRAM_DATA, else ~/.cache/engram."),
]
ModelCode = Annotated[
    str | None,
    typer.Option(
        "--model-code",
        metavar="FILE.py:FUNCTION",
        help="Your function that builds the model, for a state_dict of any class. THE FILE IS RUN: name only code "
        "that you trust. The weights file itself is never executed.",
    ),
]
DataName = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="A name from `engram data list`; npz:PATH; safetensors:PATH or npy:PATH[#LABELS] (embeddings, "
        "labels); csv:PATH[#LABEL] or parquet:PATH[#LABEL], a table; or folder:PATH, whose pictures are resized "
        "to the model's input.",
    ),
]
Number = Annotated[
    int | None,
    typer.Option(
        "-n",
        min=1,
        help="Number of training images, split evenly over the classes.",
    ),
]
HeldOut = Annotated[
    str | None,
    typer.Option(
        "--held-out",
        help="Control: records that training never saw, given like --data; none for no control. Default: with -n, "
        "the records of --data after the training records.",
    ),
]
HeldOutNumber = Annotated[
    int | None,
    typer.Option("--held-out-n", min=1, help="Number of held-out records; default: as many as training records."),
]
Mean = Annotated[
    str,
    typer.Option(
        "--mean",
        help="Mean subtracted from inputs: train (the training mean), zero (none), or auto, which takes the one "
        "that fits the weights better. For a scale too, use --normalize.",
    ),
]
Labels = Annotated[
    str | None, typer.Option("--labels", metavar="MAP", help="Label map; the data set's own by default.")
]
InputShape = Annotated[
    str | None,
    typer.Option(
        "--input-shape",
        metavar="CxHxW",
        help="Shape of one input, e.g. 3x32x32, or 784 for vectors; default: from the card.",
    ),
]
Arch = Annotated[
    str | None,
    typer.Option(
        "--arch",
        metavar="LAYERS",
        help="The layers of a state_dict with convolutions, e.g. 'conv3x32 relu flatten 1000 relu 1'; other files "
        "and fully-connected networks don't need it.",
    ),
]
ActivationName = Annotated[
    str | None,
    typer.Option(
        "--activation",
        metavar="NAME",
        help="What stands between the layers, which a state_dict does not say: relu (default), leaky:0.01, gelu, "
        "gelu-tanh, silu, elu, tanh, sigmoid, softplus.",
    ),
]
Normalize = Annotated[
    str | None,
    typer.Option(
        "--normalize",
        metavar="MEAN/STD",
        help="What is done to pixels before the network sees them, e.g. 0.49,0.48,0.45/0.25,0.24,0.26, or by "
        "name: imagenet, cifar10, cifar100, mnist, fashion, half, bytes, none.",
    ),
]
Head = Annotated[
    str | None,
    typer.Option(
        "--head",
        metavar="PREFIX",
        help="Read only the tensors whose names begin with this: the head of a larger model, e.g. classifier.",
    ),
]
TaskName = Annotated[
    str | None,
    typer.Option(
        "--task",
        help="What the outputs mean: binary, multiclass (multiclass:pairs attacks with one dual per pair of "
        "sample and class), regression:l2, regression:l2.5, regression:huber.",
    ),
]
Classes = Annotated[
    int | None, typer.Option("--classes", min=2, help="Use only the first classes of the label map, this many.")
]
DataSeed = Annotated[
    int | None, typer.Option("--data-seed", help="Choose images at random; default: the first of each class.")
]
Base = Annotated[
    Path | None,
    typer.Option(
        "--base", help="The model that training started from, if it is public: its weights tell the rest."
    ),
]
BaseSeed = Annotated[
    int | None,
    typer.Option("--base-seed", help="The seed with which PyTorch made the layers, if it is public."),
]
WithData = Annotated[
    bool, typer.Option("--with-data", help="Take the data from the card of a model that engram trained.")
]
Time = Annotated[str | None, typer.Option("--budget", help="Time for the attack: 30s, 5m, 1h.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")]
Device = Annotated[str, typer.Option("--device", help="Where to compute: cpu, cuda or mps.")]
PolicyFile = Annotated[
    Path | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="Decide by this policy (`engram policy init` writes one): exit with 0 for pass, 3 for fail, 4 for "
        "not enough evidence; writes decision.json.",
    ),
]
Explain = Annotated[bool, typer.Option("--explain", help="Show every rule of the policy, and how it was judged.")]
Resume = Annotated[bool, typer.Option("--resume", help="Resume from the last snapshot in the output directory.")]

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting of the recipe, e.g. relu_slope=50; may be repeated."
    ),
]
SnapshotEvery = Annotated[
    float, typer.Option("--snapshot-every", min=0, help="Seconds between snapshots, for --resume.")
]


OPENING = ("input_shape", "task", "arch", "activation", "normalize", "head", "base", "base_seed")
"""The options of a command that say how a model is opened."""


def opened_view(model: Path, given: Mapping[str, Any]) -> AttackerView[Network]:
    """The model as a command's options describe it."""
    from engram.models.open.door import open_view

    return open_view(model, **{name: given.get(name) for name in OPENING})


def show_notes(view: AttackerView[Network]) -> None:
    """What was assumed or done to read the model, once nothing else is wrong."""
    for note in view.notes:
        typer.echo(f"note: {note}", err=True)


def parse_widths(text: str) -> tuple[int, ...]:
    """'1000,1000' -> (1000, 1000)."""
    from engram.core.errors import ConfigError, whole_numbers

    if (widths := whole_numbers(text, ",")) is None:
        raise ConfigError(f"--widths must be numbers joined by commas, got {text!r}; for example 1000,1000")
    return widths


def parse_seconds(text: str) -> float:
    """A time such as 30s, 5m or 1h in seconds; a plain number is seconds.

    >>> parse_seconds("90"), parse_seconds("1.5m"), parse_seconds("1h")
    (90.0, 90.0, 3600.0)
    """
    from engram.core.errors import ConfigError

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
    from engram.core.errors import ConfigError

    units = {"MB": 1e6, "GB": 1e9}
    try:
        amount = float(text[:-2]) * units[text[-2:].upper()]
    except (KeyError, ValueError):
        amount = 0.0
    if not 1 <= amount < float("inf"):
        raise ConfigError(f"--memory must be an amount with its unit, got {text!r}; for example 500MB or 4GB")
    return int(amount)


def check_device(name: str) -> str:
    """The device, or an error that says why it can't be used."""
    import torch

    from engram.core.errors import ConfigError

    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--device {name} can't be used here ({reason}); use --device cpu") from error
    return name


OPTIONS_FILE = "options.json"
OF_THE_MOMENT = {
    "jobs",
    "ray",
    "model",
    "out",
    "resume",
    "budget",
    "device",
    "snapshot_every",
    "fail_on_leak",
    "explain",
    "cache",
    "show_list",
}
"""These don't define a run: they may differ each time it is resumed. Another model is noticed by its weights,
whose digest is in the run's record."""
IN_THE_RECORD = {
    "input_shape",
    "arch",
    "activation",
    "normalize",
    "columns",
    "head",
    "base",
    "base_seed",
    "task",
    "recipe",
    "candidates",
    "steps",
    "seed",
    "dtype",
    "restarts",
    "prior",
    "memory",
    "known",
    "settings",
}
"""If left out, the run chose these itself; what is given now is compared with the values in its run.json."""
MAY_MOVE = {"data_root", "policy"}
"""Paths that are remembered but may differ: the data may be elsewhere now, and the policy another one."""


def remembered(context: typer.Context, out: Path, *, resume: bool) -> dict[str, Any]:
    """The options of a command by name; for a resumed run, those in its options.json."""
    from engram.core.runs import refuse_difference

    options, where = dict(context.params), out / OPTIONS_FILE
    if not resume or not where.exists():
        return options
    recorded = _read(where)
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in recorded or name in OF_THE_MOMENT:
            continue
        if not is_given(context, name):
            options[name] = _recalled(context, parameter, recorded[name], where)
        elif not recorded[name] and name in IN_THE_RECORD:
            continue
        elif _plain(options[name]) != recorded[name] and name not in MAY_MOVE:
            refuse_difference(parameter.opts[0], options[name], recorded[name], where)
    return options


def command_line(out: Path, *, resume: bool) -> str:
    """The command as typed; of a resumed run, the one that started it, which repeats it."""
    where = out / OPTIONS_FILE
    started = _read(where).get("command") if resume and where.exists() else None
    return started if isinstance(started, str) else shlex.join(["engram", *sys.argv[1:]])


def _recalled(context: typer.Context, parameter: Any, value: Any, where: Path) -> Any:
    """An option's value as a file has it; it must be one that could have been typed."""
    from engram.core.errors import CheckpointError
    from engram.core.runs import CURE

    usual = context.params.get(parameter.name)
    if value == _plain(usual):
        return usual
    try:
        found = parameter.process_value(context, value)
    except typer.BadParameter as error:
        raise CheckpointError(f"{where} is damaged: {parameter.opts[0]}: {error.message}; {CURE}") from error
    problem = "it has no value" if found is None else _problem(found)
    if problem is not None:
        raise CheckpointError(f"{where} is damaged: {parameter.opts[0]}: {problem}; {CURE}")
    return found


def is_given(context: typer.Context, name: str) -> bool:
    """Whether an option was typed, rather than left to its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def remember(options: Mapping[str, Any], out: Path, *, resume: bool) -> None:
    """Write the options into the directory of the run that starts now; an earlier run there is left alone."""
    from engram.core.files import prepare_directory, write_json
    from engram.core.runs import require_free

    prepare_directory(out)
    if resume and (out / OPTIONS_FILE).exists():
        return
    if not resume:
        require_free(out)
    kept = {name: _plain(value) for name, value in options.items() if name not in OF_THE_MOMENT}
    write_json(out / OPTIONS_FILE, {**kept, "command": command_line(out, resume=False)})


def _read(path: Path) -> dict[str, Any]:
    from engram.core.errors import CheckpointError
    from engram.core.files import read_json
    from engram.core.runs import CURE

    recorded = read_json(path, cure=CURE)
    if not isinstance(recorded, dict):
        raise CheckpointError(f"{path} is damaged: it must be a JSON object; {CURE}")
    return recorded


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """One bar per title, with the time left; what follows a colon is shown next to it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

    note = TextColumn("{task.fields[note]}")
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), note, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def show(what: str, share: float) -> None:
            title, _, detail = what.partition(": ")
            if title not in tasks:
                tasks[title] = bar.add_task(title, total=1.0, note="")
            bar.update(tasks[title], completed=share, note=detail)

        yield show
