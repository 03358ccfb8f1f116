"""Train any module as people do, and the targets and defences that `defend` trains.

Label smoothing, mixup, flips and shifts, weight decay and DP-SGD (opacus) are settings of one loop.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from engram.core.errors import ConfigError, optional, require
from engram.core.loop import Progress, silent
from engram.data.choice import DataChoice
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
        # ghost clipping: the norms of per-sample gradients without the gradients, which fill gigabytes
        wrapped, optimiser, loss, loader = engine.make_private_with_epsilon(
            grad_sample_mode="ghost",
            criterion=SampleLoss(task, fit.smoothing),
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
                loss(wrapped(own), labelled).backward()
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
    if isinstance(task, Regression):
        return task.loss(outputs.reshape(len(outputs), -1), labels)
    return functional.cross_entropy(_logits(outputs), labels, label_smoothing=smoothing)


class SampleLoss(nn.Module):
    """The loss as a module with a `reduction`, which opacus sets to "none" to see each record's own."""

    def __init__(self, task: Task, smoothing: float) -> None:
        super().__init__()
        require(not isinstance(task, Regression), "task", "must be a classification for DP-SGD", task.name)
        self.reduction, self.smoothing = "mean", smoothing

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        outputs = _logits(outputs)
        return functional.cross_entropy(outputs, labels, label_smoothing=self.smoothing, reduction=self.reduction)


def _logits(outputs: Tensor) -> Tensor:
    """Outputs [n, ...] as one logit per class; of one output the sign decides."""
    outputs = outputs.reshape(len(outputs), -1)
    return torch.cat([torch.zeros_like(outputs), outputs], 1) if outputs.shape[1] == 1 else outputs


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


SMALL_START = 1e-4
"""Standard deviation of the gate's first layer at the start, as in the first paper."""


