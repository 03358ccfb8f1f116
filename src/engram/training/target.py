"""Train a network, measure it, and save it: `model.safetensors` and `card.json`.

`TargetCache` stores targets by content: the same target is never trained twice. An entry is a directory named by
the hash of everything that determines the outcome. `entry.json` is written last and contains the digests of the
other files, so that a half-written or damaged entry does not count.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Generic, cast

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from engram.core import files
from engram.core.errors import CheckpointError, EngramError, require
from engram.core.loop import Budget, Observer, Snapshots, Solution, run
from engram.data.choice import DataChoice
from engram.data.sets import Split
from engram.models.networks import ConvNetwork, DenseNetwork, N, N_co, Network
from engram.models.open.door import CARD_FILE, MODEL_FILE, open_view
from engram.models.tasks import Task
from engram.training.descent import BatchDescent, ConvDescent, GradientDescent, GramDescent
from engram.training.flow import FlowDescent
from engram.training.recipe import ConvSpec, MLPSpec, Recipe, Spec


@dataclass(frozen=True)
class Quality:
    """How well a network performs on a set of images."""

    loss: float
    accuracy: float
    smallest_margin: float


def require_classes(classes: Sequence[str], task: Task) -> None:
    """Every class must be a label of the task, so that training never sees labels that the task does not have."""
    require(
        len(classes) == task.label_count,
        "data",
        f"must have {task.label_count} classes for a {task.name} task",
        list(classes),
        "choose another label map with --labels, or --task multiclass",
    )


@torch.no_grad()
def measure(network: Network, task: Task, inputs: Tensor, labels: Tensor) -> Quality:
    """Loss, accuracy and smallest margin, in chunks so that a large test set fits."""
    dtype = network.weights[0].dtype
    logits = torch.cat([network(chunk.to(dtype)) for chunk in torch.split(inputs, 4096)])
    return Quality(
        loss=float(task.loss(logits, labels)),
        accuracy=float(task.correct(logits, labels).double().mean()),
        smallest_margin=float(task.margins(logits, labels).min()),
    )


def train(
    spec: Spec[N],
    recipe: Recipe,
    task: Task,
    inputs: Tensor,
    labels: Tensor,
    *,
    device: torch.device | str = "cpu",
    snapshots: Snapshots | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
) -> tuple[N, Solution]:
    """Train a fresh network on centred inputs [n, ...]; the solution says how training ended."""
    generator = torch.Generator().manual_seed(recipe.seed)
    start = spec.initialise(generator, recipe.torch_dtype).to(device=device)
    flat = inputs.flatten(1).to(device=device, dtype=recipe.torch_dtype)
    descent = make_descent(start, task, recipe, flat, labels.to(device))
    iteration = descent if recipe.flow is None else FlowDescent(descent, recipe.flow)
    budget = Budget(steps=recipe.epochs)
    solution = run(iteration, budget, snapshots=snapshots, resume=resume, observers=observers)
    return descent.network(solution.state), solution


def make_descent(start: N, task: Task, recipe: Recipe, inputs: Tensor, labels: Tensor) -> GradientDescent[N]:
    """The cheapest form; all have the same trajectory. Gram costs n² instead of n d, but needs a dense layer."""
    if isinstance(start, ConvNetwork) and start.has_head:
        return cast("GradientDescent[N]", ConvDescent(start, task, recipe, inputs, labels))
    if not isinstance(start, DenseNetwork) or (recipe.batch is None and len(inputs) >= inputs.shape[1]):
        return GradientDescent(start, task, recipe, inputs, labels)
    kind = GramDescent if len(inputs) < inputs.shape[1] else BatchDescent
    return cast("GradientDescent[N]", kind(start, task, recipe, inputs, labels))


@dataclass(frozen=True, kw_only=True)
class Card:
    """What the owner knows about a target that engram trained; an attack reads only the public part."""

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
    """The card is written last: a directory with a card is a complete target."""
    files.write_tensors(directory / MODEL_FILE, network.params)
    files.write_json(directory / CARD_FILE, asdict(card))


def open_target(directory: Path) -> Target[Network]:
    """What `engram train` left in a directory: the network as anyone would open it, and the owner's card."""
    card = card_of(directory)
    if card is None:
        raise CheckpointError(f"{directory} is not a directory of `engram train`; give one with a {CARD_FILE}")
    return Target(open_view(directory).network, card)


def card_of(model: Path) -> Card | None:
    """The owner's card of a model that engram trained; None for other models."""
    path = model / CARD_FILE
    return read_card(path) if path.exists() else None


def read_card(path: Path) -> Card:
    try:
        return TypeAdapter(Card).validate_python(files.read_json(path))
    except ValidationError as error:
        raise CheckpointError(f"{path} is not a card that this version can read: {error}") from error


TRAINING_VERSION = 1  # increase it when a code change alters the result of training
ENTRY_FILE = "entry.json"


def cache_root() -> Path:
    """ENGRAM_CACHE, else ~/.cache/engram."""
    return Path(os.environ.get("ENGRAM_CACHE") or "~/.cache/engram").expanduser() / "targets"


def content_key(spec: MLPSpec | ConvSpec, recipe: Recipe, task: Task, choice: DataChoice, data: Split) -> str:
    """SHA-256 of the network, recipe, task, choice and content of the data, and version of the training code."""
    settings = [asdict(spec), recipe.settings(), task.name, asdict(choice), TRAINING_VERSION]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for images in (data.train, data.held_out):
        digest.update(images.images.contiguous().numpy().tobytes())
        digest.update(images.labels.numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class TargetCache:
    """Targets under `root`, by key."""

    root: Path

    def find(self, key: str) -> Target[Network] | None:
        """The target of that key, if it is there and complete."""
        place = self.root / key
        if not (place / ENTRY_FILE).exists():
            return None
        try:
            entry = files.read_json(place / ENTRY_FILE)
            target = open_target(place)
            return target if entry == _digests(place, target) else None
        except EngramError:  # damaged: train and write it again
            return None

    def keep(self, key: str, target: Target[Network]) -> None:
        place = self.root / key
        assert target.card is not None
        save_target(place, target.network, target.card)
        files.write_json(place / ENTRY_FILE, _digests(place, target))


def _digests(place: Path, target: Target[Network]) -> dict[str, str]:
    card = hashlib.sha256((place / CARD_FILE).read_bytes()).hexdigest()
    return {"weights": target.network.digest(), "card": card}
