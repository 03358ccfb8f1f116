"""Train any module as people do: mini-batches, Adam or SGD, and what may protect the records.

Label smoothing, mixup, flips and shifts, weight decay and DP-SGD (opacus) are settings of one loop.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from engram.core.errors import ConfigError, optional, require
from engram.core.progress import Progress, silent
from engram.members.layers import as_fed
from engram.models.tasks import Regression, Task
from engram.scoring.curves import DELTA

SHIFT = 4
"""Pixels by which images are shifted at most, of 32; others in proportion."""
Optimiser = Literal["adam", "sgd"]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a module is trained.

    `batch` None is the full batch. `smoothing` is the share of the label that is spread over all classes; `mixup`
    is alpha of Beta(alpha, alpha), 0 for none; `augmented` flips and shifts images. `epsilon` trains by DP-SGD
    with that much privacy at delta 1e-5, gradients clipped at `clip`.
    """

    epochs: int = 60
    optimiser: Optimiser = "adam"
    lr: float = 1e-3
    momentum: float = 0.9
    """Of SGD."""
    batch: int | None = 50
    weight_decay: float = 0.0
    smoothing: float = 0.0
    mixup: float = 0.0
    augmented: bool = False
    epsilon: float | None = None
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.epochs >= 1, "epochs", "must be at least 1", self.epochs)
        require(self.optimiser in ("adam", "sgd"), "optimiser", "must be adam or sgd", self.optimiser)
        require(self.lr > 0, "lr", "must be positive", self.lr)
        require(self.batch is None or self.batch >= 1, "batch", "must be at least 1", self.batch)
        require(self.weight_decay >= 0, "weight_decay", "must not be negative", self.weight_decay)
        require(0 <= self.smoothing < 1, "smoothing", "must be at least 0 and below 1", self.smoothing)
        require(self.mixup >= 0, "mixup", "must not be negative", self.mixup)
        require(self.epsilon is None or self.epsilon > 0, "epsilon", "must be positive", self.epsilon)
        alone = self.epsilon is None or not (self.mixup or self.augmented)
        require(alone, "epsilon", "can't be combined with mixup or augmentation here", self.epsilon)


@dataclass(frozen=True, eq=False)
class Private:
    """What DP-SGD spent: the accountant's epsilon at delta, and the noise that took."""

    epsilon: float
    noise: float


def fitted(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    task: Task,
    fit: Fit,
    *,
    targets: Tensor | None = None,
    progress: Progress = silent,
) -> nn.Module:
    """Train `model` in place on inputs [n, ...] and labels [n], or outputs `targets` [n, k]; comes in eval mode.

    Batch norm keeps its statistics only if the model comes in eval mode.
    """
    require(fit.epsilon is None, "epsilon", "needs `privately_fitted`", fit.epsilon)
    inputs, modes = as_fed(model, inputs), [(one, one.training) for one in model.modules()]
    optimiser = _optimiser(model, fit)
    with _seeded(fit.seed):
        for epoch in range(fit.epochs):
            for some in torch.split(torch.randperm(len(inputs)), fit.batch or len(inputs)):
                own, labelled = inputs[some], labels[some]
                own = moved_about(own) if fit.augmented else own
                if targets is not None:
                    outputs = model(own).reshape(len(own), -1)
                    loss = (outputs - targets[some]).square().mean()
                elif fit.mixup:
                    share = float(torch.distributions.Beta(fit.mixup, fit.mixup).sample())
                    other = torch.randperm(len(own))
                    outputs = model(share * own + (1 - share) * own[other])
                    loss = share * _loss(task, outputs, labelled, fit.smoothing)
                    loss = loss + (1 - share) * _loss(task, outputs, labelled[other], fit.smoothing)
                else:
                    loss = _loss(task, model(own), labelled, fit.smoothing)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            progress("training", (epoch + 1) / fit.epochs)
    for module, mode in modes:
        module.training = mode
    return model.eval()


