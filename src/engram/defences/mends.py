"""Ways to mend a trained model without its training run, by kind and strength; `weights` says what a mend is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from engram.core.errors import ConfigError, require
from engram.defences.training import Fit, fitted, predicted
from engram.defences.weights import (
    Coloured,
    Mend,
    Mended,
    Public,
    Reader,
    WeightNoise,
    copied,
    denoised,
    entering,
    layers_of,
    set_weight,
)
from engram.members.layers import as_fed, layer_weight

CLIPS = 40
"""Scales that rounding tries for each layer."""


@dataclass(frozen=True)
class Rank:
    """Every matrix with its `keep` largest singular values alone."""

    keep: int
    name: ClassVar[str] = "rank"

    def __post_init__(self) -> None:
        require(self.keep >= 1, "rank", "must be at least 1", self.keep, "for example: rank 10")

    @property
    def text(self) -> str:
        return f"rank {self.keep}"

    def apply(self, model: nn.Module, public: Public, seed: int) -> Mended:
        return Mended(_changed(model, self._cut))

    def _cut(self, weight: Tensor) -> Tensor:
        u, values, vh = torch.linalg.svd(weight, full_matrices=False)
        found: Tensor = (u[..., : self.keep] * values[..., None, : self.keep]) @ vh[..., : self.keep, :]
        return found


@dataclass(frozen=True)
class MainDirections:
    """Every layer answers only to the directions that hold `share` of the public records' variance, and to their
    mean; what it does in all others is removed: W -> W Q Qᵀ.

    The attacker who knows it looks at inputs in these directions alone, h -> Q Qᵀ h, which gives the same outputs.
    """

    share: float
    name: ClassVar[str] = "directions"

    def __post_init__(self) -> None:
        require(
            0 < self.share < 1, "directions", "must be between 0 % and 100 %", self.share, "e.g. directions 80%"
        )

    @property
    def text(self) -> str:
        return f"directions {100 * self.share:g}%"

    def apply(self, model: nn.Module, public: Public, seed: int) -> Mended:
        made = copied(model)
        projections: dict[str, Tensor] = {}
        for name, layer in layers_of(made):  # in order: each sees what the mended ones before it give
            weight = layer_weight(layer)
            wide = layer.weight[0].numel()
            bases = [self._basis(part[:, :wide]) for part in entering(made, layer, public.inputs)]
            kept = [own[:, :wide] @ basis.T @ basis for own, basis in zip(weight, bases, strict=True)]
            set_weight(layer, torch.cat([torch.stack(kept), weight[..., wide:]], 2))
            if isinstance(layer, nn.Linear):
                projections[name] = bases[0]
        return Mended(made, (lambda published: _projected(published, projections),))

    def _basis(self, columns: Tensor) -> Tensor:
        """Orthonormal rows: the mean, then as many main directions as hold the share of the variance."""
        mean = columns.mean(0)
        _, values, directions = torch.linalg.svd(columns - mean, full_matrices=False)
        held = values.square().cumsum(0) / values.square().sum().clamp(min=1e-300)
        count = 1 + int((held < self.share).sum())
        rows = torch.cat([mean[None], directions[:count]])
        basis: Tensor = torch.linalg.qr(rows.T)[0].T.contiguous()
        return basis


def _projected(model: nn.Module, bases: Mapping[str, Tensor]) -> nn.Module:
    """The model with a projection before each layer that is named."""
    made = copied(model)
    for name, basis in bases.items():
        place, _, last = name.rpartition(".")
        parent = made.get_submodule(place)
        setattr(parent, last, nn.Sequential(Projection(basis), getattr(parent, last)))
    return made.eval()


class Projection(nn.Module):
    """Inputs [..., p] in the span of orthonormal rows [r, p] alone."""

    basis: Tensor

    def __init__(self, basis: Tensor) -> None:
        super().__init__()
        self.register_buffer("basis", basis)

    def forward(self, inputs: Tensor) -> Tensor:
        basis = self.basis.to(inputs)
        return (inputs @ basis.T) @ basis


@dataclass(frozen=True)
class Rounding:
    """Every matrix in `bits` bits a weight, on the scale that rounds it best; 1 bit is the sign.

    The attacker who knows it takes rounding for noise that is even within a step, and shrinks singular values.
    """

    bits: int
    name: ClassVar[str] = "round"

    def __post_init__(self) -> None:
        require(1 <= self.bits <= 16, "round", "must be 1 to 16 bits", self.bits, "for example: round 4 bits")

    @property
    def text(self) -> str:
        return f"round {self.bits} bits"

    def apply(self, model: nn.Module, public: Public, seed: int) -> Mended:
        errors: dict[str, Tensor] = {}
        made = copied(model)
        for name, layer in layers_of(made):
            weight = layer_weight(layer)
            rounded = torch.stack([self._on_grid(one) for one in weight])
            errors[name] = (rounded - weight).square().mean((1, 2)).sqrt().clamp(min=1e-30)  # step / sqrt(12)
            set_weight(layer, rounded)
        noise = {
            name: [
                Coloured.flat(columns).times(size)
                for columns, size in zip(layer_weight(layer), errors[name], strict=True)
            ]
            for name, layer in layers_of(made)
        }
        return Mended(made, (lambda published: denoised(published, noise),))

    def _on_grid(self, weight: Tensor) -> Tensor:
        if self.bits == 1:
            return weight.sign() * weight.abs().mean()
        most = 2 ** (self.bits - 1) - 1
        largest = weight.abs().max().clamp(min=1e-300)

        def rounded(clip: int) -> Tensor:
            scale = largest / most * clip / CLIPS
            made: Tensor = (weight / scale).round().clamp(-most, most) * scale
            return made

        best = min(range(1, CLIPS + 1), key=lambda clip: float((rounded(clip) - weight).square().sum()))
        return rounded(best)


@dataclass(frozen=True)
class Pruning:
    """The smallest `share` of the weights of every layer but the last set to zero."""

    share: float
    name: ClassVar[str] = "prune"

    def __post_init__(self) -> None:
        require(0 < self.share < 1, "prune", "must be between 0 % and 100 %", self.share, "for example: prune 90%")

    @property
    def text(self) -> str:
        return f"prune {100 * self.share:g}%"

    def apply(self, model: nn.Module, public: Public, seed: int) -> Mended:
        made = copied(model)
        for _, layer in layers_of(made)[:-1]:
            weight = layer.weight.detach()
            dropped = int(self.share * weight.numel())
            if dropped:
                least = weight.abs().flatten().kthvalue(dropped).values
                layer.weight.data = torch.where(weight.abs() > least, weight, torch.zeros_like(weight))
        return Mended(made)


@dataclass(frozen=True)
class Tuning:
    """Further training on the public records and their labels; they are then what the model has learnt."""

    epochs: int
    name: ClassVar[str] = "tune"

    def __post_init__(self) -> None:
        require(self.epochs >= 1, "tune", "must be at least 1 epoch", self.epochs, "for example: tune 20 epochs")

    @property
    def text(self) -> str:
        return f"tune {self.epochs} epochs"

    def apply(self, model: nn.Module, public: Public, seed: int) -> Mended:
        made = fitted(copied(model), public.inputs, public.labels, public.task, Fit(epochs=self.epochs, seed=seed))
        return Mended(made)


@dataclass(frozen=True)
class Distillation:
    """A fresh network of the same shape that learns from the old one's answers to the public records.

    From its outputs (`distil`), or only from the class it chooses (`relabel`), which says less about the records
    that the old one was trained on.
    """

    epochs: int
    soft: bool = True
    name: ClassVar[str] = "distil"

    def __post_init__(self) -> None:
        require(self.epochs >= 1, "distil", "must be at least 1 epoch", self.epochs, "e.g. distil 100 epochs")

    @property
    def text(self) -> str:
        return f"{'distil' if self.soft else 'relabel'} {self.epochs} epochs"

    def apply(self, model: nn.Module, public: Public, seed: int) -> Mended:
        with torch.no_grad():
            outputs = model(as_fed(model, public.inputs)).reshape(len(public.inputs), -1)
        labels = predicted(outputs)
        fit = Fit(epochs=self.epochs, seed=seed)
        fresh = restarted(copied(model), seed)
        return Mended(
            fitted(fresh, public.inputs, labels, public.task, fit, targets=outputs if self.soft else None)
        )


FRESH = 1_000_003
"""Added to seeds of fresh starts: a small seed may have been that of the first training, too."""


def restarted(model: nn.Module, seed: int) -> nn.Module:
    """The same network at a new start, drawn by its layers' own rules; in place."""
    drawn: set[int] = set()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(FRESH + seed)
        for module in model.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
                drawn |= {id(one) for one in module.parameters(recurse=False)}
        for one in model.parameters():
            if id(one) not in drawn:  # a parameter of the user's own, e.g. positions: as large as it was
                one.data = one.data.std(unbiased=False) * torch.randn_like(one)
    return model


