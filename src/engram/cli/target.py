"""From a MODEL argument to what an attacker holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engram.cli.options import parse_shape

if TYPE_CHECKING:
    from engram.models.networks import Network
    from engram.models.view import AttackerView
    from engram.training.target import Card, Target


def open_finished(model: Path) -> tuple[AttackerView, Card]:
    """A target that engram trained, as an attacker sees it, with the card that says what to score against."""
    from engram.core.errors import ConfigError
    from engram.models.networks import DenseNetwork
    from engram.models.tasks.names import task_named
    from engram.models.view import AttackerView
    from engram.training.target import open_target

    target = open_target(model)
    if target.card is None:
        raise ConfigError(f"{model} does not say what it was trained on; give a directory of `engram train`")
    view = AttackerView(target.network, target.card.input_shape, task_named(target.card.task))
    return view.narrowed(DenseNetwork), target.card


def opened(model: Path, arch: str | None, input_shape: str | None) -> Target[Network]:
    """The target that a person points at, with convolutions as --arch and --input-shape describe them."""
    from engram.core.errors import ConfigError
    from engram.models.architecture import Architecture
    from engram.training.target import open_target

    if arch is None:
        return open_target(model)
    if model.is_dir():
        raise ConfigError(f"{model} has a card that describes its layers; leave --arch out")
    if input_shape is None:
        raise ConfigError("--arch needs --input-shape, the shape of one input, e.g. --input-shape 3x32x32")
    return open_target(model, Architecture.parse(arch, parse_shape(input_shape)))


def attacker_view(
    target: Target[Network], model: Path, input_shape: str | None, task: str | None
) -> AttackerView[Network]:
    """The view of a target; shape and task come from the options, else from its card, else from the outputs."""
    from engram.core.errors import ConfigError
    from engram.models.tasks.names import infer_task, task_named
    from engram.models.view import AttackerView

    if input_shape is not None:
        shape = parse_shape(input_shape)
    elif target.card is not None:
        shape = target.card.input_shape
    elif target.network.input_shape is not None:
        shape = target.network.input_shape
    else:
        inputs = target.network.sizes[0]
        raise ConfigError(
            f"{model} does not say what shape its inputs have; give --input-shape, e.g. 3x32x32 "
            f"(the first layer takes {inputs:,} values; if they are no images, --input-shape {inputs})"
        )
    outputs = target.network.sizes[-1]
    name = task or (None if target.card is None else target.card.task)
    return AttackerView(target.network, shape, infer_task(outputs) if name is None else task_named(name, outputs))
