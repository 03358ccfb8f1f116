"""`--resume`: options that are left out are those of the run, and others than the run's are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

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
"""Not part of what a run is: they may differ each time it is resumed. Another model has other weights, which the
run's record knows."""
IN_THE_RECORD = {
    "input_shape",
    "arch",
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
"""What was left out the run settled itself; its run.json says how, and tells whether what is given now differs."""
MAY_MOVE = {"data_root"}
"""Paths that are remembered, yet free to differ: the data may lie elsewhere now."""


def remembered(context: typer.Context, out: Path, *, resume: bool) -> dict[str, Any]:
    """The options of a command by name; of a run that is resumed, those in its options.json."""
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
            is_path = name in MAY_MOVE and recorded[name] is not None
            options[name] = Path(recorded[name]) if is_path else recorded[name]
        elif not recorded[name] and name in IN_THE_RECORD:
            continue
        elif _plain(options[name]) != recorded[name] and name not in MAY_MOVE:
            refuse_difference(parameter.opts[0], options[name], recorded[name], where)
    return options


def is_given(context: typer.Context, name: str) -> bool:
    """Whether an option was typed, rather than left to its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


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
