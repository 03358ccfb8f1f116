"""Optional packages: imported when asked for, with an error that names the command to install them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from engram.errors import ConfigError


def optional(module: str, *, wanted_by: str, install: str) -> ModuleType:
    """The module, or an error that says what asked for it and how to get it.

    >>> optional("json", wanted_by="this", install="json").__name__
    'json'
    >>> optional("no_such_module", wanted_by="--magic", install="'engram[magic]'")
    Traceback (most recent call last):
    engram.errors.ConfigError: --magic needs no_such_module, which is not installed; pip install 'engram[magic]'
    """
    try:
        return import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise ConfigError(f"{wanted_by} needs {missing}, which is not installed; pip install {install}") from error
