"""A case: one target and one attack on it, computed once and written as a complete directory.

    cases/KEY   finished; the key includes everything that determines the outcome
    work/KEY    in progress: target and attack with their snapshots; removed when the case is finished

Experiments share cases; a killed case is resumed. Two processes may share a directory: what one of them is
computing, the other waits for or does later.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from engram.attacks.settings import Haim2022
from engram.core import files
from engram.core.errors import require
from engram.core.loop import Progress, part
from engram.core.runs import RunDirectory, commit, versions
from engram.data.sets import Split, centred
from engram.models.networks import ConvNetwork, Network
from engram.models.open.door import open_view
from engram.models.tasks import task_named
from engram.papers.attacks import (
    ATTACKED_BY,
    TRAINING_SHARE,
    AttackName,
    AttackPlan,
    Outcome,
    carry_out,
    engine_seconds,
    plan_attack,
    run_fig2,
)
from engram.papers.records import CaseRecord, Finished, Training, read_finished
from engram.pipeline import build_target, compare
from engram.scoring.report import ScoreReport
from engram.training.presets import SCALES, Plan, Scale, plan
from engram.training.recipe import training_progress
from engram.training.target import Card, Target, TargetCache


@dataclass(frozen=True, kw_only=True)
class CasePlan:
    """Everything that defines a case."""

    key: str
    preset: str
    scale: Scale
    seed: int
    target: Plan
    attack: AttackPlan


def scored(order: CasePlan, target: Target[Network], data: Split, outcome: Outcome, *, resumed: bool) -> Finished:
    """Compare with the training data, held-out images and noise."""
    plan, card = order.target, target.card
    assert card is not None
    report = compare(outcome.found, data, network=target.network)
    record = CaseRecord(
        key=order.key,
        preset=order.preset,
        attack=order.attack.name,
        scale=order.scale,
        seed=order.seed,
        network=plan.network.name,
        task=plan.task,
        data=plan.data.name,
        n=plan.data.n,
        n_held_out=len(data.held_out),
        cuts=(*plan.cuts, *order.attack.cuts),
        training=_training(card),
        settings=outcome.settings,
        candidates=report.candidates,
        counts=dict(report.counts),
        top10=report.top10_mean,
        samples=_samples(target.network, plan.task, data, report),
        steps=outcome.steps,
        attack_seconds=outcome.seconds,
        resumed=resumed,
        message=outcome.message,
        commit=commit(),
        versions=versions(),
    )
    return Finished(record, _tensors(target.network, data, report, outcome))


def _training(card: Card) -> Training:
    return Training(
        loss=card.train.loss,
        accuracy=card.train.accuracy,
        smallest_margin=card.train.smallest_margin,
        test_loss=None if card.test is None else card.test.loss,
        test_accuracy=None if card.test is None else card.test.accuracy,
        epochs=card.epochs,
        stopped=card.stopped,
        seconds=card.seconds,
    )


@torch.no_grad()
def _samples(network: Network, task_name: str, data: Split, report: ScoreReport) -> dict[str, list[float]]:
    """One column for everything that a scatter plot of samples may show."""
    inputs = centred(data.train.images, data.mean).to(network.weights[0].dtype)
    logits = network(inputs)
    task = task_named(task_name, network.sizes[-1])
    columns: dict[str, Tensor | None] = {
        **{name: getattr(report.train, name) for name in ("ssim", "ncc", "relative_l2")},
        "margin": task.margins(logits, data.train.labels),
        "output": logits.squeeze(1) if logits.shape[1] == 1 else None,
    }
    return {
        name: [round(value, 6) for value in column.nan_to_num(nan=-1.0).tolist()]
        for name, column in columns.items()
        if column is not None
    }


def _tensors(network: Network, data: Split, report: ScoreReport, outcome: Outcome) -> dict[str, Tensor]:
    """Images as bytes, candidates in half precision: enough for a figure."""
    kept = {"candidates": outcome.found.images.half(), "duals": outcome.found.duals.float()}
    if data.train.images.ndim == 4:
        kept["original"] = _as_bytes(data.train.images)
        kept["reconstruction"] = _as_bytes(report.train.reconstruction)
    else:
        kept["candidates"] = outcome.found.images.float()
        kept["points"], kept["point_labels"] = data.train.images, data.train.labels
    if outcome.outputs is not None:
        kept["outputs"] = outcome.outputs
    if isinstance(network, ConvNetwork):
        kept["kernels"] = network.weights[0]
    return kept


def _as_bytes(images: Tensor) -> Tensor:
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


@dataclass(frozen=True, kw_only=True)
class Means:
    """How a case is computed; none of this changes the outcome."""

    device: str = "cpu"
    data_root: Path | None = None
    cache: TargetCache | None = None
    snapshot_every: float = 20.0
    """Seconds; at most this much work is lost by a kill."""


def compute(order: CasePlan, means: Means, work: Path, *, progress: Progress) -> Finished:
    """Train, attack, compare; resumes what a killed process left in `work`."""
    if order.attack.name == "circle":
        return _compute_circle(order, means, progress)
    plan = order.target
    task, data = task_named(plan.task, plan.network.outputs), plan.data.load(means.data_root)
    target: Target[Network] = build_target(
        plan.data,
        plan.network,
        plan.recipe,
        task,
        root=means.data_root,
        directory=work / "target",
        device=means.device,
        resume=True,
        snapshot_every=means.snapshot_every,
        observers=[training_progress(part(progress, 0.0, TRAINING_SHARE), plan.recipe)],
        cache=means.cache,
        data=data,
    )
    card = target.card
    assert card is not None
    view = open_view(target.network.to(device=means.device), input_shape=card.input_shape, task=task.name)
    resumed = RunDirectory(work / "attack").snapshot.exists()
    outcome = carry_out(
        order.attack,
        view,
        work / "attack",
        progress=part(progress, TRAINING_SHARE, 1.0),
        snapshot_every=means.snapshot_every,
    )
    return scored(order, target, data, outcome, resumed=resumed)


def _compute_circle(order: CasePlan, means: Means, progress: Progress) -> Finished:
    """haim/fig2 has its own stages; the last one is scored."""
    settings = order.attack.settings
    assert isinstance(settings, Haim2022)
    result = run_fig2(
        order.seed,
        recipe=order.target.recipe,
        settings=settings,
        progress=progress,
        cache=means.cache,
    )
    outcome = Outcome(result.final, None, asdict(settings), settings.steps, result.seconds, result.summary)
    finished = scored(order, result.target, result.data, outcome, resumed=False)
    return Finished(finished.record, finished.tensors, result.figure())


CASE_VERSION = 1  # increase it when the code changes the contents of a case


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Settings that all cases of a run share."""

    scale: Scale = "cpu"
    recipe: AttackName = "engine"
    seed: int = 0
    means: Means = field(default_factory=Means)

    def __post_init__(self) -> None:
        require(self.scale in SCALES, "scale", f"must be one of {', '.join(SCALES)}", self.scale)
        require(self.recipe in ATTACKED_BY, "recipe", f"must be one of {', '.join(ATTACKED_BY)}", self.recipe)


