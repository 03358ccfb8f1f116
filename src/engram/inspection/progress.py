"""How an inspection tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""Told what comes next, and which share of the work is done."""


def silent(part: str, done: float) -> None:
    """The progress that nobody watches."""
