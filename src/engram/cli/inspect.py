"""`engram inspect`: what a checkpoint holds, before any attack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from engram.cli.options import InputShape, TaskName
from engram.cli.target import attacker_view

EXAMPLES = "Examples: engram inspect model.pt --input-shape 3x32x32; engram inspect runs/gate --json"


def inspect(
    model: Annotated[
        Path, typer.Argument(help="A directory of `engram train`, or a .pt, .pth or .safetensors file.")
    ],
    input_shape: InputShape = None,
    task: TaskName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for other programs.")] = False,
) -> None:
    """Show the layers of a model and whether the attack can read it."""
    from engram.targets.checkpoint import open_target
    from engram.targets.inspect import describe

    target = open_target(model)
    view = attacker_view(target, model, input_shape, task)
    description = describe(view.network)
    if as_json:
        from dataclasses import asdict

        known = {"model": str(model), "input_shape": list(view.input_shape), "task": view.task.name}
        typer.echo(json.dumps({**known, **asdict(description)}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("layer", "weight", "norm", "largest singular value", "bias norm")
    for layer in description.layers:
        bias = "none" if layer.bias_norm is None else f"{layer.bias_norm:.4g}"
        table.add_row(
            layer.name,
            f"{layer.outputs} x {layer.inputs}",
            f"{layer.norm:.4g}",
            f"{layer.largest_singular_value:.4g}",
            bias,
        )
    console = Console()
    console.print(table)
    console.print(
        f"{description.name}: {description.parameters:,} parameters, {description.dtype}, {view.task.name} task"
    )
    kind = "homogeneous" if description.homogeneous else "not homogeneous (biases beyond the first layer)"
    console.print(f"The network is {kind}; the attack can read it.")
