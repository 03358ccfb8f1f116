"""How the cost of training and of the engine grows with images and width, and what it would be on other machines.

Each case is measured on a few batches or steps in its own process: training with mini-batches, the engine with the
rank and candidates for n images, and the decomposition that finds the row space. The engine is measured with two
small numbers of candidates and extrapolated linearly to all of them. The time on a GPU or on several workers is
computed from counted operations and from the rates below, which are assumed, not measured.

Run: python -m benchmarks.growth [--out runs/growth] [--threads 1] [--quick]; about ten minutes on one core.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.growth_case import Case
from benchmarks.growth_figure import figure
from benchmarks.machine import busy_note, machine
from engram.attacks.engine.self_tuning import candidates_for
from engram.attacks.settings import EngineSettings
from engram.core import files

SCHEMA_VERSION = 1
RANK_AT_500, RANK_EXPONENT = 167, 0.78
"""CIFAR-10, n=500, has 167 directions; the exponent is assumed and gives 1,000 at n=5000."""
GPU_FLOPS, GPU_BYTES = 1e13, 1e12
"""Assumed for one GPU: half of an A100's float32 rate without tensor cores, two thirds of its bandwidth."""
MEASURED_FLOPS = 1e11
"""The engine is measured with as many candidates as this many operations allow."""
WORKERS = (1, 2, 4, 8)
EPOCHS = 10_000


@dataclass(frozen=True)
class Sizes:
    """What is measured: every n at the smallest and largest width, every width at the smallest n."""

    ns: tuple[int, ...] = (500, 1000, 2000, 5000)
    widths: tuple[int, ...] = (1000, 2000, 5000, 10_000)
    image: tuple[int, int, int] = (3, 32, 32)
    batch: int = 50
    measured: int = 96

    @property
    def pairs(self) -> list[tuple[int, int]]:
        ends = {self.widths[0], self.widths[-1]}
        return sorted({(n, w) for w in ends for n in self.ns} | {(self.ns[0], w) for w in self.widths})


QUICK = Sizes(ns=(40, 80), widths=(40,), image=(1, 12, 12), batch=10, measured=20)


def rank(n: int, inputs: int, width: int) -> int:
    """Directions that n images add to the first layer, as assumed above.

    >>> rank(500, 3072, 1000), rank(5000, 3072, 10_000)
    (167, 1006)
    """
    written = RANK_AT_500 * math.pow(n / 500, RANK_EXPONENT)
    return min(n, inputs, width, round(written))


def cases(sizes: Sizes, threads: int) -> list[Case]:
    inputs = math.prod(sizes.image)
    chosen = [(kind, n, w) for kind in ("training", "engine") for n, w in sizes.pairs]
    chosen += [("row_space", sizes.ns[0], w) for w in sizes.widths]
    return [
        Case(
            kind=kind,
            n=n,
            width=w,
            rank=(k := rank(n, inputs, w)),
            candidates=candidates_for(k),
            image=sizes.image,
            batch=sizes.batch,
            measured=max(sizes.measured, int(MEASURED_FLOPS / flops_a_candidate(w, k))),
            threads=threads,
        )
        for kind, n, w in chosen
    ]


def flops_a_candidate(width: int, rank: int) -> float:
    """Roughly: a step's products with the second layer, and a share of every matrix of the metric."""
    matrices = min(width, EngineSettings().room / (4 * rank**2))
    return 12.0 * width**2 + 2.0 * rank**2 * matrices


def measure(case: Case) -> dict[str, Any]:
    """Measure a case in its own process."""
    with tempfile.TemporaryDirectory() as name:
        request, result = Path(name) / "request.json", Path(name) / "result.json"
        files.write_json(request, asdict(case))
        subprocess.run([sys.executable, "-m", "benchmarks.growth_case", str(request), str(result)], check=True)
        return {"kind": case.kind, "n": case.n, "width": case.width, **files.read_json(result)}


