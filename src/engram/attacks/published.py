"""The papers' scheme, unchanged: any network and task, by autograd. The slow oracle for the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from engram.attacks.reconstruction import Attack, Reconstruction
from engram.attacks.settings import Buzaglo2023, Haim2022
from engram.core.errors import require
from engram.core.loop import Metrics, State
from engram.models.activations import Activation, Pointwise
from engram.models.networks import Network
from engram.models.tasks import Task
from engram.models.view import AttackerView


class _Smoothed(torch.autograd.Function):
    """y = phi(z) of ReLU or LeakyReLU, and dy/dz := sigmoid(slope z) in place of its step.

    `backward` consists of differentiable operations, so autograd can differentiate it again, and the second
    derivative goes through the sigmoid: d²y/dz² := slope sigmoid(slope z) (1 - sigmoid(slope z)).
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, activation: Activation, slope: float) -> Tensor:
        ctx.save_for_backward(z)
        ctx.activation, ctx.slope = activation, slope
        return activation(z)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (z,) = ctx.saved_tensors
        return gradients[0] * ctx.activation.gate(z, ctx.slope), None, None


def smoothed(activation: Activation, slope: float) -> Pointwise:
    """The activation with a kink as soft as that slope (the papers' alpha); one without a kink is left alone.

    >>> from engram.models.activations import RELU
    >>> z = torch.tensor([0.0], dtype=torch.float64, requires_grad=True)
    >>> (gradient,) = torch.autograd.grad(smoothed(RELU, 8.0)(z), z, create_graph=True)
    >>> gradient.item(), torch.autograd.grad(gradient, z)[0].item()
    (0.5, 2.0)
    """
    if not activation.has_kink:
        return activation

    def soft(z: Tensor) -> Tensor:
        return _Smoothed.apply(z, activation, slope)  # type: ignore[no-any-return,no-untyped-call]

    return soft


def residuals(
    network: Network, task: Task, activation: Pointwise, inputs: Tensor, labels: Tensor, duals: Tensor
) -> dict[str, Tensor]:
    """The part of every parameter tensor that the candidates leave unexplained.

    r_l = theta_l - (1/m) sum_i sum_k c_ik d Phi_k(x_i) / d theta_l, where the task computes c from the duals: for
    classes sum_k c_ik Phi_k(x_i) = lambda_i margin_i. Inputs [m, ...], labels [m], duals as the task draws them.
    At a KKT point, with its own samples and duals, all residuals are zero. The 1/m is that of the released runs:
    their lambda is m times that of the paper's text.
    """
    params = {name: value.detach().requires_grad_() for name, value in network.params.items()}
    logits = network.with_params(params)(inputs, activation)
    weighted = task.output_weights(labels, duals, logits) * logits
    gradients = torch.autograd.grad(weighted.sum() / len(inputs), list(params.values()), create_graph=True)
    return {
        name: value.detach() - gradient for (name, value), gradient in zip(params.items(), gradients, strict=True)
    }


def stationarity_loss(residual_by_tensor: dict[str, Tensor]) -> Tensor:
    """L_stationary = sum_l ||r_l||²."""
    return torch.stack([residual.square().sum() for residual in residual_by_tensor.values()]).sum()


def dual_loss(shortfall: Tensor, *, squared: bool) -> Tensor:
    """L_lambda = sum_i max(lambda_min - lambda_i, 0), squared in the released runs; the task gives the shortfall.

    >>> dual_loss(torch.tensor([0.0, 1.5]), squared=True)
    tensor(2.2500)
    """
    return (shortfall.square() if squared else shortfall).sum()


def first_layer(network: Network) -> list[Tensor]:
    """Weight and bias of the first layer."""
    return [value for value in (network.weights[0], network.biases[0]) if value is not None]


def margin_loss(margins: Tensor, sizes: Tensor, norm: Tensor) -> Tensor:
    """sum_i s_i ((margin_i - mean) / gamma)², s_i = lambda_i / sum lambda: complementary slackness.

    Not in the papers. At a KKT point every sample with a positive dual lies on the margin, so all candidates in
    use have the same margin, whose size need not be known. The mean is weighted by s. Dividing by
    gamma = m ||theta_1||² / sum lambda, the margin that follows from homogeneity in the first layer (`norm` is
    ||theta_1||²), removes the unit. Margins [m], sizes of the duals [m]; gradients flow only into the margins: no
    dual should grow for the sake of its candidate.

    >>> margin_loss(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 1.0]), torch.tensor(2.0))
    tensor(0.2500)
    """
    total = sizes.detach().sum()
    share = sizes.detach() / total
    mean = (share * margins.detach()).sum()
    gamma = len(sizes) * norm / total
    return (share * ((margins - mean) / gamma).square()).sum()


def range_loss(inputs: Tensor) -> Tensor:
    """L_prior = sum max(x - 1, 0)² + max(-1 - x, 0)²: mean-subtracted pixels lie in [-1, 1].

    >>> range_loss(torch.tensor([[0.5, 3.0], [-2.0, 0.0]]))
    tensor(5.)
    """
    return (inputs.abs() - 1).clamp(min=0).square().sum()


__all__ = ["Buzaglo2023", "Haim2022", "PublishedScheme"]


@dataclass(frozen=True, eq=False)
class PublishedScheme(Attack):
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
            "use buzaglo2023, which supports all tasks",
        )
        require(
            settings.candidates % task.label_count == 0,
            "candidates",
            f"must be a multiple of {task.label_count}",
            settings.candidates,
            "an equal number starts with each label",
        )
        require(
            settings.dual_weight == 0 or not task.has_signed_duals,
            "dual_weight",
            f"must be 0 for {task.name}, whose duals have either sign",
            settings.dual_weight,
            "use the settings named regression",
        )

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
        activation = smoothed(network.activation, settings.relu_slope)
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

    def hint(self) -> str:
        settings = self.settings
        return (
            f"lower lr_images (now {settings.lr_images:g}), lr_duals (now {settings.lr_duals:g}) "
            f"or image_std (now {settings.image_std:g}), each with --set NAME=VALUE"
        )

    def reconstruction(self, state: State) -> Reconstruction:
        task, images, duals, labels = self.view.task, state["images"], state["duals"], state["labels"]
        return Reconstruction(
            images=images.detach().cpu(),
            duals=task.sample_duals(duals).detach().cpu(),
            labels=task.sample_labels(labels, duals).cpu(),
            pair_duals=duals.detach().cpu() if duals.ndim == 2 else None,
        )
