"""`defend`: train a target again under each defence, audit it, and set risk beside accuracy.

A row is one defence and one seed. Rows are independent: they run in processes or on Ray, are stored as they end,
and are not computed again by a run that is resumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engram.auditing.comparison import Samples
from engram.auditing.preprocessing import Preprocessing
from engram.core import files
from engram.core.errors import CheckpointError, ConfigError, require, require_jobs
from engram.core.loop import Progress, silent
from engram.data.choice import DataChoice
from engram.data.sets import ImageSet, largest
from engram.defences.exposure import Exposure, Opened, Subject
from engram.defences.table import DefenceRow, DefenceTable
from engram.defences.training import DEFENCES, Defence, chosen_defences, fitted, privately_fitted, scenario_named
from engram.members.membership import task_of
from engram.models.tasks import task_named

ROWS_FILE = "defences.json"
MOST_CONTROLS = 1000
SEEDS = (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Order:
    """All that one row depends on besides the defence and the seed."""

    scenario: str
    data: DataChoice
    root: Path | None
    seconds: float
    """For the attack that reconstructs images; 0 for none."""

    def row(self, defence: Defence, seed: int) -> DefenceRow:
        """Train, audit, measure."""
        scenario = scenario_named(self.scenario)
        choice = replace(self.data, n=self.data.n * defence.records, seed=seed)
        left = largest(choice.everything(self.root)) - choice.n
        split = choice.load(self.root, held_out=min(left, self.data.n + MOST_CONTROLS))
        controls, unseen = _halved(split.held_out, self.data.n)
        task = task_named(scenario.task, len(split.train.classes))
        inputs, labels = split.train.images - split.mean, split.train.labels
        fit = replace(defence.applied(scenario.fit, choice.n), seed=seed)
        model = scenario.network(split.train.shape, task.outputs, defence, seed)
        started, bound = time.perf_counter(), None
        if fit.epsilon is None:
            model = fitted(model.train(), inputs, labels, task, fit)
        else:
            model, spent = privately_fitted(model, inputs, labels, task, fit)
            bound = spent.epsilon
        seconds = time.perf_counter() - started
        # who is asked about is always n records, however many were trained on
        asked = split.train if len(split.train) <= self.data.n else split.train.first(self.data.n)
        found, other = judged(model, asked, controls, unseen, split.mean, seconds=self.seconds, task=task.name)
        return DefenceRow(
            defence=defence.name,
            says=defence.says,
            seed=seed,
            exposure=found,
            unseen=other,
            epsilon_bound=bound,
            n=choice.n,
            training_seconds=seconds,
        )


def _halved(held_out: ImageSet, n: int) -> tuple[ImageSet, ImageSet | None]:
    """Controls, and records that were not trained on either, to ask about as if they had been."""
    order = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(0))
    others = n if len(held_out) >= 2 * n else 0
    first, second = order[others:][:MOST_CONTROLS].sort().values, order[:others].sort().values
    return held_out.take(first), held_out.take(second) if others else None


def judged(
    model: nn.Module,
    train: ImageSet,
    controls: ImageSet,
    unseen: ImageSet | None,
    mean: torch.Tensor,
    *,
    seconds: float,
    task: str | None,
) -> tuple[Exposure, Exposure | None]:
    """How exposed the training records are, and what the same tests say of records that were not trained on."""
    opened = Opened.of(model, train.shape, task=task, arch=None, activation=None, normalize=None, head=None)
    meaning = task_of(opened.module, train.images[:2], int(train.labels.max()), task)
    subject = Subject(opened.view, meaning, Preprocessing(mean, "train", 0.0), train)
    if seconds and opened.view is not None:
        found = subject.attacked(opened.module, controls, seconds=seconds)
    else:
        found = subject.members(opened.module, controls)
    if unseen is None:
        return found, None
    return found, replace(subject, train=unseen).members(opened.module, controls)


Train = Callable[[Defence], nn.Module]
"""The user's own training: a trained model under a defence, on the records that `defend` is given."""


def defend(
    target: str | Train,
    train: Samples | None = None,
    held_out: Samples | None = None,
    *,
    data: DataChoice | None = None,
    root: Path | None = None,
    only: str | None = None,
    seeds: Sequence[int] | None = None,
    seconds: float = 30.0,
    jobs: int = 1,
    ray: str | None = None,
    task: str | None = None,
    directory: Path | None = None,
    resume: bool = False,
    progress: Progress = silent,
    command: str | None = None,
) -> DefenceTable:
    """Train a target under each defence, audit each model, and compare them.

    target      one of engram's own targets by name, or your function: it gets a Defence (its `fit`, `epochs`, ...,
                as you apply them) and returns the trained module, which takes `train` as it is
    train       for your function: the records that it trains on, (inputs [n, ...], labels [n])
    held_out    for your function: the same for records that it never sees
    data, root  for a target by name: other records than its own, and where data sets lie
    only        defences by name, joined by commas; default: all that apply
    seeds       how often a target by name is trained under each defence, and from which starts; default: 0, 1, 2
    seconds     time for each attack that reconstructs images; 0 for none
    jobs, ray   processes, or a Ray cluster, that train side by side
    directory   where rows are stored as they end, so that a killed run can `resume`
    """
    if callable(target):
        beside = {"data": data, "root": root, "seeds": seeds, "ray": ray, "directory": directory}
        stray = [name for name, value in beside.items() if value is not None] + ["jobs"] * (jobs != 1)
        if stray or resume:
            raise ConfigError(
                f"{', '.join(stray or ['resume'])} can't be used with your own function; leave it out"
            )
        return _own(target, train, held_out, only, seconds, task, progress)
    if train is not None or held_out is not None or task is not None:
        raise ConfigError("train, held_out and task are for your own function; a target by name has its own")
    order, wanted = planned(target, data=data, root=root, only=only, seeds=seeds, seconds=seconds)
    require_jobs(jobs)
    path = None if directory is None else files.prepare_directory(directory) / ROWS_FILE
    rows = {row.key: row for row in _stored(path, order)} if resume else {}
    missing = [(defence, seed) for defence, seed in wanted if f"{defence.name}/{seed}" not in rows]
    progress(f"{len(rows)} of {len(wanted)} models", len(rows) / len(wanted))
    for row in _computed(order, missing, jobs, ray):
        rows[row.key] = row
        if path is not None:
            stored = {
                "schema_version": 1,
                "order": _plain(order),
                "rows": [one.to_json() for one in rows.values()],
            }
            files.write_json(path, stored)
        progress(f"{len(rows)} of {len(wanted)} models, last {row.says}", len(rows) / len(wanted))
    listed = [rows[f"{defence.name}/{seed}"] for defence, seed in wanted]
    return DefenceTable(target, scenario_named(target).says, tuple(listed), command)


