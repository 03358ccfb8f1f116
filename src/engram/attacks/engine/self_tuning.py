"""What the engine chooses by itself, from the weights alone: its scales, its prior and its schedule.

A run is a few short trials that choose the prior, then the restarts. The strength of the prior is chosen blind by
cross-validation over neurons: a trial fits three quarters of the first layer's equations and is scored by how well
its candidates explain the others. Too weak a prior fits noise, too strong a prior blurs; both show in the left-out
neurons. Among strengths that predict about equally well, the largest is chosen, for the smoothest images.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from engram.attacks.engine.closed_form import parameters
from engram.attacks.settings import EngineSettings
from engram.models.networks import DenseNetwork
from engram.models.row_space import RowSpace
from engram.models.view import AttackerView

PIXEL_STD = 0.2
"""Spread of centred pixels as a share of the pixel range: 0.2 to 0.3 for photographs, faces and digits."""
SOFTNESS = 10.0
"""Gates are soft over a tenth of the pre-activations' spread on natural inputs."""
MARGIN_PER_SPREAD = 2.0
"""Margins of memorised samples are about twice the outputs' spread on random inputs in the row space."""
FEWEST_CANDIDATES = 40
MANY_DIRECTIONS = 150


def candidates_for(rank: int) -> int:
    """Number of candidates for a row space of that rank.

    A small row space may have fewer directions than samples, so it gets three candidates per direction; a large
    one has about as many directions as samples, so one candidate per further direction is enough.

    >>> candidates_for(10), candidates_for(167), candidates_for(500)
    (40, 467, 800)
    """
    return max(FEWEST_CANDIDATES, rank + 2 * min(rank, MANY_DIRECTIONS))


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
    """What training added to the first layer, [h, r (+1)], if its start is known."""

    @property
    def target(self) -> Tensor:
        """What the candidates must explain: the update, or else all of the first layer's parameters."""
        return parameters(self.network, 0) if self.update is None else self.update


def derive_scales(view: AttackerView, settings: EngineSettings) -> Scales:
    """Rotate the first layer into its row space and measure the scales there."""
    network, update = view.network, view.update
    space = network.row_space(view.input_shape) if update is None else update.space
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
    own, written = parameters(reduced, 0), None
    if update is not None:
        written = update.rows.double() @ space.basis.double().T
        written = written if update.bias is None else torch.cat([written, update.bias[:, None].double()], 1)
        written = written.to(own)
    # sum_i lambda_i margin_i, as the outputs are linear in the layer
    norm = float(own.square().sum() if written is None else (own * written).sum().abs())
    return Scales(
        network=reduced,
        space=space,
        candidates=candidates,
        latent_std=latent_std,
        slope=SOFTNESS / float(excited.std().clamp(min=1e-12)),
        dual=norm / (margin * candidates),
        update=written,
    )


PRIOR_GRID = (1.3, 1.95, 2.925, 4.3875)
"""Each 1.5 times the one before. Weaker priors explain left-out neurons better, by fitting residue of training in
weak directions, which is not images; they cost CIFAR-10 up to a third of its images, while MNIST gains a few:
docs/engine-log.md."""
CLASSES_PRIOR = 3.2
"""With several classes there are no trials: trials of 75 steps choose the weakest prior, and only trials of 250
steps, the length of a start, choose this one."""
TRIAL_SHARE, LONGEST_TRIAL = 0.25, 75
"""Length of a trial as a share of a restart, and its maximum: longer trials choose ever weaker priors, since
candidates then fit residue of training, not images; see docs/engine-log.md."""
LEFT_OUT = 4
"""Every fourth neuron is left out of a trial."""
TOLERANCE = 0.02
"""Strengths with a residual within this share of the best count as equal."""
FINE = 301
"""Number of strengths considered, evenly spaced in the logarithm."""


@dataclass(frozen=True)
class Phase:
    """The place of a step: in which trial or restart (`index`), at `step` of `length`."""

    is_trial: bool
    index: int
    step: int
    length: int

    @property
    def is_last(self) -> bool:
        return self.step + 1 == self.length


