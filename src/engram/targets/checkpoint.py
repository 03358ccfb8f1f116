"""Targets on disk: `model.safetensors` beside `card.json`; and reading any model that a user points at."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from engram import files
from engram.data.choice import DataChoice
from engram.errors import CheckpointError
from engram.targets.descent import Recipe
from engram.targets.foreign import read_network
from engram.targets.networks import DenseNetwork
from engram.targets.spec import MLPSpec
from engram.targets.train import Quality

MODEL_FILE, CARD_FILE = "model.safetensors", "card.json"


@dataclass(frozen=True, kw_only=True)
class Card:
    """What its owner knows of a target that engram trained; an attack reads the shape and task alone."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    network: MLPSpec
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
class Target:
    """A network as it would be released, with its card if engram trained it."""

    network: DenseNetwork
    card: Card | None


def save_target(directory: Path, network: DenseNetwork, card: Card) -> None:
    """The card comes last: a directory with a card is a whole target."""
    files.write_tensors(directory / MODEL_FILE, network.params)
    files.write_json(directory / CARD_FILE, asdict(card))


def open_target(path: Path) -> Target:
    """A target directory of `engram train`, or any checkpoint file of a fully-connected ReLU network."""
    if not path.is_dir():
        return Target(read_network(path), None)
    if not (path / CARD_FILE).exists():
        raise CheckpointError(
            f"{path} holds no {CARD_FILE}, so it is no finished target of `engram train`; "
            "give that command's output directory, or a .pt, .pth or .safetensors file"
        )
    return Target(read_network(path / MODEL_FILE), read_card(path / CARD_FILE))


def read_card(path: Path) -> Card:
    try:
        return TypeAdapter(Card).validate_python(files.read_json(path))
    except ValidationError as error:
        raise CheckpointError(f"{path} is no card that this version reads: {error}") from error
