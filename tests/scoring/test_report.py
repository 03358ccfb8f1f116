"""Planted cases: what was recovered shows as excess, what was not does not."""

from __future__ import annotations

import json

import pytest
import torch

from engram.core.errors import ConfigError
from engram.scoring.protocols import Buzaglo2023Protocol, Haim2022Protocol, ScoringProtocol, VectorProtocol
from engram.scoring.report import ScoreReport, evaluate

from .cases import generator, noisy_copies, smooth_images

SHAPE = (3, 16, 16)
TRAIN, HELD_OUT = smooth_images(40, SHAPE, seed=1), smooth_images(40, SHAPE, seed=2)
MEAN = TRAIN.mean(0)


def report_on(candidates: torch.Tensor, protocol: ScoringProtocol | None = None) -> ScoreReport:
    return evaluate(
        candidates, TRAIN, HELD_OUT, MEAN, protocol=protocol or Buzaglo2023Protocol(), generator=generator()
    )


@pytest.mark.parametrize("protocol", [Buzaglo2023Protocol(), Haim2022Protocol()], ids=repr)
def test_noisy_training_images_are_all_recovered(protocol: ScoringProtocol) -> None:
    report = report_on(noisy_copies(TRAIN, MEAN, copies=3, level=0.02), protocol)
    strictest = report.counts["ncc>0.9"]
    assert strictest == list(report.counts.values())[-1]
    assert (strictest.train, strictest.held_out, strictest.excess, strictest.noise) == (40, 0, 40, 0)
    assert strictest.distinct_candidates == 40
    assert report.top10_mean is not None
    if isinstance(protocol, Buzaglo2023Protocol):
        assert report.counts["ssim>0.4"].train == 40
        assert report.top10_mean > 0.8


def test_noise_around_the_mean_recovers_nothing_in_excess() -> None:
    """All images share part of a picture, so the mean image alone is "good" for many, trained on or not.

    The mean is that of both sets: the training set's own mean contains 1/n of every training image, which at
    n = 40 gives even noise an SSIM excess of about 4 (the noise column shows it).
    """
    shared = smooth_images(1, SHAPE, seed=3)
    train, held_out = 0.35 * shared + 0.65 * TRAIN, 0.35 * shared + 0.65 * HELD_OUT
    mean = torch.cat([train, held_out]).mean(0)
    candidates = 1e-3 * torch.randn(80, *SHAPE, generator=generator(5), dtype=torch.float64)
    report = evaluate(candidates, train, held_out, mean, protocol=Buzaglo2023Protocol(), generator=generator())
    by_ssim, *by_ncc = report.counts.values()
    assert by_ssim.held_out is not None
    assert by_ssim.excess is not None
    assert min(by_ssim.train, by_ssim.held_out, by_ssim.noise) >= 10  # the trap
    assert abs(by_ssim.excess) <= 9  # two binomial standard deviations
    assert abs(by_ssim.train - by_ssim.noise) <= 5  # these candidates are themselves the null
    for row in by_ncc:  # the mean image gains no NCC
        assert (row.train, row.held_out, row.noise) == (0, 0, 0)


def test_without_held_out_images_the_excess_is_unknown() -> None:
    candidates = noisy_copies(TRAIN, MEAN, copies=1, level=0.02)
    for absent in (None, HELD_OUT[:0]):
        report = evaluate(candidates, TRAIN, absent, MEAN, protocol=Buzaglo2023Protocol(), generator=generator())
        record = json.loads(json.dumps(report.to_json(), allow_nan=False))
        assert record["counts"]["ncc>0.9"]["train"] == 40
        assert record["counts"]["ncc>0.9"]["held_out"] is None
        assert record["counts"]["ncc>0.9"]["excess"] is None
        assert "held-out" in record["warnings"][0]


def test_unequal_sizes_scale_the_held_out_count() -> None:
    candidates = HELD_OUT[:10] - MEAN  # finds all of these ten held-out images
    report = evaluate(
        candidates, TRAIN, HELD_OUT[:10], MEAN, protocol=Buzaglo2023Protocol(), generator=generator()
    )
    row = report.counts["ncc>0.9"]
    assert row.held_out == 10
    assert row.excess == row.train - 10 * 40 / 10
    assert "40/10" in report.warnings[0]


def test_json_has_everything_a_count_needs() -> None:
    report = report_on(noisy_copies(TRAIN, MEAN, copies=2, level=0.02))
    record = json.loads(json.dumps(report.to_json(records=True), allow_nan=False))
    assert record["schema_version"] == 1
    assert record["protocol"] == {"name": "buzaglo2023", "B": 1.1}
    assert (record["candidates"], record["n_train"], record["n_held_out"]) == (80, 40, 40)
    assert record["seconds"] > 0
    assert list(record["counts"]) == ["ssim>0.4", "ncc>0.8", "ncc>0.9"]
    assert list(record["top10_mean"]) == ["ssim"]
    assert len(record["records"]) == 40
    assert record["warnings"] == []


def test_the_generator_determines_the_noise() -> None:
    candidates = noisy_copies(TRAIN, MEAN, copies=1, level=0.02)
    once, again = report_on(candidates), report_on(candidates)
    assert once.noise.distance.equal(again.noise.distance)
    with pytest.raises(ConfigError, match="noise_sigma must be positive"):
        evaluate(
            candidates, TRAIN, None, MEAN, protocol=Buzaglo2023Protocol(), generator=generator(), noise_sigma=0.0
        )


def test_vectors_report_relative_l2() -> None:
    points = torch.randn(20, 2, generator=generator())
    others = torch.randn(20, 2, generator=generator(1)) + 9
    mean = points.mean(0)
    report = evaluate(points - mean, points, others, mean, protocol=VectorProtocol(), generator=generator())
    assert list(report.counts) == ["relative_l2<0.1", "relative_l2<0.3"]
    count = report.counts["relative_l2<0.1"]
    assert (count.train, count.held_out, count.excess, count.recovered) == (20, 0, 20, 20)
    assert report.to_json()["top10_mean"] == {"relative_l2": pytest.approx(0, abs=1e-6)}
