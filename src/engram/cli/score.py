"""`engram score`: compare a reconstruction with the data it may have come from; `engram reproduce`: every figure
and table of the papers by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engram.cli import options as opt
from engram.cli.data import AskedData, card_data
from engram.cli.options import progress_bar

if TYPE_CHECKING:
    from engram.data.choice import DataChoice
    from engram.data.sets import Split
    from engram.models.networks import Network
    from engram.models.view import AttackerView
    from engram.papers.cases import Setting
    from engram.papers.catalogue import Experiment
    from engram.scoring.protocols import ScoringProtocol
    from engram.scoring.report import ScoreReport


EXAMPLES = (
    "Examples: engram score runs/audit --data cifar10 -n 500; "
    "engram score runs/gate/attack (takes the data from the model's card)"
)

CONFIDENT = 20
"""The command prints how many of this many most confident candidates are real."""


def score(
    run: Annotated[Path, typer.Argument(help="A directory from `engram reconstruct`, `audit` or `sweep`.")],
    data: opt.DataName = None,
    n: opt.Number = None,
    labels: opt.Labels = None,
    classes: opt.Classes = None,
    data_root: opt.DataRoot = None,
    data_seed: opt.DataSeed = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol", help="How images are matched: buzaglo2023 (default) or haim2022; vectors have their own."
        ),
    ] = None,
    ratio: Annotated[
        float | None,
        typer.Option(
            "--ratio",
            metavar="B",
            min=1.0,
            help="buzaglo2023 averages candidates within B times the nearest distance (1.1; convolutional 1.5).",
        ),
    ] = None,
    assignment: Annotated[
        str, typer.Option("--assignment", help="nearest, or one-to-one: use each candidate once.")
    ] = "nearest",
    best: Annotated[int, typer.Option("--best", min=1, help="How many pairs to draw.")] = 45,
) -> None:
    """Count recovered training images, with held-out images and noise for comparison, and draw the best pairs."""
    from engram.attacks.reconstruction import Reconstruction
    from engram.core.errors import ConfigError
    from engram.core.files import write_json
    from engram.core.runs import RunDirectory
    from engram.data.sets import centred
    from engram.pipeline import compare, default_protocol
    from engram.scoring.curves import reliability
    from engram.scoring.protocols import Buzaglo2023Protocol, Haim2022Protocol

    if protocol not in (None, "buzaglo2023", "haim2022"):
        raise ConfigError(f"--protocol must be one of buzaglo2023, haim2022, got {protocol!r}")
    if ratio is not None and protocol == "haim2022":
        raise ConfigError("--ratio does nothing with --protocol haim2022; leave it out")
    if assignment not in ("nearest", "one-to-one"):
        raise ConfigError(f"--assignment must be nearest or one-to-one, got {assignment!r}")
    found = Reconstruction.load(RunDirectory(run).reconstruction)
    asked = AskedData(data=data, n=n, labels=labels, classes=classes, data_seed=data_seed)
    choice, view = _data_choice(run, asked)
    network, split = None if view is None else view.network, choice.load(data_root)
    if view is not None and view.normalization is not None:
        split = replace(split, mean=view.normalization.mean_of(view.input_shape))
    is_image = split.train.images.ndim == 4
    if (protocol is not None or ratio is not None) and not is_image:
        option = "--ratio" if protocol is None else f"--protocol {protocol}"
        raise ConfigError(f"{option} matches images, but {choice.name} contains vectors; leave it out")
    chosen: ScoringProtocol = default_protocol(split.train.images, network)
    if protocol == "haim2022":
        chosen = Haim2022Protocol()
    elif ratio is not None:
        chosen = Buzaglo2023Protocol(B=ratio)
    report = compare(
        found,
        split,
        network=network,
        protocol=chosen,
        assignment="nearest" if assignment == "nearest" else "one-to-one",
    )
    unseen = centred(split.held_out.images, split.mean) if len(split.held_out) else None
    checked = reliability(found, centred(split.train.images, split.mean), unseen)
    context = {"data": vars(choice), "reliability": None if checked is None else checked.to_json()}
    write_json(run / "scores.json", {**context, **report.to_json(records=True)})
    show_report(report)
    if checked is not None:
        typer.echo(next((one for one in checked.precision if one.k == CONFIDENT), checked.precision[-1]).sentence)
    typer.echo(f"wrote {run / 'scores.json'}")
    if is_image:
        write_pairs(run / "pairs.png", report, split, best)
        typer.echo(f"wrote {run / 'pairs.png'}")


def show_report(report: ScoreReport) -> None:
    """The counts as a table, each next to its null."""
    from rich.console import Console
    from rich.table import Table

    n = len(report.train)
    table = Table("recovered", f"of {n} training", "of held-out", "excess", "from noise")
    for text, row in report.counts.items():
        held_out = "unknown" if row.held_out is None else str(row.held_out)
        excess = "unknown" if row.excess is None else f"{row.excess:g}"
        table.add_row(text, str(row.train), held_out, excess, str(row.noise))
    console = Console()
    console.print(table)
    mean = "-" if report.top10_mean is None else f"{report.top10_mean:.3f}"
    console.print(
        f"{report.candidates} candidates; mean {report.train.primary} of the ten best {mean}; "
        f"scored in {report.seconds:.1f} s. The excess over held-out is what was recovered."
    )
    for warning in report.warnings:
        console.print(f"note: {warning}")


def write_pairs(path: Path, report: ScoreReport, split: Split, best: int) -> None:
    """The best reconstructions above their training images."""
    from engram.core.files import write_bytes
    from engram.render.figures import Pair, pairs_figure

    table = report.train.top(best)
    assert table.ssim is not None
    pairs = [
        Pair(reconstruction, split.train.images[sample], f"{ssim:.2f}")
        for reconstruction, sample, ssim in zip(
            table.reconstruction, table.sample.tolist(), table.ssim.tolist(), strict=True
        )
    ]
    title = f"{split.train.name}: the {len(pairs)} best of {len(report.train)} training images, with SSIM"
    write_bytes(path, pairs_figure(pairs, title=title))


def _data_choice(run: Path, asked: AskedData) -> tuple[DataChoice, AttackerView[Network] | None]:
    """The data named by the options, else by the card of the model that the run attacked."""
    from engram.core.errors import EngramError
    from engram.core.runs import read_record
    from engram.models.open.door import open_recorded

    record = read_record(run)
    model = Path(str(record.get("model", "")))
    try:
        view = open_recorded(record)
    except EngramError:
        view = None  # the model was moved: its outputs are left out of the table
    named = asked.choice(model, str(record.get("task", "")))
    return named or card_data(model, "scoring without --data"), view


REPRODUCE_EXAMPLES = (
    "Examples: engram reproduce --list; engram reproduce haim/fig2 -o runs/papers; "
    "engram reproduce haim/fig4 --scale smoke -o runs/smoke; "
    "engram reproduce all --scale cpu -o runs/papers; "
    "engram reproduce results -o runs/papers --markdown docs/results.md"
)
DEFAULT_OUT = Path("runs/papers")


def reproduce(
    experiment: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="An id from --list; all; or results: write page and Markdown again, from the JSON only.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Directory for cases, figures and numbers; finished ones are kept.")
    ] = DEFAULT_OUT,
    scale: Annotated[
        str, typer.Option("--scale", help="smoke (seconds), cpu (smaller; prints the cuts) or paper (full size).")
    ] = "cpu",
    recipe: Annotated[
        str,
        typer.Option("--recipe", help="engine, or haim2022, the published scheme (several classes: buzaglo2023)."),
    ] = "engine",
    seed: Annotated[int, typer.Option("--seed", help="Seed of networks and attacks.")] = 0,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="With all and results: where to write the Markdown.")
    ] = None,
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Store and reuse targets by content.")] = True,
    show_list: Annotated[bool, typer.Option("--list", help="List the experiments and exit.")] = False,
    data_root: opt.DataRoot = None,
    device: opt.Device = "cpu",
) -> None:
    """Train, attack, score and draw experiments of the papers; the same command resumes a killed run."""
    from engram.core.errors import ConfigError

    if show_list:
        _list()
        return
    if experiment is None:
        raise ConfigError("there is no experiment to run; give an id from `engram reproduce --list`, or all")
    if markdown is not None and experiment not in ("all", "results"):
        raise ConfigError("--markdown can only be used with all and results; leave it out")
    if experiment == "results":
        _publish(out, markdown)
        return
    from engram.papers.cases import Means, Setting
    from engram.papers.catalogue import CATALOGUE, experiment_named
    from engram.training.target import TargetCache, cache_root

    means = Means(
        device=opt.check_device(device),
        data_root=data_root,
        cache=TargetCache(cache_root()) if cache else None,
    )
    setting = Setting(scale=scale, recipe=recipe, seed=seed, means=means)  # type: ignore[arg-type]  # checked there
    everything = experiment == "all"
    chosen = list(CATALOGUE.values()) if everything else [experiment_named(experiment)]
    failed = _run(chosen, setting, out, keep_going=everything)
    _publish(out, markdown)
    if failed:
        typer.secho(f"error: {failed} of {len(chosen)} experiments failed; see above", fg="red", err=True)
        raise typer.Exit(1)


def _run(chosen: list[Experiment], setting: Setting, out: Path, *, keep_going: bool) -> int:
    """Run the experiments; how many failed."""
    from engram.papers.catalogue import Run

    with progress_bar() as progress:
        run = Run(out, setting, typer.echo, progress)
        records = run.experiments(chosen, keep_going=keep_going)
    return sum(record["failed"] is not None for record in records)


def _publish(out: Path, markdown: Path | None) -> None:
    from engram.papers.results import publish

    page, text = publish(out, markdown)
    typer.echo(f"wrote {page} and {text}")


def _list() -> None:
    from engram.papers.catalogue import CATALOGUE

    for experiment in CATALOGUE.values():
        presets = ", ".join(dict.fromkeys(case.preset for case in experiment.cases))
        typer.echo(f"{experiment.id:14s} {experiment.title}  ({presets})")
    typer.echo("scales: smoke, cpu, paper; e.g. engram reproduce haim/fig1 --scale cpu -o runs/papers")