@dataclass(frozen=True)
class Case:
    """A preset and the attack on it: the setting's recipe, or the attack that the experiment is about."""

    preset: str
    attack: AttackName | None = None

    def order(self, setting: Setting) -> CasePlan:
        """What to compute; its key has preset, attack, scale, and a digest of all that determines the outcome."""
        target = plan(self.preset, setting.scale, seed=setting.seed)
        attack = plan_attack(self.attack or setting.recipe, target, setting.scale, seed=setting.seed)
        trained = {**asdict(replace(target, cuts=())), "recipe": target.recipe.settings()}
        decisive = [trained, asdict(replace(attack, cuts=())), CASE_VERSION]
        digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
        return CasePlan(
            key=f"{self.preset}.{attack.name}.{setting.scale}-{digest[:10]}",
            preset=self.preset,
            scale=setting.scale,
            seed=setting.seed,
            target=target,
            attack=attack,
        )


def find_case(order: CasePlan, home: Path) -> Finished | None:
    """The case if it is finished, else None."""
    return read_finished(home / "cases" / order.key)


def run_case(
    order: CasePlan, means: Means, home: Path, *, progress: Progress, wait: bool = True
) -> Finished | None:
    """Read the case from its directory, or compute it, resuming what a killed process left.

    Without `wait`, returns None if another process is computing it.
    """
    work = home / "work" / order.key
    work.parent.mkdir(parents=True, exist_ok=True)
    with files.locked(work.with_name(f"{order.key}.lock"), wait=wait) as own:
        if not own:
            return None
        if (kept := find_case(order, home)) is not None:
            return kept
        finished = compute(order, means, work, progress=progress)
        files.write_directory(home / "cases" / order.key, finished.contents())
        shutil.rmtree(work, ignore_errors=True)
    return finished


