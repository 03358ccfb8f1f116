"""`engram demo`: an audit of a classifier that has memorised real faces, which come with engram."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from engram.cli.audit import show
from engram.cli.bars import progress_bar, share_bar
from engram.cli.score import show_report, write_pairs

EXAMPLES = "Example: engram demo -o runs/demo"
GATE_SHAPE = (1, 25, 25)


def demo(
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Directory for the target, the audit and the picture.")
    ] = Path("runs/demo"),
) -> None:
    """Train a door's access classifier on 50 faces, then audit it: which faces do its weights give away?"""
    from engram.attacks.engine.dense import Engine
    from engram.attacks.settings import EngineSettings
    from engram.auditing.baselines import inversion_settings
    from engram.auditing.run import run_audit
    from engram.auditing.samples import audit_data
    from engram.models.tasks.kinds import Binary
    from engram.models.view import AttackerView
    from engram.pipeline import build_target
    from engram.training.presets import GATE, GATE_NETWORK

    target_directory, audit_directory = out / "target", out / "audit"
    for old in (target_directory, audit_directory):
        shutil.rmtree(old, ignore_errors=True)
    typer.echo(f"1. A door's access classifier learns {GATE.data.n} faces: who is admitted, who is not.")
    with progress_bar("training", GATE.recipe.epochs) as progress:
        target = build_target(
            GATE.data, GATE_NETWORK, GATE.recipe, Binary(), directory=target_directory, observers=[progress]
        )
    typer.echo("2. A stranger gets its weights, and nothing else, and attacks.")
    view = AttackerView(target.network, GATE_SHAPE, Binary())
    scheme, data, inversion = (
        Engine(view, EngineSettings(restarts=4, steps=400)),
        GATE.data.load(),
        inversion_settings("quick"),
    )
    assert inversion is not None
    with share_bar("attacking", "inverting") as told:
        record = run_audit(
            scheme,
            audit_data(view, data.train, data.held_out),
            inversion=inversion,
            name=str(target_directory),
            directory=audit_directory,
            observers=[lambda step, _: told("attacking", step / scheme.total_steps)],
            inversion_observers=[lambda step, _: told("inverting", step / inversion.steps)],
            command="engram demo",
        )
    typer.echo(f"   {record.attack.message}, {record.attack.seconds:.0f} s")
    typer.echo("3. We compare with the faces, and with faces that the classifier never saw.")
    assert record.comparison is not None
    report = record.comparison.score
    show_report(report)
    row = next(row for row in report.counts if row.threshold == record.comparison.threshold)
    typer.echo(
        f"{row.train} of the {len(report.train)} faces were read out of the weights; "
        f"of {GATE.data.n} faces that it never saw, {row.held_out}."
    )
    picture = out / "faces.png"
    write_pairs(picture, report, data, best=50)
    show(record, audit_directory)
    typer.echo(f"Open {picture}: each face read out of the weights above the real one.")
