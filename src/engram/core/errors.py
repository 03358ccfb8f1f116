"""Every error engram raises on purpose: the message names the cause and the cure."""

from __future__ import annotations

import math
import os
import resource
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
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


SEEDS = (-(2**63), 2**63 - 1)
"""The lowest and the highest number that a setting may be: what a tensor and a generator can hold."""


def require_numbers(settings: object) -> None:
    """Every number of a dataclass must be finite and fit 64 bits: neither JSON nor a tensor holds another."""
    for one in fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, one.name)
        if isinstance(value, float):
            require(math.isfinite(value), one.name, "must be a finite number", value)
        elif isinstance(value, int):
            require(SEEDS[0] <= value <= SEEDS[1], one.name, "must fit 64 bits", value)


def whole_numbers(text: str, separator: str) -> tuple[int, ...] | None:
    """The numbers 0, 1, ... of a text such as 1000,1000; None if it is no such text, or a number has 19 digits.

    >>> whole_numbers("3x32x32", "x"), whole_numbers("3x", "x"), whole_numbers("9" * 5000, "x")
    ((3, 32, 32), None, None)
    """
    parts = [part.strip() for part in text.split(separator)]
    if not all(part.isdecimal() and len(part) < 19 for part in parts):
        return None
    return tuple(int(part) for part in parts)


LONGEST_NAME, LONGEST_PATH = 255, 4095
"""In bytes, of every usual file system."""


def path_problem(path: str | Path) -> str | None:
    """Why no file can have this path; None if one can. Asking the system would raise what nobody expects.

    >>> path_problem("a/b"), path_problem("x" * 300)
    (None, 'a name in it has 300 bytes, more than 255')
    """
    text = str(path)
    if "\0" in text:
        return "a NUL can't be in it"
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) > LONGEST_PATH:
        return f"it has {len(encoded):,} bytes, more than {LONGEST_PATH:,}"
    longest = max(map(len, encoded.split(b"/")))
    return f"a name in it has {longest:,} bytes, more than {LONGEST_NAME}" if longest > LONGEST_NAME else None


def require_path(path: str | Path) -> Path:
    """The path, if a file can have it."""
    if (problem := path_problem(path)) is not None:
        raise ConfigError(f"{str(path)[:40]!r}... is not a path: {problem}; check it")
    return Path(path)


@cache
def machine_memory() -> int:
    """Bytes that this process may use: the machine's, unless a container or a limit of the shell grants less."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        found.append(limit)
    group = Path("/sys/fs/cgroup/memory.max")
    if group.is_file() and (granted := group.read_text().strip()).isdecimal():
        found.append(int(granted))
    return min(found)


def require_memory(needed: int, argument: str, got: object, cure: str) -> None:
    """Refuse what this machine's memory can't hold, before anything is allocated.

    >>> require_memory(10**400, "widths", 10**200, "give less")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    engram.core.errors.ConfigError: widths needs more than 10^18 GB of the ... GB here, got 1...0; give less
    """
    there = machine_memory()
    asked = f"{needed / 1e9:,.1f}" if needed < 10**27 else "more than 10^18"  # an int may be too large for a float
    require(needed <= there, argument, f"needs {asked} GB of the {there / 1e9:,.1f} GB here", got, cure)


def require_jobs(jobs: int) -> int:
    """The number of processes, unless it is more than this machine can start without harm."""
    most = max(8, 4 * (os.cpu_count() or 1))
    require(
        1 <= jobs <= most, "jobs", f"must lie in 1..{most}, four for every processor", jobs, "more are no faster"
    )
    return jobs


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
