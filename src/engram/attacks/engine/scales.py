"""Every scale the solver needs, derived from the weights alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engram.attacks.engine.closed_form import parameters
from engram.attacks.settings import EngineSettings
from engram.models.networks import DenseNetwork
from engram.models.row_space import RowSpace
from engram.models.view import AttackerView

PIXEL_STD = 0.2
"""Spread of centred pixels as a share of the pixel range: photographs, faces and digits lie at 0.2 to 0.3."""
SOFTNESS = 10.0
"""Gates are soft over a tenth of the pre-activations' spread on natural inputs."""
MARGIN_PER_SPREAD = 2.0
"""Margins of memorised samples lie at about twice the outputs' spread on random inputs in the row space."""
FEWEST_CANDIDATES = 40
MANY_DIRECTIONS = 150


def candidates_for(rank: int) -> int:
    """How many candidates for a row space of that rank.

    More training samples than directions may share a small one, and three candidates for each direction leave
    room; a large one has about as many directions as samples, and one for each further direction is enough.

    >>> candidates_for(10), candidates_for(167), candidates_for(500)
    (40, 467, 800)
    """
    return max(FEWEST_CANDIDATES, rank + 2 * min(rank, MANY_DIRECTIONS))


@dataclass(frozen=True, eq=False)
class Scales:
    """The problem in its own coordinates, and every scale the solver needs, from the weights alone.

    `latent_std` spreads the start over images of natural contrast; `slope` makes gates soft over a tenth of
    what such images excite; `dual` follows from homogeneity, sum_i lambda_i margin_i = ||[W_1 b_1]||², with the
    output on such images for the margin.
    """

    network: DenseNetwork
    space: RowSpace
    candidates: int
    latent_std: float
    slope: float
    dual: float


def derive_scales(view: AttackerView, settings: EngineSettings) -> Scales:
    """Rotate the first layer into its row space and measure the scales there."""
    network = view.network
    space = network.row_space(view.input_shape)
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
    candidates = settings.candidates or candidates_for(rank)
    candidates += -candidates % view.task.label_count
    margin = MARGIN_PER_SPREAD * float(outputs.std().clamp(min=1e-12))
    norm = float(parameters(reduced, 0).square().sum())
    return Scales(
        network=reduced,
        space=space,
        candidates=candidates,
        latent_std=latent_std,
        slope=SOFTNESS / float(excited.std().clamp(min=1e-12)),
        dual=norm / (margin * candidates),
    )
