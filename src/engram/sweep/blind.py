"""How well candidates explain the weights, judged by the weights alone: the objective of a sweep.

It must be comparable between trials, so nothing of a trial's own settings enters: gates are hard, whatever the
slope it was run with, and the scale of the duals, on which recipes differ, drops out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engram.attacker import AttackerView
from engram.reconstruct.candidates import Reconstruction

NOTHING_EXPLAINED = 1.0


def unexplained_share(view: AttackerView, found: Reconstruction) -> float:
    """The share of the first layer that no multiple of the candidates' own contribution explains, in [0, 1].

    With P = [W_1 b_1] and E = sum_i lambda_i d margin_i / d P at ReLU's exact gates,

        min over s >= 0 of ||P - s E||² / ||P||²  =  1 - max(0, <P, E>)² / (||P||² ||E||²)
    """
    network = view.network.to(dtype=torch.float32, device="cpu")
    params = {name: value.detach() for name, value in network.params.items()}
    prefix = next(iter(params)).rpartition(".")[0]
    first = [value.requires_grad_() for name, value in params.items() if name.rpartition(".")[0] == prefix]
    logits = network.with_params(params)(found.images.float(), torch.relu)
    gains = found.duals.float() * view.task.margins(logits, found.labels)
    explained = torch.autograd.grad(gains.sum(), first)
    return share_outside(_joined(first), _joined(explained))


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """All values in one vector; in float64, since their sums run over millions."""
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).double()


def share_outside(whole: Tensor, part: Tensor) -> float:
    """1 - cos² of the angle between two vectors [p]; 1 where they point apart, or `part` is zero or not finite.

    >>> round(share_outside(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 0.0])), 6)
    0.64
    >>> share_outside(torch.tensor([3.0, 4.0]), torch.tensor([-6.0, -8.0]))
    1.0
    """
    cosine = float(whole @ part) / max(float(whole.norm()) * float(part.norm()), torch.finfo(torch.float64).tiny)
    if not 0 < cosine <= 1 + 1e-6:  # false for NaN, too
        return NOTHING_EXPLAINED
    return max(0.0, 1 - cosine**2)
