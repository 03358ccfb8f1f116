"""A sweep's directory says whose it is: a sweep joins its own alone, and only when told to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engram import files
from engram.errors import ConfigError
from engram.runs import RunDirectory, read_record


def settle(directory: Path, record: dict[str, Any], *, resume: bool) -> None:
    """Write run.json into a free directory, or check that the one there has the same `sweep` entry."""
    files.prepare_directory(directory)
    path = RunDirectory(directory).record
    with files.locked(directory / "claims.lock"):
        if path.exists():
            if not resume:
                raise ConfigError(
                    f"{directory} already holds a run; go on with it, or join it, with --resume, "
                    "or choose another directory with -o"
                )
            _require_same(directory, files.read_json(path).get("sweep"), record["sweep"])
        files.write_json(path, record)


def recorded_steps(directory: Path) -> int:
    """The steps that the trials of the sweep there were fixed to."""
    steps: Any = read_record(directory)
    for key in ("sweep", "space", "fixed", "steps"):
        steps = steps.get(key) if isinstance(steps, dict) else None
    if not isinstance(steps, int):
        raise ConfigError(f"the sweep in {directory} was begun without --budget; leave it out to go on with it")
    return steps


def _require_same(directory: Path, there: object, here: dict[str, Any]) -> None:
    known = there if isinstance(there, dict) else {}
    if differing := [name for name, value in here.items() if known.get(name) != value]:
        raise ConfigError(
            f"{directory} holds another sweep ({', '.join(differing)} differ); resume with the same ones, "
            "or choose another directory with -o"
        )
