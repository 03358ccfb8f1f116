"""`engram watch`: progress, losses and best candidates of a run while it is running."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text
    from torch import Tensor

    from engram.auditing.watch import Status


EXAMPLES = "Examples: engram watch runs/audit; engram watch runs/audit --web; engram watch runs/audit --once"
BARS = "▁▂▃▄▅▆▇█"
PICTURE_WIDTH = 24


def watch(
    run: Annotated[Path, typer.Argument(help="Directory of a run: audit, reconstruct or train.")],
    every: Annotated[float, typer.Option("--every", min=0.2, help="Seconds between updates.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show the run once and exit.")] = False,
    web: Annotated[bool, typer.Option("--web", help="Show it in a browser, on this machine only.")] = False,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="With --web; 0 for any free port.")] = 0,
) -> None:
    """Show progress, losses and the current best candidates of a run, in the terminal or in a browser.

    Candidates come from the run's last snapshot, so they change every --snapshot-every seconds of the run.
    """
    from rich.console import Console
    from rich.live import Live

    from engram.auditing.watch import Watcher, serve
    from engram.core.errors import ConfigError

    if once and web:
        raise ConfigError("--once and --web exclude each other; choose one")
    if port and not web:
        raise ConfigError("--port can only be used with --web; give both")
    watcher = Watcher(run)
    status = watcher.look()
    try:
        if web:
            serve(watcher, port=port, every=every, started=lambda at: typer.echo(f"Open {at} (Ctrl-C to stop)"))
            return
        console = Console()
        if once or not status.is_running:
            console.print(view(status))
            return
        with Live(view(status), console=console, auto_refresh=False) as live:
            while status.is_running:
                time.sleep(every)
                status = watcher.look()
                live.update(view(status), refresh=True)
    except KeyboardInterrupt:
        typer.echo("stopped watching; the run continues")


def view(status: Status) -> Group:
    """What the terminal shows."""
    from rich.columns import Columns
    from rich.console import Group
    from rich.text import Text

    parts: list[object] = [Text(status.summary, style="bold")]
    if status.total:
        done = round(60 * min(1.0, status.step / status.total))
        parts.append(Text("━" * done, style="green").append("━" * (60 - done), style="dim"))
    if status.losses:
        parts.append(Text(f"loss {spark([loss for _, loss in status.losses])} {status.losses[-1][1]:.4g}"))
    if status.metrics:
        parts.append(Text(", ".join(f"{name} {value:.4g}" for name, value in status.metrics.items()), style="dim"))
    if status.note:
        parts.append(Text(status.note, style="yellow"))
    if status.images is not None:
        parts.append(Text("best candidates, judged without data:"))
        pictures = [picture(image, caption) for image, caption in zip(status.images, status.captions, strict=True)]
        parts.append(Columns(pictures, padding=(0, 1)))
    return Group(*parts)  # type: ignore[arg-type]


def spark(values: list[float], width: int = 60) -> str:
    """A curve in one line of text, on a logarithmic scale where all values are positive.

    >>> spark([1, 10, 100])
    '▁▄█'
    """
    import math

    chosen = [values[round(i * (len(values) - 1) / max(1, width - 1))] for i in range(width)]
    chosen = values if len(values) <= width else chosen
    heights = [math.log(value) for value in chosen] if min(chosen) > 0 else chosen
    low, span = min(heights), (max(heights) - min(heights)) or 1.0
    return "".join(BARS[int((height - low) / span * (len(BARS) - 1))] for height in heights)


def picture(image: Tensor, caption: str) -> Text:
    """An image [C, H, W] in [0, 1] as half blocks: two pixels per character, one above the other."""
    from rich.text import Text
    from torch.nn.functional import interpolate

    width = min(PICTURE_WIDTH, image.shape[2])
    height = 2 * max(1, round(image.shape[1] * width / image.shape[2] / 2))
    pixels = (interpolate(image[None], (height, width), mode="area")[0] * 255).round().int()
    if len(pixels) != 3:
        pixels = pixels.float().mean(0, keepdim=True).int().expand(3, -1, -1)
    colours = [[f"rgb({r},{g},{b})" for r, g, b in row] for row in pixels.permute(1, 2, 0).tolist()]
    text = Text()
    for upper, lower in zip(colours[::2], colours[1::2], strict=True):
        for above, below in zip(upper, lower, strict=True):
            text.append("▀", style=f"{above} on {below}")
        text.append("\n")
    return text.append(caption)
