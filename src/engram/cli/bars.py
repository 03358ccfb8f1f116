"""Progress bars, all on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from engram.core.loop import Observer, Values
    from engram.core.progress import Progress as Parts
    from engram.training.recipe import Recipe


class ShowShare(Protocol):
    """Shows how much of the work of a title is done."""

    def __call__(self, title: str, share: float, note: str = "") -> None: ...


@contextmanager
def progress_bar(title: str, steps: int) -> Iterator[Observer]:
    """An observer that shows a bar with loss and time left on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.4g}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=steps, loss=float("nan"))

        def observe(step: int, metrics: Values) -> None:
            bar.update(task, completed=step, loss=metrics["loss"])

        yield observe


@contextmanager
def training_bar(recipe: Recipe) -> Iterator[Observer]:
    """A bar over the epochs; along the flow, where log-loss falls evenly, over log-loss down to its goal."""
    goal = recipe.loss_threshold
    if recipe.flow is None or goal is None:
        with progress_bar("training", recipe.epochs) as observer:
            yield observer
        return
    from engram.papers.attacks import by_recipe

    shares: list[float] = []
    tell = by_recipe(shares.append, recipe)
    with share_bar("training") as show:

        def observe(step: int, metrics: Values) -> None:
            tell(step, metrics)
            show("training", shares.pop(), f"loss {metrics['loss']:.3g} of {goal:g}, epoch {step:,}")

        yield observe


@contextmanager
def share_bar(*titles: str) -> Iterator[ShowShare]:
    """Bars on standard error for work that ends by the clock or by parts: title, the share done, a note."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    note = TextColumn("{task.fields[note]}")
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), note, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks = {title: bar.add_task(title, total=1.0, start=False, note="") for title in titles}

        def show(title: str, share: float, note: str = "") -> None:
            bar.start_task(tasks[title])
            bar.update(tasks[title], completed=share, note=note)

        yield show


@contextmanager
def part_bar(title: str) -> Iterator[Parts]:
    """A bar on standard error for work that is told in shares; it goes away at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda part, done: bar.update(task, completed=done, description=f"{title}: {part}")


@contextmanager
def count_bar(title: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar over things to count; what it yields takes rich's changes, and a text as `told`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, told="")
        yield lambda **changes: bar.update(task, **changes)
