"""sweep.json: the table of trials, the best so far, which settings mattered, and the pool."""

from __future__ import annotations

import csv
import io
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from engram.attacks.reconstruction import Reconstruction
from engram.core import files
from engram.core.errors import EngramError
from engram.core.progress import Progress, silent
from engram.core.runs import RunDirectory, versions
from engram.data.sets import Split
from engram.pipeline import compare, default_protocol
from engram.scoring.report import ScoreReport
from engram.sweep.index import write_index
from engram.sweep.pool import Grown, grown, growth, pool_trials
from engram.sweep.study import Row
from engram.sweep.sweep import Sweep

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