@dataclass(frozen=True)
class Schedule:
    """`trials` of `trial_steps`, then `restarts` of `steps`.

    >>> plan = Schedule(trials=2, trial_steps=3, restarts=4, steps=10)
    >>> plan.total, plan.phase(4), plan.phase(17).index, plan.finished_restarts(26)
    (46, Phase(is_trial=True, index=1, step=1, length=3), 1, 2)
    """

    trials: int
    trial_steps: int
    restarts: int
    steps: int

    @property
    def total(self) -> int:
        return self.trials * self.trial_steps + self.restarts * self.steps

    def phase(self, step: int) -> Phase:
        """The phase of step 0, 1, ..."""
        rest = step - self.trials * self.trial_steps
        if rest < 0:
            index, within = divmod(step, self.trial_steps)
            return Phase(True, index, within, self.trial_steps)
        index, within = divmod(rest, self.steps)
        return Phase(False, index, within, self.steps)

    def share_of_running(self, step: int) -> float:
        """How much of the current restart is done after `step` steps; 0 between restarts and before the first.

        >>> Schedule(trials=1, trial_steps=3, restarts=2, steps=10).share_of_running(10)
        0.7
        """
        rest = max(0, step - self.trials * self.trial_steps)
        return rest % self.steps / self.steps

    def finished_restarts(self, step: int) -> int:
        """How many restarts are complete after `step` steps."""
        return max(0, step - self.trials * self.trial_steps) // self.steps


def make_schedule(settings: EngineSettings, *, tries: bool) -> Schedule:
    """A schedule with or without trials of the prior's strengths."""
    trials = len(PRIOR_GRID) if tries else 0
    return Schedule(trials, trial_length(settings.steps), settings.restarts, settings.steps)


def trial_length(steps: int) -> int:
    """Steps of a trial when starts have `steps`.

    >>> trial_length(200), trial_length(1000)
    (50, 75)
    """
    return min(LONGEST_TRIAL, max(1, int(TRIAL_SHARE * steps)))


def longest_start(affordable: int, *, trials: int, restarts: int) -> int:
    """Steps per start, so that `restarts` starts and the trials take `affordable` steps.

    >>> longest_start(650, trials=5, restarts=2), longest_start(2300, trials=4, restarts=4)
    (200, 500)
    """
    with_short_trials = affordable / (restarts + trials * TRIAL_SHARE)
    return int(max(with_short_trials, (affordable - trials * LONGEST_TRIAL) / restarts))


@lru_cache(maxsize=8)
def choose_prior(left_unexplained: tuple[float, ...]) -> float:
    """The largest strength with nearly the best residual on left-out neurons; residuals are one per `PRIOR_GRID`.

    Between random starts such residuals vary by about two percent, as much as between neighbours on the grid; a
    parabola fitted to all of them over the strength's logarithm is more stable.

    >>> choose_prior((0.21, 0.20, 0.21, 0.24)), choose_prior((0.20, 0.22, 0.25, 0.3))
    (2.518, 1.474)
    >>> choose_prior((0.01, 0.0, 0.0, 0.09))
    2.039
    """
    places = torch.arange(len(PRIOR_GRID), dtype=torch.float64)
    fine = torch.linspace(0, len(PRIOR_GRID) - 1, FINE, dtype=torch.float64)
    powers = torch.arange(3)
    residuals = torch.tensor(left_unexplained, dtype=torch.float64)
    fitted = torch.linalg.lstsq(places[:, None] ** powers, residuals[:, None]).solution
    smooth = (fine[:, None] ** powers @ fitted).flatten()
    least = float(smooth.min())  # a parabola through tiny residuals may dip below 0
    chosen = float(fine[(smooth <= least + TOLERANCE * abs(least)).nonzero().max()])
    return round(PRIOR_GRID[0] * math.pow(PRIOR_GRID[1] / PRIOR_GRID[0], chosen), 3)
