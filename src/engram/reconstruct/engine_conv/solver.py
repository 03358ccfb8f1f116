"""The engine of networks that begin with convolutions: candidates are pixels.

    F = stationarity of the first fully-connected layer + margin + SPAN * share of features outside + prior * TV

The first two are the engine's objective at the features' coordinates in the row space; their gradients by the
pixels follow by one backward pass through the convolutions. `engine/iteration.py` has the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from engram.loop import State
from engram.reconstruct.engine.iteration import EngineIteration
from engram.reconstruct.engine.metric import Metric
from engram.reconstruct.engine.objective import Objective
from engram.reconstruct.engine.prior import total_variation
from engram.reconstruct.engine.scales import Scales
from engram.reconstruct.engine_conv.problem import Problem, outside, pose, smooth_noise
from engram.targets.convolutional import ConvNetwork

PIXEL_RATE = 0.16
"""Adam's rate as a share of the pixels' spread."""
SPAN = 5.0
"""Weight of the features' share outside the row space, against a stationarity that begins at 1."""


@dataclass(frozen=True, eq=False)
class ConvEngine(EngineIteration[ConvNetwork]):
    """Stationarity of the first fully-connected layer, read through the convolutions below it."""

    moved: ClassVar[str] = "images"

    @cached_property
    def problem(self) -> Problem:
        return pose(self.view, self.settings)

    @property
    def scales(self) -> Scales:
        return self.problem.scales

    @cached_property
    def objective(self) -> Objective:
        return Objective(self.scales, self.settings, self.view.task, (self.scales.space.rank,))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.input_shape

    @property
    def rate(self) -> float:
        return PIXEL_RATE * self.problem.pixel_std

    def draw(self, seed: int) -> Tensor:
        return smooth_noise(self.scales.candidates, self.shape, self.problem.pixel_std, seed)

    def gradients(self, state: State, metric: Metric, prior: float) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Span and prior are weighed by the duals' shares, whose own gradient is left out: no dual should die only
        because its candidate is not yet in the span."""
        images = state["images"].detach().requires_grad_()
        features = self.problem.features(images)
        coordinates = self.problem.coordinates(features)
        inner = {**state, "latents": coordinates.detach()}
        losses, by_coordinates, by_duals = self.objective(inner, metric, 0.0)
        share = self.objective.shares(state["duals"])
        span = SPAN * (share * outside(features, coordinates)).sum()
        pulled = (coordinates * by_coordinates).sum() + span
        (by_images,) = torch.autograd.grad(pulled, images)
        losses = {**losses, "outside": span.detach()}
        if prior > 0:
            values, by_variation = total_variation(state["images"])
            losses["variation"] = prior * (share * values).sum()
            by_images = by_images + prior * share.view(-1, 1, 1, 1) * by_variation
        return losses, by_images, by_duals

    @torch.no_grad()
    def latents(self, moved: Tensor) -> Tensor:
        return self.problem.coordinates(self.problem.features(moved))

    def images(self, moved: Tensor) -> Tensor:
        return moved
