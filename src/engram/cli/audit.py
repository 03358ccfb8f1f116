"""`engram audit`: one command, one report that a person can act on; `engram demo`: an audit of real faces."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli import options as opt
from engram.cli.data import ColumnsOrData, loaded_records, with_columns
from engram.cli.membership import ask, chosen_runner
from engram.cli.options import progress_bar, remember, remembered
from engram.cli.reconstruct import Jobs, Ray, chosen_place
from engram.cli.report import DOUBT_EXIT_CODE, LEAK_EXIT_CODE, apply_policy, chosen_policy
from engram.cli.score import show_report, write_pairs

if TYPE_CHECKING:
    from engram.attacks.settings import EngineSettings
    from engram.auditing.membership_report import MembershipReport
    from engram.auditing.record import AuditRecord
    from engram.data.sets import Split
    from engram.models.networks import Network
    from engram.models.view import AttackerView
    from engram.training.presets import Plan


EXAMPLES = (
    "Examples: engram audit model.pt --input-shape 3x32x32 -o runs/blind; "
    "engram audit model.pt --input-shape 3x32x32 --data folder:my_training_images -n 500 "
    "--held-out folder:other_images --budget 5m -o runs/audit; "
    "engram audit runs/gate --with-data --policy policy.toml --explain -o runs/gate-audit"
)


def audit(
    context: typer.Context,
    model: opt.Model,
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory for the report and the run's files.")],
    input_shape: opt.InputShape = None,
    model_code: opt.ModelCode = None,
    arch: opt.Arch = None,
    activation: opt.ActivationName = None,
    normalize: opt.Normalize = None,
    columns: ColumnsOrData = None,
    head: opt.Head = None,
    base: opt.Base = None,
    base_seed: opt.BaseSeed = None,
    task: opt.TaskName = None,
    data: opt.DataName = None,
    n: opt.Number = None,
    labels: opt.Labels = None,
    classes: opt.Classes = None,
    data_root: opt.DataRoot = None,
    data_seed: opt.DataSeed = None,
    with_data: opt.WithData = False,
    held_out: opt.HeldOut = None,
    held_out_n: opt.HeldOutNumber = None,
    mean: opt.Mean = "auto",
    budget: opt.Time = None,
    jobs: Jobs = None,
    ray: Ray = None,
    baselines: Annotated[
        str,
        typer.Option("--baselines", help="Model inversion and raw weights for comparison: none, quick or full."),
    ] = "quick",
    images: Annotated[
        int | None, typer.Option("--images", min=2, help="Starts of the model inversion; the paper uses 40000.")
    ] = None,
    fail_on_leak: Annotated[
        bool, typer.Option("--fail-on-leak", help="Exit with 3 if a leak is found or suspected, for CI.")
    ] = False,
    policy: opt.PolicyFile = None,
    explain: opt.Explain = False,
    device: opt.Device = "cpu",
    resume: opt.Resume = False,
    snapshot_every: opt.SnapshotEvery = 20.0,
) -> None:
    """Inspect, attack, score and judge a model, and write one report.

    Without data: what an attacker would get. With --data (or --with-data): which of your records leak, compared
    with a control of held-out images. Writes report.html, report.json (docs/report-schema.md), risk.csv and the
    run's own files. The exit code is 0 whatever is found; with --fail-on-leak 3 for a leak found or suspected and
    4 if the model was probably read wrongly; with --policy 3 for fail and 4 for not enough evidence; 1 for an
    error.
    """
    from engram.attacks.registry import make_attack
    from engram.auditing.comparison import inversion_settings
    from engram.auditing.membership_report import MembershipReport
    from engram.auditing.record import REPORT_FILE
    from engram.auditing.run import run_audit

    given = remembered(context, out, resume=resume)
    gate = chosen_policy(given["policy"], explain=explain, fail_on_leak=fail_on_leak)
    if given["model_code"] is not None:
        found = readable_or_asked(model, given, out, device)
        if isinstance(found, MembershipReport):
            if gate is not None:
                apply_policy(gate, out, found.audit_json(), explain=explain)
            if fail_on_leak and found.record.leaks:
                raise typer.Exit(LEAK_EXIT_CODE)
            return
        view = found
    else:
        view = opt.opened_view(model, given)
    inversion = inversion_settings(given["baselines"], given["images"], view)
    compared, doubted = chosen_data(model, view, given)
    view = with_columns(view, given["columns"], None if compared is None else compared.train)
    seconds = None if budget is None else opt.parse_seconds(budget)
    elsewhere = chosen_place(jobs, ray, device)
    chosen = make_attack(
        view.to(opt.check_device(device)),
        settings={} if jobs is None else {"jobs": jobs},
        budget=seconds,
        resume_from=out if resume else None,
    )
    remember(given, out, resume=resume)
    opt.show_notes(view)
    typer.echo(f"{out / REPORT_FILE} grows while the attack runs: open it in a browser")
    with progress_bar() as progress:
        record = run_audit(
            chosen,
            compared,
            inversion=inversion,
            name=str(model),
            seconds=seconds,
            directory=out,
            resume=resume,
            snapshot_every=snapshot_every,
            progress=progress,
            command=opt.command_line(out, resume=resume),
            doubts=doubted,
            elsewhere=elsewhere,
        )
    show(record, out)
    if gate is not None:
        apply_policy(gate, out, record.to_json(), explain=explain)
    if fail_on_leak and record.verdict.leaks:
        raise typer.Exit(LEAK_EXIT_CODE)
    if fail_on_leak and record.verdict.outcome == "not enough evidence":
        raise typer.Exit(DOUBT_EXIT_CODE)


def readable_or_asked(
    model: Path, given: Mapping[str, Any], out: Path, device: str
) -> AttackerView[Network] | MembershipReport:
    """What the user's code builds, as an attack reads it; where it can't, the answer to who was in training."""
    from engram.core.errors import ConfigError
    from engram.models.open.door import parse_shape
    from engram.models.open.modules import built_module, readable_view

    if stray := [name for name in ("arch", "activation", "head", "base", "base_seed") if given[name] is not None]:
        listed = ", ".join(f"--{name.replace('_', '-')}" for name in stray)
        raise ConfigError(f"{listed} does nothing with --model-code, which builds the model; leave it out")
    module = built_module(given["model_code"], model)
    shape = None if given["input_shape"] is None else parse_shape(given["input_shape"])
    records = loaded_records(model, given["task"] or "multiclass", given, shape)
    if records is None and given["input_shape"] is None:
        raise ConfigError("--model-code needs --data and --held-out, or --input-shape for a blind audit")
    view = readable_view(
        module, records[0].shape if records is not None else shape or (), given["task"], given["normalize"]
    )
    if not isinstance(view, str):
        return view
    if given["columns"] is not None:
        raise ConfigError(f"--columns does nothing for membership alone ({view}); leave it out")
    if records is None:
        raise ConfigError(f"{model} can only be audited for membership ({view}); give --data and --held-out")
    typer.echo(f"Only membership is audited: images can't be reconstructed, because {view}.")
    asked = {**given, "input_shape": None}
    with chosen_runner(given["jobs"] or 1, given["ray"], device) as run:
        return ask(module, records, name=str(model), given=asked, out=out, device=device, run=run, not_tried=view)


def show(record: AuditRecord, out: Path) -> None:
    """The verdict and where to read more."""
    colours = {"leak found": "red", "no leak found": "green"}
    colour = colours.get(record.verdict.outcome, "yellow")
    typer.secho(record.verdict.sentence, fg=colour, bold=True)
    for warning in () if record.comparison is None else record.comparison.warnings:
        typer.echo(f"note: {warning}")
    typer.echo(f"Open {out / 'report.html'}; for programs: {out / 'report.json'} and {out / 'risk.csv'}")


def chosen_data(
    model: Path, view: AttackerView[Network], given: Mapping[str, Any]
) -> tuple[Split | None, tuple[str, ...]]:
    """Training records and their control, or None for blind mode, and what they say about how the model was read.

    Options without effect are refused.
    """
    from dataclasses import replace

    from engram.auditing.comparison import audit_data
    from engram.auditing.preprocessing import chosen_preprocessing, doubts
    from engram.models.open.modules import as_module

    found = loaded_records(model, view.task.name, given, view.input_shape)
    if found is None:
        return None, ()
    data = audit_data(view, *found)
    chosen = chosen_preprocessing(
        as_module(view.network),
        view.task,
        data.train,
        data.held_out,
        given["mean"],
        view.normalization,
        view=view,
    )
    return replace(data, mean=chosen.mean), doubts(view, chosen, data.train)


DEMO_EXAMPLES = "Example: engram demo -o runs/demo"


def demo(
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Directory for the target, the audit and the picture.")
    ] = Path("runs/demo"),
) -> None:
    """Train a door's access classifier on 50 faces, then audit it: which faces do its weights give away?"""
    from engram.attacks.settings import EngineSettings
    from engram.training.presets import GATE

    run_demo(out, GATE, EngineSettings(restarts=4, steps=400))


