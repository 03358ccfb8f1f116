"""`engram train`: make a target with the papers' recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engram.cli.options import (
    DataRoot,
    Device,
    Labels,
    Resume,
    SnapshotEvery,
    check_device,
    parse_widths,
    progress_bar,
)

EXAMPLES = (
    "Examples: engram train --data faces --labels gate -n 50 --epochs 4000 --lr 0.02 -o runs/gate; "
    "engram train --data cifar10 -n 500 --epochs 10000 -o runs/cifar500"
)


def train(
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory for model.safetensors and card.json.")],
    data: Annotated[str, typer.Option("--data", help="A name from `engram data list`, npz:PATH or folder:PATH.")],
    n: Annotated[int, typer.Option("-n", min=1, help="Number of training images, equally many of each class.")],
    labels: Labels = None,
    data_root: DataRoot = None,
    data_seed: Annotated[
        int | None, typer.Option("--data-seed", help="Choose images at random; else the first of each class.")
    ] = None,
    widths: Annotated[str, typer.Option("--widths", help="Hidden layers, e.g. 1000,1000.")] = "1000,1000",
    bias: Annotated[
        str, typer.Option("--bias", help="Which hidden layers have biases: first, all, none.")
    ] = "first",
    init: Annotated[
        str, typer.Option("--init", help="Standard deviation of the first layer, or 'standard'.")
    ] = "1e-4",
    lr: Annotated[float, typer.Option("--lr", help="Learning rate.")] = 0.01,
    epochs: Annotated[int, typer.Option("--epochs", help="Epochs at the most.")] = 1_000_000,
    loss_threshold: Annotated[
        float | None, typer.Option("--loss-threshold", help="Stop when the training loss is below.")
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="Mini-batch size; else full batch.")] = None,
    weight_decay: Annotated[float, typer.Option("--weight-decay", help="Adds w theta to the gradient.")] = 0.0,
    normalise_below: Annotated[
        float | None,
        typer.Option("--normalise-below", help="Below this loss, scale the rate by 1/loss (a short cut in time)."),
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="float32 or float64.")] = "float32",
    seed: Annotated[int, typer.Option("--seed", help="Seed of initialisation and batches.")] = 0,
    device: Device = "cpu",
    resume: Resume = False,
    snapshot_every: SnapshotEvery = 20.0,
) -> None:
    """Train a fully-connected ReLU network as the papers do and write it with its card."""
    from engram.data.catalog import default_labels
    from engram.data.choice import DataChoice
    from engram.errors import ConfigError
    from engram.pipeline import build_target
    from engram.targets.descent import Recipe
    from engram.targets.spec import MLPSpec
    from engram.task import Binary

    try:
        std = None if init == "standard" else float(init)
    except ValueError as error:
        raise ConfigError(f"--init must be a number or 'standard', got {init!r}") from error
    choice = DataChoice(name=data, labels=labels or default_labels(data), n=n, seed=data_seed)
    recipe = Recipe(
        lr=lr,
        epochs=epochs,
        loss_threshold=loss_threshold,
        batch=batch,
        weight_decay=weight_decay,
        normalise_below=normalise_below,
        dtype=dtype,  # type: ignore[arg-type]  # validated by Recipe
        seed=seed,
    )
    task = Binary()
    inputs = choice.load(data_root, held_out=0).train.images[0].numel()
    spec = MLPSpec(
        inputs=inputs,
        widths=parse_widths(widths),
        outputs=task.outputs,
        bias=bias,  # type: ignore[arg-type]  # validated by MLPSpec
        first_layer_std=std,
    )
    with progress_bar("training", epochs) as progress:
        target = build_target(
            choice,
            spec,
            recipe,
            task,
            root=data_root,
            directory=out,
            device=check_device(device),
            resume=resume,
            snapshot_every=snapshot_every,
            observers=[progress],
        )
    card = target.card
    assert card is not None
    typer.echo(f"{spec.name}, {n} images of {data}: {card.stopped}, {card.epochs:,} epochs, {card.seconds:.0f} s")
    for name, quality in (("training", card.train), ("held-out", card.held_out), ("test", card.test)):
        if quality is not None:
            typer.echo(f"  {name:9s} loss {quality.loss:.3g}, accuracy {quality.accuracy:.1%}")
    typer.echo(f"wrote {out}")
