"""Model inversion: search for inputs that maximise or minimise an output, the baseline of Haim et al. 2022.

    x <- x + s lr d Phi_k(x) / dx,   s = +1 for half of the starts, -1 for the other,   x ~ N(0, sigma²)

Learning rate and sigma are drawn for every start from the paper's search space, lr log-uniform in [1e-6, 1] and
sigma log-uniform in [1e-7, 1], so that one batched run covers the whole search.

Embeddings are turned into pictures in another way: the smoothest picture whose embedding is near,

    min_x ||phi(x) - e||² / ||e||² + SMOOTH TV(x),   x in [0, 1]

It is for the eye alone: what phi ignores is filled in by smoothness, and nothing of it counts as recovered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from engram.attacks.reconstruction import ViewIteration
from engram.core.errors import machine_memory, require, require_memory, require_numbers
from engram.core.loop import Budget, Metrics, Observer, State, Values, run
from engram.models.networks import Network
from engram.models.view import AttackerView

RATES = (1e-6, 1.0)
SPREADS = (1e-7, 1.0)


@dataclass(frozen=True, kw_only=True)
class InversionSettings:
    """Number of starts, steps of each, and the seed; `batch` limits the memory of a step."""

    images: int = 100
    steps: int = 200
    seed: int = 0
    batch: int = 4096

    def __post_init__(self) -> None:
        require_numbers(self)
        for name in ("images", "steps", "batch"):
            require(getattr(self, name) > 0, name, "must be positive", getattr(self, name))

    def require_room(self, view: AttackerView[Network]) -> None:
        """All starts must fit in memory: their inputs, the gradient and the outputs that they climb."""
        each = 4 * (2 * view.network.sizes[0] + view.task.outputs)
        fits = max(2, machine_memory() // each)
        require_memory(each * self.images, "images", self.images, f"at most {fits:,} fit; the paper uses 40000")


@dataclass(frozen=True, eq=False)
class Found:
    """Inputs [m, *shape] by increasing output, as in the paper, and the outputs [m]."""

    images: Tensor
    outputs: Tensor


@dataclass(frozen=True, eq=False)
class Inversion(ViewIteration):
    """The search as an iteration; pixels stay within the range possible for mean-subtracted pixels."""

    view: AttackerView[Network]
    settings: InversionSettings

    def __post_init__(self) -> None:
        self.settings.require_room(self.view)

    @cached_property
    def network(self) -> Network:
        return self.view.network.to(dtype=torch.float32)

    @cached_property
    def signs(self) -> Tensor:
        """The output that each start climbs or descends, [m, outputs]: every output, both ways, in turn."""
        outputs = self.view.task.outputs
        start = torch.arange(self.settings.images)
        chosen = torch.zeros(self.settings.images, outputs)
        chosen[start, (start // 2) % outputs] = 1.0 - 2.0 * (start % 2)
        return chosen.to(self.network.weights[0].device)

    def init(self) -> State:
        generator = torch.Generator().manual_seed(self.settings.seed)
        m, device = self.settings.images, self.network.weights[0].device
        rates, spreads = (
            torch.exp(math.log(low) + (math.log(high) - math.log(low)) * torch.rand(m, 1, generator=generator))
            for low, high in (RATES, SPREADS)
        )
        images = spreads * torch.randn(m, self.network.sizes[0], generator=generator)
        return {"images": images.to(device), "rates": rates.to(device)}

    def step(self, state: State) -> Metrics:
        span = self.view.pixel_range[1] - self.view.pixel_range[0]
        climbed = torch.zeros((), device=state["images"].device)
        for start in range(0, len(state["images"]), self.settings.batch):
            rows = slice(start, start + self.settings.batch)
            images = state["images"][rows].requires_grad_()
            reached = (self.network(images) * self.signs[rows]).sum()
            (slope,) = torch.autograd.grad(reached, images)
            state["images"][rows] = (images.detach() + state["rates"][rows] * slope).clamp(-span, span)
            climbed = climbed + reached.detach()
        return {"loss": -climbed / len(state["images"])}

    def hint(self) -> str:
        return "the weights may be too large for float32; leave the baselines out"

    def found(self, state: State) -> Found:
        """Sorted by the output that each start climbed or descended."""
        with torch.no_grad():
            outputs = self.network(state["images"])
        own = outputs.gather(1, self.signs.abs().argmax(1, keepdim=True)).squeeze(1)
        order = own.argsort(stable=True)
        images = state["images"][order].view(-1, *self.view.input_shape)
        return Found(images.cpu(), own[order].cpu())


def invert(
    view: AttackerView[Network], settings: InversionSettings, *, observers: Sequence[Observer] = ()
) -> Found:
    """Run the search in the library's loop."""
    search = Inversion(view, settings)
    solution = run(search, Budget(steps=settings.steps), observers=observers)
    return search.found(solution.require_finite().state)


