"""Activations by name, with the two derivatives that stationarity needs.

The signal at a layer is delta = phi'(a) * (Wᵀ delta above), so the gradient of a loss of it needs phi'' too. A
kink has no derivative: as in the papers, the step in phi' at 0 becomes sigmoid(sharpness z), wherever it appears.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from engram.core.errors import ConfigError

Pointwise = Callable[[Tensor], Tensor]
"""What a forward pass applies between two layers."""


@dataclass(frozen=True)
class Activation(ABC):
    """phi, phi' (`gate`) and phi'' (`bend`), each for pre-activations of any shape."""

    name: ClassVar[str]
    has_kink: ClassVar[bool] = False
    """Whether phi' has a step at 0, so that training can push samples onto a neuron's boundary."""
    is_homogeneous: ClassVar[bool] = False
    """Whether phi(c z) = c phi(z) for c > 0."""

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def __call__(self, z: Tensor) -> Tensor: ...

    @abstractmethod
    def gate(self, z: Tensor, sharpness: float) -> Tensor:
        """phi'(z); a step is as soft as `sharpness` says."""

    @abstractmethod
    def bend(self, z: Tensor, gate: Tensor, sharpness: float) -> Tensor:
        """phi''(z), the derivative of `gate`, which is given; a function with a kink needs only the gate."""


@dataclass(frozen=True)
class Leaky(Activation):
    """max(z, 0) + slope min(z, 0); ReLU with slope 0."""

    name: ClassVar[str] = "leaky"
    has_kink: ClassVar[bool] = True
    is_homogeneous: ClassVar[bool] = True
    slope: float = 0.0

    def __str__(self) -> str:
        return f"leaky:{self.slope:g}" if self.slope else "relu"

    def __call__(self, z: Tensor) -> Tensor:
        return functional.leaky_relu(z, self.slope) if self.slope else torch.relu(z)

    def gate(self, z: Tensor, sharpness: float) -> Tensor:
        step = torch.sigmoid(sharpness * z)
        return torch.lerp(torch.full_like(step, self.slope), torch.ones_like(step), step) if self.slope else step

    def bend(self, z: Tensor, gate: Tensor, sharpness: float) -> Tensor:
        if not self.slope:
            return sharpness * gate * (1 - gate)
        step = (gate - self.slope) / (1 - self.slope)
        return (1 - self.slope) * sharpness * step * (1 - step)


@dataclass(frozen=True)
class ELU(Activation):
    """z above 0, exp(z) - 1 below."""

    name: ClassVar[str] = "elu"

    def __call__(self, z: Tensor) -> Tensor:
        return functional.elu(z)

    def gate(self, z: Tensor, sharpness: float) -> Tensor:
        return z.clamp(max=0).exp()

    def bend(self, z: Tensor, gate: Tensor, sharpness: float) -> Tensor:
        return gate * (z < 0)


@dataclass(frozen=True)
class GELU(Activation):
    """z times the normal distribution's probability of less than z."""

    name: ClassVar[str] = "gelu"

    def __call__(self, z: Tensor) -> Tensor:
        return functional.gelu(z)

    def gate(self, z: Tensor, sharpness: float) -> Tensor:
        return 0.5 * (1 + torch.erf(z * math.sqrt(0.5))) + z * _normal(z)

    def bend(self, z: Tensor, gate: Tensor, sharpness: float) -> Tensor:
        return _normal(z) * (2 - z.square())


