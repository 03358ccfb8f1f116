"""One sweep in its directory: what to run next, its results, and the loop that keeps an executor busy."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from engram.attacks.reconstruction import Reconstruction
from engram.attacks.registry import make_attack
from engram.core import files
from engram.core.errors import ConfigError
from engram.core.runs import RunDirectory, append_row, read_record, versions, write_index
from engram.data.sets import Split
from engram.models.networks import ConvNetwork, Network
from engram.models.view import AttackerView
from engram.pipeline import compare
from engram.sweep.executors import Executor, Job
from engram.sweep.space import WARM_UP, NumberedSampler, SweepSpec, derived_seed, limits
from engram.sweep.study import JOURNAL, ClaimedTrial, Ledger, Row, open_storage, without_password
from engram.sweep.trial import Ended, TrialOrder


def settle(directory: Path, record: dict[str, Any], *, resume: bool) -> None:
    """Write run.json into a free directory, or check that the one there has the same `sweep` entry."""
    files.prepare_directory(directory)
    path = RunDirectory(directory).record
    with files.locked(directory / "claims.lock"):
        if path.exists():
            if not resume:
                raise ConfigError(
                    f"{directory} already contains a run; resume or join it with --resume, "
                    "or choose another directory with -o"
                )
            _require_same(directory, read_record(directory).get("sweep"), record["sweep"])
        files.write_json(path, record)


def recorded_steps(directory: Path) -> int:
    """The number of steps that the sweep in a directory fixed for its trials."""
    steps: Any = read_record(directory)
    for key in ("sweep", "space", "fixed", "steps"):
        steps = steps.get(key) if isinstance(steps, dict) else None
    if not isinstance(steps, int):
        raise ConfigError(f"the sweep in {directory} was started without --budget; leave it out to resume it")
    return steps


def _require_same(directory: Path, there: object, here: dict[str, Any]) -> None:
    known = there if isinstance(there, dict) else {}
    if differing := [name for name, value in here.items() if known.get(name) != value]:
        raise ConfigError(
            f"{directory} contains another sweep ({', '.join(differing)} differ); resume with the same values, "
            "or choose another directory with -o"
        )


@dataclass(frozen=True, eq=False)
class Oracle:
    """Training images recovered beyond held-out ones, at the protocol's first threshold (SSIM > 0.4)."""

    data: Split

    def count(self, found: Reconstruction) -> float:
        return next(iter(compare(found, self.data).counts.values())).recovered


OnRow = Callable[["Sweep", Row], None]
"""Called with every trial that has ended."""


