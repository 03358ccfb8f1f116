"""How much time and memory matching takes: `python -m benchmarks.matching`.

Three runs of `score` (2023 protocol), the large ones at 100,000 candidates × 5,000 images × 3,072 pixels:
- naive: one full distance matrix against blocks and chunks, at a size where the matrix fits;
- planted: twenty noisy copies of each image, so few candidates vote: one matrix product, then a small gather;
- null: noise candidates, the worst case: most candidates vote for every image, and the average is a second matrix
  product of the same size.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import torch
from torch import Tensor

from engram.scoring.match import score
from engram.scoring.metrics import ssim, stretched, vote_2023, zscored
from engram.scoring.protocols import Buzaglo2023Protocol
from engram.scoring.report import noise_candidates

SHAPE = (3, 32, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5_000)
    parser.add_argument("--copies", type=int, default=20, help="candidates per image")
    parser.add_argument("--skip-null", action="store_true", help="skip the worst case")
    arguments = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    compare_with_naive(generator)
    images = torch.rand(arguments.images, *SHAPE, generator=generator)
    mean = images.mean(0)
    candidates = planted(images, mean, arguments.copies, generator)
    timed("planted", candidates, images, mean)
    if not arguments.skip_null:
        shape = candidates.shape
        del candidates  # so that only one set counts towards the peak
        timed("null", noise_candidates(torch.empty(1).expand(shape), generator), images, mean)


def compare_with_naive(generator: torch.Generator, count: int = 1_000, copies: int = 8) -> None:
    """Both ways on one small problem; they should agree."""
    images = torch.rand(count, *SHAPE, generator=generator)
    mean = images.mean(0)
    candidates = planted(images, mean, copies, generator)
    seconds = {}
    results = {}
    for name, run in (("blocked", blocked), ("naive", naive)):
        run(candidates[:64], images[:64], mean)  # warm up
        started = time.perf_counter()
        results[name] = run(candidates, images, mean)
        seconds[name] = time.perf_counter() - started
    gap = (results["blocked"] - results["naive"]).abs().max().item()
    print(
        f"naive      {count:,} images × {count * copies:,} candidates: naive {seconds['naive']:.2f} s, "
        f"blocked {seconds['blocked']:.2f} s, ratio {seconds['naive'] / seconds['blocked']:.2f}, "
        f"largest SSIM difference {gap:.1e}"
    )


def blocked(candidates: Tensor, images: Tensor, mean: Tensor) -> Tensor:
    result = score(candidates, images, mean, protocol=Buzaglo2023Protocol()).ssim
    assert result is not None
    return result


def naive(candidates: Tensor, images: Tensor, mean: Tensor) -> Tensor:
    """The protocol written down directly: full matrix, full mask, mask @ candidates."""
    correlation = zscored(images - mean) @ zscored(candidates).T / images[0].numel()
    voting = (correlation >= vote_2023(correlation.max(1).values)[:, None]).to(images)
    averages = voting @ candidates.flatten(1) / voting.sum(1, keepdim=True)
    return ssim(stretched(averages.view(images.shape) + mean), images)


def planted(images: Tensor, mean: Tensor, copies: int, generator: torch.Generator) -> Tensor:
    """Each image `copies` times with noise as strong as itself, built in place: [copies * n, *shape]."""
    candidates = torch.empty(copies * len(images), *SHAPE)
    candidates.normal_(std=0.3, generator=generator)
    for copy in range(copies):
        candidates[copy * len(images) : (copy + 1) * len(images)] += images - mean
    return candidates


def timed(name: str, candidates: Tensor, images: Tensor, mean: Tensor) -> None:
    started, computed = time.perf_counter(), time.process_time()
    table = score(candidates, images, mean, protocol=Buzaglo2023Protocol())
    seconds, computed = time.perf_counter() - started, time.process_time() - computed
    products = 2 * len(candidates) * len(images) * images[0].numel()
    print(
        f"{name:10} {len(images):,} images × {len(candidates):,} candidates: {seconds:.1f} s, "
        f"{computed:.1f} s CPU time ({products / seconds / 1e9:.0f} GFLOP/s counted as one product), "
        f"votes up to {int(table.votes.max()):,}, SSIM > 0.4: {table.count('ssim', 0.4):,}, "
        f"peak RSS so far {peak_gigabytes():.2f} GB"
    )


def peak_gigabytes() -> float:
    """Peak of the whole process; Linux counts kilobytes, macOS bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1e9 if sys.platform == "darwin" else 1e9 / 1024)


if __name__ == "__main__":
    main()