def planned(
    target: str,
    *,
    data: DataChoice | None = None,
    root: Path | None = None,
    only: str | None = None,
    seeds: Sequence[int] | None = None,
    seconds: float = 30.0,
) -> tuple[Order, list[tuple[Defence, int]]]:
    """What `defend` would train for a target by name; whatever is wrong with it is said here."""
    scenario, seeds = scenario_named(target), SEEDS if seeds is None else seeds
    choice = data or scenario.data
    if choice is None:
        raise ConfigError(f"the target {target} needs records; give them with --data and -n")
    require(len(seeds) > 0, "seeds", "must name at least one", 0)
    order = Order(scenario=target, data=choice, root=root, seconds=seconds)
    chosen = _possible(chosen_defences(only, scenario), order, named=only is not None)
    return order, [(defence, seed) for defence in chosen for seed in seeds]


def _possible(defences: Sequence[Defence], order: Order, *, named: bool) -> list[Defence]:
    """Those for which there are records enough: as many controls as are asked about, at least."""
    there = largest(order.data.everything(order.root))
    few = [one for one in defences if order.data.n * (one.records + 1) > there]
    if any(one.records == 1 for one in few):
        raise ConfigError(
            f"{order.data.name} has {there:,} records, too few to train on {order.data.n:,} and hold out as many; "
            f"ask for at most {there // 2:,} with -n"
        )
    if few and named:
        raise ConfigError(f"{few[0].name} needs more records than {order.data.name} has; leave it out")
    return [one for one in defences if one not in few]


def _own(
    build: Train,
    train: Samples | None,
    held_out: Samples | None,
    only: str | None,
    seconds: float,
    task: str | None,
    progress: Progress,
) -> DefenceTable:
    if train is None or held_out is None:
        raise ConfigError("your own training needs train and held_out, to audit its models with; give both")
    names = list(DEFENCES) if only is None else [name.strip() for name in only.split(",")]
    if unknown := [name for name in names if name not in DEFENCES]:
        raise ConfigError(f"there is no defence {unknown[0]!r}; choose some of {', '.join(DEFENCES)}")
    rows = []
    for place, name in enumerate(names):
        progress(f"training under {DEFENCES[name].says}", place / len(names))
        started = time.perf_counter()
        model = build(DEFENCES[name])
        spent = time.perf_counter() - started
        opened = Opened(model, None, model)
        sets = [opened.records(samples, what) for samples, what in ((train, "train"), (held_out, "held_out"))]
        nothing = torch.zeros(sets[0].shape)
        found, _ = judged(model, sets[0], sets[1], None, nothing, seconds=seconds, task=task)
        row = DefenceRow(
            defence=name,
            says=DEFENCES[name].says,
            seed=0,
            exposure=found,
            unseen=None,
            epsilon_bound=None,
            n=len(sets[0]),
            training_seconds=spent,
        )
        rows.append(row)
    return DefenceTable("your model", "your own training", tuple(rows))


def _plain(order: Order) -> dict[str, Any]:
    return {"scenario": order.scenario, "data": asdict(order.data), "seconds": order.seconds}


def _stored(path: Path | None, order: Order) -> list[DefenceRow]:
    if path is None or not path.exists():
        return []
    told = files.read_json(path)
    if not isinstance(told, dict) or told.get("order") != _plain(order):
        raise CheckpointError(f"{path} belongs to another target, other data or another budget; choose another -o")
    try:
        return [DefenceRow.of_json(row) for row in told["rows"]]
    except (LookupError, TypeError, AttributeError, AssertionError) as error:
        raise CheckpointError(f"{path} is damaged ({error!r}); choose another directory with -o") from error


def _computed(
    order: Order, wanted: Sequence[tuple[Defence, int]], jobs: int, ray: str | None
) -> Iterator[DefenceRow]:
    """The rows as they end, in any order."""
    if ray is not None:
        from engram.sweep.executors import on_cluster

        yield from on_cluster(ray, order.row, wanted)
    elif jobs == 1:
        yield from (order.row(defence, seed) for defence, seed in wanted)
    else:
        # spawned, not forked: a forked child inherits the locks of threads that it does not have
        with ProcessPoolExecutor(
            min(require_jobs(jobs), max(1, len(wanted))), get_context("spawn"), torch.set_num_threads, (1,)
        ) as pool:
            for future in as_completed([pool.submit(order.row, *one) for one in wanted]):
                yield future.result()
