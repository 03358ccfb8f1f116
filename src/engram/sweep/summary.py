"""sweep.json: the table of trials, the best so far, which settings mattered, and all trials' candidates pooled."""

from __future__ import annotations

import csv
import io
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from torch import Tensor

from engram.attacks.engine.consensus import SAME_IMAGE, confidence, from_agreement
from engram.attacks.reconstruction import Reconstruction
from engram.core import files
from engram.core.errors import EngramError
from engram.core.loop import Progress, silent
from engram.core.runs import RunDirectory, versions, write_index
from engram.data.sets import Split
from engram.pipeline import compare, default_protocol
from engram.scoring.protocols import ScoringProtocol
from engram.scoring.report import Count, ScoreReport
from engram.sweep.study import Row
from engram.sweep.sweep import Sweep

MOST_POOLED = 20_000
"""Most candidates to keep; those of the best trials come first."""
VOTERS = 16
"""How many of the best trials agreement is measured with."""

Load = Callable[[int], Reconstruction]


@dataclass(eq=False)
class _Pool:
    """Leaders of the merged groups, the weighted sums of the groups, and the trial each leader came from."""

    leaders: Tensor
    sums: Tensor
    weights: Tensor
    labels: Tensor
    trials: Tensor


def pool_trials(
    numbers: Sequence[int],
    load: Load,
    *,
    most: int = MOST_POOLED,
    progress: Progress = silent,
) -> Reconstruction:
    """Merge the candidates of trials, given best first; `load` reads a trial by number.

    A candidate's score is the confidence of its mean best likeness to the other voting trials. A single trial has
    nothing to agree with: its scores are NaN.
    """
    voters = list(numbers[:VOTERS])
    total = len(numbers) + len(voters)
    pool: _Pool | None = None
    for done, number in enumerate(numbers, start=1):
        pool = _joined(pool, load(number), number, most)
        progress("pooling", done / total)
    assert pool is not None, "no trial to pool"
    agreed, votes = torch.zeros(len(pool.labels)), torch.zeros(len(pool.labels))
    for done, number in enumerate(voters, start=len(numbers) + 1):
        other = pool.trials != number
        agreed += other * _best_likeness(pool, load(number))
        votes += other
        progress("pooling", done / total)
    return _finished(pool, agreed / votes, len(numbers))


def prepared(images: Tensor) -> Tensor:
    """Rows [m, p] for `likeness`: images [m, C, H, W] centred and of length one, points [m, d] unchanged."""
    rows = images.flatten(1).float()
    if images.ndim == 4:
        rows = rows - rows.mean(1, keepdim=True)
        rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return rows


def likeness(rows: Tensor, others: Tensor, *, are_images: bool) -> Tensor:
    """Likeness, at most 1, [m, k]: NCC for images; 1 - ||a - b|| / (||a|| + ||b||) for points.

    >>> circle = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    >>> likeness(circle[:1], circle, are_images=False).round(decimals=2)
    tensor([[1.0000, 0.2900, 0.0000]])
    """
    if are_images:
        return rows @ others.T
    sizes = rows.norm(dim=1)[:, None] + others.norm(dim=1)[None]
    apart = torch.cdist(rows, others, compute_mode="donot_use_mm_for_euclid_dist")
    alike: Tensor = 1 - apart / sizes.clamp(min=1e-12)
    return alike


def _joined(pool: _Pool | None, found: Reconstruction, number: int, most: int) -> _Pool:
    """The pool with one more trial added, its largest duals first."""
    found = found.take(found.duals.argsort(descending=True, stable=True))
    own, images = prepared(found.images), found.images.float()
    # Each trial has its own scale of duals.
    weights = found.duals.float().clamp(min=0)
    weights = weights / weights.mean().clamp(min=1e-12) + 1e-6
    if pool is None:
        pool = _Pool(own[:0], images[:0], weights[:0], found.labels[:0], found.labels[:0])
    leaders, fresh = _groups(pool, own, found.labels)
    room = max(0, most - len(pool.labels))
    kept = fresh[:room]
    pool = _Pool(
        torch.cat([pool.leaders, own[kept]]),
        torch.cat([pool.sums, torch.zeros_like(images[kept])]),
        torch.cat([pool.weights, torch.zeros_like(weights[kept])]),
        torch.cat([pool.labels, found.labels[kept]]),
        torch.cat([pool.trials, torch.full((len(kept),), number)]),
    )
    inside = leaders < len(pool.labels)
    shaped = weights.view(-1, *[1] * (images.ndim - 1))
    pool.sums.index_add_(0, leaders[inside], (shaped * images)[inside])
    pool.weights.index_add_(0, leaders[inside], weights[inside])
    return pool


