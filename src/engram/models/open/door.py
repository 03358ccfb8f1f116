"""The entry point for models: any model, in any form, becomes an attacker's view.

Commands, sweeps, papers, benchmarks and Python all use `open_view`. From a directory of `engram train` it reads
the weights, the shape of the inputs, the task and the layers; the rest of the card is the owner's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from engram.core import files
from engram.core.errors import CheckpointError, ConfigError
from engram.models.architecture import Architecture
from engram.models.networks import Network
from engram.models.open.described import described_network
from engram.models.open.files import read_any_network
from engram.models.open.state_dict import dense_network
from engram.models.tasks import infer_task, task_named
from engram.models.view import AttackerView

Model = nn.Module | Network | Mapping[str, Tensor] | Path | str
MODEL_FILE, CARD_FILE = "model.safetensors", "card.json"
"""The files in a directory of `engram train`."""


def open_view(
    model: Model,
    *,
    input_shape: Sequence[int] | str | None = None,
    task: str | None = None,
    arch: str | None = None,
) -> AttackerView[Network]:
    """What an attacker sees of a model.

    model        a module, a state_dict, a network, or the path of a file or of a directory of `engram train`
    input_shape  of one input, (3, 32, 32) or "3x32x32"; directories and .pt2 files specify their own
    task         what the outputs mean, by name; default: the card's, else binary for one output, else classes
    arch         the layers of a file with convolutions, e.g. "conv3x32 relu flatten 1000 relu 1"
    """
    shape = None
    if input_shape is not None:
        shape = parse_shape(input_shape) if isinstance(input_shape, str) else tuple(input_shape)
    card = PublicCard.of(model)
    network = _network(model, card, shape, arch)
    found = shape or card.input_shape or network.input_shape
    if not found:
        inputs = network.sizes[0]
        raise ConfigError(
            f"{model_name(model)} does not specify the shape of its inputs; give it, e.g. --input-shape 3x32x32 "
            f"(in Python input_shape=(3, 32, 32)). The first layer takes {inputs:,} values; if they are not "
            f"images, give --input-shape {inputs}"
        )
    outputs, name = network.sizes[-1], task or card.task
    return AttackerView(network, found, infer_task(outputs) if name is None else task_named(name, outputs))


def open_recorded(record: Mapping[str, Any]) -> AttackerView[Network]:
    """The model that a run.json names, as it was opened for that run."""
    shape = record.get("input_shape")
    is_shape = isinstance(shape, list) and all(type(side) is int for side in shape)
    return open_view(
        Path(str(record.get("model", ""))),
        input_shape=shape if is_shape else None,
        task=record.get("task"),
        arch=record.get("architecture"),
    )


def model_name(model: Model) -> str:
    """The model's name in reports and errors."""
    if isinstance(model, str | Path):
        return str(model)
    return model.name if isinstance(model, Network) else type(model).__name__


def parse_shape(text: str) -> tuple[int, ...]:
    """'3x32x32' -> (3, 32, 32).

    >>> parse_shape("3x32x32")
    (3, 32, 32)
    """
    parts = text.lower().replace("×", "x").split("x")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"--input-shape must be positive numbers joined by x, got {text!r}; for example 3x32x32")
    return tuple(int(part) for part in parts)


@dataclass(frozen=True)
class PublicCard:
    """The public part of the card of a model that engram trained; empty for other models."""

    input_shape: tuple[int, ...] | None = None
    task: str | None = None
    layers: str | None = None
    """Of a network with convolutions, in the form of --arch."""

    @classmethod
    def of(cls, model: Model) -> PublicCard:
        if not isinstance(model, str | Path) or not Path(model).is_dir():
            return cls()
        path = Path(model) / CARD_FILE
        if not path.exists():
            raise CheckpointError(
                f"{model} contains no {CARD_FILE}, so it is not a finished target of `engram train`; "
                "give that command's output directory, or a .pt, .pth or .safetensors file"
            )
        try:
            card = files.read_json(path)
            return cls(
                tuple(int(side) for side in card["input_shape"]), str(card["task"]), card["network"].get("layers")
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{path} is not a card that this version can read: {error!r}") from error


def _network(model: Model, card: PublicCard, shape: tuple[int, ...] | None, arch: str | None) -> Network:
    layers = _layers(model, card, shape, arch)
    if isinstance(model, str | Path):
        path = Path(model)
        return read_any_network(path / MODEL_FILE if path.is_dir() else path, layers)
    if isinstance(model, Network):
        return model
    state = model.state_dict() if isinstance(model, nn.Module) else model
    return dense_network(state) if layers is None else described_network(state, layers)


def _layers(
    model: Model, card: PublicCard, shape: tuple[int, ...] | None, arch: str | None
) -> Architecture | None:
    """The layers that the card or `arch` describes; they must match a model that specifies its own."""
    own = card.layers
    if isinstance(model, Network):
        own = getattr(getattr(model, "architecture", None), "text", "")
    if arch is None and card.layers is None:
        return None
    shape = shape or card.input_shape or (model.input_shape if isinstance(model, Network) else None)
    if shape is None:
        raise ConfigError(
            "--arch needs the shape of one input, e.g. --input-shape 3x32x32, in Python input_shape=(3, 32, 32)"
        )
    described = Architecture.parse(arch or card.layers or "", shape)
    is_whole = isinstance(model, Network) or card.input_shape is not None
    if is_whole and described.text != own:
        raise ConfigError(f"{model_name(model)} specifies its own layers, which differ; leave --arch out")
    return described
