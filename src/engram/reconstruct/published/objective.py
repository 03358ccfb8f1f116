"""The three losses of the papers as pure functions of candidates and duals."""

from __future__ import annotations

import torch
from torch import Tensor

from engram.targets.networks import Activation, Network
from engram.task import Task


def residuals(
    network: Network, task: Task, activation: Activation, inputs: Tensor, labels: Tensor, duals: Tensor
) -> dict[str, Tensor]:
    """What the candidates leave unexplained of every parameter tensor.

    r_l = theta_l - (1/m) sum_i sum_k c_ik d Phi_k(x_i) / d theta_l, where the task makes c from the duals: for
    classes sum_k c_ik Phi_k(x_i) = lambda_i margin_i. Inputs [m, ...], labels [m], duals as the task draws them.
    At a KKT point with its own samples and duals all of them are zero. The 1/m is that of the released runs:
    their lambda is m times the one of the paper's text.
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


def range_loss(inputs: Tensor) -> Tensor:
    """L_prior = sum max(x - 1, 0)² + max(-1 - x, 0)²: mean-subtracted pixels lie in [-1, 1].

    >>> range_loss(torch.tensor([[0.5, 3.0], [-2.0, 0.0]]))
    tensor(5.)
    """
    return (inputs.abs() - 1).clamp(min=0).square().sum()
