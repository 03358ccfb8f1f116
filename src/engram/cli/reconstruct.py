"""`engram reconstruct`: read training images out of a model's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from engram.cli.options import (
    Device,
    InputShape,
    Resume,
    SnapshotEvery,
    TaskName,
    check_device,
    parse_seconds,
    progress_bar,
)
from engram.cli.target import attacker_view

EXAMPLES = (
    "Examples: engram reconstruct runs/gate --candidates 100 --steps 3000 -o runs/gate/attack; "
    "engram reconstruct model.pt --input-shape 3x32x32 -o runs/audit"
)


def reconstruct(
    model: Annotated[
        Path, typer.Argument(help="A directory of `engram train`, or a .pt, .pth or .safetensors file.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory of the run.")],
    input_shape: InputShape = None,
    task: TaskName = None,
    recipe: Annotated[
        str, typer.Option("--recipe", help="Which attack: haim2022, the published scheme.")
    ] = "haim2022",
    settings: Annotated[
        str,
        typer.Option(
            "--settings", help="The authors' settings to start from: cifar10, cifar10-b, mnist, mnist-b."
        ),
    ] = "cifar10",
    candidates: Annotated[
        int | None,
        typer.Option("--candidates", "-m", help="How many; the papers take twice the training images."),
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Steps at the most.")] = None,
    budget: Annotated[str | None, typer.Option("--budget", help="Time at the most: 30s, 5m, 1h.")] = None,
    lr_images: Annotated[float | None, typer.Option("--lr-images", help="Rate of the images.")] = None,
    lr_duals: Annotated[float | None, typer.Option("--lr-duals", help="Rate of the duals.")] = None,
    image_std: Annotated[
        float | None, typer.Option("--image-std", help="sigma_x, spread of the start.")
    ] = None,
    dual_floor: Annotated[float | None, typer.Option("--dual-floor", help="lambda_min.")] = None,
    relu_slope: Annotated[
        float | None, typer.Option("--relu-slope", help="alpha of the smoothed ReLU.")
    ] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="float32 or float64 (the papers').")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the start.")] = None,
    device: Device = "cpu",
    resume: Resume = False,
    snapshot_every: SnapshotEvery = 20.0,
) -> None:
    """Reconstruct training images from the weights alone; needs no training data."""
    from dataclasses import replace

    from engram.errors import ConfigError
    from engram.pipeline import attack
    from engram.reconstruct.published.settings import KNOWN_SETTINGS
    from engram.targets.checkpoint import open_target

    if recipe != "haim2022":
        raise ConfigError(f"--recipe must be haim2022, got {recipe!r}")
    if settings not in KNOWN_SETTINGS:
        raise ConfigError(f"--settings must be one of {', '.join(KNOWN_SETTINGS)}, got {settings!r}")
    given: dict[str, Any] = {
        "candidates": candidates,
        "steps": steps,
        "lr_images": lr_images,
        "lr_duals": lr_duals,
        "image_std": image_std,
        "dual_floor": dual_floor,
        "relu_slope": relu_slope,
        "dtype": dtype,
        "seed": seed,
    }
    chosen = replace(
        KNOWN_SETTINGS[settings], **{name: value for name, value in given.items() if value is not None}
    )
    target = open_target(model)
    view = attacker_view(target, model, input_shape, task)
    view = replace(view, network=view.network.to(device=check_device(device)))
    with progress_bar("reconstructing", chosen.steps) as progress:
        found, solution = attack(
            view,
            chosen,
            seconds=None if budget is None else parse_seconds(budget),
            directory=out,
            model=str(model),
            resume=resume,
            snapshot_every=snapshot_every,
            observers=[progress],
        )
    typer.echo(
        f"{len(found)} candidates from {view.network.name}: {solution.message}, {solution.seconds:.0f} s"
    )
    typer.echo(f"wrote {out}; compare with your data: engram score {out} --data ... -n ...")
