"""Where data sets live on disk, and what to say when one is not there."""

from __future__ import annotations

import os
from pathlib import Path

from engram.errors import DataError


def data_root(explicit: Path | None = None) -> Path:
    """The folder that holds the data sets: the argument, else ENGRAM_DATA, else ~/.cache/engram.

    >>> data_root(Path("photos")).name
    'photos'
    """
    chosen = explicit or os.environ.get("ENGRAM_DATA") or "~/.cache/engram"
    return Path(chosen).expanduser()


def missing(name: str, looked_for: Path) -> DataError:
    """The error for a data set whose files are not there: where they were sought and three ways out."""
    return DataError(
        f"{name} is not here: there is no {looked_for}; fetch it with `engram data get {name}`, "
        f"or point --data-root or the variable ENGRAM_DATA at the folder that holds your copy"
    )
