"""Haim et al. 2022 as an iteration: gradient descent with momentum on candidates and duals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from engram.attacker import AttackerView
from engram.errors import require
from engram.loop import Metrics, State, Values
from engram.reconstruct.candidates import Reconstruction
from engram.reconstruct.published.objective import dual_loss, range_loss, residuals, stationarity_loss
from engram.reconstruct.published.relu import smoothed_relu


@dataclass(frozen=True, kw_only=True)
class Haim2022:
    """Settings of the published scheme; the defaults are the authors' best for CIFAR-10, 500 images.

    `candidates` is m (the papers take twice the number of training images). `dual_floor` is lambda_min and
    `relu_slope` is alpha. `squared_dual_loss` follows the released runs; False is the text of the paper.
    """

    candidates: int = 1000
    steps: int = 50_000
    lr_images: float = 0.555
    lr_duals: float = 1e-4
    image_std: float = 8.86e-4
    dual_floor: float = 0.498
    relu_slope: float = 19.1
    momentum: float = 0.9
    stationarity_weight: float = 1.0
    dual_weight: float = 5.0
    range_weight: float = 1.0
    squared_dual_loss: bool = True
    dtype: Literal["float32", "float64"] = "float64"
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            self.candidates > 0 and self.candidates % 2 == 0,
            "candidates",
            "must be positive and even",
            self.candidates,
            "half of them start with each label",
        )
        for name in ("steps", "lr_images", "lr_duals", "image_std", "relu_slope"):
            require(getattr(self, name) > 0, name, "must be positive", getattr(self, name))
        for name in ("stationarity_weight", "dual_weight", "range_weight"):
            require(getattr(self, name) >= 0, name, "must not be negative", getattr(self, name))
        require(0 <= self.momentum < 1, "momentum", "must lie in [0, 1)", self.momentum)
        require(self.dtype in ("float32", "float64"), "dtype", "must be float32 or float64", self.dtype)

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float64 if self.dtype == "float64" else torch.float32


@dataclass(frozen=True, eq=False)
class PublishedScheme:
    """L = L_stationary + 5 L_lambda + L_prior, minimised over images [m, ...] and duals [m]."""

    recipe: ClassVar[str] = "haim2022"

    view: AttackerView
    settings: Haim2022

    @property
    def total_steps(self) -> int:
        return self.settings.steps

    def init(self) -> State:
        """x ~ N(0, image_std²), lambda ~ U(0, 1); labels split evenly."""
        settings = self.settings
        generator = torch.Generator().manual_seed(settings.seed)
        device = self.view.network.weights[0].device
        shape = (settings.candidates, *self.view.input_shape)
        images = settings.image_std * torch.randn(shape, generator=generator, dtype=torch.float64)
        duals = torch.rand(settings.candidates, generator=generator, dtype=torch.float64)
        images, duals = (value.to(device=device, dtype=settings.torch_dtype) for value in (images, duals))
        return {
            "images": images,
            "duals": duals,
            "labels": torch.arange(settings.candidates, device=device) % self.view.task.label_count,
            "images_momentum": torch.zeros_like(images),
            "duals_momentum": torch.zeros_like(duals),
        }

    def step(self, state: State) -> Metrics:
        settings = self.settings
        images, duals = (state[name].detach().requires_grad_() for name in ("images", "duals"))
        unexplained = residuals(
            self.view.network.to(dtype=settings.torch_dtype),
            self.view.task,
            smoothed_relu(settings.relu_slope),
            images,
            state["labels"],
            duals,
        )
        stationarity = stationarity_loss(unexplained)
        floor = dual_loss(duals, settings.dual_floor, squared=settings.squared_dual_loss)
        outside = range_loss(images)
        loss = (
            settings.stationarity_weight * stationarity
            + settings.dual_weight * floor
            + settings.range_weight * outside
        )
        gradients = torch.autograd.grad(loss, (images, duals))
        for name, rate, gradient in zip(
            ("images", "duals"), (settings.lr_images, settings.lr_duals), gradients, strict=True
        ):
            momentum = state[f"{name}_momentum"]
            momentum.mul_(settings.momentum).add_(gradient)
            state[name] = state[name].detach().sub_(momentum, alpha=rate)
        losses = {"loss": loss, "stationarity": stationarity, "dual_floor": floor, "range": outside}
        return {name: value.detach() for name, value in losses.items()}

    def finished(self, metrics: Values) -> bool:
        """The papers run all their steps."""
        return False

    def fingerprint(self) -> str:
        return repr((self.settings, self.view.task, self.view.input_shape, self.view.network.digest()))

    def hint(self) -> str:
        rate, spread = self.settings.lr_images, self.settings.image_std
        return f"lower --lr-images (now {rate:g}), or --image-std (now {spread:g})"

    def reconstruction(self, state: State) -> Reconstruction:
        return Reconstruction(*(state[name].detach().cpu() for name in ("images", "duals", "labels")))
