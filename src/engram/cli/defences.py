"""`engram harden`: mend a model that leaks; `engram defend`: train again under defences and compare them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli import options as opt
from engram.cli.data import loaded_records
from engram.cli.options import progress_bar, remember, remembered

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn

    from engram.data.sets import ImageSet
    from engram.defences.record import Hardening
    from engram.defences.table import DefenceTable

NOT_ACCEPTED_EXIT_CODE = 3
EXAMPLES = (
    "Examples: engram harden model.pt --input-shape 3x32x32 --data npz:train.npz --held-out npz:held.npz "
    "-o runs/safer; "
    "engram harden resnet.pt --model-code my_model.py:build --data folder:train --held-out folder:held "
    '--public folder:public --accept "members identified <= 1%" -o runs/safer; '
    'engram harden runs/gate --with-data --only "directions, rank" -o runs/safer'
)


def harden(
    context: typer.Context,
    model: opt.Model,
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory for the safer model and its reports.")],
    data: opt.DataName = None,
    held_out: opt.HeldOut = None,
    public: Annotated[
        str | None,
        typer.Option(
            "--public",
            metavar="NAME",
            help="Records of the same kind that may be known, to mend with; as --data. "
            "Default: half of the held-out records.",
        ),
    ] = None,
    accept: Annotated[
        str,
        typer.Option(
            "--accept",
            help="The risk that you accept: bounds on members identified, members identified at 1%, images, "
            "epsilon and auc, joined by commas.",
        ),
    ] = "members identified <= 5%, images = 0",
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            help="Kinds of mends to try (noise, shaped noise, directions, rank, round, prune, tune, distil, ...), "
            "or single ones with their strength, e.g. 'directions 80% + tune 20 epochs'. Default: all.",
        ),
    ] = None,
    model_code: opt.ModelCode = None,
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
    budget: Annotated[
        str, typer.Option("--budget", help="Time for each attack that reconstructs images, e.g. 60s or 5m.")
    ] = "60s",
    seed: Annotated[int, typer.Option("--seed", help="Of noise, fresh starts and the division of records.")] = 0,
    resume: opt.Resume = False,
) -> None:
    """Mend a model that leaks, without its training run, at the least cost in accuracy.

    Tries noise, rank truncation, rounding, pruning, removing directions that the data do not need, further
    training on public records, distillation, and combinations. Each is attacked anew, also by an attacker who
    knows how the weights were changed. Writes the safer model in the format it came in, hardening.json (what was
    done and every number), report.html, and the audits before and after. The exit code is 0 if the risk you accept
    was reached, 3 if not (then no model is written), 1 for an error.
    """
    from engram.core.errors import ConfigError
    from engram.core.files import write_bytes, write_json
    from engram.defences.exposure import Wish
    from engram.defences.harden import SEARCH_FILE, chosen_ladders
    from engram.defences.harden import harden as run_harden
    from engram.defences.record import hardening_page
    from engram.render.html import render

    given = remembered(context, out, resume=resume)
    Wish.parse(given["accept"])  # what can't be read is refused before anything is written
    chosen_ladders(given["only"])
    if not model.exists():
        raise ConfigError(f"there is no file {model}; check the path")
    if (out / SEARCH_FILE).exists() and not resume:
        raise ConfigError(
            f"{out} already contains a run; go on with --resume, or choose another directory with -o"
        )
    opened, shape = _model(model, given)
    records = loaded_records(model, given["task"] or _task_name(opened), given, shape)
    if records is None or records[1] is None:
        raise ConfigError(
            "mends are judged by your records and a control; give --data and --held-out, or --with-data"
        )
    known, seconds = _public(given, records[0], shape), opt.parse_seconds(given["budget"])
    remember(given, out, resume=resume)
    with progress_bar() as progress:
        found = run_harden(
            opened,
            records[0],
            records[1],
            public=known,
            accept=given["accept"],
            only=given["only"],
            seconds=seconds,
            seed=given["seed"],
            precision=_precision(model),
            task=given["task"],
            arch=given["arch"],
            input_shape=shape,
            activation=given["activation"],
            normalize=given["normalize"],
            head=given["head"],
            mean=given["mean"],
            directory=out,
            resume=resume,
            progress=progress,
            name=str(model),
            command=shlex.join(["engram", *sys.argv[1:]]),
        )
    found = _written(found, model, records[0], given, out)
    write_bytes(out / "report.html", render(hardening_page(found)).encode())
    write_json(out / "hardening.json", found.to_json())
    typer.secho(found.sentence, fg="green" if found.reached else "yellow", bold=True)
    for note in found.notes:
        typer.echo(f"note: {note}")
    if found.written is not None:
        typer.echo(f"wrote {found.written}")
    typer.echo(f"Open {out / 'report.html'}; for programs: {out / 'hardening.json'}")
    if not found.reached:
        raise typer.Exit(NOT_ACCEPTED_EXIT_CODE)


DEFEND_EXAMPLES = (
    "Examples: engram defend gate -o runs/defences; "
    "engram defend mlp --only dp-8,dropout,early --seeds 0,1,2 --jobs 2 -o runs/defences; "
    "engram defend head --data npz:embeddings.npz -n 200 -o runs/head-defences"
)


def defend(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="What to train: gate, mlp, cnn or head.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory for the table and the report.")],
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            help="Defences to try: dp-1, dp-3, dp-8, dp-50, dp-1000, decay-1e-3, decay-1e-2, early, longer, "
            "batch-10, batch-full, dropout, smoothing, mixup, augmented, more, narrow, big-start. Default: all "
            "that apply.",
        ),
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Trainings of each, e.g. 0,1,2.")] = "0,1,2",
    data: opt.DataName = None,
    n: opt.Number = None,
    labels: opt.Labels = None,
    data_root: opt.DataRoot = None,
    budget: Annotated[
        str, typer.Option("--budget", help="Time for each attack that reconstructs images; 0 for none.")
    ] = "30s",
    jobs: Annotated[int, typer.Option("-j", "--jobs", min=1, help="Processes that train side by side.")] = 1,
    ray: Annotated[str | None, typer.Option("--ray", help="A Ray cluster: auto, HOST:PORT, or local.")] = None,
    resume: opt.Resume = False,
) -> None:
    """Train a target again under each defence, attack every model, and set risk beside accuracy.

    Targets: the demo's gate, an MLP and a CNN with batch norm of CIFAR-10 images, and a head on your embeddings.
    For your own training use engram.defend from Python. Writes report.html (table and frontier), summary.json and
    defences.csv. Needs the extra `defence` for DP-SGD.
    """
    from engram.core.errors import ConfigError, require_jobs, whole_numbers
    from engram.core.files import write_bytes, write_json
    from engram.data.choice import DataChoice
    from engram.defences.defend import ROWS_FILE, planned
    from engram.defences.defend import defend as run_defend
    from engram.defences.table import defence_page
    from engram.defences.training import scenario_named
    from engram.render.html import render

    given = remembered(context, out, resume=resume)
    if jobs > 1 and ray is not None:
        raise ConfigError("--jobs does nothing with --ray, which fills the cluster; leave it out")
    usual = scenario_named(target).data
    choice = usual
    if given["data"] is not None or given["n"] is not None or given["labels"] is not None:
        if usual is None and (given["data"] is None or given["n"] is None):
            raise ConfigError(f"the target {target} needs --data and -n, the number of training records")
        choice = DataChoice(
            name=given["data"] or (usual.name if usual else ""),
            labels=given["labels"] or (usual.labels if usual and given["data"] is None else "identity"),
            n=given["n"] or (usual.n if usual else 0),
        )
    if (numbers := whole_numbers(str(given["seeds"]), ",")) is None:
        raise ConfigError(f"--seeds must be numbers joined by commas, got {given['seeds']!r}; for example 0,1,2")
    if (out / "report.html").exists() and not resume:
        raise ConfigError(f"{out} already contains a report; choose another directory with -o")
    seconds = opt.parse_seconds(given["budget"]) if given["budget"] not in ("0", "0s") else 0.0
    what = {"data": choice, "root": given["data_root"], "only": given["only"], "seeds": numbers}
    planned(target, **what, seconds=seconds)  # what is wrong is refused before anything is written
    require_jobs(jobs)
    remember(given, out, resume=resume)
    with progress_bar() as progress:
        table = run_defend(
            target,
            **what,
            seconds=seconds,
            jobs=jobs,
            ray=ray,
            directory=out,
            resume=resume,
            progress=progress,
            command=shlex.join(["engram", *sys.argv[1:]]),
        )
    write_bytes(out / "defences.csv", table.to_csv().encode())
    write_bytes(out / "report.html", render(defence_page(table)).encode())
    write_json(out / "summary.json", table.to_json())
    _show_table(table)
    typer.secho(table.sentence, bold=True)
    typer.echo(f"Open {out / 'report.html'}; for programs: {out / 'summary.json'}, {out / 'defences.csv'}")
    typer.echo(f"Every row is in {out / ROWS_FILE}, from which --resume goes on")


def _show_table(table: DefenceTable) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(
        "defence", "held-out accuracy", "members identified", "AUC", "epsilon at least", "images (held-out)"
    )
    for name, one in table.means().items():
        images = "" if one.images is None else f"{one.images} ({one.held_out_images})"
        cells = (f"{one.accuracy:.1%}", f"{one.members:.1%}", f"{one.auc:.2f}", f"{one.epsilon:.2f}", images)
        shown.add_row(name, *cells)
    Console().print(shown)


def _model(model: Path, given: Mapping[str, Any]) -> tuple[nn.Module | Path, tuple[int, ...] | None]:
    """What is mended, and the shape of its inputs where the options or the file tell."""
    from engram.core.errors import ConfigError
    from engram.models.open.door import parse_shape
    from engram.models.open.modules import built_module

    if given["model_code"] is None:
        if given["input_shape"] is None and not model.is_dir():
            return model, None
        view = opt.opened_view(model, given)
        opt.show_notes(view)
        return model, view.input_shape
    if stray := [name for name in ("arch", "activation", "head") if given[name] is not None]:
        listed = ", ".join(f"--{name}" for name in stray)
        raise ConfigError(f"{listed} does nothing with --model-code, which builds the model; leave it out")
    shape = None if given["input_shape"] is None else parse_shape(given["input_shape"])
    return built_module(given["model_code"], model), shape


def _task_name(opened: nn.Module | Path) -> str:
    """Which label map fits by default: that of the card's task, else classes."""
    from engram.models.open.door import PublicCard

    return (PublicCard.of(opened).task if isinstance(opened, Path) else None) or "multiclass"


