"""`engram demo`: the whole flow on real faces that come with engram."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from engram.cli.options import progress_bar
from engram.cli.score import show_report, write_pairs

EXAMPLES = "Example: engram demo -o runs/demo"


def demo(
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Directory for the target, the run and the picture.")
    ] = Path("runs/demo"),
) -> None:
    """Train a door's access classifier on 50 faces, then read the faces back out of its weights."""
    from engram.attacker import AttackerView
    from engram.experiments import gate
    from engram.files import write_json
    from engram.pipeline import attack, build_target, compare
    from engram.reconstruct.engine.solver import Engine

    target_directory, run_directory = out / "target", out / "attack"
    for old in (target_directory, run_directory):
        shutil.rmtree(old, ignore_errors=True)
    typer.echo(f"1. A door's access classifier learns {gate.DATA.n} faces: who is admitted, who is not.")
    with progress_bar("training", gate.RECIPE.epochs) as progress:
        target = build_target(
            gate.DATA, gate.NETWORK, gate.RECIPE, gate.TASK, directory=target_directory, observers=[progress]
        )
    typer.echo("2. A stranger gets its weights, and nothing else.")
    view = AttackerView(target.network, gate.INPUT_SHAPE, gate.TASK)
    scheme = Engine(view, gate.ATTACK)
    with progress_bar("reconstructing", scheme.total_steps) as progress:
        found, solution = attack(
            scheme, directory=run_directory, model=str(target_directory), observers=[progress]
        )
    typer.echo(f"   {solution.message}, {solution.seconds:.0f} s")
    typer.echo("3. We compare with the faces, and with faces that the classifier never saw.")
    data = gate.DATA.load()
    report = compare(found, data, network=target.network)
    write_json(run_directory / "scores.json", report.to_json(records=True))
    show_report(report)
    row = next(row for row in report.counts if row.threshold.text == "ncc>0.8")
    typer.echo(
        f"{row.train} of the {len(report.train)} faces were read out of the weights; "
        f"of {gate.DATA.n} faces that it never saw, {row.held_out}."
    )
    picture = out / "faces.png"
    write_pairs(picture, report, data, best=50)
    typer.echo(f"Open {picture}: each face read out of the weights above the real one.")
