"""The KKT gap: how far the weights are from a sum of the samples' gradients with non-negative duals.

At a KKT point of the max-margin problem every layer is

    theta_l = sum_i lambda_i y_i dPhi(x_i)/dtheta_l,   lambda_i >= 0,   dPhi/dtheta_l = delta_{l,i} [h_{l-1,i}; 1]ᵀ

so the Gram matrix of the gradients is a product of two small ones, entry by entry, and the best duals are a
non-negative least-squares problem with n unknowns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import nnls
from torch import Tensor

from engram.attacks.engine.closed_form import Pass, parameters, run_pass
from engram.core.errors import ConfigError
from engram.core.progress import Progress, silent
from engram.models.networks import DenseNetwork
from engram.models.tasks import Binary, Task

STEP = 1e30
"""So steep a sigmoid is ReLU's own derivative: 0 or 1, and 1/2 at exactly 0."""
SUPPORT = 1e-6
"""A support vector's dual is above this share of the largest."""


@dataclass(frozen=True)
class LayerGap:
    """||theta_l - sum_i lambda_i y_i dPhi(x_i)/dtheta_l|| / ||theta_l|| of one layer with its bias."""

    name: str
    gap: float
    """With the first layer's best duals."""
    own_gap: float
    """With the layer's own best duals: the smallest gap it can have."""


@dataclass(frozen=True, eq=False)
class KKT:
    """Duals [n] that explain the first layer best, and what they leave of every layer."""

    duals: Tensor
    layers: tuple[LayerGap, ...]
    margin: float | None
    """||[W_1 b_1]||² / sum_i lambda_i, which is the margin at a KKT point; None if no dual is positive."""

    @property
    def support(self) -> Tensor:
        """Which samples are support vectors, [n] bool."""
        return self.duals > SUPPORT * self.duals.max()


@torch.no_grad()
def kkt(network: DenseNetwork, task: Task, inputs: Tensor, labels: Tensor, *, progress: Progress = silent) -> KKT:
    """The gap of every layer at centred samples [n, ...] with labels [n], in float64 and with exact gates."""
    if not isinstance(task, Binary):
        raise ConfigError(
            f"the KKT gap is known for binary tasks only, got a {task.name} task; leave the data out"
        )
    network = network.to(dtype=torch.float64)
    signs = task.signs(labels, torch.float64)
    done = run_pass(network, inputs.flatten(1).double(), lambda _: signs[:, None], STEP)
    names = [f"layers.{index}" for index in range(len(network.weights))]
    duals, gaps = torch.zeros(0), []
    for index, name in enumerate(names):
        progress(f"examining: KKT gap of {name}", index / len(names))
        own = best_duals(network, done, index)
        duals = own if index == 0 else duals
        gaps.append(LayerGap(name, *(gap(network, done, chosen, index) for chosen in (duals, own))))
    total, energy = float(duals.sum()), float(parameters(network, 0).square().sum())
    return KKT(duals, tuple(gaps), energy / total if total > 0 else None)


def best_duals(network: DenseNetwork, done: Pass, layer: int) -> Tensor:
    """argmin over lambda >= 0 of ||theta_l - sum_i lambda_i y_i delta_i [h_i; 1]ᵀ||, [n].

    Gram_ij = (delta_i . delta_j) ([h_i; 1] . [h_j; 1]) and product_i = delta_iᵀ theta_l [h_i; 1], y_i in delta_i.
    """
    signals, entering = done.signals[layer], done.entering[layer]
    gram = (signals @ signals.T) * (entering @ entering.T)
    products = ((signals @ parameters(network, layer)) * entering).sum(1)
    return nonnegative_minimum(gram, products)


def gap(network: DenseNetwork, done: Pass, duals: Tensor, layer: int) -> float:
    """||theta_l - sum_i lambda_i delta_i [h_i; 1]ᵀ|| / ||theta_l||; a layer of zeros has no gap."""
    weights = parameters(network, layer)
    explained = (done.signals[layer] * duals[:, None]).T @ done.entering[layer]
    residual, size = (weights - explained).norm(), weights.norm()
    return float(residual / size) if float(size) > 0 else 0.0


def nonnegative_minimum(gram: Tensor, products: Tensor) -> Tensor:
    """argmin over x >= 0 of xᵀ G x / 2 - pᵀ x, for G [n, n] positive semidefinite and p in its range, [n].

    With G = Rᵀ R it is ||R x - R⁻ᵀ p||² up to a constant, which scipy solves by active sets.

    >>> nonnegative_minimum(torch.eye(2).double(), torch.tensor([2.0, -1.0]).double()).tolist()
    [2.0, 0.0]
    """
    values, vectors = torch.linalg.eigh(gram)
    kept = values > len(values) * torch.finfo(values.dtype).eps * values[-1]
    if not bool(kept.any()):
        return torch.zeros_like(products)
    roots = values[kept].sqrt()
    factor, aim = roots[:, None] * vectors[:, kept].T, (vectors[:, kept].T @ products) / roots
    # scipy's tolerance is absolute: both sides at scale one
    size, length = float(roots[-1]), float(aim.norm().clamp(min=torch.finfo(aim.dtype).tiny))
    solved, _ = nnls((factor / size).numpy(), (aim / length).numpy(), maxiter=100 * len(products))
    return torch.from_numpy(solved) * (length / size)
