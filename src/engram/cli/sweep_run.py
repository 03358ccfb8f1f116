"""`engram sweep` for one model and for a fleet: run, conclude, tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import typer

from engram.cli.score import show_report
from engram.cli.sweep_open import Opening, Trackers, concluded, trial_bar
from engram.data.sampling import Split
from engram.errors import EngramError
from engram.files import write_bytes, write_json
from engram.sweep.driver import drive
from engram.sweep.executors import Executor
from engram.sweep.fleet import COLUMNS, failed_row, summary_row, table_csv, unique_names
from engram.sweep.ledger import Row
from engram.sweep.record import Conclusion
from engram.sweep.sweep import OnRow, Sweep
from engram.sweep.verdict import sweep_verdict


def run_one(
    model: Path, out: Path, opening: Opening, executor: Executor, trackers: Trackers, *, as_json: bool
) -> None:
    """One model: its sweep is the directory."""
    with ExitStack() as stack:
        sweep, data = opening.opened(model, out)
        stack.callback(sweep.close)
        tell = stack.enter_context(trackers.watching(sweep))
        _driven([sweep], executor, [tell])
        conclusion = concluded(sweep, data)
    if as_json:
        typer.echo(json.dumps(conclusion.summary))
    else:
        _tell(conclusion, out)


def run_fleet(
    models: Sequence[Path], out: Path, opening: Opening, executor: Executor, trackers: Trackers, *, as_json: bool
) -> None:
    """Many models: a directory for each, their trials side by side, and fleet.json, fleet.csv over all."""
    named = dict(zip(unique_names(models), models, strict=True))
    rows: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        sweeps: dict[str, tuple[Sweep, Split | None]] = {}
        tellers: dict[Path, OnRow] = {}
        for name, model in named.items():
            try:
                sweep, _ = sweeps[name] = opening.opened(model, out / name)
            except EngramError as error:
                rows[name] = failed_row(name, model, error)
                continue
            stack.callback(sweep.close)
            tellers[sweep.directory] = stack.enter_context(trackers.watching(sweep, name))
        _driven(
            [sweep for sweep, _ in sweeps.values()],
            executor,
            [lambda sweep, row: tellers[sweep.directory](sweep, row)],
        )
        for name, (sweep, data) in sweeps.items():
            try:
                rows[name] = summary_row(name, concluded(sweep, data).summary)
            except EngramError as error:
                rows[name] = failed_row(name, named[name], error)
    table = [rows[name] for name in named]
    write_json(out / "fleet.json", {"schema_version": 1, "kind": "fleet", "models": table})
    write_bytes(out / "fleet.csv", table_csv(table))
    if as_json:
        typer.echo(json.dumps(table))
    else:
        _show_table(table)
        typer.echo(f"wrote {out / 'fleet.json'} and {out / 'fleet.csv'}")
    if all(row["error"] is not None for row in table):
        raise EngramError("none of the models could be audited; the table says why")


def _driven(sweeps: Sequence[Sweep], executor: Executor, tellers: Sequence[OnRow]) -> None:
    with trial_bar(sweeps) as show:

        def told(sweep: Sweep, row: Row) -> None:
            for tell in (show, *tellers):
                tell(sweep, row)

        drive(sweeps, executor, told)


def _tell(conclusion: Conclusion, out: Path) -> None:
    summary = conclusion.summary
    counts, best, pooled = summary["counts"], summary["best"], summary["pooled"]
    ended = ", ".join(f"{count} {state}" for state, count in counts.items() if state != "asked")
    typer.echo(f"{counts['asked']} trials: {ended}")
    typer.echo(f"best {summary['objective']['name']} {best['objective']:.4g} in trial {best['number']}:")
    typer.echo("  " + " ".join(f"{name}={value}" for name, value in best["params"].items()))
    typer.echo(
        f"pooled {pooled['candidates']} candidates of {pooled['trials']} trials; judged without any data, "
        f"{pooled['confident']['90%']} of them show a training image at 90 %, {pooled['confident']['50%']} at 50 %"
    )
    if pooled["elsewhere"]:
        typer.echo(
            f"note: {pooled['elsewhere']} complete trials lie on other machines; copy their trials/ directories "
            "here and run again with --resume to pool them"
        )
    if conclusion.score is None:
        typer.echo(f"Open {out / 'sweep.html'}; compare with your data: engram score {out} --data ... -n ...")
        return
    show_report(conclusion.score)
    typer.echo(sweep_verdict(conclusion.pooled, conclusion.score, pooled["trials"]).sentence)
    typer.echo(f"Open {out / 'sweep.html'}; for programs: {out / 'sweep.json'}")


def _show_table(rows: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*("" if row[column] is None else str(row[column]) for column in COLUMNS))
    Console().print(table)
