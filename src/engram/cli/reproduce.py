"""`engram reproduce`: a figure or table of the papers by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engram.cli.bars import progress_bar

EXAMPLES = "Example: engram reproduce haim/fig2 -o runs/fig2"


def reproduce(
    experiment: Annotated[str, typer.Argument(metavar="ID", help="Which experiment: haim/fig2.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory for the figure and its numbers.")],
    seed: Annotated[int, typer.Option("--seed", help="Seed of the network and of the attack.")] = 0,
) -> None:
    """Train, attack and draw an experiment of the papers, with its numbers as JSON."""
    from engram.errors import ConfigError

    if experiment != "haim/fig2":
        raise ConfigError(f"there is no experiment {experiment!r}; known: haim/fig2")
    from engram.experiments.haim_fig2 import ATTACK, RECIPE, run_fig2
    from engram.files import write_bytes, write_json

    with (
        progress_bar("training", RECIPE.epochs) as training,
        progress_bar("reconstructing", ATTACK.steps) as attacking,
    ):
        result = run_fig2(seed, training=training, attacking=attacking)
    write_json(out / "fig2.json", result.to_json())
    write_bytes(out / "fig2.png", result.figure())
    typer.echo(f"{result.summary}; wrote {out / 'fig2.png'} and {out / 'fig2.json'}")
