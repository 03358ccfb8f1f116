"""Runs are directories: run.json, metrics.jsonl, snapshot and result, each complete or absent."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError

from engram.core import files
from engram.core.errors import CheckpointError, ConfigError
from engram.core.loop import State, Values

Settings = TypeVar("Settings")
"""A dataclass of settings; run.json records every field."""

CURE = "restore the original file, or start again in another directory with -o"


@dataclass(frozen=True)
class RunDirectory:
    """The paths of one run's files."""

    path: Path

    @property
    def record(self) -> Path:
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def snapshot(self) -> Path:
        return self.path / "snapshot.safetensors"

    @property
    def reconstruction(self) -> Path:
        return self.path / "reconstruction.safetensors"


def require_free(directory: Path) -> None:
    """Refuse a directory with an earlier run: it is resumed or left alone, never mixed with another."""
    run = RunDirectory(directory)
    if run.snapshot.exists() or run.metrics.exists():
        raise ConfigError(
            f"{directory} already contains a run; resume it with --resume, or choose another directory with -o"
        )


def read_record(directory: Path) -> dict[str, Any]:
    """The content of run.json, or an error that names the file, the damage and the cure."""
    path = RunDirectory(directory).record
    record = files.read_json(path, cure=CURE)
    if not isinstance(record, dict):
        raise _damaged(path, f"it must be a JSON object, got {_shown(record)}")
    return record


def recorded_recipe(directory: Path, asked: str | None, *, known: Collection[str]) -> str:
    """The recipe of the run in `directory`; asking for another one is an error."""
    found = read_record(directory).get("recipe")
    if not isinstance(found, str) or found not in known:
        problem = f"recipe must be one of {', '.join(known)}, got {_shown(found)}"
        raise _damaged(RunDirectory(directory).record, problem)
    if asked not in (None, found):
        raise CheckpointError(
            f"{RunDirectory(directory).record} belongs to a run with --recipe {found}, not {asked}; "
            f"resume with --recipe {found}, or start again in another directory with -o"
        )
    return found


def read_settings(directory: Path, kind: type[Settings]) -> Settings:
    """The settings that a run started with: every field of `kind` and no other, each of the right type."""
    path = RunDirectory(directory).record
    stored = read_record(directory).get("settings")
    if not isinstance(stored, dict):
        raise _damaged(path, f"settings must be a JSON object, got {_shown(stored)}")
    known = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    if missing := [name for name in known if name not in stored]:
        raise _damaged(path, f"settings lacks {', '.join(missing)}")
    if unknown := [name for name in stored if name not in known]:
        raise _damaged(path, f"settings has {', '.join(map(repr, unknown))}, unknown to this version")
    try:  # as JSON and strict, so that "500" is not a number and 1 is not a boolean
        return TypeAdapter(kind).validate_json(json.dumps(stored), strict=True)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, one['loc']))}: {one['msg']}, got {_shown(one['input'])}" for one in error.errors()
        ]
        raise _damaged(path, f"settings are wrong ({'; '.join(problems)})") from error
    except ConfigError as error:
        raise _damaged(path, f"settings are wrong ({error})") from error


def refuse_difference(name: str, given: object, recorded: object, where: Path) -> NoReturn:
    """Raise: a run is resumed with the options it started with."""
    given, recorded = ("left out" if value is None else value for value in (given, recorded))
    raise ConfigError(
        f"{name} is {given} here, but {recorded} in the run recorded in {where}; "
        f"leave {name} out to resume that run, or start again in another directory with -o"
    )


def _damaged(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{path} is damaged: {problem}; {CURE}")


def _shown(value: object) -> str:
    """A value as JSON writes it, shortened."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


@dataclass(eq=False)
class MetricsLog:
    """An observer that appends every `every`-th step, or the next one observed, to a JSON-lines file.

    A resumed run repeats the steps since its last snapshot, so lines from its first step onwards are removed.
    """

    path: Path
    every: int
    _opened: bool = field(default=False, init=False)
    _last: int = field(default=0, init=False)

    def __call__(self, step: int, metrics: Values, state: State) -> None:
        if not self._opened:
            self._keep_before(step)
            self._opened, self._last = True, step - 1
        if step == 1 or step // self.every > self._last // self.every:
            with self.path.open("a") as stream:
                stream.write(json.dumps({"step": step, **metrics}) + "\n")
        self._last = step

    def _keep_before(self, step: int) -> None:
        kept = [row for row in files.read_json_lines(self.path) if _step_of(row) < step]
        files.write_bytes(self.path, "".join(json.dumps(row) + "\n" for row in kept).encode())


def _step_of(row: dict[str, Any]) -> float:
    """The step of a row; one without counts as never written."""
    step = row.get("step")
    return step if type(step) is int else float("inf")


def versions() -> dict[str, str]:
    """The versions that a result was computed with."""
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for package in ("engram", "torch", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # a source tree on the path, not installed
            found[package] = "unknown"
    return found


@cache
def commit() -> str | None:
    """The commit of this checkout, followed by `+` if files differ; None for an installed copy."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", str(Path(__file__)))
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(here.parent))
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


INDEX = "trials.jsonl"


def _is_trial(row: dict[str, Any]) -> bool:
    return type(row.get("number")) is int


def append_row(directory: Path, row: dict[str, Any]) -> None:
    with files.locked(directory / "claims.lock"), (directory / INDEX).open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def write_index(directory: Path, rows: Sequence[dict[str, Any]]) -> None:
    files.write_bytes(directory / INDEX, "".join(json.dumps(row) + "\n" for row in rows).encode())


def read_index(directory: Path) -> list[dict[str, Any]]:
    """The rows by number; a line cut short by a kill is skipped, and a later line replaces an earlier one."""
    rows = {row["number"]: row for row in files.read_json_lines(directory / INDEX) if _is_trial(row)}
    return [rows[number] for number in sorted(rows)]
