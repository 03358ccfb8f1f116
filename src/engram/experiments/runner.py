"""Experiments from end to end: cases, figures, numbers as JSON.

    DIR/experiments/ID.json   numbers of the paper and ours; or why it failed
    DIR/figures/ID.png        the figure, or ID-PART.png where it has parts

Everything here can be made again from DIR/cases without computing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engram import files
from engram.errors import CheckpointError, EngramError
from engram.experiments.attacks import engine_seconds
from engram.experiments.case import Case, Setting, find_case, run_case
from engram.experiments.catalogue import PUBLISHED, Published
from engram.experiments.computing import Order
from engram.experiments.experiment import Experiment
from engram.experiments.provenance import commit
from engram.experiments.records import CaseRecord, Finished
from engram.runs import versions

SCHEMA_VERSION = 1
Said = Callable[[str], None]
"""Told a line that a person should read."""
Progress = Callable[[float, str], None]
"""Told the share of everything that is done, and what is being done."""


@dataclass(frozen=True, eq=False)
class Run:
    """Where and how experiments run, and who is told."""

    home: Path
    setting: Setting
    said: Said
    progress: Progress

    def experiments(self, chosen: Sequence[Experiment], *, go_on: bool) -> list[dict[str, Any]]:
        """One after the other, each with its JSON. `go_on`: a failure is recorded, and the next one begins."""
        files.prepare_directory(self.home)
        weights = self._weights(chosen)
        done: set[str] = set()
        records = []
        for experiment in chosen:
            try:
                record = self._one(experiment, weights, done)
            except Exception as error:  # whatever it was, hours of other work must not be lost for it
                if not go_on:
                    raise
                reason = str(error) if isinstance(error, EngramError) else f"{type(error).__name__}: {error}"
                record = {**self._head(experiment), "failed": reason}
                self.said(f"{experiment.id} failed: {reason}")
            files.write_json(self.home / "experiments" / f"{experiment.stem}.json", record)
            records.append(record)
        return records

    def _one(self, experiment: Experiment, weights: dict[str, float], done: set[str]) -> dict[str, Any]:
        started = time.monotonic()
        finished = [self._case(case, weights, done) for case in experiment.cases_at(self.setting.scale)]
        figures = {}
        for part, content in experiment.draw(finished).items():
            name = f"{experiment.stem}{'-' if part else ''}{part}.png"
            files.write_bytes(self.home / "figures" / name, content)
            figures[part] = name
        self.said(f"{experiment.id}: {experiment.title}, {time.monotonic() - started:.0f} s")
        records = [case.record for case in finished]
        return {
            **self._head(experiment),
            "figures": figures,
            "rows": [
                {**record.row(), "published": asdict(PUBLISHED.get(record.preset, Published()))}
                for record in records
            ],
            "claims": [
                {"what": claim.what, "paper": claim.paper, "here": claim.here(records)}
                for claim in experiment.claims
            ],
            "failed": None,
        }

    def _case(self, case: Case, weights: dict[str, float], done: set[str]) -> Finished:
        order = case.order(self.setting)
        before, all_weights = sum(weights[key] for key in done), sum(weights.values())

        def told(share: float) -> None:
            self.progress((before + share * weights[order.key]) / all_weights, order.preset)

        finished = find_case(order, self.home)
        if finished is None:
            if cuts := (*order.target.cuts, *order.attack.cuts):
                self.said(f"  {order.preset}: cut: {'; '.join(cuts)}")
            finished = run_case(order, self.setting.means, self.home, told=told)
            self._say(finished.record)
        done.add(order.key)
        return finished

    def _say(self, record: CaseRecord) -> None:
        count = record.good
        held_out = "unknown" if count.held_out is None else count.held_out
        self.said(
            f"  {record.preset} ({record.attack}): {count.train} of {record.n} good, held-out {held_out}, "
            f"noise {count.noise}; training {record.training.seconds:.0f} s, attack {record.attack_seconds:.0f} s"
        )

    def _head(self, experiment: Experiment) -> dict[str, Any]:
        setting = self.setting
        seed = f" --seed {setting.seed}" if setting.seed else ""
        how = f"--scale {setting.scale} --recipe {setting.recipe}{seed}"
        return {
            "schema_version": SCHEMA_VERSION,
            "id": experiment.id,
            "title": experiment.title,
            "scale": setting.scale,
            "recipe": setting.recipe,
            "seed": setting.seed,
            "cuts": list(experiment.cuts_at(setting.scale)),
            "command": f"engram reproduce {experiment.id} {how} -o DIR",
            "commit": commit(),
            "versions": versions(),
        }

    def _weights(self, chosen: Sequence[Experiment]) -> dict[str, float]:
        """About how long each case takes, for the time left."""
        needed = (case for experiment in chosen for case in experiment.cases_at(self.setting.scale))
        orders = [case.order(self.setting) for case in needed]
        return {order.key: expected_seconds(order) for order in orders}


def expected_seconds(order: Order) -> float:
    """Roughly, on one core, at the scale cpu; other scales are in proportion."""
    n, epochs = order.target.data.n, order.target.recipe.epochs
    training = 0.6 * n if order.target.recipe.flow is not None else min(epochs, 10_000) * (5e-3 + 7e-5 * n)
    return training + engine_seconds(n)


def read_records(home: Path, ids: Iterable[str]) -> list[dict[str, Any]]:
    """The JSON of the experiments that were run in a directory, in the order of `ids`."""
    found = []
    for name in ids:
        path = home / "experiments" / f"{name.replace('/', '-')}.json"
        if not path.exists():
            continue
        record = files.read_json(path, cure="run that experiment again")
        if not isinstance(record, dict) or record.get("schema_version") != SCHEMA_VERSION:
            raise CheckpointError(f"{path} is no record that this version reads; run that experiment again")
        found.append(record)
    if not found:
        raise CheckpointError(f"{home} holds no experiments; run one with `engram reproduce ID -o {home}`")
    return found
