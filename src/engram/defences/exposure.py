"""How exposed a model's training records are: the numbers that defences are compared by, and what is accepted."""

from __future__ import annotations

import copy
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engram.attacks.registry import make_attack
from engram.auditing.comparison import Samples, image_set, members_tested, row_bytes
from engram.auditing.preprocessing import Preprocessing, chosen_preprocessing
from engram.auditing.run import run_audit
from engram.auditing.verdict import chance_of
from engram.core.errors import ConfigError, require
from engram.core.files import aligned
from engram.core.loop import Progress, silent
from engram.data.sets import ImageSet, Split, numbered
from engram.members.kkt import Membership, dense_part
from engram.members.layers import as_fed, readable_layers
from engram.members.membership import membership, task_of
from engram.models.networks import Network
from engram.models.open.door import Model, open_view, parse_shape
from engram.models.open.modules import as_module, readable_view
from engram.models.tasks import Task
from engram.models.view import AttackerView, Normalization
from engram.scoring.curves import epsilon_lower, roc

CHANCE = 0.05
"""Images count if so many more of the training records than of the held-out ones are rarer than this by chance."""


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """What the weights give away about the records, beside what the model is worth."""

    members: float
    """Share of the records identified as members without a false alarm ..."""
    members_at_1: float
    """... and at a false-positive rate of 1 %."""
    auc: float
    epsilon: float
    """Lower bound at 95 % confidence."""
    accuracy: float
    """On held-out records."""
    train_accuracy: float
    records: int
    controls: int
    images: int | None = None
    """Training records that came back as images; None where no attack tried."""
    held_out_images: int | None = None
    """The same count of held-out records."""
    seconds: float = 0.0

    @property
    def images_beyond(self) -> int | None:
        """Images beyond the control's share; 0 where chance alone could give as many.

        >>> told = dict(members=0, members_at_1=0, auc=0.5, epsilon=0, accuracy=1, train_accuracy=1)
        >>> [Exposure(**told, records=50, controls=50, images=n, held_out_images=1).images_beyond for n in (3, 20)]
        [0, 19]
        """
        if self.images is None or self.held_out_images is None:
            return None
        by_chance = round(self.held_out_images * self.records / max(1, self.controls))
        chance = chance_of(self.images, self.records, self.held_out_images, self.controls)
        return 0 if chance >= CHANCE else max(0, self.images - by_chance)

    def generalises(self, task: Task) -> bool:
        """Whether the model does better on held-out records than a guess, by more than two standard errors."""
        guess = 1 / task.label_count
        return self.accuracy > guess + 2 * math.sqrt(guess * (1 - guess) / max(1, self.controls))

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "images_beyond": self.images_beyond}


def worst(found: Sequence[Exposure]) -> Exposure:
    """Of several ways to attack one model, the highest of every number; accuracies are of the first."""
    first = found[0]
    seen = [one for one in found if one.images is not None]
    most = max(seen, key=lambda one: (one.images_beyond or 0, one.images or 0)) if seen else first
    return replace(
        first,
        members=max(one.members for one in found),
        members_at_1=max(one.members_at_1 for one in found),
        auc=max(one.auc for one in found),
        epsilon=max(one.epsilon for one in found),
        images=most.images,
        held_out_images=most.held_out_images,
        seconds=sum(one.seconds for one in found),
    )


