"""`engram membership`: which records were in training, asked of any PyTorch model's weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli import options as opt
from engram.cli.data import loaded_records
from engram.cli.options import progress_bar, remember, remembered
from engram.cli.report import DOUBT_EXIT_CODE, LEAK_EXIT_CODE, apply_policy, chosen_policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from engram.auditing.membership_report import MembershipReport
    from engram.data.sets import ImageSet
    from engram.members.scores import Runner
    from engram.models.networks import Network
    from engram.models.view import AttackerView

EXAMPLES = (
    "Examples: engram membership model.pt --input-shape 3x32x32 --data npz:train.npz --held-out npz:held.npz "
    "-o runs/members; "
    "engram membership resnet.pt --model-code my_model.py:build --data folder:train --held-out folder:held "
    "-o runs/members; "
    "engram membership base.pt --model-code my_model.py:build --adapter my_adapter --data folder:train "
    "--held-out folder:held -o runs/members; "
    "engram membership runs/gate --with-data -o runs/members"
)


def membership(
    context: typer.Context,
    model: opt.Model,
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory for the report and its files.")],
    data: opt.DataName = None,
    held_out: opt.HeldOut = None,
    model_code: opt.ModelCode = None,
    adapter: Annotated[
        Path | None,
        typer.Option(
            "--adapter",
            help="A LoRA adapter of PEFT for MODEL, the base: which records was the adapter trained on? Its "
            "layers are found by name, so it needs --model-code.",
        ),
    ] = None,
    input_shape: opt.InputShape = None,
    arch: opt.Arch = None,
    activation: opt.ActivationName = None,
    normalize: opt.Normalize = None,
    head: opt.Head = None,
    task: opt.TaskName = None,
    n: opt.Number = None,
    labels: opt.Labels = None,
    classes: opt.Classes = None,
    data_root: opt.DataRoot = None,
    data_seed: opt.DataSeed = None,
    with_data: opt.WithData = False,
    held_out_n: opt.HeldOutNumber = None,
    mean: opt.Mean = "auto",
    batch: Annotated[int, typer.Option("--batch", min=1, help="Records per pass.")] = 64,
    fail_on_leak: Annotated[
        bool, typer.Option("--fail-on-leak", help="Exit with 3 if a leak is found, for CI.")
    ] = False,
    policy: opt.PolicyFile = None,
    explain: opt.Explain = False,
    jobs: Annotated[
        int, typer.Option("-j", "--jobs", min=1, help="Processes; the result is the same for any number.")
    ] = 1,
    ray: Annotated[str | None, typer.Option("--ray", help="A Ray cluster: auto, HOST:PORT, or local.")] = None,
    device: opt.Device = "cpu",
    resume: opt.Resume = False,
    snapshot_every: opt.SnapshotEvery = 20.0,
) -> None:
    """Which of your records were in training? Asked of the weights of any PyTorch model, with a control.

    No shadow models are trained. Writes report.html, membership.json and membership.csv (a score and a p-value for
    every record). Without -n, all records of --data are training records and all of --held-out are controls. The
    exit code is 0 whatever is found; with --fail-on-leak 3 for a leak and 4 if the model was probably read
    wrongly; with --policy 3 for fail and 4 for not enough evidence; 1 for an error.
    """
    from engram.core.errors import ConfigError

    given = remembered(context, out, resume=resume)
    gate = chosen_policy(given["policy"], explain=explain, fail_on_leak=fail_on_leak)
    module, view = opened(model, given)
    meaning = given["task"] if view is None else view.task.name
    shape = None if view is None else view.input_shape
    records = loaded_records(model, meaning or "multiclass", given, shape)
    if records is None:
        raise ConfigError("there are no records to ask about; give --data and --held-out, or --with-data")
    asked = {**given, "task": meaning, "input_shape": None if view is None else view.input_shape}
    with chosen_runner(jobs, ray, device) as run:
        report = ask(
            module,
            records,
            name=str(model),
            given=asked,
            out=out,
            device=device,
            view=view,
            run=run,
            options=given,
        )
    if gate is not None:
        apply_policy(gate, out, report.to_json(), explain=explain)
    if fail_on_leak and report.record.leaks:
        raise typer.Exit(LEAK_EXIT_CODE)
    if fail_on_leak and report.doubts:
        raise typer.Exit(DOUBT_EXIT_CODE)


def ask(
    module: nn.Module,
    records: tuple[ImageSet, ImageSet | None],
    *,
    name: str,
    given: Mapping[str, Any],
    out: Path,
    device: str,
    not_tried: str | None = None,
    view: AttackerView[Network] | None = None,
    run: Runner | None = None,
    options: Mapping[str, Any] | None = None,
) -> MembershipReport:
    """Run the test, write its files and print the answer; `options` are what --resume remembers."""
    from engram.auditing.membership_report import SNAPSHOT_FILE, run_membership
    from engram.core.errors import ConfigError
    from engram.members.scores import in_process

    if (out / "membership.json").exists():
        raise ConfigError(f"{out} already contains a membership report; choose another directory with -o")
    resume = bool(given["resume"])
    if (out / SNAPSHOT_FILE).exists() and not resume:
        raise ConfigError(f"{out} contains an unfinished run; go on with --resume, or choose another with -o")
    train, control = records
    if control is None:
        raise ConfigError("without a control no score means anything; give held-out records with --held-out")
    opt.check_device(device)
    remember(given if options is None else options, out, resume=resume)
    if view is not None:
        opt.show_notes(view)
    with progress_bar() as progress:
        report = run_membership(
            module.to(device),
            train,
            control,
            name=name,
            task=given["task"],
            input_shape=given["input_shape"],
            mean=given["mean"],
            normalize=given["normalize"],
            view=view,
            adapter=None if given.get("adapter") is None else Path(given["adapter"]),
            batch=given.get("batch", 64),
            command=opt.command_line(out, resume=resume),
            not_tried=not_tried,
            run=run or in_process,
            directory=out,
            resume=resume,
            snapshot_every=given["snapshot_every"],
            progress=progress,
        )
    report.save(out)
    show(report, out)
    return report


@contextmanager
def chosen_runner(jobs: int, ray: str | None, device: str) -> Iterator[Runner]:
    from engram.core.errors import ConfigError
    from engram.members.scores import Forked, in_process

    if ray is not None:
        from engram.sweep.executors import RayChunks

        if jobs > 1:
            raise ConfigError("--jobs does nothing with --ray, which fills the cluster; leave it out")
        with RayChunks(ray) as cluster:
            yield cluster
        return
    if jobs > 1 and device != "cpu":
        raise ConfigError(f"--jobs splits the work between processors, but --device is {device}; leave one out")
    yield in_process if jobs == 1 else Forked(jobs)


def opened(model: Path, given: Mapping[str, Any]) -> tuple[nn.Module, AttackerView[Network] | None]:
    """The model as a module, and what a file that specifies its layers says about it."""
    from engram.core.errors import ConfigError
    from engram.models.open.modules import as_module, built_module

    if given["model_code"] is None:
        if given.get("adapter") is not None:
            raise ConfigError(
                "--adapter names the layers of the base model; give the code that builds it with --model-code "
                "FILE.py:FUNCTION"
            )
        view = opt.opened_view(model, given)
        return as_module(view.network), view
    if stray := [name for name in ("input_shape", "arch", "activation", "head") if given[name] is not None]:
        listed = ", ".join(f"--{name.replace('_', '-')}" for name in stray)
        raise ConfigError(f"{listed} does nothing with --model-code, which builds the model; leave it out")
    return built_module(given["model_code"], model), None


def show(report: MembershipReport, out: Path) -> None:
    """The answer, what makes it doubtful, and where to read more."""
    record = report.record
    colour = "yellow" if report.doubts else "red" if record.leaks else "green"
    typer.secho(report.sentence, fg=colour, bold=True)
    for rate, name in ((0.0, "no"), (0.01, "1 %")):
        bounds = record.bounds(rate)
        typer.echo(
            f"  {name} false alarms: {bounds.rate:.1%} of the members identified "
            f"({bounds.low:.1%} to {bounds.high:.1%})"
        )
    typer.echo(f"  epsilon is at least {record.epsilon_lower:.2f}, at 95 % confidence; {record.seconds:.1f} s")
    for warning in report.warnings:
        typer.secho(f"warning: {warning}", fg="yellow")
    typer.echo(f"Open {out / 'report.html'}; for programs: {out / 'membership.json'}, {out / 'membership.csv'}")
