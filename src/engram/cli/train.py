"""`engram train`: make a target with the papers' recipe."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engram.cli.options import (
    Classes,
    DataRoot,
    Device,
    Labels,
    Resume,
    SnapshotEvery,
    TaskName,
    check_device,
    parse_widths,
    progress_bar,
)

if TYPE_CHECKING:
    from engram.targets.spec import ConvSpec, MLPSpec

EXAMPLES = (
    "Examples: engram train --data faces --labels gate -n 50 --epochs 4000 --lr 0.02 -o runs/gate; "
    "engram train --data cifar10 -n 500 --epochs 10000 -o runs/cifar500; "
    "engram train --data cifar10 --task multiclass --classes 5 -n 500 --lr 0.5 --epochs 10000 -o runs/five; "
    "engram train --data cifar10 --task regression:l2 -n 300 --init standard --weight-decay 7.5e-4 -o runs/l2; "
    "engram train --data cifar10 -n 50 --arch 'conv3x32 relu flatten 1000 relu 1' --init standard "
    "--weight-decay 1e-3 --lr 0.1 --epochs 5000 -o runs/conv"
)


def train(
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory for model.safetensors and card.json.")],
    data: Annotated[str, typer.Option("--data", help="A name from `engram data list`, npz:PATH or folder:PATH.")],
    n: Annotated[int, typer.Option("-n", min=1, help="Number of training images, equally many of each class.")],
    task: TaskName = None,
    labels: Labels = None,
    classes: Classes = None,
    data_root: DataRoot = None,
    data_seed: Annotated[
        int | None, typer.Option("--data-seed", help="Choose images at random; else the first of each class.")
    ] = None,
    widths: Annotated[
        str | None, typer.Option("--widths", help="Hidden layers; 1000,1000 where nothing is said.")
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(
            "--arch",
            metavar="LAYERS",
            help="A network with convolutions instead, e.g. 'conv3x32 relu flatten 1000 relu 1': "
            "conv{k}x{channels}[s{stride}][p{padding}], relu, avgpool{k}, flatten, {width}.",
        ),
    ] = None,
    bias: Annotated[
        str, typer.Option("--bias", help="Which hidden layers have biases: first, all, none.")
    ] = "first",
    init: Annotated[
        str, typer.Option("--init", help="Standard deviation of the first layer, or 'standard'.")
    ] = "1e-4",
    lr: Annotated[
        float, typer.Option("--lr", help="Learning rate; the papers take 0.5 for several classes.")
    ] = 0.01,
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
    """Train a ReLU network, fully-connected or with convolutions, as the papers do and write it with its card."""
    from engram.data.catalog import default_labels
    from engram.data.choice import DataChoice
    from engram.errors import ConfigError
    from engram.pipeline import build_target
    from engram.targets.descent import Recipe
    from engram.task import own_classes, task_named

    if widths is not None and arch is not None:
        raise ConfigError("--widths and --arch each describe the whole network; give one of them")
    task = task or "binary"
    chosen_labels = labels or default_labels(data, own_classes=own_classes(task))
    choice = DataChoice(name=data, labels=chosen_labels, n=n, seed=data_seed, classes=classes)
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
    images = choice.load(data_root, held_out=0).train
    meaning = task_named(task, len(images.classes))
    shape = tuple(images.images.shape[1:])
    spec = _spec(shape, meaning.outputs, widths or "1000,1000", arch, bias, init)
    with progress_bar("training", epochs) as progress:
        target = build_target(
            choice,
            spec,
            recipe,
            meaning,
            root=data_root,
            directory=out,
            device=check_device(device),
            resume=resume,
            snapshot_every=snapshot_every,
            observers=[progress],
        )
    card = target.card
    assert card is not None
    done = f"{card.stopped}, {card.epochs:,} epochs, {card.seconds:.0f} s"
    typer.echo(f"{spec.name} ({card.task}), {n} images of {data}: {done}")
    for name, quality in (("training", card.train), ("held-out", card.held_out), ("test", card.test)):
        if quality is not None:
            typer.echo(f"  {name:9s} loss {quality.loss:.3g}, accuracy {quality.accuracy:.1%}")
    typer.echo(f"wrote {out}")


def _spec(
    shape: tuple[int, ...], outputs: int, widths: str, arch: str | None, bias: str, init: str
) -> MLPSpec | ConvSpec:
    """The network that the options describe, for inputs of that shape."""
    import math

    from engram.errors import ConfigError, require
    from engram.targets.spec import ConvSpec, MLPSpec

    try:
        std = None if init == "standard" else float(init)
    except ValueError as error:
        raise ConfigError(f"--init must be a number or 'standard', got {init!r}") from error
    if arch is None:
        return MLPSpec(
            inputs=math.prod(shape),
            widths=parse_widths(widths),
            outputs=outputs,
            bias=bias,  # type: ignore[arg-type]  # validated by MLPSpec
            first_layer_std=std,
        )
    spec = ConvSpec(
        input_shape=shape,
        layers=arch,
        bias=bias,  # type: ignore[arg-type]  # validated by ConvSpec
        first_layer_std=std,
    )
    last = spec.architecture.sizes[-1]
    require(last == outputs, "--arch", f"must end in {outputs} for this task", last)
    return spec