@dataclass(frozen=True)
class Chain:
    """One mend after another; the attacker may know of any of them."""

    steps: tuple[Mend, ...]

    @property
    def text(self) -> str:
        return " + ".join(step.text for step in self.steps)

    def apply(self, model: nn.Module, public: Public, seed: int) -> Mended:
        readers: tuple[Reader, ...] = ()
        for place, step in enumerate(self.steps):
            found = step.apply(model, public, seed + place)
            model, readers = found.model, (*readers, *found.readers)
        return Mended(model, readers)


@torch.no_grad()
def _changed(model: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    made = copied(model)
    for _, layer in layers_of(made):
        set_weight(layer, change(layer_weight(layer)))
    return made


_FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Mend]], ...] = (
    (re.compile(r"(shaped )?noise ([\d.e-]+)"), lambda m: WeightNoise(float(m[2]), shaped=m[1] is not None)),
    (re.compile(r"rank (\d+)"), lambda m: Rank(int(m[1]))),
    (re.compile(r"directions ([\d.]+)%"), lambda m: MainDirections(float(m[1]) / 100)),
    (re.compile(r"round (\d+) bits?"), lambda m: Rounding(int(m[1]))),
    (re.compile(r"prune ([\d.]+)%"), lambda m: Pruning(float(m[1]) / 100)),
    (re.compile(r"tune (\d+) epochs?"), lambda m: Tuning(int(m[1]))),
    (re.compile(r"distil (\d+) epochs?"), lambda m: Distillation(int(m[1]))),
    (re.compile(r"relabel (\d+) epochs?"), lambda m: Distillation(int(m[1]), soft=False)),
)


