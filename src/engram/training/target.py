"""Train a network, measure it, keep it: `model.safetensors` beside `card.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, cast

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from engram.core import files
from engram.core.errors import CheckpointError, require
from engram.core.loop import Budget, Observer, Snapshots, Solution, run
from engram.data.choice import DataChoice
from engram.models.architecture import Architecture
from engram.models.networks import ConvNetwork, DenseNetwork, N, N_co, Network
from engram.models.open.files import read_any_network
from engram.models.tasks.base import Task
from engram.training.descent import GradientDescent
from engram.training.factored import BatchDescent, ConvDescent, GramDescent
from engram.training.flow import FlowDescent
from engram.training.recipe import Recipe
from engram.training.spec import ConvSpec, MLPSpec, Spec


@dataclass(frozen=True)
class Quality:
    """How well a network does on a set of images."""

    loss: float
    accuracy: float
    smallest_margin: float


def require_classes(classes: Sequence[str], task: Task) -> None:
    """Every class is a label of the task: nothing is trained on labels that the task does not have."""
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
    """Train a fresh network on centred inputs [n, ...]; the solution tells how training ended."""
    generator = torch.Generator().manual_seed(recipe.seed)
    start = spec.initialise(generator, recipe.torch_dtype).to(device=device)
    flat = inputs.flatten(1).to(device=device, dtype=recipe.torch_dtype)
    descent = make_descent(start, task, recipe, flat, labels.to(device))
    iteration = descent if recipe.flow is None else FlowDescent(descent, recipe.flow)
    budget = Budget(steps=recipe.epochs)
    solution = run(iteration, budget, snapshots=snapshots, resume=resume, observers=observers)
    return descent.network(solution.state), solution


def make_descent(start: N, task: Task, recipe: Recipe, inputs: Tensor, labels: Tensor) -> GradientDescent[N]:
    """The Gram form costs n² where plain descent costs n d, and is the same trajectory; it needs a dense layer."""
    if isinstance(start, ConvNetwork) and start.has_head:
        return cast("GradientDescent[N]", ConvDescent(start, task, recipe, inputs, labels))
    if not isinstance(start, DenseNetwork) or (recipe.batch is None and len(inputs) >= inputs.shape[1]):
        return GradientDescent(start, task, recipe, inputs, labels)
    kind = GramDescent if len(inputs) < inputs.shape[1] else BatchDescent
    return cast("GradientDescent[N]", kind(start, task, recipe, inputs, labels))


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
