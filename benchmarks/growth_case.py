"""One case of `benchmarks.growth`, in its own process so that its peak memory can be measured.

Run by `benchmarks.growth`: python -m benchmarks.growth_case REQUEST.json RESULT.json
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.growth_price import Price, at, timed
from benchmarks.machine import peak_memory_bytes
from engram.attacks.engine.closed_form import ARRAYS, MOST_AT_ONCE
from engram.attacks.engine.objective import Objective
from engram.attacks.engine.self_tuning import Scales
from engram.attacks.settings import EngineSettings
from engram.core import files
from engram.models.networks import DenseNetwork
from engram.models.row_space import RowSpace, first_layer_space
from engram.models.tasks import Binary
from engram.training.recipe import MLPSpec, Recipe
from engram.training.target import make_descent

PRIOR = 1.6
WEIGHT_PASSES = 4
"""How often a batch reads or writes all weights: forward, backward, and twice for the step."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What to measure: training on n images, or the engine with the rank and candidates for them."""

    kind: str
    n: int
    width: int
    rank: int
    candidates: int
    image: tuple[int, int, int]
    batch: int
    measured: int
    """Candidates of the shorter of two measurements; the longer one has twice as many."""
    threads: int

    @property
    def inputs(self) -> int:
        channels, height, width = self.image
        return channels * height * width


def training(case: Case) -> dict[str, Any]:
    """Seconds per epoch, from a few batches."""
    started = time.process_time()
    spec = MLPSpec(inputs=case.inputs, widths=(case.width, case.width))
    start = spec.initialise(torch.Generator().manual_seed(0), torch.float32)
    setup = time.process_time() - started
    inputs = 0.2 * torch.randn(case.n, case.inputs)
    batch = min(case.batch, case.n)
    descent = make_descent(start, Binary(), Recipe(batch=batch), inputs, torch.arange(case.n) % 2)
    state = descent.init()
    rows = torch.arange(batch)
    descent.descend(state, rows)  # computes what is cached, such as the Gram matrix
    _, price = timed(lambda: descent.descend(state, rows))
    batches = -(-case.n // batch)
    parameters = sum(value.numel() for value in start.params.values())
    return {
        "form": type(descent).__name__,
        "parameters": parameters,
        "setup_seconds": setup,
        "seconds_a_batch": price.seconds,
        "seconds_an_epoch": batches * price.seconds,
        "flops_an_epoch": batches * price.flops,
        "bytes_an_epoch": batches * WEIGHT_PASSES * 4.0 * parameters,
    }


def engine(case: Case) -> dict[str, Any]:
    """Seconds per step and per metric update for all candidates, extrapolated from two measurements with few."""
    objective, parts = _objective(case), -(-_pass_bytes(case, case.candidates) // EngineSettings().room)
    sizes = [count * min(case.measured, case.candidates // 2) for count in (1, 2)]
    metrics, steps, groups = [], [], 0
    for count in sizes:
        metric, step, groups = _measured(objective, case, count, min(parts, 2))
        metrics.append(metric)
        steps.append(step)
    return {
        "rank": case.rank,
        "candidates": case.candidates,
        "measured_candidates": sizes,
        "metrics": groups,
        "chunks": parts,
        "seconds_a_step": at(case.candidates, sizes, [one.seconds for one in steps]),
        "flops_a_step": at(case.candidates, sizes, [one.flops for one in steps]),
        "seconds_a_metric": at(case.candidates, sizes, [one.seconds for one in metrics]),
        # Cholesky inverses are not matrix products: k³ each.
        "flops_a_metric": at(case.candidates, sizes, [one.flops for one in metrics]) + groups * case.rank**3.0,
        "computed_peak_bytes": _computed_peak(case, groups, parts),
    }


def _measured(objective: Objective, case: Case, count: int, parts: int) -> tuple[Price, Price, int]:
    """A metric and a step with it, in one chunk or two: with several chunks, each candidate is run twice."""
    latents = torch.randn(count, case.rank, generator=torch.Generator().manual_seed(1))
    state = {"latents": latents, "duals": torch.full((count,), 0.01), "labels": torch.arange(count) % 2}
    metric, of_metric = timed(lambda: objective.metric(state["latents"], state["duals"]))
    room = _pass_bytes(case, count) if parts == 1 else _pass_bytes(case, -(-count // 2))
    chunked = replace(objective, settings=replace(objective.settings, memory=2 * room))
    _, of_step = timed(lambda: chunked(state, metric, PRIOR))
    return of_metric, of_step, len(metric.matrices)


def row_space(case: Case) -> dict[str, Any]:
    """Seconds of the decomposition of the first layer, once per attack."""
    weight = torch.randn(case.width, case.inputs)
    started = time.process_time()
    first_layer_space(weight, case.image)
    return {"seconds": (time.process_time() - started) / torch.get_num_threads()}


def _objective(case: Case) -> Objective:
    """The engine's objective in a random row space: the cost of a step depends only on sizes."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(case.inputs, case.rank, generator=generator)).Q.T.contiguous()
    spec = MLPSpec(inputs=case.rank, widths=(case.width, case.width), first_layer_std=None)
    network: DenseNetwork = spec.initialise(generator, torch.float32)
    ones = torch.ones(case.rank)
    space = RowSpace(basis, ones, case.rank, ones, 0.0, 0.0)
    scales = Scales(network, space, case.candidates, latent_std=1.0, slope=10.0, dual=0.01)
    return Objective(scales, EngineSettings(), Binary(), case.image)


def _pass_bytes(case: Case, count: int) -> int:
    return 4 * ARRAYS * count * (case.rank + 2 * case.width + 1)


def _computed_peak(case: Case, groups: int, parts: int) -> int:
    """Weights, metrics, one chunk of a pass or of the next metric; gates, moments and pool for all candidates."""
    room = EngineSettings().room
    matrix = 4 * (case.rank + 1) ** 2
    weights = 4 * (case.inputs * case.width + case.width**2 + 4 * case.width * case.rank)
    making = min(room, matrix * (case.candidates + 3 * min(groups, MOST_AT_ONCE)))
    chunk = max(making, _pass_bytes(case, case.candidates) // parts)
    shared = 4 * case.candidates * (2 * case.width + 12 * case.rank)
    return weights + groups * matrix + chunk + shared


def main(request: Path, result: Path) -> None:
    given = files.read_json(request)
    case = Case(**{**given, "image": tuple(given["image"])})
    torch.set_num_threads(case.threads)
    loaded = peak_memory_bytes()
    measure = {"training": training, "engine": engine, "row_space": row_space}[case.kind]
    found = measure(case)
    if "computed_peak_bytes" in found:
        found["computed_peak_bytes"] += loaded
    files.write_json(result, {**found, "peak_bytes": peak_memory_bytes(), "loaded_bytes": loaded})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