def run_demo(out: Path, plan: Plan, settings: EngineSettings) -> None:
    """The demo with any target and effort."""
    from engram.attacks.registry import make_attack
    from engram.auditing.comparison import audit_data, inversion_settings
    from engram.auditing.run import run_audit
    from engram.models.open.door import open_view
    from engram.models.tasks import Binary
    from engram.pipeline import build_target
    from engram.training.recipe import training_progress

    target_directory, audit_directory = out / "target", out / "audit"
    for old in (target_directory, audit_directory):
        shutil.rmtree(old, ignore_errors=True)
    typer.echo(f"1. A door's access classifier learns {plan.data.n} faces: who is admitted, who is not.")
    data = plan.data.load()
    with progress_bar() as progress:
        build_target(
            plan.data,
            plan.network,
            plan.recipe,
            Binary(),
            directory=target_directory,
            observers=[training_progress(progress, plan.recipe)],
            data=data,
        )
    typer.echo("2. An attacker gets only its weights, and attacks.")
    view = open_view(target_directory)
    with progress_bar() as progress:
        record = run_audit(
            make_attack(view, settings=settings),
            audit_data(view, data.train, data.held_out),
            inversion=inversion_settings("quick"),
            name=str(target_directory),
            directory=audit_directory,
            progress=progress,
            command="engram demo",
        )
    typer.echo(f"   {record.attack.message}, {record.attack.seconds:.0f} s")
    typer.echo("3. The result is compared with these faces, and with faces that the classifier never saw.")
    assert record.comparison is not None
    report = record.comparison.score
    show_report(report)
    count = record.comparison.count
    typer.echo(
        f"{count.train} of the {len(report.train)} faces were read out of the weights, "
        f"against {count.held_out} of {plan.data.n} faces that it never saw."
    )
    picture = out / "faces.png"
    write_pairs(picture, report, data, best=plan.data.n)
    show(record, audit_directory)
    typer.echo(f"Open {picture}: each face read out of the weights is shown above the real one.")
