"""How far each neuron's equation can be trusted, direction by direction.

A training sample leaves lambda_i delta_{k,i} x_i in neuron k only up to some 30 % (gates and signals moved while
it was learnt), so neuron k's residual has covariance proportional to

    C_k = sum_{i active on k} lambda_i² [x_i; 1][x_i; 1]ᵀ

and its squared residual is weighed with (C_k / largest eigenvalue + ridge)⁻¹ / ||row_k||².
"""

from __future__ import annotations

import torch
from torch import Tensor

POWER_STEPS = 15


def neuron_metric(entering: Tensor, gates: Tensor, duals: Tensor, ridge: float, *, chunk: int = 250) -> Tensor:
    """The inverse covariances [h, k, k] for entering [m, k], gates [m, h], duals [m].

    Neurons in chunks, so that the matrices of one chunk and the result are all that is held. Positive definite,
    hence Cholesky: batched LU fails inside some BLAS libraries at this size.
    """
    m, k = entering.shape
    outer = (entering[:, :, None] * entering[:, None, :]).reshape(m, k * k)
    weights = gates * duals.square()[:, None]
    identity = torch.eye(k, dtype=entering.dtype, device=entering.device)
    inverses = []
    for start in range(0, gates.shape[1], chunk):
        covariance = (weights[:, start : start + chunk].T @ outer).view(-1, k, k)
        scale = _largest_eigenvalue(covariance)[:, None, None]
        factor = torch.linalg.cholesky(covariance / scale + ridge * identity)
        inverses.append(torch.cholesky_inverse(factor))
    return torch.cat(inverses)


def _largest_eigenvalue(matrices: Tensor) -> Tensor:
    """By power iteration, [b, k, k] -> [b]; a rough value is enough for a scale. Zero matrices give 1."""
    vector = matrices.new_ones(matrices.shape[0], matrices.shape[1], 1)
    for _ in range(POWER_STEPS):
        vector = matrices @ vector
        vector = vector / vector.norm(dim=1, keepdim=True).clamp(min=torch.finfo(matrices.dtype).tiny)
    value = (vector.transpose(1, 2) @ matrices @ vector).flatten()
    return torch.where(value > 0, value, torch.ones_like(value))