@dataclass(eq=False)
class Sweep:
    """Trials on one model. Only the oracle objective needs and uses `oracle`."""

    view: AttackerView[Network]
    spec: SweepSpec
    directory: Path
    model: str = ""
    storage: str | None = None
    device: str = "cpu"
    oracle: Oracle | None = None
    resume: bool = False
    ledger: Ledger = field(init=False)
    _limits: tuple[float, ...] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if (self.spec.objective == "oracle") != (self.oracle is not None):
            raise ConfigError("only the oracle objective needs the training data; give both or neither")
        if self.oracle is not None and self.oracle.data.train.shape != self.view.input_shape:
            raise ConfigError(
                f"the data have shape {self.oracle.data.train.shape}, the model's inputs {self.view.input_shape}; "
                "give the data that it was trained on"
            )
        self.spec = replace(self.spec, space=self.spec.space.for_task(self.view.task))
        # Whatever would fail in every trial fails here once, before any of them runs.
        make_attack(self.view, self.spec.space.recipe, self.spec.space.corner()).init()
        if self.storage is not None:
            open_storage(self.directory, self.storage)  # refused before anything is written
        settle(self.directory, self._record(), resume=self.resume)
        self.ledger = Ledger(
            directory=self.directory,
            name=self.study_name,
            space=self.spec.space,
            sampler=NumberedSampler(self.spec.sampler, self.spec.seed),
            direction=self.spec.direction,
            url=self.storage,
        )
        with files.locked(self.directory / "claims.lock"):
            write_index(self.directory, self.rows())

    @cached_property
    def weights_sha256(self) -> str:
        return self.view.network.digest()

    @cached_property
    def study_name(self) -> str:
        return self.spec.study_name(self.weights_sha256)

    def rows(self) -> list[Row]:
        """The trials that have ended, here or elsewhere."""
        return self.ledger.rows(self.spec.trials)

    def is_complete(self) -> bool:
        return self.ledger.is_complete(self.spec.trials)

    def trial_directory(self, number: int) -> RunDirectory:
        return RunDirectory(self.directory / "trials" / f"{number:05d}")

    def next_job(self, on_row: OnRow) -> tuple[ClaimedTrial, Job] | None:
        """A trial to run, or None if there is none now. A finished trial missing in the study is entered."""
        while (claim := self.ledger.claim(self.spec.trials, self._may_start)) is not None:
            record = self.trial_directory(claim.number).record
            if not record.exists():
                return claim, Job(str(self.directory), self.view, self._order(claim))
            self._enter(claim, files.read_json(record)["trial"], on_row)
        return None

    def record(self, claim: ClaimedTrial, order: TrialOrder, ended: Ended, on_row: OnRow) -> None:
        """Write a trial's directory, then enter it in the study; after a kill in between, the directory counts."""
        row = self._row(claim, order, ended)
        record = json.loads(ended.files.get("run.json", b"{}")) | {"trial": row}
        written = {**ended.files, "run.json": files.json_bytes(record)}
        files.write_directory(self.trial_directory(claim.number).path, written)
        self._enter(claim, row, on_row)
        if order.scratch is not None:
            shutil.rmtree(order.scratch, ignore_errors=True)

    def close(self) -> None:
        self.ledger.close()

    def _may_start(self, number: int) -> bool:
        """Trials after the warm-up wait until all of it has ended: it determines their limits."""
        if self.spec.keep == 1 or number < WARM_UP:
            return True
        if self._limits is None and (warm_up := self.ledger.checkpoints(WARM_UP)) is not None:
            self._limits = limits(warm_up, self.spec.keep)
        return self._limits is not None

    def _order(self, claim: ClaimedTrial) -> TrialOrder:
        seed = derived_seed(self.spec.seed, claim.number, "attack")
        return TrialOrder(
            number=claim.number,
            recipe=self.spec.space.recipe,
            settings={**self.spec.space.fixed, **claim.params, "seed": seed},
            limits=self._limits or () if claim.number >= WARM_UP else (),
            device=self.device,
            model=self.model,
            scratch=self._scratch(claim),
        )

    def _scratch(self, claim: ClaimedTrial) -> Path:
        """The trial's working directory, with what a dead owner left in it."""
        running = self.directory / "running"
        scratch = running / f"{claim.number:05d}-{self.ledger.me}"
        left = running / f"{claim.number:05d}-{claim.earlier_owner}"
        if left.is_dir() and not scratch.exists():
            left.rename(scratch)
        return scratch

    def _row(self, claim: ClaimedTrial, order: TrialOrder, ended: Ended) -> Row:
        row: Row = {
            "number": claim.number,
            "state": ended.state,
            "reason": ended.reason,
            "objective": ended.unexplained if ended.state == "complete" else None,
            "unexplained": ended.unexplained,
            "params": claim.params,
            "seed": order.settings["seed"],
            "steps": ended.steps,
            "seconds": round(ended.seconds, 3),
            "host": ended.host,
            "threads": ended.threads,
            "checkpoints": list(ended.checkpoints),
        }
        if self.oracle is not None and ended.state == "complete":
            found = Reconstruction(**files.tensors_from_bytes(ended.files["reconstruction.safetensors"]))
            row["objective"] = row["oracle"] = self.oracle.count(found)
        return row

    def _enter(self, claim: ClaimedTrial, row: Row, on_row: OnRow) -> None:
        self.ledger.finish(claim, row)
        append_row(self.directory, row)
        on_row(self, row)

    def _record(self) -> dict[str, Any]:
        network = self.view.network
        architecture = network.architecture.text if isinstance(network, ConvNetwork) else None
        return {
            "schema_version": 1,
            "kind": "sweep",
            "model": self.model,
            "network": self.view.network.name,
            "architecture": architecture,
            "input_shape": list(self.view.input_shape),
            "task": self.view.task.name,
            "sweep": self.spec.identity(self.weights_sha256),
            "study": {"name": self.study_name, "storage": without_password(self.storage or JOURNAL)},
            "trials": self.spec.trials,
            "versions": versions(),
        }


POLL_SECONDS = 0.5

_Running = dict[tuple[str, int], tuple[Sweep, ClaimedTrial]]
"""Running trials by sweep and number."""


def _ignore(sweep: Sweep, row: Row) -> None:
    pass


def drive(sweeps: Sequence[Sweep], executor: Executor, on_row: OnRow = _ignore) -> None:
    """Run all trials of all sweeps; wait for those that another process is running."""
    waiting, running = list(sweeps), _Running()
    while waiting:
        _feed(waiting, running, executor, on_row)
        if running:
            for job, ended in executor.collect(POLL_SECONDS):
                sweep, claim = running.pop((job.sweep, job.order.number))
                sweep.record(claim, job.order, ended, on_row)
        elif any(not sweep.is_complete() for sweep in waiting):
            time.sleep(POLL_SECONDS)  # other processes are running the rest
        waiting = [sweep for sweep in waiting if not sweep.is_complete()]


def _feed(waiting: Sequence[Sweep], running: _Running, executor: Executor, on_row: OnRow) -> None:
    for sweep in waiting:
        while len(running) < executor.slots and (given := sweep.next_job(on_row)) is not None:
            claim, job = given
            running[job.sweep, job.order.number] = (sweep, claim)
            executor.submit(job)
