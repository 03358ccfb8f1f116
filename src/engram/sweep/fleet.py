"""Many models, one table: a sweep for each, and one row for each, whatever became of it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
    """A name for each model's directory: its own, with a number where two are alike.

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
    """The row of a model that can't be read, or of which no trial came to its end."""
    return _row(name=name, model=str(model), error=str(error))


def table_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().encode()


def _row(**values: Any) -> dict[str, Any]:
    return {column: values.get(column) for column in COLUMNS}