@dataclass(frozen=True, kw_only=True)
class Defence:
    """A change to how a model is trained: to the settings of its `Fit`, its network, its start, or its data."""

    name: str
    says: str
    fit: Mapping[str, Any] = field(default_factory=dict)
    epochs: float = 1.0
    """Times the usual number of epochs."""
    width: float = 1.0
    """Times the usual width."""
    dropout: float = 0.0
    start: float = 1.0
    """Times the usual weights at the start."""
    records: int = 1
    """Times the usual number of training records."""

    def __post_init__(self) -> None:
        require(self.epochs > 0, "epochs", "must be positive", self.epochs)
        require(self.width > 0, "width", "must be positive", self.width)
        require(0 <= self.dropout < 1, "dropout", "must be at least 0 and below 1", self.dropout)
        require(self.start > 0, "start", "must be positive", self.start)
        require(self.records >= 1, "records", "must be at least 1", self.records)

    def applied(self, fit: Fit, n: int) -> Fit:
        """The settings under this defence, for n records.

        DP-SGD gets Adam, large batches and few epochs, which lose least to its noise.
        """
        changed = replace(fit, epochs=max(1, round(self.epochs * fit.epochs)), **self.fit)
        if changed.epsilon is None:
            return changed
        return replace(changed, optimiser="adam", lr=1e-3, epochs=40, batch=max(1, n // 4))


EPSILONS = (1, 3, 8, 50, 1000)
DEFENCES: dict[str, Defence] = {
    one.name: one
    for one in (
        Defence(name="none", says="as it is usually trained"),
        *(Defence(name=f"dp-{e}", says=f"DP-SGD, epsilon {e}", fit={"epsilon": float(e)}) for e in EPSILONS),
        Defence(name="decay-1e-3", says="weight decay 0.001", fit={"weight_decay": 1e-3}),
        Defence(name="decay-1e-2", says="weight decay 0.01", fit={"weight_decay": 1e-2}),
        Defence(name="early", says="a tenth of the epochs", epochs=0.1),
        Defence(name="longer", says="five times the epochs", epochs=5.0),
        Defence(name="batch-10", says="batches of 10", fit={"batch": 10}),
        Defence(name="batch-full", says="full batches", fit={"batch": None}),
        Defence(name="dropout", says="dropout 0.5", dropout=0.5),
        Defence(name="smoothing", says="label smoothing 0.2", fit={"smoothing": 0.2}),
        Defence(name="mixup", says="mixup, alpha 1", fit={"mixup": 1.0}),
        Defence(name="augmented", says="flips and shifts", fit={"augmented": True}),
        Defence(name="more", says="four times the records", records=4),
        Defence(name="narrow", says="an eighth of the width", width=0.125),
        Defence(name="big-start", says="weights three times as large at the start", start=3.0),
    )
}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A target as people train it; `data` None where the user has to name the records."""

    says: str
    build: Callable[[tuple[int, ...], int, Defence], nn.Module]
    """From the shape of an input, the number of outputs, and the width and dropout of a defence."""
    fit: Fit
    task: str
    data: DataChoice | None
    takes_images: bool = True

    def network(self, shape: tuple[int, ...], outputs: int, defence: Defence, seed: int) -> nn.Module:
        """At its start, as large as the defence asks for."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.build(shape, outputs, defence)
        with torch.no_grad():
            for one in model.modules():
                if isinstance(one, nn.Linear | nn.Conv2d):
                    one.weight.mul_(defence.start)
        return model


def _wide(width: int, defence: Defence) -> int:
    return max(1, round(width * defence.width))


def _hidden(entering: int, leaving: int, defence: Defence, *, bias: bool = True) -> list[nn.Module]:
    drop: list[nn.Module] = [nn.Dropout(defence.dropout)] if defence.dropout else []
    return [nn.Linear(entering, leaving, bias=bias), nn.ReLU(), *drop]


def mlp(shape: tuple[int, ...], outputs: int, defence: Defence) -> nn.Module:
    first, second = _wide(512, defence), _wide(256, defence)
    hidden = [*_hidden(prod(shape), first, defence), *_hidden(first, second, defence)]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(second, outputs))


def gate(shape: tuple[int, ...], outputs: int, defence: Defence) -> nn.Module:
    """The papers' network: two wide layers, a small start, a bias in the first layer alone."""
    wide = _wide(1000, defence)
    first = _hidden(prod(shape), wide, defence)
    for value in first[0].parameters():
        nn.init.normal_(value, 0, SMALL_START)
    second = _hidden(wide, wide, defence, bias=False)
    return nn.Sequential(nn.Flatten(), *first, *second, nn.Linear(wide, outputs, bias=False))


def cnn(shape: tuple[int, ...], outputs: int, defence: Defence) -> nn.Module:
    layers: list[nn.Module] = []
    entering, side = shape[0], shape[1]
    for channels in (_wide(32, defence), _wide(64, defence), _wide(128, defence)):
        layers += [nn.Conv2d(entering, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
        entering, side = channels, side // 2
    wide = _wide(256, defence)
    return nn.Sequential(
        *layers, nn.Flatten(), *_hidden(entering * side * side, wide, defence), nn.Linear(wide, outputs)
    )


def head(shape: tuple[int, ...], outputs: int, defence: Defence) -> nn.Module:
    wide = _wide(500, defence)
    return nn.Sequential(nn.Flatten(), *_hidden(prod(shape), wide, defence), nn.Linear(wide, outputs))


SCENARIOS: dict[str, Scenario] = {
    "mlp": Scenario(
        says="an MLP of 500 CIFAR-10 images in ten classes, Adam",
        build=mlp,
        fit=Fit(epochs=60),
        task="multiclass",
        data=DataChoice(name="cifar10", labels="identity", n=500),
    ),
    "gate": Scenario(
        says="the demo's access gate, which learns 50 faces by heart",
        build=gate,
        fit=Fit(epochs=4000, optimiser="sgd", lr=0.02, momentum=0.0, batch=None),
        task="binary",
        data=DataChoice(name="faces", labels="gate", n=50),
    ),
    "cnn": Scenario(
        says="a CNN with batch norm, 500 CIFAR-10 images, Adam",
        build=cnn,
        fit=Fit(epochs=40),
        task="multiclass",
        data=DataChoice(name="cifar10", labels="identity", n=500),
    ),
    "head": Scenario(
        says="a head on embeddings that you give with --data, Adam",
        build=head,
        fit=Fit(epochs=100),
        task="multiclass",
        data=None,
        takes_images=False,
    ),
}


def scenario_named(name: str) -> Scenario:
    if name not in SCENARIOS:
        listed = "; ".join(f"{key}: {one.says}" for key, one in SCENARIOS.items())
        raise ConfigError(f"there is no target {name!r}; choose one of {listed}")
    return SCENARIOS[name]


def chosen_defences(only: str | None, scenario: Scenario) -> list[Defence]:
    """All that make sense for a target, or those named; `none` is always the first, to compare with.

    >>> [one.name for one in chosen_defences("dp-8, dropout", SCENARIOS["mlp"])]
    ['none', 'dp-8', 'dropout']
    """
    left_out = set() if scenario.takes_images else {"augmented"}
    if scenario.fit.batch is None:
        left_out.add("batch-full")
    if scenario.data is not None and scenario.data.name == "faces":
        left_out.add("more")  # there are no more faces
    if only is None:
        return [one for name, one in DEFENCES.items() if name not in left_out]
    names = [name.strip() for name in only.split(",")]
    for name in names:
        if name not in DEFENCES:
            raise ConfigError(f"there is no defence {name!r}; choose some of {', '.join(DEFENCES)}")
        if name in left_out:
            raise ConfigError(f"{name} does not apply to this target; leave it out")
    return [DEFENCES["none"], *(DEFENCES[name] for name in dict.fromkeys(names) if name != "none")]
