"""From a recipe's name and values to an attack."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from engram.attacker import AttackerView
from engram.errors import ConfigError, require
from engram.reconstruct.attack import Attack
from engram.reconstruct.engine.settings import EngineSettings
from engram.reconstruct.engines import engine_for
from engram.reconstruct.published.scheme import Haim2022, PublishedScheme


@dataclass(frozen=True)
class Recipe:
    """A way to attack: its settings, a frozen dataclass with defaults, and what runs them."""

    settings: type[Any]
    scheme: Callable[[AttackerView, Any], Attack]

    @property
    def names(self) -> tuple[str, ...]:
        """What can be chosen; the seed is the sweep's."""
        return tuple(field.name for field in fields(self.settings) if field.name != "seed")

    def parse(self, name: str, text: str) -> Any:
        """A setting as the command line gives it.

        >>> RECIPES["haim2022"].parse("steps", "3000"), RECIPES["engine"].parse("prior", "0.8")
        (3000, 0.8)
        """
        require(name in self.names, "--set", f"must name one of {', '.join(self.names)}", name)
        try:
            return TypeAdapter(get_type_hints(self.settings)[name]).validate_python(text)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ConfigError(f"--set {name}={text} can't be read: {reason}") from error


RECIPES: Mapping[str, Recipe] = {
    "haim2022": Recipe(Haim2022, PublishedScheme),
    "engine": Recipe(EngineSettings, engine_for),
}


def build_attack(recipe: str, view: AttackerView, values: Mapping[str, Any]) -> Attack:
    chosen = RECIPES[recipe]
    return chosen.scheme(view, chosen.settings(**values))
