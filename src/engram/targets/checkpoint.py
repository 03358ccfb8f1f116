"""Targets on disk: `model.safetensors` beside `card.json`; and reading any model that a user points at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic

from pydantic import ConfigDict, TypeAdapter, ValidationError

from engram import files
from engram.data.choice import DataChoice
from engram.errors import CheckpointError
from engram.targets.architecture import Architecture
from engram.targets.foreign import read_any_network
from engram.targets.networks import N_co, Network
from engram.targets.recipe import Recipe
from engram.targets.spec import ConvSpec, MLPSpec
from engram.targets.train import Quality

MODEL_FILE, CARD_FILE = "model.safetensors", "card.json"


@dataclass(frozen=True, kw_only=True)
class Card:
    """What its owner knows of a target that engram trained; an attack reads the shape and task alone."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    network: MLPSpec | ConvSpec
    task: str
    input_shape: tuple[int, ...]
    recipe: Recipe
    data: DataChoice
    epochs: int
    stopped: str
    seconds: float
    train: Quality
    held_out: Quality | None
    test: Quality | None
    test_images: int
    versions: dict[str, str]
    schema_version: int = 1


@dataclass(frozen=True, eq=False)
class Target(Generic[N_co]):
    """A network as it would be released, with its card if engram trained it."""

    network: N_co
    card: Card | None


def save_target(directory: Path, network: Network, card: Card) -> None:
    """The card comes last: a directory with a card is a whole target."""
    files.write_tensors(directory / MODEL_FILE, network.params)
    files.write_json(directory / CARD_FILE, asdict(card))


def open_target(path: Path, architecture: Architecture | None = None) -> Target[Network]:
    """A target directory of `engram train`, or a checkpoint file; one with convolutions needs its `architecture`,
    unless torch.export wrote it."""
    if not path.is_dir():
        return Target(read_any_network(path, architecture), None)
    if not (path / CARD_FILE).exists():
        raise CheckpointError(
            f"{path} holds no {CARD_FILE}, so it is no finished target of `engram train`; "
            "give that command's output directory, or a .pt, .pth or .safetensors file"
        )
    card = read_card(path / CARD_FILE)
    known = card.network.architecture if isinstance(card.network, ConvSpec) else None
    return Target(read_any_network(path / MODEL_FILE, known), card)


def open_recorded(record: Mapping[str, Any]) -> Target[Network]:
    """The model that a run.json names, with the layers that were described for its file, if any."""
    layers, shape = record.get("architecture"), record.get("input_shape")
    is_told = isinstance(layers, str) and isinstance(shape, list) and all(type(side) is int for side in shape)
    known = Architecture.parse(str(layers), tuple(shape)) if is_told and shape else None
    return open_target(Path(str(record.get("model", ""))), known)


def read_card(path: Path) -> Card:
    try:
        return TypeAdapter(Card).validate_python(files.read_json(path))
    except ValidationError as error:
        raise CheckpointError(f"{path} is no card that this version reads: {error}") from error