def privately_fitted(
    model: nn.Module, inputs: Tensor, labels: Tensor, task: Task, fit: Fit, *, progress: Progress = silent
) -> tuple[nn.Module, Private]:
    """Train by DP-SGD to the epsilon of `fit`; batch norm, which mixes records, is replaced by group norm.

    The noise is drawn from a seed, so that an experiment can be repeated. A model to be published needs a secret
    one.
    """
    opacus: Any = optional("opacus", wanted_by="DP-SGD", install="'engram[defence]'")
    require(fit.epsilon is not None, "epsilon", "must be given", fit.epsilon)
    inputs = as_fed(model, inputs)
    with _seeded(fit.seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # opacus: secure mode is off, and an optimiser that sees empty batches
        ModuleValidator: Any = import_module("opacus.validators").ModuleValidator
        private = ModuleValidator.fix(model).train()
        if problems := ModuleValidator.validate(private):
            raise ConfigError(f"DP-SGD can't train this model: {problems[0]}; replace that part")
        loader: Any = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(inputs, labels),
            batch_size=fit.batch or len(inputs),
            generator=torch.Generator().manual_seed(fit.seed),
        )
        engine = opacus.PrivacyEngine(accountant="rdp")
        wrapped, optimiser, loader = engine.make_private_with_epsilon(
            module=private,
            optimizer=_optimiser(private, fit),
            data_loader=loader,
            target_epsilon=fit.epsilon,
            target_delta=DELTA,
            epochs=fit.epochs,
            max_grad_norm=fit.clip,
            noise_generator=torch.Generator(device=inputs.device).manual_seed(fit.seed),
        )
        for epoch in range(fit.epochs):
            for own, labelled in loader:
                optimiser.zero_grad()
                _loss(task, wrapped(own), labelled, fit.smoothing).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            progress("training by DP-SGD", (epoch + 1) / fit.epochs)
        spent = Private(float(engine.get_epsilon(DELTA)), float(optimiser.noise_multiplier))
        plain: nn.Module = wrapped.to_standard_module()
    return plain.eval(), spent


def _optimiser(model: nn.Module, fit: Fit) -> torch.optim.Optimizer:
    if fit.optimiser == "adam":
        return torch.optim.Adam(model.parameters(), fit.lr, weight_decay=fit.weight_decay)
    return torch.optim.SGD(model.parameters(), fit.lr, momentum=fit.momentum, weight_decay=fit.weight_decay)


def _loss(task: Task, outputs: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    outputs = outputs.reshape(len(outputs), -1)
    if isinstance(task, Regression):
        return task.loss(outputs, labels)
    if outputs.shape[1] == 1:  # the logistic loss
        outputs = torch.cat([torch.zeros_like(outputs), outputs], 1)
    return functional.cross_entropy(outputs, labels, label_smoothing=smoothing)


def predicted(outputs: Tensor) -> Tensor:
    """The class that outputs [n, k] choose; the sign for one output.

    >>> predicted(torch.tensor([[-1.0], [2.0]])).tolist(), predicted(torch.tensor([[0.1, 0.3]])).tolist()
    ([0, 1], [1])
    """
    return (outputs[:, 0] > 0).long() if outputs.shape[1] == 1 else outputs.argmax(1)


def moved_about(images: Tensor) -> Tensor:
    """Images [b, C, H, W], each flipped with a chance of one half and shifted by up to an eighth of its side."""
    if images.ndim != 4:
        raise ConfigError("flips and shifts are for images; leave augmentation out for vectors")
    b, _, height, width = images.shape
    most = max(1, SHIFT * width // 32)
    padded = functional.pad(images, (most, most, most, most))
    rows, columns = (torch.randint(2 * most + 1, (b,), device=images.device) for _ in range(2))
    down = rows[:, None] + torch.arange(height, device=images.device)
    across = columns[:, None] + torch.arange(width, device=images.device)
    flips = torch.rand(b, device=images.device) < 0.5
    across = torch.where(flips[:, None], across.flip(1), across)
    which = torch.arange(b, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[which, down[:, :, None], across[:, None, :]].permute(0, 3, 1, 2)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Dropout and batches of modules draw from the global generator: seeded here, and restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


Build = Callable[[], nn.Module]


def started(build: Build, seed: int) -> nn.Module:
    """A module as its own rules draw it."""
    with _seeded(seed):
        return build()
