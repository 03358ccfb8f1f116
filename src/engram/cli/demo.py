"""`engram demo`: an audit of a classifier that has memorised real faces, which come with engram."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from engram.cli.audit import show
from engram.cli.bars import progress_bar
from engram.cli.score import show_report, write_pairs

EXAMPLES = "Example: engram demo -o runs/demo"


def demo(
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Directory for the target, the audit and the picture.")
    ] = Path("runs/demo"),
) -> None:
    """Train a door's access classifier on 50 faces, then audit it: which faces do its weights give away?"""
    from engram.attacks.registry import make_attack
    from engram.attacks.settings import EngineSettings
    from engram.auditing.baselines import inversion_settings
    from engram.auditing.run import run_audit
    from engram.auditing.samples import audit_data
    from engram.models.open.door import open_view
    from engram.models.tasks import Binary
    from engram.pipeline import build_target
    from engram.training.presets import GATE
    from engram.training.recipe import training_progress

    target_directory, audit_directory = out / "target", out / "audit"
    for old in (target_directory, audit_directory):
        shutil.rmtree(old, ignore_errors=True)
    typer.echo(f"1. A door's access classifier learns {GATE.data.n} faces: who is admitted, who is not.")
    data = GATE.data.load()
    with progress_bar() as progress:
        build_target(
            GATE.data,
            GATE.network,
            GATE.recipe,
            Binary(),
            directory=target_directory,
            observers=[training_progress(progress, GATE.recipe)],
            data=data,
        )
    typer.echo("2. An attacker gets its weights, and nothing else, and attacks.")
    view = open_view(target_directory)
    with progress_bar() as progress:
        record = run_audit(
            make_attack(view, settings=EngineSettings(restarts=4, steps=400)),
            audit_data(view, data.train, data.held_out),
            inversion=inversion_settings("quick"),
            name=str(target_directory),
            directory=audit_directory,
            progress=progress,
            command="engram demo",
        )
    typer.echo(f"   {record.attack.message}, {record.attack.seconds:.0f} s")
    typer.echo("3. We compare with the faces, and with faces that the classifier never saw.")
    assert record.comparison is not None
    report = record.comparison.score
    show_report(report)
    count = record.comparison.count
    typer.echo(
        f"{count.train} of the {len(report.train)} faces were read out of the weights; "
        f"of {GATE.data.n} faces that it never saw, {count.held_out}."
    )
    picture = out / "faces.png"
    write_pairs(picture, report, data, best=50)
    show(record, audit_directory)
    typer.echo(f"Open {picture}: each face read out of the weights above the real one.")
