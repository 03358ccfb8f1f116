"""One sweep in its directory: what to run next, and what came of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from engram import files
from engram.attacker import AttackerView
from engram.errors import ConfigError
from engram.reconstruct.candidates import Reconstruction
from engram.runs import RunDirectory, versions
from engram.sweep.executors import Job
from engram.sweep.home import settle
from engram.sweep.index import append_row, write_index
from engram.sweep.ledger import Claim, Ledger, Row
from engram.sweep.oracle import Oracle
from engram.sweep.pruning import WARM_UP, limits
from engram.sweep.sampling import NumberedSampler, derived_seed
from engram.sweep.spec import SweepSpec
from engram.sweep.storage import JOURNAL, without_password
from engram.sweep.trial import Ended, Order

OnRow = Callable[["Sweep", Row], None]
"""Told of every trial that has ended."""


@dataclass(eq=False)
class Sweep:
    """Trials on one model. `oracle` is needed for, and used by, the oracle objective alone."""

    view: AttackerView
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
            raise ConfigError("the oracle objective, and only that, needs the training data; give both or neither")
        if self.oracle is not None and self.oracle.data.train.shape != self.view.input_shape:
            raise ConfigError(
                f"the data have shape {self.oracle.data.train.shape}, the model's inputs {self.view.input_shape}; "
                "name the data that it was trained on"
            )
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

    def next_job(self, on_row: OnRow) -> tuple[Claim, Job] | None:
        """A trial to run, or None if there is none now. One that only lacked its entry in the study gets it."""
        while (claim := self.ledger.claim(self.spec.trials, self._may_start)) is not None:
            record = self.trial_directory(claim.number).record
            if not record.exists():
                return claim, Job(str(self.directory), self.view, self._order(claim))
            self._enter(claim, files.read_json(record)["trial"], on_row)
        return None

    def record(self, claim: Claim, order: Order, ended: Ended, on_row: OnRow) -> None:
        """Write a trial's directory, then enter it in the study; after a kill in between the directory decides."""
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
        """Trials beyond the warm-up wait until its last one has ended: their limits follow from it."""
        if self.spec.keep == 1 or number < WARM_UP:
            return True
        if self._limits is None and (warm_up := self.ledger.checkpoints(WARM_UP)) is not None:
            self._limits = limits(warm_up, self.spec.keep)
        return self._limits is not None

    def _order(self, claim: Claim) -> Order:
        seed = derived_seed(self.spec.seed, claim.number, "attack")
        return Order(
            number=claim.number,
            recipe=self.spec.space.recipe,
            settings={**self.spec.space.fixed, **claim.params, "seed": seed},
            limits=self._limits or () if claim.number >= WARM_UP else (),
            device=self.device,
            model=self.model,
            scratch=self._scratch(claim),
        )

    def _scratch(self, claim: Claim) -> Path:
        """Where the trial runs; what a dead owner left of it comes along."""
        running = self.directory / "running"
        scratch = running / f"{claim.number:05d}-{self.ledger.me}"
        left = running / f"{claim.number:05d}-{claim.earlier_owner}"
        if left.is_dir() and not scratch.exists():
            left.rename(scratch)
        return scratch

    def _row(self, claim: Claim, order: Order, ended: Ended) -> Row:
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

    def _enter(self, claim: Claim, row: Row, on_row: OnRow) -> None:
        self.ledger.finish(claim, row)
        append_row(self.directory, row)
        on_row(self, row)

    def _record(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "kind": "sweep",
            "model": self.model,
            "network": self.view.network.name,
            "input_shape": list(self.view.input_shape),
            "task": self.view.task.name,
            "sweep": self.spec.identity(self.weights_sha256),
            "study": {"name": self.study_name, "storage": without_password(self.storage or JOURNAL)},
            "trials": self.spec.trials,
            "versions": versions(),
        }
