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


def first_layer(network: Network) -> list[Tensor]:
    """Weight and bias of the layer that meets the input."""
    return [value for value in (network.weights[0], network.biases[0]) if value is not None]


def margin_loss(margins: Tensor, sizes: Tensor, norm: Tensor) -> Tensor:
    """sum_i s_i ((margin_i - mean) / gamma)², s_i = lambda_i / sum lambda: complementary slackness.

    Not in the papers. At a KKT point whatever has a dual lies on the margin, so all candidates in use have the
    same one; how large it is need not be known. The mean is weighed by s; gamma = m ||theta_1||² / sum lambda, the
    margin that homogeneity in the first layer gives (`norm` is ||theta_1||²), takes the unit away. Margins [m],
    sizes of the duals [m]; only the margins are pulled: no dual should grow for its candidate's sake.

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
