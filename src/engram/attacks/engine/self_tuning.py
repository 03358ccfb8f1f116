"""What the engine chooses by itself, from the weights alone: scales, prior and the length of starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engram.attacks.engine.closed_form import parameters
from engram.attacks.settings import EngineSettings
from engram.models.networks import DenseNetwork
from engram.models.row_space import RowSpace
from engram.models.view import AttackerView

PIXEL_STD = 0.2
"""Spread of centred pixels as a share of the pixel range: 0.2 to 0.3 for photographs, faces and digits."""
SOFTNESS, SOFTER = 10.0, 4.0
"""Gates are soft over a tenth of the pre-activations' spread on natural inputs, or over a quarter. Softer ones
find more with several classes, and in noisy layers with edges: there the part of an image outside the row space
moves gates too. Otherwise two classes lose images by them (docs/engine-log.md)."""
MARGIN_PER_SPREAD = 2.0
"""Margins of memorised samples are about twice the outputs' spread on random inputs in the row space."""
FEWEST_CANDIDATES, FEWEST_READ_OUT = 40, 80
"""The second where most of the layer is noise: the read-out tells more images apart than the few directions that
stand out."""
MANY_DIRECTIONS = 150
MANY_CANDIDATES = 700
FILLED, FILLING = 70, 140
"""From the first to the second rank, a row space of images on a flat background holds ever more per direction."""
MORE_EACH = 6
"""Further candidates for each direction between the two."""


def candidates_for(rank: int) -> int:
    """Number of candidates for a row space of that rank, at least.

    A small row space may have fewer directions than samples, so it gets three candidates per direction; a large
    one has about as many directions as samples, so one candidate per further direction is enough.

    >>> candidates_for(10), candidates_for(167), candidates_for(500)
    (40, 467, 800)
    """
    return max(FEWEST_CANDIDATES, rank + 2 * min(rank, MANY_DIRECTIONS))


NOISY_SHARE, MOSTLY_NOISE = 0.1, 0.5
"""Shares of noise in the first layer's energy from which a layer is noisy, and from which images are read out over
all frequencies."""


def noise_share(weight: Tensor, noise_std: float) -> float:
    """The share of noise of this standard deviation in the energy of W."""
    energy = float(weight.double().square().sum())
    return noise_std**2 * weight.numel() / max(energy, 1e-300)


STILL, MOVED = 2.0, 8.0
"""Times the energy of noise: the weights of a pixel that never changed in training have less than the first, those
of a pixel that did have more than the second."""
FEWEST_STILL, FEWEST_MOVED = 0.05, 0.25
"""Shares of the pixels; photographs have no pixel that never changes."""


def has_background(weight: Tensor, noise_std: float) -> bool:
    """Whether W [h, d] shows images on a flat background, such as digits, scans and logos: their margins never
    change, so training leaves those pixels' weights as they were."""
    energies = weight.double().square().mean(0) / max(noise_std, 1e-30) ** 2
    return bool((energies < STILL).double().mean() >= FEWEST_STILL) and bool(
        (energies > MOVED).double().mean() >= FEWEST_MOVED
    )


def sums_moved(weight: Tensor, noise_std: float, groups: Sequence[Sequence[int]]) -> bool:
    """Whether W [h, d] shows one-hot values as they are, rather than less their mean.

    The columns of a one-hot value add up to 1, and less their mean to 0: then training leaves the sum of their
    weights as it was.
    """
    sums = torch.stack([weight[:, list(group)].double().sum(1) / len(group) ** 0.5 for group in groups])
    return float(sums.square().mean()) > MOVED * max(noise_std, 1e-30) ** 2


def dense_candidates(rank: int, *, several_classes: bool, background: bool) -> int:
    """Number of candidates for the row space of a first layer of that rank.

    Images on a flat background share few directions: 500 digits have rank 143, as 300 photographs have. Twice the
    candidates then find more than twice the starts; photographs gain nothing by it (docs/engine-log.md). With
    several classes each has its own candidates: six per direction, as long as they are few.

    >>> [dense_candidates(143, several_classes=False, background=flat) for flat in (False, True)]
    [429, 849]
    >>> [dense_candidates(rank, several_classes=True, background=False) for rank in (112, 500)]
    [672, 800]
    """
    usual = candidates_for(rank)
    if several_classes:
        return max(usual, min(6 * rank, MANY_CANDIDATES))
    return usual + background * MORE_EACH * (min(max(rank, FILLED), FILLING) - FILLED)


@dataclass(frozen=True, eq=False)
class Scales:
    """The problem in its own coordinates, and every scale the solver needs, from the weights alone.

    `latent_std` spreads the start over images of natural contrast; `slope` makes gates soft over a tenth of the
    pre-activations of such images; `dual` follows from homogeneity, sum_i lambda_i margin_i = ||[W_1 b_1]||²,
    with the margin estimated from the outputs on such images.
    """

    network: DenseNetwork
    space: RowSpace
    candidates: int
    latent_std: float
    slope: float
    dual: float
    update: Tensor | None = None
    """What training added to the first layer, [h, r (+1)], if its start is known or has edges."""
    noise: float = 0.0
    """The share of noise in the first layer's energy; a start that is known is subtracted."""
    background: bool = False
    """Whether the weights show images on a flat background."""
    has_edges: bool = False
    """Whether the start was uniform, and the update is what its edges show."""

    @property
    def target(self) -> Tensor:
        """What the candidates must explain: the update, or else all of the first layer's parameters."""
        return parameters(self.network, 0) if self.update is None else self.update


