"""Images over all frequencies, once the candidates are found: what the row space has no direction for.

Where most of the first layer is the noise of its start, few directions stand above it, and images in their span
are blurred. But W_1 = W_0 + sum_i delta_i x_iᵀ is linear in the images, and the found candidates tell the signals
delta_i. In an octave of frequencies where images have power p and the candidates leave s² of a weight unexplained,
the posterior mean of all images X [m, octave] is

    (D Dᵀ / s² + 1 / p)⁻¹ D W / s²,    D [m, h] the signals

Signals follow from images, so this is done again. Where the model's misfit outweighs the noise, as from a small
start, it would do harm: docs/engine-log.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from engram.reconstruct.engine.frequencies import Frequencies
from engram.reconstruct.engine.image_space import bands

ROUNDS = 2
MOSTLY = 0.5
"""The share of noise in a layer's energy from which on this is done."""
IN_USE = 1e-3
"""Candidates whose signal is weaker than this share of the strongest stay as they are: nothing speaks of them."""


def mostly_noise(weight: Tensor, noise_std: float) -> bool:
    """Whether noise of this standard deviation is most of the energy of W."""
    energy = float(weight.double().square().sum())
    return noise_std**2 * weight.numel() > MOSTLY * energy


def read_out(
    images: Tensor,
    rows: Tensor,
    signals: Callable[[Tensor], Tensor],
    frequencies: Frequencies,
    pixel_std: float,
) -> Tensor:
    """Images [m, d] read out of W [h, d] over frequencies; `signals` maps images to theirs [m, h], with duals."""
    found = frequencies.coefficients(images.double())
    power = expected_power(rows.shape[1], pixel_std).to(rows)
    for _ in range(ROUNDS):
        sent = signals(frequencies.pixels(found).to(images.dtype)).double()
        strengths = sent.norm(dim=1)
        used = strengths > IN_USE * strengths.max()
        found[used] = posterior_mean(rows, found[used], sent[used], power)
    return frequencies.pixels(found).to(images.dtype)


def posterior_mean(rows: Tensor, found: Tensor, sent: Tensor, power: Tensor) -> Tensor:
    """Images [m, d] over frequencies from W [h, d], by their signals [m, h] and the power expected of them [d].

    What `found`, the images so far, leaves unexplained is the noise of each octave.
    """
    left = rows - sent.T @ found
    overlaps, projected = sent @ sent.T, sent @ rows
    identity = torch.eye(len(sent), dtype=sent.dtype, device=sent.device)
    result = torch.empty_like(found)
    for first, last in itertools.pairwise([0, *reversed(bands(rows.shape[1]))]):
        noise = left[:, first:last].square().mean()
        ridge = noise / power[first:last].mean()
        result[:, first:last] = torch.linalg.solve(overlaps + ridge * identity, projected[:, first:last])
    return result


def expected_power(count: int, pixel_std: float) -> Tensor:
    """Of photographs in the frequencies of `Frequencies`, [count]: in a plane 1 / f² is 1 / place in the order.

    >>> expected_power(3, 1.0).mul(100).round().div(100).tolist()
    [1.64, 0.82, 0.55]
    """
    falling = 1 / torch.arange(1, count + 1, dtype=torch.float64)
    return falling * (pixel_std**2 * count / falling.sum())
