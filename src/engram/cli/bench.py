"""`engram bench`: the published scheme and the engine side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli.bars import progress_bar
from engram.cli.options import DataName, DataRoot, Labels, Number, parse_seconds

if TYPE_CHECKING:
    from engram.models.networks import Network
    from engram.models.view import AttackerView
    from engram.papers.race import Curve, Race, RaceSettings
    from engram.training.target import Card


EXAMPLES = (
    "Examples: engram bench -o runs/bench; engram bench runs/gate --published-seconds 300 -o runs/bench; "
    "engram bench --data cifar10 -n 100 --budget 60s -o runs/bench100"
)
INTERRUPTED = 130


def bench(
    model: Annotated[
        Path | None,
        typer.Argument(help="A directory of `engram train`; else a target is trained, by default the demo's."),
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory for numbers and plot.")] = Path("runs/bench"),
    data: DataName = None,
    labels: Labels = None,
    n: Number = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="Epochs of training (4000).")] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="Learning rate of training (0.02).")] = None,
    data_root: DataRoot = None,
    published_seconds: Annotated[
        float | None, typer.Option("--published-seconds", help="Seconds for the published scheme (60).")
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", help="Time that the engine plans with: 30s, 5m (30s).")
    ] = None,
    metric: Annotated[
        str | None, typer.Option("--metric", help="Of the headline ratio: ncc>0.8 or ssim>0.4 (ncc>0.8).")
    ] = None,
) -> None:
    """Run the published scheme and the engine on the same weights: seconds a step, images over time, ratio.

    Without MODEL a target like the demo's is trained: 50 faces unless --data and -n say otherwise.
    Writes bench.json and bench.png. Ctrl-C keeps what was measured so far.
    """
    from engram.core.errors import ConfigError
    from engram.core.files import prepare_directory

    training = {"--data": data, "--labels": labels, "-n": n, "--epochs": epochs, "--lr": lr}
    if stray := [name for name, value in training.items() if model is not None and value is not None]:
        raise ConfigError(f"{', '.join(stray)} does nothing beside the finished target {model}; leave it out")
    settings = _settings(published_seconds, budget, metric)
    prepare_directory(out)
    view, card = _finished(model) if model is not None else _train(training, data_root)
    if not _race(view, card, settings, out, data_root):
        typer.echo("interrupted: only what was measured so far is written", err=True)
        raise typer.Exit(INTERRUPTED)


def _settings(published_seconds: float | None, budget: str | None, metric: str | None) -> RaceSettings:
    from engram.papers.race import RaceSettings

    given: dict[str, Any] = {"published_seconds": published_seconds, "metric": metric}
    given["budget_seconds"] = None if budget is None else parse_seconds(budget)
    return RaceSettings(**{name: value for name, value in given.items() if value is not None})


def _finished(model: Path) -> tuple[AttackerView[Network], Card]:
    """A target that engram trained, as an attacker sees it, with the card that says what to score against."""
    from engram.core.errors import ConfigError
    from engram.models.open.door import open_view
    from engram.training.target import card_of

    card = card_of(model)
    if card is None:
        raise ConfigError(f"{model} does not say what it was trained on; give a directory of `engram train`")
    return open_view(model), card


def _train(chosen: dict[str, Any], root: Path | None) -> tuple[AttackerView[Network], Card]:
    """The demo's target, or one like it on other data."""
    from dataclasses import replace

    from engram.data.catalog import default_labels
    from engram.models.open.door import open_view
    from engram.models.tasks import Binary
    from engram.pipeline import build_target
    from engram.training.presets import GATE, GATE_NETWORK
    from engram.training.recipe import training_progress

    given = {option.lstrip("-"): value for option, value in chosen.items() if value is not None}
    choice = GATE.data
    if "data" in given:
        choice = replace(choice, name=given["data"], labels=default_labels(given["data"]))
    choice = replace(choice, **{name: given[name] for name in ("labels", "n") if name in given})
    recipe = replace(GATE.recipe, **{name: given[name] for name in ("epochs", "lr") if name in given})
    data = choice.load(root)
    network = replace(GATE_NETWORK, inputs=data.train.images[0].numel())
    with progress_bar() as progress:
        target = build_target(
            choice, network, recipe, Binary(), observers=[training_progress(progress, recipe)], data=data
        )
    assert target.card is not None
    return open_view(target.network, input_shape=target.card.input_shape, task="binary"), target.card


def _race(view: AttackerView[Network], card: Card, settings: RaceSettings, out: Path, root: Path | None) -> bool:
    """Run, write and show; whether the run was not cut short."""
    from engram.core.files import write_bytes, write_json
    from engram.papers.race import run_race

    def keep(race: Race) -> None:
        write_json(out / "bench.json", race.to_json())
        write_bytes(out / "bench.png", race.figure())

    data = card.data.load(root)
    with progress_bar() as progress:
        race = run_race(view, data, settings, data_name=card.data.name, progress=progress, keep=keep)
    keep(race)
    _show(race)
    typer.echo(f"wrote {out / 'bench.json'} and {out / 'bench.png'}")
    return not race.is_interrupted


def _show(race: Race) -> None:
    from rich.console import Console
    from rich.table import Table

    from engram.core.runs import busy_note
    from engram.papers.race import METRICS

    table = Table("scheme", "seconds a step", "steps", "seconds", *METRICS)
    for name, one in (("published", race.published), ("engine", race.engine)):
        if one is None:
            continue
        each = "-" if one.seconds_per_step is None else f"{one.seconds_per_step:.4f}"
        best = [_best(one.curve(metric)) for metric in METRICS]
        table.add_row(name, each, f"{one.steps:,}", f"{one.seconds:.1f}", *best)
    console = Console()
    console.print(table)
    console.print("counts: images beyond held-out at the random start -> at the best moment")
    headline = race.settings.metric
    for metric in sorted(METRICS, key=lambda metric: metric != headline):
        console.print(race.ratio(metric).sentence, style="bold" if metric == headline else None)
    if race.published is not None and race.paper_run_seconds is not None:
        whole, minutes = race.published.total_steps, race.paper_run_seconds / 60
        console.print(f"computed, not measured: the authors' {whole:,} steps would take {minutes:.0f} min")
    if (note := busy_note()) is not None:
        console.print(f"note: {note}")


def _best(curve: Curve) -> str:
    return f"{curve[0][1]:g} -> {max(excess for _, excess in curve):g}" if curve else "-"