def parse_mend(text: str) -> Mend:
    """A mend from its text.

    >>> parse_mend("directions 80% + tune 20 epochs").text
    'directions 80% + tune 20 epochs'
    """
    steps = tuple(_parsed(part.strip()) for part in text.split("+"))
    return steps[0] if len(steps) == 1 else Chain(steps)


def _parsed(text: str) -> Mend:
    for pattern, make in _FORMS:
        if (found := pattern.fullmatch(text)) is not None:
            try:
                return make(found)
            except ValueError:
                break
    raise ConfigError(
        f"there is no mend {text!r}; for example: noise 0.5, shaped noise 0.5, rank 10, directions 80%, "
        "round 4 bits, prune 90%, tune 20 epochs, distil 100 epochs, relabel 100 epochs, joined by +"
    )


def families() -> Iterator[tuple[str, tuple[Mend, ...]]]:
    """What `harden` tries: by kind, from the gentlest to the strongest."""
    levels = (0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 3.0)
    shares = (0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.3)
    yield "noise", tuple(WeightNoise(level) for level in levels)
    yield "shaped noise", tuple(WeightNoise(level, shaped=True) for level in levels)
    yield "directions", tuple(MainDirections(share) for share in shares)
    yield "rank", tuple(Rank(keep) for keep in (100, 50, 20, 10, 5, 3, 2, 1))
    yield "round", tuple(Rounding(bits) for bits in (8, 6, 5, 4, 3, 2, 1))
    yield "prune", tuple(Pruning(share) for share in (0.5, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99))
    yield "tune", tuple(Tuning(epochs) for epochs in (5, 20, 60, 200))
    yield "distil", (Distillation(100), Distillation(100, soft=False))
    tune = Tuning(20)
    yield "shaped noise + tune", tuple(Chain((WeightNoise(level, shaped=True), tune)) for level in levels)
    yield "directions + tune", tuple(Chain((MainDirections(share), tune)) for share in shares)
    yield "distil + directions", tuple(Chain((Distillation(100), MainDirections(share))) for share in shares)