def _groups(pool: _Pool, own: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each candidate the index of its leader in the pool; and which candidates become leaders, in order."""
    there = len(pool.labels)
    leaders = torch.full((len(own),), -1)
    if there:
        best = _within_labels(pool, own, labels, pool.leaders, pool.labels).max(1)
        leaders = torch.where(best.values >= SAME_IMAGE, best.indices, leaders)
    alike = _within_labels(pool, own, labels, own, labels) >= SAME_IMAGE
    fresh: list[int] = []
    for candidate in range(len(own)):
        if leaders[candidate] < 0:
            joins = alike[candidate] & (leaders < 0)
            joins[candidate] = True
            leaders[joins] = there + len(fresh)
            fresh.append(candidate)
    return leaders, torch.tensor(fresh, dtype=torch.int64)


def _best_likeness(pool: _Pool, voter: Reconstruction) -> Tensor:
    """Likeness of every leader to the most similar candidate of a trial, [leaders]."""
    alike = _within_labels(pool, pool.leaders, pool.labels, prepared(voter.images), voter.labels)
    return alike.amax(1).clamp(min=0)


def _within_labels(pool: _Pool, rows: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor) -> Tensor:
    """Likeness of candidates with the same label, -1 across labels."""
    alike = likeness(rows, others, are_images=pool.sums.ndim == 4)
    return alike.masked_fill_(labels[:, None] != other_labels[None], -1.0)


def _finished(pool: _Pool, agreement: Tensor, trials: int) -> Reconstruction:
    """Sorted by agreement; duals are means over the trials, in units of each trial's mean dual."""
    order = agreement.nan_to_num(nan=0.0).argsort(descending=True, stable=True)
    shaped = pool.weights.view(-1, *[1] * (pool.sums.ndim - 1))
    scores = confidence(from_agreement(agreement))
    return Reconstruction(pool.sums / shaped, pool.weights / trials, pool.labels, scores).take(order)


@dataclass(frozen=True)
class Grown:
    """The pool of the first `trials` complete trials: candidates, those at 90 % confidence, counts if scored."""

    trials: int
    candidates: int
    sure: int
    counts: dict[str, Count] | None = None


def sizes(trials: int) -> list[int]:
    """1, 2, 4, ... and all: pooling each of them from scratch only doubles the time of pooling all.

    >>> sizes(10), sizes(1)
    ([1, 2, 4, 8, 10], [1])
    """
    return [*(2**power for power in range(trials.bit_length()) if 2**power < trials), trials]


def grown(pooled: Reconstruction, trials: int, score: ScoreReport | None) -> Grown:
    """The point of the curve for a pool that has been scored."""
    counts = None if score is None else dict(score.counts)
    return Grown(trials, len(pooled), pooled.count_above(0.9), counts)


def growth(
    best_first: Sequence[int],
    load: Load,
    data: Split | None,
    protocol: ScoringProtocol | None,
    *,
    progress: Progress = silent,
) -> list[Grown]:
    """Pools of the first trials by number, except the pool of all; within a pool the best trials come first."""
    curve, wanted = [], sizes(len(best_first))[:-1]
    for done, size in enumerate(wanted, start=1):
        first = set(sorted(best_first)[:size])
        pooled = pool_trials([number for number in best_first if number in first], load)
        score = None if data is None else compare(pooled, data, protocol=protocol)
        curve.append(grown(pooled, size, score))
        progress("pooling: fewer trials", done / len(wanted))
    return curve


BEST_SHARE, ENOUGH_FOR_IMPORTANCE = 0.25, 20
"""Importance is for reaching the best quarter of the trials; with fewer than 20 that says nothing."""
SUMMARY = "sweep.json"


@dataclass(frozen=True, eq=False)
class Conclusion:
    """The result of a sweep: `summary` is sweep.json; `score` is the pool's, if there is data."""

    summary: dict[str, Any]
    pooled: Reconstruction
    score: ScoreReport | None


def conclude(
    sweep: Sweep,
    data: Split | None = None,
    *,
    progress: Progress = silent,
) -> Conclusion:
    """Pool the trials of a sweep, score the pool if data is given, and write the result.

    Scoring comes last and changes nothing: trials, their order and the pool are judged blind.
    """
    rows = sweep.rows()
    best_first = _poolable(sweep, rows)
    if not best_first:
        reasons = Counter(f"{row['state']}: {row['reason']}" for row in rows)
        raise EngramError(
            f"none of the {len(rows)} trials is complete here, so there is nothing to pool; "
            f"most common reason: {reasons.most_common(1)[0][0]}"
        )

    def load(number: int) -> Reconstruction:
        return Reconstruction.load(sweep.trial_directory(number).reconstruction)

    pooled = pool_trials(best_first, load, progress=progress)
    pooled.save(RunDirectory(sweep.directory).reconstruction)
    if sweep.is_complete():
        shutil.rmtree(sweep.directory / "running", ignore_errors=True)  # left by killed workers
    with files.locked(sweep.directory / "claims.lock"):
        write_index(sweep.directory, sweep.rows())
    network = sweep.view.network
    score = None if data is None else compare(pooled, data, network=network)
    protocol = None if data is None else default_protocol(data.train.images, network)
    curve = [*growth(best_first, load, data, protocol, progress=progress), grown(pooled, len(best_first), score)]
    summary = summarise(sweep, rows, pooled, curve) | {"scores": None if score is None else score.to_json()}
    files.write_json(sweep.directory / SUMMARY, summary)
    return Conclusion(summary, pooled, score)


def summarise(sweep: Sweep, rows: Sequence[Row], pooled: Reconstruction, curve: Sequence[Grown]) -> dict[str, Any]:
    """sweep.json without the scores; the last point of `curve` is the whole pool."""
    spec = sweep.spec
    complete = [row for row in rows if row["state"] == "complete"]
    return {
        "schema_version": 2,
        "kind": "sweep",
        "model": sweep.model,
        "weights_sha256": sweep.weights_sha256,
        "network": sweep.view.network.name,
        "objective": {
            "name": spec.objective,
            "direction": spec.direction,
            "meaning": MEANING[spec.objective],
        },
        "space": spec.space.to_json(),
        "sampler": spec.sampler,
        "seed": spec.seed,
        "counts": {"asked": spec.trials, **Counter(row["state"] for row in rows)},
        "best": _best(complete, spec.direction),
        "best_so_far": best_so_far(rows, spec.direction),
        "importance": importance(sweep.ledger.study, complete, sorted(spec.space.search)),
        "pooled": {
            "trials": curve[-1].trials,
            "elsewhere": len(complete) - curve[-1].trials,
            "candidates": len(pooled),
            "confident": confident(pooled),
            "growth": [asdict(point) for point in curve],
        },
        "seconds": round(sum(row.get("seconds", 0.0) for row in rows), 3),
        "versions": versions() | {"optuna": optuna.__version__},
        "trials": list(rows),
    }


MEANING = {
    "blind": "share of the first layer that the candidates leave unexplained, hard gates; needs only the weights",
    "oracle": "training images with SSIM > 0.4 beyond held-out ones; needs data that no attacker has",
}


def confident(found: Reconstruction) -> dict[str, int]:
    """How many candidates show a training image with a confidence of at least 90 % and 50 %."""
    return {f"{level:.0%}": found.count_above(level) for level in (0.9, 0.5)}


def best_so_far(rows: Sequence[Row], direction: str) -> list[list[float]]:
    """[number, best objective up to it] for every trial that improved it, by number.

    >>> rows = [{"number": n, "objective": v} for n, v in enumerate([0.5, None, 0.7, 0.2])]
    >>> best_so_far(rows, "minimize")
    [[0, 0.5], [3, 0.2]]
    """
    sign = 1 if direction == "minimize" else -1
    curve: list[list[float]] = []
    for row in rows:
        value = row["objective"]
        if value is not None and (not curve or sign * value < sign * curve[-1][1]):
            curve.append([row["number"], value])
    return curve


def importance(study: optuna.Study, complete: Sequence[Row], names: Sequence[str]) -> dict[str, float] | None:
    """How much each setting contributes to a trial being among the best (PED-ANOVA); None with too few trials."""
    if len(complete) < ENOUGH_FOR_IMPORTANCE or not names:
        return None
    evaluator = PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE)
    shares = get_param_importances(study, evaluator=evaluator)
    return {name: round(share, 4) for name, share in shares.items()}


