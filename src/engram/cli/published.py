"""From options to the published scheme: the authors' settings by name, and what was said otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from engram.cli.resumed import same_settings

if TYPE_CHECKING:
    from engram.attacker import AttackerView
    from engram.reconstruct.attack import Attack
    from engram.reconstruct.published.settings import Haim2022
    from engram.targets.networks import Network


def published_scheme(
    view: AttackerView[Network], recipe: str, given: dict[str, Any], resumed: Path | None
) -> Attack:
    """The scheme with the settings named in `given["settings"]`, by default those for the view's task.

    A resumed run keeps its settings; what is given besides must be among them.
    """
    from dataclasses import asdict

    from engram.errors import ConfigError
    from engram.reconstruct.published.scheme import Buzaglo2023, Haim2022, PublishedScheme
    from engram.reconstruct.published.settings import KNOWN_SETTINGS, default_settings
    from engram.runs import read_settings

    asked = given.pop("settings")
    name = asked or default_settings(view.task)
    if name not in KNOWN_SETTINGS:
        raise ConfigError(f"--settings must be one of {', '.join(KNOWN_SETTINGS)}, got {name!r}")
    said = {key: value for key, value in given.items() if value is not None}
    kind = Buzaglo2023 if recipe == Buzaglo2023.recipe else Haim2022
    if resumed is not None:
        stored = read_settings(resumed, kind)
        same_settings(resumed, stored, said)
        _same_known(resumed, stored, asked, said)
        return PublishedScheme(view, stored)
    chosen = asdict(KNOWN_SETTINGS[name]) | said
    if given["candidates"] is None:  # as many of each label, however many labels there are
        chosen["candidates"] += -chosen["candidates"] % view.task.label_count
    return PublishedScheme(view, kind(**chosen))


def _same_known(resumed: Path, stored: Haim2022, asked: str | None, said: dict[str, Any]) -> None:
    """The authors' settings by name stand for all that was not said besides, but for the numbers of candidates and
    steps, the seed and the dtype."""
    from dataclasses import asdict

    from engram.cli.resumed import refuse_difference
    from engram.reconstruct.published.settings import KNOWN_SETTINGS
    from engram.runs import RunDirectory

    if asked is None:
        return
    for key, value in asdict(KNOWN_SETTINGS[asked]).items():
        if key not in (*said, "candidates", "steps", "seed", "dtype") and value != getattr(stored, key):
            meant = f"{asked} ({key} {value:g})"
            refuse_difference("--settings", meant, f"{key} {getattr(stored, key):g}", RunDirectory(resumed).record)