def _public(given: Mapping[str, Any], train: ImageSet, shape: tuple[int, ...] | None) -> ImageSet | None:
    from engram.cli.data import AskedData
    from engram.data.catalog import sized
    from engram.data.choice import labelled

    if given["public"] is None:
        return None
    asked = AskedData(data=given["public"], n=None)
    task = "binary" if len(train.classes) == 2 else "multiclass"
    labels = given["labels"] or asked.labels_for(task)
    return labelled(sized(given["public"], shape or train.shape), labels, given["classes"], given["data_root"])


def _precision(model: Path) -> torch.dtype | None:
    """That of a half-precision file, in which the mended weights have to be written."""
    from engram.core.errors import EngramError
    from engram.models.open.door import MODEL_FILE
    from engram.models.open.files import read_state

    try:
        state = read_state(model / MODEL_FILE if model.is_dir() else model)
    except EngramError:
        return None
    kinds = {value.dtype for value in state.values() if value.is_floating_point() and value.ndim > 1}
    return next(iter(kinds)) if len(kinds) == 1 and next(iter(kinds)).itemsize < 4 else None


def _written(found: Hardening, model: Path, train: ImageSet, given: Mapping[str, Any], out: Path) -> Hardening:
    """The mended model in the format that it came in, opened again to see what it is worth."""
    import io
    from dataclasses import asdict, replace

    import torch

    from engram.core.files import write_bytes, write_json
    from engram.models.open.door import CARD_FILE, MODEL_FILE, open_view
    from engram.models.open.files import rewritten
    from engram.models.open.modules import as_module, built_module
    from engram.training.target import card_of, measure

    if found.model is None or found.after is None:
        return found
    source = model / MODEL_FILE if model.is_dir() else model
    made = rewritten(source, found.changes)
    path, notes = out / source.name, found.notes
    if made is None:
        stream = io.BytesIO()
        torch.save(found.model.state_dict(), stream)
        path, made = out / f"{source.stem}.pt", (stream.getvalue(), [])
        notes = (*notes, f"{source.name} can't be written as it was; {path.name} is a state_dict of its layers.")
    if made[1]:
        left = ", ".join(made[1])
        notes = (*notes, f"Left out of {path.name}, because traces of the training records may be in it: {left}.")
    write_bytes(path, made[0])
    if model.is_dir() and (card := card_of(model)) is not None:
        write_json(out / CARD_FILE, asdict(card))  # the network opens with it
        trained = measure(open_view(out).network, found.task, found.preprocessing(train.images), train.labels)
        card = replace(card, train=trained, held_out=None, test=None, test_images=0)
        write_json(out / CARD_FILE, asdict(card))
        path = out
    if given["model_code"] is None:
        how = {name: given.get(name) for name in opt.OPENING}
        how["input_shape"] = None if path.is_dir() else found.parts.judging.shape
        again: nn.Module = as_module(open_view(path, **how).network)
    else:
        again = built_module(given["model_code"], path)
    return replace(found, written=str(path), written_accuracy=found.accuracy_of(again), notes=notes)