Said = Callable[[str], None]
"""Called with each line of output for the user."""


@dataclass(eq=False)
class Collector:
    """Cases in a directory that other processes may also work in."""

    home: Path
    setting: Setting
    said: Said
    progress: Progress
    needed: dict[str, CasePlan] = field(default_factory=dict, init=False)
    _done: set[str] = field(default_factory=set, init=False)
    _failures: dict[str, Exception] = field(default_factory=dict, init=False)

    def expect(self, cases: Iterable[Case]) -> None:
        """Register all cases that will be needed, so that progress knows their share of the work."""
        orders = (case.order(self.setting) for case in cases)
        self.needed = {order.key: order for order in orders}

    def ahead(self) -> None:
        """Compute all cases that no other process is computing. Errors are raised later, by `finished`."""
        for order in self.needed.values():
            try:
                self._computed(order, wait=False)
            except Exception as error:  # hours of other work must not be lost to any error
                self._failures[order.key] = error

    def finished(self, case: Case) -> Finished:
        """The case; waits if another process is computing it."""
        order = case.order(self.setting)
        if order.key in self._failures:
            raise self._failures[order.key]
        finished = self._computed(order, wait=True)
        assert finished is not None
        return finished

    def _computed(self, order: CasePlan, *, wait: bool) -> Finished | None:
        """The case; None if another process is computing it."""
        finished = find_case(order, self.home)
        if finished is None:
            finished = run_case(order, self.setting.means, self.home, progress=self._progress_of(order), wait=wait)
            if finished is not None:
                self.said(case_line(finished.record))
        if finished is not None:
            self._done.add(order.key)
        return finished

    def _progress_of(self, order: CasePlan) -> Progress:
        """The progress of one case as a part of all; the first call also prints what was cut."""
        before = sum(expected_seconds(self.needed[key]) for key in self._done)
        everything = sum(map(expected_seconds, self.needed.values()))
        own, cuts = expected_seconds(order), (*order.target.cuts, *order.attack.cuts)
        begun: list[bool] = []

        def report(what: str, share: float) -> None:
            if cuts and not begun:
                self.said(f"  {order.preset}: cut: {'; '.join(cuts)}")
            begun.append(True)
            self.progress(f"experiments: {order.preset}, {what}", (before + share * own) / everything)

        return report


def case_line(record: CaseRecord) -> str:
    """Counts and seconds in one line."""
    count = record.good
    held_out = "unknown" if count.held_out is None else count.held_out
    return (
        f"  {record.preset} ({record.attack}): {count.train} of {record.n} good, held-out {held_out}, "
        f"noise {count.noise}; training {record.training.seconds:.0f} s, attack {record.attack_seconds:.0f} s"
    )


def expected_seconds(order: CasePlan) -> float:
    """A rough estimate for one core at scale cpu; other scales are proportional."""
    n, epochs = order.target.data.n, order.target.recipe.epochs
    if order.attack.name in ("inversion", "weights"):  # other cases have trained their targets
        return engine_seconds(order.target) if order.attack.name == "inversion" else 5.0
    training = 0.6 * n if order.target.recipe.flow is not None else min(epochs, 36_000) * (5e-3 + 7e-5 * n)
    return training + engine_seconds(order.target)
