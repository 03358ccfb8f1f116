"""`engram reconstruct`: read training images out of a model's weights; `engram watch`: look on meanwhile."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.cli import options as opt
from engram.cli.data import Columns, with_columns
from engram.cli.options import progress_bar, remember, remembered

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text
    from torch import Tensor

    from engram.auditing.watch import Status
    from engram.core.processes import Elsewhere
    from engram.models.tasks import Task

EXAMPLES = (
    "Examples: engram reconstruct model.pt --input-shape 3x32x32 -o runs/audit; "
    "engram reconstruct model.pt --input-shape 3x32x32 --budget 10m --jobs 4 -o runs/long; "
    "engram reconstruct runs/gate --recipe haim2022 --candidates 100 --steps 3000 -o runs/published; "
    "engram reconstruct runs/gate --recipe haim2022 --set lr_images=0.1 --set relu_slope=50 -o runs/slope; "
    "engram reconstruct runs/five --recipe buzaglo2023 --budget 1h -o runs/classes"
)
Jobs = Annotated[
    int | None,
    typer.Option(
        "-j",
        "--jobs",
        min=1,
        help="Processes that make the engine's starts side by side, 1 by default; the pooled result is the same. "
        "A resumed run keeps its number.",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option("--ray", help="Make all but one of the --jobs on a Ray cluster: auto, HOST:PORT, or local."),
]
ENGINE, PUBLISHED = "engine only", "haim2022 and buzaglo2023 only"


def reconstruct(
    context: typer.Context,
    model: opt.Model,
    out: Annotated[Path, typer.Option("-o", "--out", help="Directory of the run.")],
    input_shape: opt.InputShape = None,
    arch: opt.Arch = None,
    activation: opt.ActivationName = None,
    normalize: opt.Normalize = None,
    columns: Columns = None,
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
            "--prior",
            help="What images are expected to be like: tv (smooth: total variation), learned (also like pictures, "
            "as a small network knows them; the default where it finds more in the same time), the strength of tv "
            "as a number, or none. For tables, a number is the strength of --columns.",
            rich_help_panel=ENGINE,
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
    jobs: Jobs = None,
    ray: Ray = None,
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
    from engram.core.loop import by_share
    from engram.pipeline import attack

    given = remembered(context, out, resume=resume)
    view = with_columns(opt.opened_view(model, given), given["columns"])
    seconds = None if budget is None else opt.parse_seconds(budget)
    elsewhere = chosen_place(jobs, ray, device)
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
            observers=[by_share(progress, "reconstructing", chosen.share_done)],
            elsewhere=elsewhere,
        )
    typer.echo(f"{len(found)} candidates from {view.network.name}: {solution.message}, {solution.seconds:.0f} s")
    if found.has_confidence:
        sure, likely = (found.count_above(level) for level in (0.9, 0.5))
        typer.echo(
            f"judged without any data: {sure} of them show a training image at 90 % confidence, {likely} at 50 %"
        )
    typer.echo(f"wrote {out}; compare with your data: engram score {out} --data ... -n ...")


def chosen_place(jobs: int | None, ray: str | None, device: str) -> Elsewhere | None:
    """Where the processes of --jobs run; None for this machine."""
    from engram.core.errors import ConfigError, require_jobs

    if jobs is not None and ray is None:
        require_jobs(jobs)
    if jobs is not None and jobs > 1 and device != "cpu":
        raise ConfigError(f"--jobs splits the work between processors, but --device is {device}; leave one out")
    if ray is None:
        return None
    if jobs is None or jobs == 1:
        raise ConfigError("--ray has nothing to do without --jobs; say how many processes with --jobs N")
    from functools import partial

    from engram.sweep.executors import on_cluster

    return partial(on_cluster, ray)


def _settings(given: dict[str, Any], task: Task) -> dict[str, Any]:
    """The settings from the options; an option that the recipe does not use is refused by name."""
    from dataclasses import asdict

    from engram.attacks.registry import RECIPES, choose_settings, parse_setting
    from engram.core.errors import ConfigError, require

    recipe = given["recipe"] or "engine"
    require(recipe in RECIPES, "--recipe", f"must be one of {', '.join(RECIPES)}", recipe)
    chosen = {name: given[name] for name in ("candidates", "steps", "seed", "dtype") if given[name] is not None}
    only = {f"--{name}": given[name] for name in ("restarts", "prior", "memory", "jobs", "ray")}
    if recipe != "engine":
        if stray := [name for name, value in only.items() if value is not None]:
            raise ConfigError(f"{', '.join(stray)} can't be used with --recipe {recipe}; leave it out")
    else:
        if given["known"] is not None:
            raise ConfigError("--settings can't be used with --recipe engine; leave it out")
        parsed = {
            "restarts": given["restarts"],
            "jobs": given["jobs"],
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


def _prior(text: str | None) -> float | str | None:
    from engram.core.errors import ConfigError

    if text in (None, "learned", "tv"):
        return text
    try:
        return 0.0 if text == "none" else float(text)
    except ValueError as error:
        raise ConfigError(f"--prior must be learned, tv, none or a number, got {text!r}") from error


WATCH_EXAMPLES = "Examples: engram watch runs/audit; engram watch runs/audit --web; engram watch runs/audit --once"
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
