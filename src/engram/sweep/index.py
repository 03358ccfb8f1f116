"""trials.jsonl: one line per finished trial, so that ten thousand of them can be listed at once.

Replaying a study's journal of that size takes seconds and needs Optuna; this file needs neither Optuna nor torch.
It is written from the study and can always be written again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engram.core import files

INDEX = "trials.jsonl"


def append_row(directory: Path, row: dict[str, Any]) -> None:
    with files.locked(directory / "claims.lock"), (directory / INDEX).open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def write_index(directory: Path, rows: Sequence[dict[str, Any]]) -> None:
    files.write_bytes(directory / INDEX, "".join(json.dumps(row) + "\n" for row in rows).encode())


def read_index(directory: Path) -> list[dict[str, Any]]:
    """The rows by number; a line cut short by a kill is skipped, and a later line replaces an earlier one."""
    path = directory / INDEX
    rows: dict[int, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
            rows[int(row["number"])] = row
        except (ValueError, KeyError, TypeError):
            continue
    return [rows[number] for number in sorted(rows)]
