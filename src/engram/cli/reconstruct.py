"""`engram reconstruct`: read training images out of a model's weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli import options as opt
from engram.cli.options import progress_bar, remember, remembered

if TYPE_CHECKING:
    from engram.models.tasks import Task

EXAMPLES = (
    "Examples: engram reconstruct model.pt --input-shape 3x32x32 -o runs/audit; "
    "engram reconstruct runs/gate --recipe haim2022 --candidates 100 --steps 3000 -o runs/published; "
    "engram reconstruct runs/gate --recipe haim2022 --set lr_images=0.1 --set relu_slope=50 -o runs/slope; "
    "engram reconstruct runs/five --recipe buzaglo2023 --budget 1h -o runs/classes"
)
ENGINE, PUBLISHED = "engine only", "haim2022 and buzaglo2023 only"


def reconstruct(
    context: typer.Context,
    model: opt.Model,
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory of the run.")],
    input_shape: opt.InputShape = None,
    arch: opt.Arch = None,
    activation: opt.ActivationName = None,
    normalize: opt.Normalize = None,
    head: opt.Head = None,
    base: opt.Base = None,
    base_seed: opt.BaseSeed = None,
    task: opt.TaskName = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            help="engine (the default), or the published schemes, unchanged: haim2022 (binary), buzaglo2023 (all "
            "tasks).",
        ),
    ] = None,
    candidates: Annotated[
        int | None,
        typer.Option("--candidates", "-m", help="How many; the engine derives it from the weights by default."),
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Steps (engine: per restart).")] = None,
    budget: opt.Time = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Random seed.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="float32, or float64 as in the papers.")] = None,
    settings: opt.Set = None,
    restarts: Annotated[
        int | None,
        typer.Option("--restarts", help="Number of independent starts, pooled.", rich_help_panel=ENGINE),
    ] = None,
    prior: Annotated[
        str | None,
        typer.Option(
            "--prior", help="Strength of total variation; none for no image prior.", rich_help_panel=ENGINE
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            help="Memory for wide networks besides their weights, 4GB by default; beyond it neurons share metrics "
            "and candidates are processed in chunks.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    known: Annotated[
        str | None,
        typer.Option(
            "--settings",
            help="The authors' settings to start from: cifar10, mnist, multiclass, regression, each also with -b.",
            rich_help_panel=PUBLISHED,
        ),
    ] = None,
    device: opt.Device = "cpu",
    resume: opt.Resume = False,
    snapshot_every: opt.SnapshotEvery = 20.0,
) -> None:
    """Reconstruct training images from the weights alone; needs no training data."""
    from engram.attacks.registry import make_attack
    from engram.core.progress import by_steps
    from engram.pipeline import attack

    given = remembered(context, out, resume=resume)
    view = opt.opened_view(model, given)
    seconds = None if budget is None else opt.parse_seconds(budget)
    chosen = make_attack(
        view.to(opt.check_device(device)),
        given["recipe"],
        _settings(given, view.task),
        budget=seconds,
        resume_from=out if resume else None,
    )
    remember(given, out, resume=resume)
    opt.show_notes(view)
    with progress_bar() as progress:
        found, solution = attack(
            chosen,
            seconds=seconds,
            directory=out,
            model=str(model),
            resume=resume,
            snapshot_every=snapshot_every,
            observers=[by_steps(progress, "reconstructing", chosen.total_steps)],
        )
    typer.echo(f"{len(found)} candidates from {view.network.name}: {solution.message}, {solution.seconds:.0f} s")
    if found.has_confidence:
        sure, likely = (found.count_above(level) for level in (0.9, 0.5))
        typer.echo(
            f"judged without any data: {sure} of them show a training image at 90 % confidence, {likely} at 50 %"
        )
    typer.echo(f"wrote {out}; compare with your data: engram score {out} --data ... -n ...")


def _settings(given: dict[str, Any], task: Task) -> dict[str, Any]:
    """The settings from the options; an option that the recipe does not use is refused by name."""
    from dataclasses import asdict

    from engram.attacks.registry import RECIPES, choose_settings, parse_setting
    from engram.core.errors import ConfigError, require

    recipe = given["recipe"] or "engine"
    require(recipe in RECIPES, "--recipe", f"must be one of {', '.join(RECIPES)}", recipe)
    chosen = {name: given[name] for name in ("candidates", "steps", "seed", "dtype") if given[name] is not None}
    only = {"--restarts": given["restarts"], "--prior": given["prior"], "--memory": given["memory"]}
    if recipe != "engine":
        if stray := [name for name, value in only.items() if value is not None]:
            raise ConfigError(f"{', '.join(stray)} can't be used with --recipe {recipe}; leave it out")
    else:
        if given["known"] is not None:
            raise ConfigError("--settings can't be used with --recipe engine; leave it out")
        parsed = {
            "restarts": given["restarts"],
            "prior": _prior(given["prior"]),
            "memory": None if given["memory"] is None else opt.parse_bytes(given["memory"]),
        }
        chosen |= {name: value for name, value in parsed.items() if value is not None}
    for text in given["settings"] or ():
        name, value = parse_setting(recipe, text)
        if name in chosen:
            raise ConfigError(f"--set {name} and --{name} set the same value; give one of them")
        chosen[name] = value
    if given["known"] is not None:  # the named settings also fill in what was not given
        chosen = asdict(choose_settings(recipe, task, chosen, known=given["known"]))
    return chosen


def _prior(text: str | None) -> float | None:
    from engram.core.errors import ConfigError

    if text is None:
        return None
    try:
        return 0.0 if text == "none" else float(text)
    except ValueError as error:
        raise ConfigError(f"--prior must be a number or none, got {text!r}") from error