def elsewhere(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Hours of a full training and a full attack here, on the assumed GPU, and on several machines like this one.

    Workers share the starts of an attack; workers beyond that are idle.
    Batches are sequential, so training is not shared.
    """
    settings = EngineSettings()
    steps = settings.restarts * settings.steps
    estimates = []
    for row in rows:
        name = {"kind": row["kind"], "n": row["n"], "width": row["width"]}
        if row["kind"] == "training":
            gpu = max(row["flops_an_epoch"] / GPU_FLOPS, row["bytes_an_epoch"] / GPU_BYTES)
            hours = {"here": EPOCHS * row["seconds_an_epoch"] / 3600, "gpu": EPOCHS * gpu / 3600}
            estimates.append({**name, "epochs": EPOCHS, "hours": hours})
        elif row["kind"] == "engine":
            each = row["seconds_a_step"] + row["seconds_a_metric"] / settings.metric_every
            gpu = (row["flops_a_step"] + row["flops_a_metric"] / settings.metric_every) / GPU_FLOPS
            hours = {"here": steps * each / 3600, "gpu": steps * gpu / 3600}
            for workers in WORKERS:
                longest = -(-settings.restarts // workers) * settings.steps
                hours[f"workers_{workers}"] = longest * each / 3600
            estimates.append({**name, "steps": steps, "hours": hours})
    return estimates


def line(row: dict[str, Any]) -> str:
    name = f"{row['kind']:9} n={row['n']:<5} width={row['width']:<6}"
    memory = f"peak {row['peak_bytes'] / 1e9:.2f} GB"
    if row["kind"] == "training":
        return f"{name} {row['seconds_an_epoch']:.3g} s per epoch, {memory}, {row['form']}"
    if row["kind"] == "row_space":
        return f"{name} {row['seconds']:.3g} s, {memory}"
    return (
        f"{name} {row['seconds_a_step']:.3g} s per step, {row['seconds_a_metric']:.3g} s per metric "
        f"({row['metrics']} of rank {row['rank']}, {row['candidates']} candidates, chunks: {row['chunks']}), "
        f"{memory} measured, {row['computed_peak_bytes'] / 1e9:.2f} GB computed for all candidates"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/growth"), help="where to write growth.json and growth.png"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check that it runs")
    chosen = parser.parse_args(arguments)
    sizes = QUICK if chosen.quick else Sizes()
    files.prepare_directory(chosen.out)
    rows: list[dict[str, Any]] = []
    todo, started = cases(sizes, chosen.threads), time.monotonic()
    for number, case in enumerate(todo, 1):
        rows.append(measure(case))
        print(f"{number:2d}/{len(todo)} {time.monotonic() - started:4.0f} s  {line(rows[-1])}", flush=True)
        record = {
            "schema_version": SCHEMA_VERSION,
            "machine": machine(),
            "note": busy_note(),
            "sizes": asdict(sizes),
            "assumed": {
                "rank": f"{RANK_AT_500} (n / 500)^{RANK_EXPONENT}",
                "gpu_flops_a_second": GPU_FLOPS,
                "gpu_bytes_a_second": GPU_BYTES,
                "metric_every": EngineSettings().metric_every,
            },
            "rows": rows,
            "elsewhere": elsewhere(rows),
        }
        files.write_json(chosen.out / "growth.json", record)
    files.write_bytes(chosen.out / "growth.png", figure(rows))
    for estimate in elsewhere(rows):
        hours = ", ".join(f"{where} {value:.3g}" for where, value in estimate["hours"].items())
        print(f"{estimate['kind']:9} n={estimate['n']:<5} width={estimate['width']:<6} hours: {hours}")
    print(f"GPU: {GPU_FLOPS:.0e} FLOP/s and {GPU_BYTES:.0e} bytes per second assumed; wrote {chosen.out}")


if __name__ == "__main__":
    main()
