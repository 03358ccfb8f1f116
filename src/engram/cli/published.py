"""From options to the published scheme: the authors' settings by name, and what was said otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engram.attacker import AttackerView
    from engram.reconstruct.attack import Attack
    from engram.targets.networks import Network


def published_scheme(view: AttackerView[Network], recipe: str, given: dict[str, Any]) -> Attack:
    """The scheme with the settings named in `given["settings"]`, by default those for the view's task."""
    from dataclasses import asdict

    from engram.errors import ConfigError
    from engram.reconstruct.published.scheme import Buzaglo2023, Haim2022, PublishedScheme
    from engram.reconstruct.published.settings import KNOWN_SETTINGS, default_settings

    name = given.pop("settings") or default_settings(view.task)
    if name not in KNOWN_SETTINGS:
        raise ConfigError(f"--settings must be one of {', '.join(KNOWN_SETTINGS)}, got {name!r}")
    chosen = asdict(KNOWN_SETTINGS[name]) | {key: value for key, value in given.items() if value is not None}
    if given["candidates"] is None:  # as many of each label, however many labels there are
        chosen["candidates"] += -chosen["candidates"] % view.task.label_count
    kind = Buzaglo2023 if recipe == Buzaglo2023.recipe else Haim2022
    return PublishedScheme(view, kind(**chosen))
