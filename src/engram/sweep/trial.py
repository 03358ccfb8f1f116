"""One trial as a worker runs it: weights and settings in, files and numbers out. No data, no study, no clock."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save

from engram import files
from engram.attacker import AttackerView
from engram.errors import DivergedError
from engram.pipeline import attack
from engram.runs import RunDirectory
from engram.sweep.blind import NOTHING_EXPLAINED, unexplained_share
from engram.sweep.pruning import CHECKPOINTS, is_hopeless
from engram.sweep.recipes import build_attack
from engram.sweep.watched import Watched
from engram.targets.networks import DenseNetwork
from engram.task import task_named

TrialState = Literal["complete", "pruned", "diverged", "failed", "killed"]
SNAPSHOT_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Order:
    """Everything a worker needs beside the weights.

    `scratch` is a directory in which an interrupted trial is gone on with; without one it begins anew.
    """

    number: int
    recipe: str
    settings: Mapping[str, Any]
    limits: tuple[float, ...] = ()
    device: str = "cpu"
    model: str = ""
    scratch: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a trial ended; `files` are those of its directory, by name."""

    state: TrialState
    reason: str
    unexplained: float | None = None
    checkpoints: tuple[float, ...] = (NOTHING_EXPLAINED,) * len(CHECKPOINTS)
    steps: int = 0
    seconds: float = 0.0
    host: str = ""
    threads: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PackedView:
    """A view as plain values, its weights as safetensors: nothing to execute, no shared memory for tensors."""

    weights: bytes
    task: str
    input_shape: tuple[int, ...]
    pixel_range: tuple[float, float]

    def unpacked(self) -> AttackerView:
        params = files.tensors_from_bytes(self.weights)
        layers = range(sum(name.endswith(".weight") for name in params))
        network = DenseNetwork(
            tuple(params[f"layers.{layer}.weight"] for layer in layers),
            tuple(params.get(f"layers.{layer}.bias") for layer in layers),
        )
        task = task_named(self.task, network.sizes[-1])
        return AttackerView(network, self.input_shape, task, self.pixel_range)


def packed(view: AttackerView) -> PackedView:
    params = {name: value.detach().cpu().contiguous() for name, value in view.network.params.items()}
    return PackedView(
        weights=save(params),
        task=view.task.name,
        input_shape=view.input_shape,
        pixel_range=view.pixel_range,
    )


def run_trial(view: PackedView, order: Order) -> Ended:
    """Run a trial to its end. What goes wrong inside is a value: the sweep goes on."""
    if order.scratch is not None:
        return _run_in(order.scratch, view, order)
    with tempfile.TemporaryDirectory(prefix="engram-trial-") as directory:
        return _run_in(Path(directory), view, order)


def _run_in(directory: Path, view: PackedView, order: Order) -> Ended:
    try:
        ended = _attacked(directory, view.unpacked(), order)
    except DivergedError as error:
        ended = Ended(state="diverged", reason=str(error))
    except Exception as error:
        ended = Ended(state="failed", reason=f"{type(error).__name__}: {error}")
    return replace(ended, files=_files(directory, ended), **_spent(directory), **_where())


def _attacked(directory: Path, view: AttackerView, order: Order) -> Ended:
    view = replace(view, network=view.network.to(device=order.device))
    scheme = Watched(build_attack(order.recipe, view, order.settings), order.limits)
    found, solution = attack(
        scheme, directory=directory, model=order.model, resume=True, snapshot_every=SNAPSHOT_SECONDS
    )
    checkpoints = tuple(solution.state["unexplained_at"].tolist())
    pruned = is_hopeless(checkpoints, order.limits)
    return Ended(
        state="pruned" if pruned else "complete",
        reason=f"explained less than the trials it was compared with after {solution.steps:,} steps"
        if pruned
        else solution.message,
        unexplained=unexplained_share(view, found),
        checkpoints=checkpoints,
    )


def _files(directory: Path, ended: Ended) -> dict[str, bytes]:
    """What is kept; candidates of complete trials only."""
    run = RunDirectory(directory)
    kept = [run.record, run.metrics] + [run.reconstruction] * (ended.state == "complete")
    return {path.name: path.read_bytes() for path in kept if path.exists()}


def _where() -> dict[str, Any]:
    """What a result's last bits may depend on."""
    return {"host": platform.node(), "threads": torch.get_num_threads()}


def _spent(directory: Path) -> dict[str, Any]:
    """Steps and seconds as the run recorded them, also where it diverged."""
    record = RunDirectory(directory).record
    outcome = files.read_json(record)["outcome"] if record.exists() else {}
    return {"steps": int(outcome.get("steps", 0)), "seconds": float(outcome.get("seconds", 0.0))}