def first_layer_images(view: AttackerView) -> Tensor:
    """Rows of W_1 in the shape of an input, largest norm first, [h, *shape]."""
    rows = view.network.leaving(view.network.weights[0])
    strongest = rows.norm(dim=1).argsort(descending=True, stable=True)
    return rows[strongest].view(-1, *view.input_shape)


SMOOTH = 0.3
"""Weight of the mean difference between neighbouring pixels, beside the share of an embedding that is missed."""
RATE, DECAYS = 0.1, (0.9, 0.999)
ILLUSTRATION_SECONDS = 60.0


@dataclass(frozen=True, eq=False)
class EmbeddingInversion:
    """Pictures [m, *shape] with given embeddings [m, d], found by Adam through a differentiable `embed`."""

    embed: Callable[[Tensor], Tensor]
    embeddings: Tensor
    shape: tuple[int, ...]

    def init(self) -> State:
        start = torch.zeros(len(self.embeddings), *self.shape)
        names = ("logits", "first", "second")
        return {"count": torch.zeros(()), **{name: start.clone() for name in names}}

    def step(self, state: State) -> Metrics:
        logits = state["logits"].requires_grad_()
        pictures = torch.sigmoid(logits)
        sizes = self.embeddings.square().sum(1).clamp(min=1e-12)
        missed = (self.embed(pictures).flatten(1) - self.embeddings).square().sum(1) / sizes
        loss = (missed + SMOOTH * total_variation(pictures)).sum()
        (slope,) = torch.autograd.grad(loss, logits)
        state["logits"] = logits.detach()
        state["count"] += 1
        for name, power, decay in (("first", 1, DECAYS[0]), ("second", 2, DECAYS[1])):
            state[name].mul_(decay).add_((1 - decay) * slope**power)
        fair = [
            state[name] / (1 - decay ** state["count"])
            for name, decay in zip(("first", "second"), DECAYS, strict=True)
        ]
        state["logits"] -= RATE * fair[0] / (fair[1].sqrt() + 1e-12)
        return {"loss": loss.detach() / len(pictures)}

    def finished(self, metrics: Values) -> bool:
        return False

    def fingerprint(self) -> str:
        return repr((self.shape, tuple(self.embeddings.shape), float(self.embeddings.double().sum())))

    def hint(self) -> str:
        return "the embedding may not be differentiable everywhere; give a plain function instead of a module"


def total_variation(pictures: Tensor) -> Tensor:
    """The mean difference between neighbours, of pictures [m, C, H, W], [m].

    >>> total_variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])).tolist()
    [1.0]
    """
    down, right = pictures.diff(dim=-2), pictures.diff(dim=-1)
    return down.abs().flatten(1).mean(1) + right.abs().flatten(1).mean(1)


def pictures_of(
    embed: Callable[[Tensor], Tensor], embeddings: Tensor, shape: tuple[int, ...], *, steps: int = 300
) -> Tensor:
    """Smooth pictures [m, *shape] in [0, 1] whose embeddings are near the given ones: an illustration.

    A large backbone takes seconds a step, so time is bounded too.
    """
    search = EmbeddingInversion(embed, embeddings, shape)
    budget = Budget(steps=steps, seconds=ILLUSTRATION_SECONDS)
    return torch.sigmoid(run(search, budget).require_finite().state["logits"])
