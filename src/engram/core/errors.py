"""Every error engram raises on purpose: the message names the cause and the cure."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


class EngramError(Exception):
    """Base of all expected failures; the command line prints its message without a traceback."""


class ConfigError(EngramError):
    """An argument is invalid."""


class DataError(EngramError):
    """A data file is missing, truncated, unsafe, or does not contain what was asked for."""


class UnsupportedModelError(EngramError):
    """The attack cannot read this kind of network; the message lists every problem."""

    def __init__(self, problems: list[str], *, supported: str) -> None:
        self.problems = tuple(problems)
        listed = "\n".join(f"  - {problem}" for problem in problems)
        super().__init__(f"this model can't be read:\n{listed}\nSupported: {supported}")


class CheckpointError(EngramError):
    """A checkpoint or run directory is missing, damaged or unsafe, or can't be written."""


class DivergedError(EngramError):
    """An optimisation diverged where the caller needs a finished result."""


def require(condition: bool, argument: str, rule: str, got: object, cure: str = "") -> None:
    """Raise `ConfigError` naming the argument, its rule, its value, and what to do.

    >>> require(0 < 2, "lr", "must be positive", 2)
    >>> require(0 < -1, "lr", "must be positive", -1, "try 0.01")
    Traceback (most recent call last):
    engram.core.errors.ConfigError: lr must be positive, got -1; try 0.01
    """
    if not condition:
        raise ConfigError(f"{argument} {rule}, got {got!r}" + (f"; {cure}" if cure else ""))


def optional(module: str, *, wanted_by: str, install: str) -> ModuleType:
    """The module, or an error that says what needs it and how to install it.

    >>> optional("json", wanted_by="this", install="json").__name__
    'json'
    >>> optional("no_such_module", wanted_by="--magic", install="magic")
    Traceback (most recent call last):
    engram.core.errors.ConfigError: --magic needs no_such_module, which is not installed; pip install magic
    """
    try:
        return import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise ConfigError(f"{wanted_by} needs {missing}, which is not installed; pip install {install}") from error