@dataclass(frozen=True, eq=False)
class Subject:
    """A model's records and how they are fed to it; `view` where the model can be read for reconstruction."""

    view: AttackerView[Network] | None
    task: Task
    preprocessing: Preprocessing
    train: ImageSet

    def inputs(self, records: ImageSet) -> Tensor:
        return self.preprocessing(records.images)

    def viewed(self, module: nn.Module) -> AttackerView[Network] | None:
        """The view with the weights of a module that has the same layers."""
        if self.view is None:
            return None
        layers = readable_layers(module).values()
        weights = tuple(layer.weight.detach() for layer in layers)
        biases = tuple(None if layer.bias is None else layer.bias.detach() for layer in layers)
        network = replace(self.view.network, weights=weights, biases=biases)
        return replace(self.view, network=network, base=None, update=None)

    def members(self, module: nn.Module, control: ImageSet) -> Exposure:
        """Who was in training, asked of the weights alone; no images."""
        started = time.perf_counter()
        view = self.viewed(module)
        if view is None:
            record = membership(
                module,
                (self.inputs(self.train), self.train.labels),
                (self.inputs(control), control.labels),
                task=self.task.name,
            )
            scores = [(record.train, record.held_out), record.margins]
        else:
            data = Split(self.train, control, self.preprocessing.mean)
            scores = _scores(members_tested(view, dense_part(view), data, module)[0])
        return self._exposure(module, control, scores, time.perf_counter() - started)

    def attacked(
        self,
        module: nn.Module,
        control: ImageSet,
        *,
        seconds: float | None,
        name: str = "",
        directory: Path | None = None,
        progress: Progress = silent,
    ) -> Exposure:
        """The whole audit, with images where the model can be reconstructed."""
        view = self.viewed(module)
        if view is None:
            return self.members(module, control)
        if not all(bool(weight.any()) for weight in view.network.weights):  # nothing is left to attack
            return replace(self.members(module, control), images=0, held_out_images=0)
        started = time.perf_counter()
        record = run_audit(
            make_attack(view, budget=seconds),
            Split(self.train, control, self.preprocessing.mean),
            inversion=None,
            name=name,
            seconds=seconds,
            directory=directory,
            progress=progress,
        )
        comparison = record.comparison
        assert comparison is not None
        assert comparison.membership is not None
        own = self._exposure(module, control, _scores(comparison.membership), time.perf_counter() - started)
        count = comparison.count
        return replace(own, images=count.train, held_out_images=count.held_out)

    def _exposure(
        self, module: nn.Module, control: ImageSet, scores: Sequence[tuple[Tensor, Tensor]], seconds: float
    ) -> Exposure:
        """The worst of several scores of records and controls: who attacks may choose."""
        accuracy, train_accuracy = (self.accuracy(module, records) for records in (control, self.train))
        curves = [roc(own, others) for own, others in scores]
        return Exposure(
            members=max(curve.at(0) for curve in curves),
            members_at_1=max(curve.at(0.01) for curve in curves),
            auc=max(curve.auc for curve in curves),
            epsilon=max(epsilon_lower(own, others) for own, others in scores),
            accuracy=accuracy,
            train_accuracy=train_accuracy,
            records=len(self.train),
            controls=len(control),
            seconds=seconds,
        )

    @torch.no_grad()
    def accuracy(self, module: nn.Module, records: ImageSet) -> float:
        inputs = torch.split(self.inputs(records), 512)
        outputs = torch.cat([module(as_fed(module, some)).reshape(len(some), -1) for some in inputs])
        return float(self.task.correct(outputs.cpu(), records.labels).double().mean())


TESTS = ("combined", "layers", "loss")
"""The tests of an audit that count: from all of the weights, from the layers alone, and from queries alone."""


def _scores(found: Membership) -> list[tuple[Tensor, Tensor]]:
    return [(test.train, test.held_out) for test in found.tests if test.name in TESTS]


@dataclass(frozen=True, eq=False)
class Opened:
    """A model as a module whose layers can be changed, and as a view where images can be reconstructed from it."""

    module: nn.Module
    view: AttackerView[Network] | None
    given: nn.Module | None
    """The user's own module, if one was given."""
    normalization: Normalization | None = None
    reason: str | None = None
    """Why images can't be reconstructed."""

    @classmethod
    def of(
        cls,
        model: nn.Module | Model,
        input_shape: Sequence[int] | str,
        *,
        task: str | None,
        arch: str | None,
        activation: str | None,
        normalize: Any,
        head: str | None,
    ) -> Opened:
        if not isinstance(model, nn.Module):
            view = open_view(
                model,
                input_shape=None if _says_its_shape(model) else input_shape,
                task=task,
                arch=arch,
                activation=activation,
                normalize=normalize,
                head=head,
            )
            return cls(as_module(view.network), view, None)
        shape = parse_shape(input_shape) if isinstance(input_shape, str) else tuple(input_shape)
        read = readable_view(model, shape, task, normalize)
        if isinstance(read, str) or read.is_folded or not _alike(model, read.network):
            reason = read if isinstance(read, str) else "its layers are not a plain chain"
            known = None if normalize is None else Normalization.of(normalize)
            return cls(model, None, model, known, reason)
        return cls(as_module(read.network), read, model)

    def records(self, samples: Samples, name: str) -> ImageSet:
        if self.view is not None:
            return image_set(self.view, samples, name)
        if isinstance(samples, ImageSet):
            return samples
        images, labels = (torch.as_tensor(part).detach().cpu() for part in samples)
        classes = numbered(1 + int(labels.max()))
        return ImageSet(aligned(images.float()), labels.long(), name, classes)

    def subject(self, train: ImageSet, held_out: ImageSet, task: str | None, mean: str) -> Subject:
        """The records as the model takes them; preprocessing is chosen as in an audit."""
        highest = int(max(train.labels.max(), held_out.labels.max()))
        meaning = task_of(
            self.module, train.images[:2], highest, task if self.view is None else self.view.task.name
        )
        known = self.normalization if self.view is None else self.view.normalization
        chosen = chosen_preprocessing(self.module, meaning, train, held_out, mean, known, view=self.view)
        return Subject(self.view, meaning, chosen, train)

    def filled(self, mended: nn.Module) -> nn.Module:
        """The mended weights in a copy of the user's own module, where there is one."""
        if self.given is None or self.given is self.module:
            return mended
        made = copy.deepcopy(self.given)
        with torch.no_grad():
            for own, new in zip(readable_layers(made).values(), readable_layers(mended).values(), strict=True):
                own.weight.copy_(new.weight)
                if own.bias is not None and new.bias is not None:
                    own.bias.copy_(new.bias)
        return made.eval()


