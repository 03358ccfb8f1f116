"""`--resume`: options that are left out are those of the run, and others than the run's are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from engram.cli.options import parse_shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engram.models.networks import Network
    from engram.models.view import AttackerView


OPTIONS_FILE = "options.json"
OF_THE_MOMENT = {
    "model",
    "out",
    "resume",
    "budget",
    "device",
    "snapshot_every",
    "fail_on_leak",
    "cache",
    "show_list",
}
"""Not part of what a run is: they may differ each time it is gone on with. Another model has other weights, which
the snapshot knows."""
MAY_MOVE = {"data_root"}
"""Paths that are remembered, yet free to differ: the data may lie elsewhere now."""


def refuse_difference(option: str, given: object, recorded: object, where: Path) -> NoReturn:
    from engram.core.errors import ConfigError

    raise ConfigError(
        f"{option} is {_shown(given)} here, but {_shown(recorded)} in the run that {where} records; "
        f"leave {option} out to go on with that run, or start anew in another directory with -o"
    )


def remembered(context: typer.Context, out: Path, *, resume: bool) -> dict[str, Any]:
    """The options of a command by name; of a run that is gone on with, those in its options.json."""
    options, where = dict(context.params), out / OPTIONS_FILE
    if not resume or not where.exists():
        return options
    recorded = _read(where)
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in recorded or name in OF_THE_MOMENT:
            continue
        source = context.get_parameter_source(name)
        is_given = source is not None and source.name == "COMMANDLINE"
        if not is_given:
            is_path = name in MAY_MOVE and recorded[name] is not None
            options[name] = Path(recorded[name]) if is_path else recorded[name]
        elif _plain(options[name]) != recorded[name] and name not in MAY_MOVE:
            refuse_difference(parameter.opts[0], options[name], recorded[name], where)
    return options


def remember(options: Mapping[str, Any], out: Path, *, resume: bool) -> None:
    """Write the options beside the run that begins now; an earlier run there is left alone."""
    from engram.core.files import prepare_directory, write_json
    from engram.core.runs import require_free

    prepare_directory(out)
    if resume and (out / OPTIONS_FILE).exists():
        return
    if not resume:
        require_free(out)
    kept = {name: _plain(value) for name, value in options.items() if name not in OF_THE_MOMENT}
    write_json(out / OPTIONS_FILE, kept)


def view_options(
    out: Path, model: Path, input_shape: str | None, arch: str | None, task: str | None
) -> tuple[str | None, str | None, str | None]:
    """--input-shape, --arch and --task, those that were left out as run.json has them."""
    from engram.core.runs import RunDirectory, read_record
    from engram.models.architecture import Architecture

    where, record = RunDirectory(out).record, read_record(out)
    shape = record.get("input_shape")
    told = "x".join(map(str, shape)) if isinstance(shape, list) and shape else None
    if told is not None and input_shape is not None and parse_shape(input_shape) != parse_shape(told):
        refuse_difference("--input-shape", input_shape, told, where)
    if arch is not None and told is not None:
        arch = Architecture.parse(arch, parse_shape(told)).text
    for option, given, recorded in (
        ("--arch", arch, record.get("architecture")),
        ("--task", task, record.get("task")),
    ):
        if given is not None and given != recorded:
            refuse_difference(option, given, recorded, where)
    # a directory of `engram train` describes its layers itself
    return input_shape or told, arch if model.is_dir() else record.get("architecture"), record.get("task")


def same_model(out: Path, view: AttackerView[Network], model: Path) -> None:
    """Refuse to go on with the run of other weights."""
    from engram.core.errors import ConfigError
    from engram.core.runs import RunDirectory, read_record

    record = read_record(out)
    if record.get("weights_sha256") != view.network.digest():
        raise ConfigError(
            f"{model} has other weights than the model of the run that {RunDirectory(out).record} records "
            f"({record.get('model')}); give that one, or start anew in another directory with -o"
        )


def same_settings(out: Path, stored: object, given: Mapping[str, Any]) -> None:
    """Refuse settings that differ from the run's; None is left out."""
    from engram.core.runs import RunDirectory

    for name, value in given.items():
        if value is not None and value != getattr(stored, name):
            option = f"--{name.replace('_', '-')}"
            refuse_difference(option, value, getattr(stored, name), RunDirectory(out).record)


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


def _shown(value: object) -> str:
    return "left out" if value is None else str(value)
