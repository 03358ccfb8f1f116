"""The progress bar, on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engram.core.progress import Progress


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar with the time left for every title of the work; what follows a colon is shown beside it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

    note = TextColumn("{task.fields[note]}")
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), note, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def show(what: str, share: float) -> None:
            title, _, beside = what.partition(": ")
            if title not in tasks:
                tasks[title] = bar.add_task(title, total=1.0, note="")
            bar.update(tasks[title], completed=share, note=beside)

        yield show
