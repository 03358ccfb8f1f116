"""Runs are directories: run.json, metrics.jsonl, snapshot and result, each whole or absent."""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from engram import files
from engram.loop import Values


@dataclass(frozen=True)
class RunDirectory:
    """Where the files of one run lie."""

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


@dataclass(eq=False)
class MetricsLog:
    """An observer that appends every `every`-th step to a JSON-lines file.

    A resumed run repeats the steps since its last snapshot: lines from its first step onwards are cut.
    """

    path: Path
    every: int
    _opened: bool = field(default=False, init=False)

    def __call__(self, step: int, metrics: Values) -> None:
        if not self._opened:
            self._keep_before(step)
            self._opened = True
        if step == 1 or step % self.every == 0:
            with self.path.open("a") as stream:
                stream.write(json.dumps({"step": step, **metrics}) + "\n")

    def _keep_before(self, step: int) -> None:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        kept = [line for line in lines if _step_of(line) < step]
        files.write_bytes(self.path, "".join(f"{line}\n" for line in kept).encode())


def _step_of(line: str) -> float:
    """The step of a line; one that a kill cut short counts as never written."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def versions() -> dict[str, str]:
    """What a result was computed with."""
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for package in ("engram", "torch", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # a source tree on the path, not installed
            found[package] = "unknown"
    return found