@dataclass(frozen=True)
class TanhGELU(Activation):
    """The approximation of GELU by tanh: 0.5 z (1 + tanh(k (z + a z³)))."""

    name: ClassVar[str] = "gelu-tanh"
    _K: ClassVar[float] = math.sqrt(2 / math.pi)
    _A: ClassVar[float] = 0.044715

    def __call__(self, z: Tensor) -> Tensor:
        return functional.gelu(z, approximate="tanh")

    def gate(self, z: Tensor, sharpness: float) -> Tensor:
        level, rate, _ = self._inner(z)
        return 0.5 * (1 + level) + 0.5 * z * (1 - level.square()) * rate

    def bend(self, z: Tensor, gate: Tensor, sharpness: float) -> Tensor:
        level, rate, curve = self._inner(z)
        return (1 - level.square()) * (rate + 0.5 * z * curve - z * level * rate.square())

    def _inner(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """tanh(u), u' and u'' of u = k (z + a z³)."""
        level = torch.tanh(self._K * (z + self._A * z**3))
        return level, self._K * (1 + 3 * self._A * z.square()), self._K * 6 * self._A * z


@dataclass(frozen=True)
class SiLU(Activation):
    """z sigmoid(z)."""

    name: ClassVar[str] = "silu"

    def __call__(self, z: Tensor) -> Tensor:
        return functional.silu(z)

    def gate(self, z: Tensor, sharpness: float) -> Tensor:
        half = torch.sigmoid(z)
        return half * (1 + z * (1 - half))

    def bend(self, z: Tensor, gate: Tensor, sharpness: float) -> Tensor:
        half = torch.sigmoid(z)
        return half * (1 - half) * (2 + z * (1 - 2 * half))


@dataclass(frozen=True)
class Tanh(Activation):
    name: ClassVar[str] = "tanh"

    def __call__(self, z: Tensor) -> Tensor:
        return torch.tanh(z)

    def gate(self, z: Tensor, sharpness: float) -> Tensor:
        return 1 - torch.tanh(z).square()

    def bend(self, z: Tensor, gate: Tensor, sharpness: float) -> Tensor:
        return -2 * torch.tanh(z) * gate


@dataclass(frozen=True)
class Sigmoid(Activation):
    name: ClassVar[str] = "sigmoid"

    def __call__(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z)

    def gate(self, z: Tensor, sharpness: float) -> Tensor:
        level = torch.sigmoid(z)
        return level * (1 - level)

    def bend(self, z: Tensor, gate: Tensor, sharpness: float) -> Tensor:
        return gate * (1 - 2 * torch.sigmoid(z))


@dataclass(frozen=True)
class Softplus(Activation):
    """log(1 + exp(z))."""

    name: ClassVar[str] = "softplus"

    def __call__(self, z: Tensor) -> Tensor:
        return functional.softplus(z)

    def gate(self, z: Tensor, sharpness: float) -> Tensor:
        return torch.sigmoid(z)

    def bend(self, z: Tensor, gate: Tensor, sharpness: float) -> Tensor:
        return gate * (1 - gate)


RELU = Leaky()
DEFAULT_LEAK = 0.01
"""PyTorch's own slope of LeakyReLU."""
_SMOOTH: dict[str, Activation] = {
    one.name: one for one in (ELU(), GELU(), TanhGELU(), SiLU(), Tanh(), Sigmoid(), Softplus())
}
_ALIASES = {"swish": "silu", "logistic": "sigmoid", "gelu_new": "gelu-tanh", "leaky_relu": "leaky"}
NAMES = ("relu", "leaky:SLOPE", *_SMOOTH)
_LEAKY = re.compile(r"leaky(?::(0?\.[0-9]{1,6}|0))?")


def activation_named(name: str) -> Activation:
    """The activation of that name, as `--activation` and `--arch` take it.

    >>> [str(activation_named(name)) for name in ("relu", "leaky", "leaky:0.2", "swish")]
    ['relu', 'leaky:0.01', 'leaky:0.2', 'silu']
    """
    known = _ALIASES.get(name.strip().lower(), name.strip().lower())
    if known == "relu":
        return RELU
    if found := _LEAKY.fullmatch(known):
        return Leaky(DEFAULT_LEAK if found[1] is None else float(found[1]))
    if known in _SMOOTH:
        return _SMOOTH[known]
    raise ConfigError(f"there is no activation {name!r}; use one of {', '.join(NAMES)}, for example leaky:0.01")


def _normal(z: Tensor) -> Tensor:
    return torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
