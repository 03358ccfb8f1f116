"""How long the report of a large audit takes to write, and how large it is.

Run: python -m benchmarks.report [--candidates 1000] [--images 500]

The candidates are training images with noise, so that there is something to show; the network is untrained.
Everything after the attack is measured: matching, membership, pages and pictures.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from engram.attacks.reconstruction import Reconstruction
from engram.auditing.comparison import audit_data, blind_view, compare_with
from engram.auditing.inspect import describe
from engram.auditing.record import AttackSummary, AuditRecord, Moment
from engram.auditing.verdict import decide, judge
from engram.core.runs import versions
from engram.members.kkt import dense_part
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.training.recipe import MLPSpec

SHAPE = (3, 32, 32)


def record_of(candidates: int, images: int) -> AuditRecord:
    """An audit of synthetic images, smooth like photographs so that they compress equally well."""
    generator = torch.Generator().manual_seed(0)
    network = MLPSpec(inputs=3072, first_layer_std=None).initialise(generator)
    view = AttackerView(network, SHAPE, Binary())
    coarse = torch.rand(2 * images, 3, 16, 16, generator=generator)
    pixels = torch.nn.functional.interpolate(coarse, SHAPE[1:], mode="bilinear")
    labels = torch.arange(2 * images) % 2
    data = audit_data(view, (pixels[:images], labels[:images]), (pixels[images:], labels[images:]))
    chosen = torch.arange(candidates) % images
    found = pixels[chosen] - data.mean + 0.1 * torch.randn(candidates, *SHAPE, generator=generator)
    scores = torch.rand(candidates, generator=generator).sort(descending=True).values
    description = describe(view, samples=images)
    part = dense_part(view)
    blind = blind_view(
        part, Reconstruction(found, torch.ones(candidates), chosen % 2, scores), description.space.basis
    )
    comparison = compare_with(view, part, blind, data, description.space)
    reach = judge(description, comparison.examination)
    return AuditRecord(
        model="synthetic",
        view=view,
        verdict=decide(blind, comparison, reach),
        description=description,
        reach=reach,
        attack=AttackSummary("none", {}, 1, 1.0, "no attack: candidates are images with noise"),
        blind=blind,
        timeline=(Moment(1, 1.0, candidates, blind.sure, dict(comparison.score.counts)),),
        comparison=comparison,
        baselines=(),
        versions=versions(),
        seconds=0.0,
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--images", type=int, default=500)
    chosen = parser.parse_args(arguments)
    started = time.perf_counter()
    record = record_of(chosen.candidates, chosen.images)
    compared = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        record.save(Path(folder))
        written = time.perf_counter()
        sizes = {path.name: path.stat().st_size / 1e6 for path in sorted(Path(folder).iterdir())}
    print(f"{chosen.candidates} candidates, {chosen.images} images of {'x'.join(map(str, SHAPE))}")
    print(f"compared in {compared - started:.1f} s, written in {written - compared:.1f} s")
    print(", ".join(f"{name} {size:.2f} MB" for name, size in sizes.items()))


if __name__ == "__main__":
    main()