def derive_scales(view: AttackerView, settings: EngineSettings) -> Scales:
    """Rotate the first layer into its row space and measure the scales there."""
    network, known, is_image = view.network, view.update, len(view.input_shape) == 3
    edges = network.edges(view.input_shape) if known is None else None
    added = known or edges
    space = network.row_space(view.input_shape) if added is None else added.space
    # In float64 and then rounded, like the decomposition.
    inner = network.weights[0].double() @ space.basis.double().T
    reduced = network.with_params({**network.params, "layers.0.weight": inner})
    reduced = reduced.to(dtype=settings.torch_dtype)
    inputs, rank = network.sizes[0], space.rank
    low, high = view.pixel_range
    latent_std = PIXEL_STD * (high - low) * (inputs / rank) ** 0.5
    generator = torch.Generator().manual_seed(settings.seed)
    probe = latent_std * torch.randn(512, rank, generator=generator, dtype=torch.float64)
    probe = probe.to(device=inner.device, dtype=settings.torch_dtype)
    excited = torch.nn.functional.linear(probe, reduced.weights[0], reduced.biases[0])
    outputs = reduced(probe)
    learnt = network.weights[0] if edges is None else edges.even
    background = is_image and known is None and has_background(learnt, space.noise_std)
    noise = 0.0 if known is not None else noise_share(network.weights[0], space.noise_std)
    if edges is not None:
        noise = noise_share(network.weights[0], edges.bound / math.sqrt(3))
    several = view.task.label_count > 2
    softness = SOFTER if several or edges is not None else SOFTNESS
    usual = dense_candidates(rank, several_classes=several, background=background)
    if is_image and noise > MOSTLY_NOISE:
        usual = max(usual, FEWEST_READ_OUT)
    candidates = settings.candidates or usual
    candidates += -candidates % view.task.label_count
    margin = MARGIN_PER_SPREAD * float(outputs.std().clamp(min=1e-12))
    own, written = parameters(reduced, 0), None
    if added is not None:
        written = added.rows.double() @ space.basis.double().T
        written = written if added.bias is None else torch.cat([written, added.bias[:, None].double()], 1)
        written = written.to(own)
    # sum_i lambda_i margin_i, as the outputs are linear in the layer
    norm = float(own.square().sum() if written is None else (own * written).sum().abs())
    return Scales(
        network=reduced,
        space=space,
        candidates=candidates,
        latent_std=latent_std,
        slope=softness / float(excited.std().clamp(min=1e-12)),
        dual=norm / (margin * candidates),
        update=written,
        noise=noise,
        background=background,
        has_edges=edges is not None,
    )


PRIORS, CLASSES_PRIOR = (1.4, 0.9), 4.5
"""Strength of total variation for two classes, start after start in turn, and for more. Two that differ find more
faces than one, and as many photographs. To choose the strength by trials cost 300 steps, and what they chose was
no better (docs/engine-log.md)."""

FIRST_PRIOR, CLASSES_FIRST_PRIOR = 3.0, 4.0
"""Where many images share the weights, the prior starts at this many times its strength and falls over a start:
smooth images first. For two classes from the rank `FILLING` on, and for more (docs/engine-log.md)."""


def first_prior(rank: int) -> float:
    """How many times its strength the prior of two classes starts with, for a row space of that rank.

    >>> [round(first_prior(rank), 2) for rank in (50, 105, 200)]
    [1.0, 1.73, 3.0]
    """
    share = (rank - FILLED) / (FILLING - FILLED)
    return math.pow(FIRST_PRIOR, min(max(share, 0.0), 1.0))


RIDGE, CLASSES_RIDGE = 0.01, 0.003
"""Of the metric, and with several classes where the first layer has little noise (docs/engine-log.md)."""

CORNERS_PRIOR = 1.0
"""Strength of the distance from one-hot corners, for tables (docs/models.md)."""

FEWEST_STEPS, MOST_STEPS, NOISY_STEPS = 40, 500, 300
"""Steps of a start; in longer ones candidates fit residue of training, or the noise of a noisy layer, not images
(docs/engine-log.md)."""
WORTHWHILE = 100
"""Steps of a third or later start, at least."""
MOST_RESTARTS = 40
"""A longer budget ends early; on CIFAR-10, n=100, ten starts found no more than four (docs/engine-log.md)."""


@dataclass(frozen=True)
class Phase:
    """The place of a step: in which start of the whole attack (`index`), at `step` of `length`."""

    index: int
    step: int
    length: int

    @property
    def share(self) -> float:
        """How much of the start is done before this step."""
        return self.step / self.length

    @property
    def is_last(self) -> bool:
        return self.step + 1 == self.length


def next_length(affordable: float, done: int, longest: int = MOST_STEPS, fewest: int = 2) -> int:
    """Steps of the next start if about `affordable` more steps fit into the time and `done` starts are complete.

    The rest of the time is divided among as few starts as `longest` allows, but at least `fewest` in all: two
    short starts beat one long start, since only their agreement shows what is real. A further start too short to
    find anything would only blur that agreement, so it gets a length that it can't reach, and is dropped.

    >>> next_length(600, done=0), next_length(1200, done=0), next_length(700, done=1), next_length(3, done=1)
    (300, 400, 350, 40)
    >>> next_length(150, done=2), next_length(99, done=2)
    (150, 500)
    >>> next_length(600, done=0, fewest=1)
    300
    """
    if done >= fewest and affordable < WORTHWHILE:
        return longest
    starts = min(max(math.ceil(affordable / longest), fewest - done, 1), MOST_RESTARTS)
    return min(max(FEWEST_STEPS, int(affordable / starts)), longest)
