"""Experiments from end to end: cases, figures, numbers as JSON.

    DIR/experiments/ID.json   the paper's numbers and ours, or why it failed
    DIR/figures/ID.png        the figure, or ID-PART.png if it has parts

All of these can be written again from DIR/cases without computing anything.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engram.core import files
from engram.core.errors import CheckpointError, ConfigError, EngramError
from engram.core.progress import Progress
from engram.core.runs import commit, versions
from engram.papers.cases import Collector, Said, Setting
from engram.papers.catalogue import CATALOGUE, PUBLISHED, Experiment, Published

SCHEMA_VERSION = 1
SHARED = ("scale", "recipe", "seed")
"""Settings that all experiments in a directory share."""


@dataclass(frozen=True, eq=False)
class Run:
    """Where and how experiments run, and where they report to."""

    home: Path
    setting: Setting
    said: Said
    progress: Progress

    def experiments(self, chosen: Sequence[Experiment], *, keep_going: bool) -> list[dict[str, Any]]:
        """Run experiments and write their JSON.

        With `keep_going`, cases that another process is computing come last and failures are recorded.
        """
        files.prepare_directory(self.home)
        self._refuse_mixture()
        collector = Collector(self.home, self.setting, self.said, self.progress)
        collector.expect(case for experiment in chosen for case in experiment.cases_at(self.setting.scale))
        if keep_going:
            collector.ahead()
        records = []
        for experiment in chosen:
            try:
                record = self._one(experiment, collector)
            except Exception as error:  # hours of other work must not be lost to any error
                if not keep_going:
                    raise
                reason = str(error) if isinstance(error, EngramError) else f"{type(error).__name__}: {error}"
                record = {**self._head(experiment), "failed": reason}
                self.said(f"{experiment.id} failed: {reason}")
            files.write_json(self.home / "experiments" / f"{experiment.stem}.json", record)
            records.append(record)
        return records

    def _one(self, experiment: Experiment, collector: Collector) -> dict[str, Any]:
        started = time.monotonic()
        finished = [collector.finished(case) for case in experiment.cases_at(self.setting.scale)]
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
            "claims": [claim.judged(records) for claim in experiment.claims],
            "failed": None,
        }

    def _head(self, experiment: Experiment) -> dict[str, Any]:
        setting = self.setting
        seed = f" --seed {setting.seed}" if setting.seed else ""
        how = f"--scale {setting.scale} --recipe {setting.recipe}{seed}"
        return {
            "schema_version": SCHEMA_VERSION,
            "id": experiment.id,
            "title": experiment.title,
            **{name: getattr(setting, name) for name in SHARED},
            "cuts": list(experiment.cuts_at(setting.scale)),
            "command": f"engram reproduce {experiment.id} {how} -o DIR",
            "commit": commit(),
            "versions": versions(),
        }

    def _refuse_mixture(self) -> None:
        for record in stored_records(self.home, CATALOGUE):
            found, wanted = (
                [f"--{name} {value[name]}" for name in SHARED] for value in (record, vars(self.setting))
            )
            if found != wanted:
                raise ConfigError(
                    f"{self.home} contains experiments with {' '.join(found)}, not {' '.join(wanted)}; "
                    "use those options, or choose another directory with -o"
                )


def stored_records(home: Path, ids: Iterable[str]) -> list[dict[str, Any]]:
    """The JSON of the experiments in a directory, in the order of `ids`."""
    found = []
    for name in ids:
        path = home / "experiments" / f"{name.replace('/', '-')}.json"
        if not path.exists():
            continue
        record = files.read_json(path, cure="delete it and run the experiment again")
        if not isinstance(record, dict) or record.get("schema_version") != SCHEMA_VERSION:
            raise CheckpointError(
                f"{path} is not a record of this version; delete it and run the experiment again"
            )
        found.append(record)
    return found


def read_records(home: Path, ids: Iterable[str]) -> list[dict[str, Any]]:
    """The same, but an error if there are none."""
    found = stored_records(home, ids)
    if not found:
        raise CheckpointError(f"{home} contains no experiments; run one with `engram reproduce ID -o {home}`")
    return found
