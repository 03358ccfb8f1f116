"""A sweep's directory says whose it is: a sweep joins its own alone, and only when told to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engram import files
from engram.errors import ConfigError
from engram.runs import RunDirectory


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


def _require_same(directory: Path, there: object, here: dict[str, Any]) -> None:
    known = there if isinstance(there, dict) else {}
    if differing := [name for name, value in here.items() if known.get(name) != value]:
        raise ConfigError(
            f"{directory} holds another sweep ({', '.join(differing)} differ); resume with the same ones, "
            "or choose another directory with -o"
        )
