"""The one door to attacks: recipes by name, their settings, and `make_attack`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from engram.attacks.engine.convolutional import ConvEngine
from engram.attacks.engine.dense import Engine
from engram.attacks.engine.iteration import EngineIteration, fit_to_budget
from engram.attacks.published import PublishedScheme
from engram.attacks.reconstruction import Attack
from engram.attacks.settings import Buzaglo2023, EngineSettings, Haim2022
from engram.core.errors import CheckpointError, ConfigError, require
from engram.core.runs import RunDirectory, read_record, read_settings
from engram.models.networks import ConvNetwork, DenseNetwork, Network
from engram.models.view import AttackerView


def engine_for(
    view: AttackerView[Network], settings: EngineSettings, seconds: float | None = None
) -> EngineIteration[Any]:
    """The engine with these settings; with `seconds`, steps and restarts are planned for so long a run.

    Of several classes it takes the whole KKT condition, a dual for each pair of a sample and another class: ten
    classes of 50 leave 0.56 of the first layer's energy unexplained with the runner-up alone, 0.20 with all pairs.
    Kernels as large as the image are rows of a fully-connected layer, which the engine for those reads better:
    conv(32, 32)-300-1 on 50 images of CIFAR-10 gave 13 good ones in 25 s, and none as a convolution.
    """
    engine: EngineIteration[Any]
    view = replace(view, task=view.task.with_all_duals())
    if isinstance(view.network, ConvNetwork) and (dense := view.network.dense_equivalent) is not None:
        engine = Engine(AttackerView(dense, view.input_shape, view.task, view.pixel_range), settings)
    elif isinstance(view.network, ConvNetwork):
        engine = ConvEngine(view.narrowed(ConvNetwork), settings)
    else:
        engine = Engine(view.narrowed(DenseNetwork), settings)
    return engine if seconds is None else fit_to_budget(engine, seconds)


@dataclass(frozen=True)
class AttackKind:
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


RECIPES: Mapping[str, AttackKind] = {
    "haim2022": AttackKind(Haim2022, PublishedScheme),
    "engine": AttackKind(EngineSettings, engine_for),
}


def build_attack(recipe: str, view: AttackerView, values: Mapping[str, Any]) -> Attack:
    chosen = RECIPES[recipe]
    return chosen.scheme(view, chosen.settings(**values))


def choose_scheme(
    view: AttackerView[Network],
    *,
    settings: EngineSettings | None = None,
    seconds: float | None = None,
    resumed: Path | None = None,
) -> Attack:
    """Planned for `seconds` if given; a resumed run keeps the plan in its run.json and takes no other."""
    if resumed is not None and RunDirectory(resumed).record.exists():
        stored = stored_scheme(view, resumed)
        require(
            settings in (None, stored.settings),
            "settings",
            f"must be those of the run that is gone on with ({stored.settings})",
            settings,
            "leave them out, or start anew in another directory",
        )
        return stored
    return engine_for(view, settings or EngineSettings(), seconds)


def stored_scheme(view: AttackerView[Network], run: Path) -> Attack:
    """The attack that a run directory records, with its settings."""
    recipe = read_record(run).get("recipe")
    if recipe == Engine.recipe:
        return engine_for(view, read_settings(run, EngineSettings))
    kinds = {kind.recipe: kind for kind in (Haim2022, Buzaglo2023)}
    if recipe not in kinds:
        raise CheckpointError(f"{RunDirectory(run).record} names no recipe that this version knows: {recipe!r}")
    return PublishedScheme(view, read_settings(run, kinds[recipe]))
