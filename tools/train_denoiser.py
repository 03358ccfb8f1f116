"""Train the small network that knows pictures: `engram.attacks.engine.image_prior.safetensors`.

    python -m tools.train_denoiser --data-root DIR [--steps 6000] [--threads 1] [--out FILE]

Pictures are the CIFAR-10 test batch, public and no target's training data. Each step takes some of them, keeps the
strongest directions of their span, as the weights of a network do, adds to every picture a mixture of the others,
as wrong candidates have it, and asks which part of the sum is not the picture. A quarter of the steps is grey. The
last 500 pictures are never learnt: the table at the end shows what is left of mixtures of theirs, beside the best
step along the gradient of total variation. About 20 minutes on one core.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from torch import Tensor

from engram.attacks.engine.image_prior import LAYERS, WEIGHTS, errors, total_variation
from engram.core import files
from engram.data.catalog import load

DEFAULT = Path(__file__).parents[1] / "src" / "engram" / "attacks" / "engine" / WEIGHTS
KEPT_BACK = 500
FEWEST, MOST = 60, 200
"""Pictures that a step takes."""
RATE, DECAY = 2e-3, 1e-4
GREY = 0.25
STEPS_OF_VARIATION = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8)


def fresh(generator: torch.Generator) -> dict[str, Tensor]:
    """PyTorch's own start: uniform in 1 / sqrt(inputs)."""
    params = {}
    for name, (inputs, outputs) in LAYERS.items():
        bound = (9 * inputs) ** -0.5
        params[f"{name}.weight"] = torch.empty(outputs, inputs, 3, 3).uniform_(-bound, bound, generator=generator)
        params[f"{name}.bias"] = torch.empty(outputs).uniform_(-bound, bound, generator=generator)
    return params


def mixtures(pictures: Tensor, levels: Tensor, rank: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures [n, C, H, W] in the `rank` strongest directions of a random mixture of their own, and the same with
    errors of `levels` [n] times their norm, which are spread as pictures are."""
    rows = pictures.flatten(1)
    weighted = (torch.rand(len(rows), 1, generator=generator).square() + 0.02) * rows
    _, strengths, basis = torch.linalg.svd(weighted, full_matrices=False)
    basis, strengths = basis[:rank], strengths[:rank].clamp(max=float(strengths[rank // 8]))
    inside = rows @ basis.T
    wrong = strengths * torch.randn(len(rows), rank, generator=generator)
    wrong *= levels[:, None] * inside.norm(dim=1, keepdim=True) / wrong.norm(dim=1, keepdim=True)
    return (inside @ basis).view_as(pictures), ((inside + wrong) @ basis).view_as(pictures)


def batch(pictures: Tensor, generator: torch.Generator) -> Tensor:
    """Some of the pictures, mirrored half of the time, grey a quarter of it."""

    def chance() -> float:
        return float(torch.rand((), generator=generator))

    count = FEWEST + int((MOST - FEWEST) * chance())
    some = pictures[torch.randperm(len(pictures), generator=generator)[:count]]
    if chance() < 0.5:
        some = some.flip(3)
    if chance() < GREY:
        some = some.mean(1, keepdim=True).expand_as(some)
    return some


def spread(images: Tensor) -> Tensor:
    return images.flatten(1).std(1).view(-1, 1, 1, 1)


def train(pictures: Tensor, steps: int, generator: torch.Generator) -> dict[str, Tensor]:
    params = {name: value.requires_grad_() for name, value in fresh(generator).items()}
    optimiser = torch.optim.AdamW(params.values(), RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps))
    )
    started, mean = time.monotonic(), 0.0
    for step in range(1, steps + 1):
        some = batch(pictures, generator)
        levels = torch.rand(len(some), generator=generator)
        rank = int(len(some) * (0.5 + 0.5 * float(torch.rand((), generator=generator))))
        _, mixed = mixtures(some, levels, rank, generator)
        size = spread(mixed)
        weight = 1 / (0.05 + levels.square().view(-1, 1, 1, 1))
        loss = (weight * ((mixed - some) / size - errors(params, mixed / size)).square()).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
        mean = loss.item() if step == 1 else 0.98 * mean + 0.02 * loss.item()
        if step % 100 == 0:
            left = (time.monotonic() - started) * (steps / step - 1)
            print(f"step {step:,} of {steps:,}, loss {mean:.4f}, {left / 60:.0f} min left", flush=True)
    return {name: value.detach() for name, value in params.items()}


@torch.no_grad()
def told(params: dict[str, Tensor], pictures: Tensor, generator: torch.Generator) -> str:
    """How much of an error is left, as a share of the picture's energy, for pictures that were not learnt."""
    lines = ["| error | one step of the network | best step of total variation |", "|---|---|---|"]
    for level in (0.2, 0.4, 0.7, 1.0):
        levels = torch.full((len(pictures),), level)
        truth, mixed = mixtures(pictures, levels, len(pictures) * 7 // 10, generator)
        size = spread(mixed)

        def left(guess: Tensor, truth: Tensor = truth) -> float:
            scale = (guess * truth).flatten(1).sum(1) / guess.square().flatten(1).sum(1)
            off = (scale.view(-1, 1, 1, 1) * guess - truth).square().flatten(1).sum(1)
            return float((off / truth.square().flatten(1).sum(1)).mean())

        slopes = total_variation(mixed / size)[1] * pictures[0].numel()
        smoothed = min(left(mixed / size - rate * slopes) for rate in STEPS_OF_VARIATION)
        cleaned = left(mixed / size - errors(params, mixed / size))
        lines.append(f"| {left(mixed):.3f} | {cleaned:.3f} | {smoothed:.3f} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=DEFAULT)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(chosen.threads)
    generator = torch.Generator().manual_seed(0)
    everything = load("cifar10", root=chosen.data_root, train=False).images
    pictures = everything - everything.mean(0)
    params = train(pictures[:-KEPT_BACK], chosen.steps, generator)
    halves = {name: value.half() for name, value in params.items()}
    files.write_tensors(chosen.out, halves)
    print(told({name: value.float() for name, value in halves.items()}, pictures[-KEPT_BACK:], generator))


if __name__ == "__main__":
    main()
