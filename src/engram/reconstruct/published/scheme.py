"""The papers' scheme as an iteration: gradient descent with momentum on candidates and duals."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engram.attacker import AttackerView
from engram.errors import require
from engram.loop import Metrics, State, Values
from engram.reconstruct.candidates import Reconstruction
from engram.reconstruct.published.objective import (
    dual_loss,
    first_layer,
    margin_loss,
    range_loss,
    residuals,
    stationarity_loss,
)
from engram.reconstruct.published.relu import smoothed_relu
from engram.reconstruct.published.settings import Buzaglo2023, Haim2022
from engram.targets.networks import Network

__all__ = ["Buzaglo2023", "Haim2022", "PublishedScheme"]


@dataclass(frozen=True, eq=False)
class PublishedScheme:
    """L = L_stationary + 5 L_lambda + L_prior, minimised over images [m, ...] and the task's duals.

    With `margin_weight` also L_margin, which is ours.
    """

    view: AttackerView[Network]
    settings: Haim2022

    def __post_init__(self) -> None:
        settings, task = self.settings, self.view.task
        require(
            settings.only_task in (None, task.name),
            "task",
            f"must be {settings.only_task} for the recipe {settings.recipe}",
            task.name,
            "use buzaglo2023, which reads all tasks",
        )
        require(
            settings.candidates % task.label_count == 0,
            "candidates",
            f"must be a multiple of {task.label_count}",
            settings.candidates,
            "as many start with each label",
        )
        require(
            settings.dual_weight == 0 or not task.has_signed_duals,
            "dual_weight",
            f"must be 0 for {task.name}, whose duals have either sign",
            settings.dual_weight,
            "take the settings named regression",
        )

    @property
    def recipe(self) -> str:
        return self.settings.recipe

    @property
    def total_steps(self) -> int:
        return self.settings.steps

    def init(self) -> State:
        """x ~ N(0, image_std²), duals as the task draws them; labels split evenly."""
        settings = self.settings
        generator = torch.Generator().manual_seed(settings.seed)
        device = self.view.network.weights[0].device
        shape = (settings.candidates, *self.view.input_shape)
        images = settings.image_std * torch.randn(shape, generator=generator, dtype=torch.float64)
        labels = torch.arange(settings.candidates) % self.view.task.label_count
        duals = self.view.task.draw_duals(labels, generator)
        images, duals = (value.to(device=device, dtype=settings.torch_dtype) for value in (images, duals))
        return {
            "images": images,
            "duals": duals,
            "labels": labels.to(device),
            "images_momentum": torch.zeros_like(images),
            "duals_momentum": torch.zeros_like(duals),
        }

    def step(self, state: State) -> Metrics:
        settings, task, labels = self.settings, self.view.task, state["labels"]
        images, duals = (state[name].detach().requires_grad_() for name in ("images", "duals"))
        network = self.view.network.to(dtype=settings.torch_dtype)
        activation = smoothed_relu(settings.relu_slope)
        unexplained = residuals(network, task, activation, images, labels, duals)
        stationarity = stationarity_loss(unexplained)
        shortfall = task.dual_shortfall(labels, duals, settings.dual_floor)
        floor = dual_loss(shortfall, squared=settings.squared_dual_loss)
        outside = range_loss(images)
        loss = (
            settings.stationarity_weight * stationarity
            + settings.dual_weight * floor
            + settings.range_weight * outside
        )
        losses = {"stationarity": stationarity, "dual_floor": floor, "range": outside}
        if settings.margin_weight > 0:
            logits = network(images, activation)
            margins = (task.sides(labels, duals.detach(), logits) * logits).sum(1)
            norm = torch.stack([value.square().sum() for value in first_layer(network)]).sum()
            losses["margin"] = margin_loss(margins, task.sample_duals(duals).abs(), norm)
            loss = loss + settings.margin_weight * losses["margin"]
        gradients = torch.autograd.grad(loss, (images, duals))
        for name, rate, gradient in zip(
            ("images", "duals"), (settings.lr_images, settings.lr_duals), gradients, strict=True
        ):
            momentum = state[f"{name}_momentum"]
            momentum.mul_(settings.momentum).add_(gradient)
            state[name] = state[name].detach().sub_(momentum, alpha=rate)
        return {name: value.detach() for name, value in {"loss": loss, **losses}.items()}

    def finished(self, metrics: Values) -> bool:
        """The papers run all their steps."""
        return False

    def fingerprint(self) -> str:
        return repr((self.settings, self.view.task, self.view.input_shape, self.view.network.digest()))

    def hint(self) -> str:
        settings = self.settings
        return (
            f"lower --lr-images (now {settings.lr_images:g}), --lr-duals (now {settings.lr_duals:g}) "
            f"or --image-std (now {settings.image_std:g})"
        )

    def reconstruction(self, state: State) -> Reconstruction:
        task, images, duals, labels = self.view.task, state["images"], state["duals"], state["labels"]
        return Reconstruction(
            images=images.detach().cpu(),
            duals=task.sample_duals(duals).detach().cpu(),
            labels=task.sample_labels(labels, duals).cpu(),
            pair_duals=duals.detach().cpu() if duals.ndim == 2 else None,
        )
