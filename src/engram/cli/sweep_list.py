"""The finished trials of a sweep, from its index: neither Optuna nor torch is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer


def show_trials(directory: Path, *, as_json: bool) -> None:
    """One line a trial; plain text, since tables of ten thousand rows are slow to lay out."""
    from engram.errors import ConfigError
    from engram.files import read_json
    from engram.sweep.index import INDEX, read_index

    if not (directory / INDEX).exists():
        raise ConfigError(f"{directory} holds no sweep; give the directory that -o named")
    record, rows = read_json(directory / "run.json"), read_index(directory)
    if as_json:
        typer.echo(json.dumps({**record, "finished": rows}))
        return
    objective = record["sweep"]["objective"]
    lines = [f"{'trial':>6}  {'state':9}{objective:>10}{'seconds':>10}  settings"]
    lines += [_line(row) for row in rows]
    lines.append(f"{len(rows):,} of {record['trials']:,} trials finished in {directory}")
    typer.echo("\n".join(lines))


def _line(row: dict[str, Any]) -> str:
    value = "-" if row["objective"] is None else f"{row['objective']:.4f}"
    told = " ".join(f"{name}={_short(value)}" for name, value in row["params"].items())
    if row["state"] != "complete":
        told += f"  ({row['reason']})"
    return f"{row['number']:6d}  {row['state']:9}{value:>10}{row.get('seconds', 0.0):10.1f}  {told}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
