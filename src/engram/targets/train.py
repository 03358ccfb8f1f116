"""Train a network by a recipe, and measure it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from engram.errors import require
from engram.loop import Budget, Observer, Snapshots, Solution, run
from engram.targets.conv_descent import ConvDescent
from engram.targets.convolutional import ConvNetwork
from engram.targets.descent import GradientDescent
from engram.targets.flow import FlowDescent
from engram.targets.gram import GramDescent
from engram.targets.minibatch import BatchDescent
from engram.targets.networks import DenseNetwork, N, Network
from engram.targets.recipe import Recipe
from engram.targets.spec import Spec
from engram.task import Task


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