def _best(complete: Sequence[Row], direction: str) -> Row | None:
    sign = 1 if direction == "minimize" else -1
    return min(complete, key=lambda row: (sign * row["objective"], row["number"]), default=None)


def _poolable(sweep: Sweep, rows: Sequence[Row]) -> list[int]:
    """Complete trials whose candidates are in this directory, best first; always judged blind."""
    complete = [
        row
        for row in rows
        if row["state"] == "complete" and sweep.trial_directory(row["number"]).reconstruction.exists()
    ]
    return [row["number"] for row in sorted(complete, key=lambda row: (row["unexplained"], row["number"]))]


COLUMNS = (
    "name",
    "model",
    "network",
    "complete",
    "not_complete",
    "objective",
    "best",
    "candidates",
    "confident_90",
    "confident_50",
    "seconds",
    "error",
)


def unique_names(models: Sequence[Path]) -> list[str]:
    """A name for each model's directory: the model's own, with a number if two are the same.

    >>> unique_names([Path("a/model.pt"), Path("b/model.pt"), Path("c/gate")])
    ['model.pt', 'model.pt-2', 'gate']
    """
    names: list[str] = []
    for model in models:
        name, count = model.name, 1
        while name in names:
            count += 1
            name = f"{model.name}-{count}"
        names.append(name)
    return names


def summary_row(name: str, summary: Mapping[str, Any]) -> dict[str, Any]:
    """A model's row from its sweep.json."""
    counts, pooled = summary["counts"], summary["pooled"]
    return _row(
        name=name,
        model=summary["model"],
        network=summary["network"],
        complete=counts.get("complete", 0),
        not_complete=counts["asked"] - counts.get("complete", 0),
        objective=summary["objective"]["name"],
        best=summary["best"]["objective"],
        candidates=pooled["candidates"],
        confident_90=pooled["confident"]["90%"],
        confident_50=pooled["confident"]["50%"],
        seconds=summary["seconds"],
    )


def failed_row(name: str, model: Path, error: Exception) -> dict[str, Any]:
    """The row of a model that can't be read, or that has no complete trial."""
    return _row(name=name, model=str(model), error=str(error))


def table_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode()


def _row(**values: Any) -> dict[str, Any]:
    return {column: values.get(column) for column in COLUMNS}
