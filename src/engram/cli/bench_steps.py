"""`engram bench --steps`: seconds a step and peak memory of the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from engram.cli.bars import progress_bar, share_bar
from engram.cli.target import open_finished

if TYPE_CHECKING:
    from engram.attacker import AttackerView
    from engram.bench.steps import StepTable
    from engram.loop import Observer

IMAGES = 500
MEASURING = "measuring"


def run_steps(model: Path | None, out: Path, root: Path | None) -> bool:
    """Measure, write steps.json, show; Ctrl-C keeps the rows that are finished. Whether all of them are."""
    from engram.bench.memory import measure_memory
    from engram.bench.steps import COMPARED, StepTable, cases, time_steps
    from engram.files import write_json

    views, target, notes = _twins(root) if model is None else _one(model)
    planned = cases(views)
    rows, memory, interrupted = [], None, False
    try:
        with share_bar(MEASURING) as progress:
            memory = measure_memory(views[0], COMPARED)
            for index, case in enumerate(planned):
                show = _part_of(progress, index, len(planned))
                rows.append(time_steps(case, observers=[show]))
    except KeyboardInterrupt:
        interrupted = True
    table = StepTable(tuple(rows))
    record = table.to_json(target=target, memory=memory, notes=notes, interrupted=interrupted)
    write_json(out / "steps.json", record)
    _show(table, memory, target, notes)
    typer.echo(f"wrote {out / 'steps.json'}")
    return not interrupted


def _part_of(progress: Callable[[str, float], None], index: int, parts: int) -> Observer:
    """The bar of one case within the bar of all."""
    from engram.bench.steps import STEPS

    return lambda step, values: progress(MEASURING, (index + step / STEPS) / parts)


def _twins(root: Path | None) -> tuple[list[AttackerView], str, list[str]]:
    """Targets on the same 500 photographs at 32 x 32 and 64 x 64."""
    from engram.bench.twins import RECIPE, photographs, trained_view

    photos = photographs(IMAGES, root)
    views = []
    for enlarged in (1, 2):
        with progress_bar(f"training on {32 * enlarged} x {32 * enlarged}", RECIPE.epochs) as progress:
            views.append(trained_view(photos, enlarged, observers=[progress]))
    about = f"{IMAGES} images, {photos.source}; {RECIPE.epochs} epochs at rate {RECIPE.lr:g}"
    return views, about, ["64 x 64: the same images, every pixel four times"]


def _one(model: Path) -> tuple[list[AttackerView], str, list[str]]:
    view, card = open_finished(model)
    about = f"{view.network.name}, {card.data.n} images of {card.data.name}"
    return [view], about, ["image sizes are not compared: that takes two targets trained alike; leave MODEL out"]


def _show(table: StepTable, memory: dict[str, Any] | None, target: str, notes: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    from engram.bench.machine import busy_note

    shown = Table("input", "row space", "candidates", "prior", "seconds a step", "ratio", "preparation")
    for row in table.rows:
        ratio = table.ratio(row)
        shown.add_row(
            "x".join(map(str, row.input_shape)),
            str(row.rank),
            str(row.candidates),
            "yes" if row.with_prior else "no",
            f"{row.seconds_per_step:.4f}",
            "-" if ratio is None else f"{ratio:.2f}",
            f"{row.setup_seconds:.1f} s",
        )
    console = Console()
    console.print(f"target: {target}")
    console.print(shown)
    console.print("ratio: to the fewest candidates; in another shape, to as many candidates of the first shape")
    for name, with_prior in (("without prior", False), ("with prior", True)):
        exponent = table.exponent(with_prior=with_prior)
        if exponent is not None:
            console.print(f"{name}: seconds grow as candidates to the power {exponent:.2f}")
    if memory is not None:
        peak, loaded = (memory[name] / 2**20 for name in ("peak_memory_bytes", "loaded_bytes"))
        console.print(
            f"peak memory of an attack with {memory['candidates']} candidates: {peak:,.0f} MB "
            f"({loaded:,.0f} MB of it before the attack begins)"
        )
    for note in filter(None, (*notes, busy_note())):
        console.print(f"note: {note}")
