"""`engram reproduce`: every figure and table of the papers by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engram.cli import options as opt
from engram.cli.options import progress_bar

if TYPE_CHECKING:
    from engram.papers.cases import Setting
    from engram.papers.catalogue import Experiment


EXAMPLES = (
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
