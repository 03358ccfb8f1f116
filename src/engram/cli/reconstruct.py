"""`engram reconstruct`: read training images out of a model's weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli.bars import progress_bar
from engram.cli.options import (
    Arch,
    Device,
    InputShape,
    Model,
    Resume,
    SnapshotEvery,
    TaskName,
    Time,
    check_device,
    parse_bytes,
    parse_seconds,
)
from engram.cli.resume import same_model, same_settings, view_options
from engram.cli.target import attacker_view, opened

if TYPE_CHECKING:
    from engram.attacks.reconstruction import Attack
    from engram.attacks.settings import Haim2022
    from engram.models.networks import Network
    from engram.models.view import AttackerView


def engine_scheme(
    view: AttackerView[Network], given: dict[str, Any], seconds: float | None, resumed: Path | None
) -> Attack:
    """A budget becomes a plan once; a resumed run keeps the plan in its run.json."""
    from engram.attacks.registry import engine_for
    from engram.attacks.settings import EngineSettings
    from engram.core.errors import ConfigError
    from engram.core.runs import read_settings

    chosen = {name: value for name, value in given.items() if value is not None}
    settings = EngineSettings(**chosen)
    if resumed is not None:
        stored = read_settings(resumed, EngineSettings)
        same_settings(resumed, stored, given)
        return engine_for(view, stored)
    if seconds is not None and ("steps" in chosen or "restarts" in chosen):
        raise ConfigError("--budget plans --steps and --restarts itself; give one or the other")
    return engine_for(view, settings, seconds)


def published_scheme(
    view: AttackerView[Network], recipe: str, given: dict[str, Any], resumed: Path | None
) -> Attack:
    """The scheme with the settings named in `given["settings"]`, by default those for the view's task.

    A resumed run keeps its settings; what is given besides must be among them.
    """
    from dataclasses import asdict

    from engram.attacks.published import PublishedScheme
    from engram.attacks.settings import KNOWN_SETTINGS, Buzaglo2023, Haim2022, default_settings
    from engram.core.errors import ConfigError
    from engram.core.runs import read_settings

    asked = given.pop("settings")
    name = asked or default_settings(view.task)
    if name not in KNOWN_SETTINGS:
        raise ConfigError(f"--settings must be one of {', '.join(KNOWN_SETTINGS)}, got {name!r}")
    said = {key: value for key, value in given.items() if value is not None}
    kind = Buzaglo2023 if recipe == Buzaglo2023.recipe else Haim2022
    if resumed is not None:
        stored = read_settings(resumed, kind)
        same_settings(resumed, stored, said)
        _same_known(resumed, stored, asked, said)
        return PublishedScheme(view, stored)
    chosen = asdict(KNOWN_SETTINGS[name]) | said
    if given["candidates"] is None:  # as many of each label, however many labels there are
        chosen["candidates"] += -chosen["candidates"] % view.task.label_count
    return PublishedScheme(view, kind(**chosen))


def _same_known(resumed: Path, stored: Haim2022, asked: str | None, said: dict[str, Any]) -> None:
    """The authors' settings by name stand for all that was not said besides, but for the numbers of candidates and
    steps, the seed and the dtype."""
    from dataclasses import asdict

    from engram.attacks.settings import KNOWN_SETTINGS
    from engram.cli.resume import refuse_difference
    from engram.core.runs import RunDirectory

    if asked is None:
        return
    for key, value in asdict(KNOWN_SETTINGS[asked]).items():
        if key not in (*said, "candidates", "steps", "seed", "dtype") and value != getattr(stored, key):
            meant = f"{asked} ({key} {value:g})"
            refuse_difference("--settings", meant, f"{key} {getattr(stored, key):g}", RunDirectory(resumed).record)


EXAMPLES = (
    "Examples: engram reconstruct model.pt --input-shape 3x32x32 -o runs/audit; "
    "engram reconstruct runs/gate --recipe haim2022 --candidates 100 --steps 3000 -o runs/published; "
    "engram reconstruct runs/five --recipe buzaglo2023 --budget 1h -o runs/classes"
)
ENGINE, PUBLISHED = "engine only", "haim2022 and buzaglo2023 only"


def reconstruct(
    model: Model,
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory of the run.")],
    input_shape: InputShape = None,
    arch: Arch = None,
    task: TaskName = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            help="engine (the default), or the published schemes, unchanged: haim2022 (binary), buzaglo2023 (all "
            "tasks).",
        ),
    ] = None,
    candidates: Annotated[
        int | None, typer.Option("--candidates", "-m", help="How many; the engine derives it from the weights.")
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Steps (engine: of each restart).")] = None,
    budget: Time = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the start.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="float32 or float64 (the papers').")] = None,
    restarts: Annotated[
        int | None, typer.Option("--restarts", help="Independent starts, pooled.", rich_help_panel=ENGINE)
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
            help="What wide networks may take beside their weights, by default 4GB: beyond it neurons share "
            "metrics and candidates come in chunks.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    settings: Annotated[
        str | None,
        typer.Option(
            "--settings",
            help="The authors' settings to start from: cifar10, mnist, multiclass, regression, each also with -b.",
            rich_help_panel=PUBLISHED,
        ),
    ] = None,
    lr_images: Annotated[
        float | None, typer.Option("--lr-images", help="Rate of the images.", rich_help_panel=PUBLISHED)
    ] = None,
    lr_duals: Annotated[
        float | None, typer.Option("--lr-duals", help="Rate of the duals.", rich_help_panel=PUBLISHED)
    ] = None,
    image_std: Annotated[
        float | None, typer.Option("--image-std", help="sigma_x, spread of the start.", rich_help_panel=PUBLISHED)
    ] = None,
    dual_floor: Annotated[
        float | None, typer.Option("--dual-floor", help="lambda_min.", rich_help_panel=PUBLISHED)
    ] = None,
    relu_slope: Annotated[
        float | None, typer.Option("--relu-slope", help="alpha of the smoothed ReLU.", rich_help_panel=PUBLISHED)
    ] = None,
    range_weight: Annotated[
        float | None,
        typer.Option(
            "--range-weight", help="Weight of |x| <= 1; 0 for vectors of any range.", rich_help_panel=PUBLISHED
        ),
    ] = None,
    margin_weight: Annotated[
        float | None,
        typer.Option(
            "--margin-weight",
            help="Weight of one common margin for all candidates in use, which the papers leave out.",
            rich_help_panel=PUBLISHED,
        ),
    ] = None,
    device: Device = "cpu",
    resume: Resume = False,
    snapshot_every: SnapshotEvery = 20.0,
) -> None:
    """Reconstruct training images from the weights alone; needs no training data."""
    from dataclasses import replace

    from engram.core.errors import ConfigError
    from engram.core.runs import RunDirectory, recorded_recipe
    from engram.pipeline import attack

    resumed = out if resume and RunDirectory(out).record.exists() else None
    if resumed is not None:
        recipe = recorded_recipe(resumed, recipe)
        input_shape, arch, task = view_options(resumed, model, input_shape, arch, task)
    recipe = recipe or "engine"
    common = {"candidates": candidates, "steps": steps, "seed": seed, "dtype": dtype}
    bound = None if memory is None else parse_bytes(memory)
    engine = {"restarts": restarts, "prior": _prior(prior), "memory": bound}
    published = {
        "settings": settings,
        "lr_images": lr_images,
        "lr_duals": lr_duals,
        "image_std": image_std,
        "dual_floor": dual_floor,
        "relu_slope": relu_slope,
        "range_weight": range_weight,
        "margin_weight": margin_weight,
    }
    if recipe not in ("engine", "haim2022", "buzaglo2023"):
        raise ConfigError(f"--recipe must be engine, haim2022 or buzaglo2023, got {recipe!r}")
    foreign = published if recipe == "engine" else engine
    if stray := [f"--{name.replace('_', '-')}" for name, value in foreign.items() if value is not None]:
        raise ConfigError(f"{', '.join(stray)} does nothing with --recipe {recipe}; leave it out")
    target = opened(model, arch, input_shape)
    view = attacker_view(target, model, input_shape, task)
    view = replace(view, network=view.network.to(device=check_device(device)))
    seconds = None if budget is None else parse_seconds(budget)
    if resumed is not None:
        same_model(resumed, view, model)
    if recipe == "engine":
        scheme = engine_scheme(view, common | engine, seconds, resumed)
    else:
        scheme = published_scheme(view, recipe, common | published, resumed)
    with progress_bar("reconstructing", scheme.total_steps) as progress:
        found, solution = attack(
            scheme,
            seconds=seconds,
            directory=out,
            model=str(model),
            resume=resume,
            snapshot_every=snapshot_every,
            observers=[progress],
        )
    typer.echo(f"{len(found)} candidates from {view.network.name}: {solution.message}, {solution.seconds:.0f} s")
    if found.has_confidence:
        sure, likely = (found.count_above(level) for level in (0.9, 0.5))
        typer.echo(f"judged without any data: {sure} of them show a training image at 90 %, {likely} at 50 %")
    typer.echo(f"wrote {out}; compare with your data: engram score {out} --data ... -n ...")


def _prior(text: str | None) -> float | None:
    from engram.core.errors import ConfigError

    if text is None:
        return None
    try:
        return 0.0 if text == "none" else float(text)
    except ValueError as error:
        raise ConfigError(f"--prior must be a number or none, got {text!r}") from error