def _says_its_shape(model: Model) -> bool:
    return isinstance(model, str | Path) and Path(model).is_dir()


def _alike(module: nn.Module, network: Network) -> bool:
    """Whether a module's layers hold the network's weights, one by one."""
    layers = list(readable_layers(module).values())
    return len(layers) == len(network.weights) and all(
        layer.weight.shape == weight.shape and torch.equal(layer.weight.detach(), weight)
        for layer, weight in zip(layers, network.weights, strict=True)
    )


def distinct(sets: Mapping[str, ImageSet]) -> Mapping[str, ImageSet]:
    """The sets, if no record is in two of them."""
    for (name, one), (other, another) in combinations(sets.items(), 2):
        shared = len(row_bytes(one.images) & row_bytes(another.images))
        require(
            shared == 0,
            other,
            f"must contain no record of {name}",
            f"{shared} that are in both",
            "give records that are in one of them",
        )
    return sets


QUANTITIES = {
    "members identified": ("members", "members identified without a false alarm"),
    "members identified at 1%": ("members_at_1", "members identified at 1 % false alarms"),
    "images": ("images_beyond", "images beyond the control"),
    "epsilon": ("epsilon", "epsilon, lower bound"),
    "auc": ("auc", "AUC of membership"),
}
EXAMPLE = 'for example --accept "members identified <= 5%, images = 0"'


@dataclass(frozen=True)
class Bound:
    """One clause: a quantity and the most that is accepted of it."""

    quantity: str
    most: float
    strict: bool = False

    def holds(self, exposure: Exposure) -> bool:
        """A quantity that was not measured is not accepted."""
        value = getattr(exposure, QUANTITIES[self.quantity][0])
        return value is not None and (value < self.most if self.strict else value <= self.most)


@dataclass(frozen=True)
class Wish:
    """The risk that the owner accepts, as text and as bounds."""

    text: str
    bounds: tuple[Bound, ...]

    @classmethod
    def parse(cls, text: str) -> Wish:
        """'members identified <= 5%, images = 0' and the like.

        >>> [(one.quantity, one.most) for one in Wish.parse("members identified <= 5%, images = 0").bounds]
        [('members identified', 0.05), ('images', 0.0)]
        """
        bounds = []
        for clause in text.split(","):
            found = re.fullmatch(r"\s*(.+?)\s*(<=|<|=)\s*([\d.]+)\s*(%?)\s*", clause)
            name = "" if found is None else " ".join(found[1].lower().split()).replace("1 %", "1%")
            if found is None or name not in QUANTITIES:
                known = ", ".join(QUANTITIES)
                raise ConfigError(f"--accept can't read {clause.strip()!r}: it bounds {known} with <=; {EXAMPLE}")
            try:
                value = float(found[3]) / (100 if found[4] else 1)
            except ValueError:
                raise ConfigError(f"--accept: {found[3]!r} is not a number; {EXAMPLE}") from None
            require(math.isfinite(value) and value >= 0, name, "must be bounded by 0 or more", value, EXAMPLE)
            bounds.append(Bound(name, value, strict=found[2] == "<"))
        return cls(text, tuple(bounds))

    @property
    def wants_images(self) -> bool:
        return any(bound.quantity == "images" for bound in self.bounds)

    def without_images(self) -> Wish:
        """What can be checked without an attack that reconstructs."""
        return replace(self, bounds=tuple(bound for bound in self.bounds if bound.quantity != "images"))

    def holds(self, exposure: Exposure) -> bool:
        return all(bound.holds(exposure) for bound in self.bounds)

    def broken(self, exposure: Exposure) -> list[str]:
        """The clauses that do not hold, in words."""
        return [
            f"{QUANTITIES[bound.quantity][1]}: {shown(bound, exposure)}, accepted {bound.most:g}"
            for bound in self.bounds
            if not bound.holds(exposure)
        ]


def shown(bound: Bound, exposure: Exposure) -> str:
    value = getattr(exposure, QUANTITIES[bound.quantity][0])
    return "not measured" if value is None else f"{value:.3g}"
