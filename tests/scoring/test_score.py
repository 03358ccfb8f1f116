"""Whole protocols against the loops, and the table they fill."""

from __future__ import annotations

import json

import pytest
import torch

from engram.core.errors import ConfigError
from engram.scoring.match import MatchTable, Threshold, score
from engram.scoring.protocols import Buzaglo2023Protocol, Haim2022Protocol, VectorProtocol

from . import reference
from .cases import generator, noisy_copies, smooth_images


def problem(n: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    images = smooth_images(n)
    mean = images.mean(0)
    return noisy_copies(images, mean, copies=4, level=0.15), images, mean


def assert_rows_equal(table: MatchTable, rows: list[reference.Row]) -> None:
    assert table.ssim is not None
    assert table.ncc is not None
    assert table.candidate.tolist() == [row.candidate for row in rows]
    assert table.votes.tolist() == [row.votes for row in rows]
    assert table.ssim.tolist() == pytest.approx([row.ssim for row in rows], abs=1e-10)
    assert table.ncc.tolist() == pytest.approx([row.ncc for row in rows], abs=1e-10)
    assert table.distance.tolist() == pytest.approx([row.distance for row in rows], abs=1e-8)
    for ours, row in zip(table.reconstruction, rows, strict=True):
        torch.testing.assert_close(ours, torch.from_numpy(row.reconstruction))


@pytest.mark.parametrize("B", [1.0, 1.1, 1.5])
def test_2023_equals_the_loops(B: float) -> None:
    candidates, images, mean = problem()
    rows = [reference.buzaglo2023(candidates.numpy(), image, mean.numpy(), B) for image in images.numpy()]
    assert_rows_equal(score(candidates, images, mean, protocol=Buzaglo2023Protocol(B=B)), rows)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("fraction", [0.9, 0.2])
def test_2022_equals_the_loops(half: bool, fraction: float) -> None:
    candidates, images, mean = problem()
    rows = [
        reference.haim2022(candidates.numpy(), image, mean.numpy(), fraction, half) for image in images.numpy()
    ]
    protocol = Haim2022Protocol(fraction=fraction, half_resolution=half)
    assert_rows_equal(score(candidates, images, mean, protocol=protocol), rows)


def test_2022_halves_colour_images_only() -> None:
    candidates, images, mean = problem()
    as_published = score(candidates, images, mean, protocol=Haim2022Protocol())
    halved = score(candidates, images, mean, protocol=Haim2022Protocol(half_resolution=True))
    assert as_published.distance.equal(halved.distance)
    grey = [part[..., :1, :, :] for part in (candidates, images, mean)]
    full = score(*grey, protocol=Haim2022Protocol(half_resolution=False))
    assert score(*grey, protocol=Haim2022Protocol()).distance.equal(full.distance)


def test_float32_agrees_with_float64() -> None:
    candidates, images, mean = problem()
    exact = score(candidates, images, mean, protocol=Buzaglo2023Protocol())
    single = score(candidates.float(), images.float(), mean.float(), protocol=Buzaglo2023Protocol())
    assert exact.ssim is not None
    assert single.ssim is not None
    assert single.ssim.dtype == torch.float32
    torch.testing.assert_close(single.ssim.double(), exact.ssim, atol=1e-5, rtol=0)


def test_one_to_one_uses_no_candidate_twice_and_does_not_vote() -> None:
    candidates, images, mean = problem()
    table = score(candidates, images, mean, protocol=Buzaglo2023Protocol(), assignment="one-to-one")
    assert table.distinct_candidates() == len(images)
    assert table.votes.tolist() == [1] * len(images)


def test_too_few_candidates_leave_rows_unmatched() -> None:
    candidates, images, mean = problem()
    table = score(candidates[:2], images, mean, protocol=Buzaglo2023Protocol(), assignment="one-to-one")
    assert sorted(table.candidate.tolist())[:4] == [-1, -1, -1, 0]
    assert table.count("ssim", -2) == 2
    assert table.top(5).candidate[2:].tolist() == [-1, -1, -1]
    unmatched = [record for record in table.to_records() if record["candidate"] == -1]
    assert [(record["ssim"], record["ncc"], record["votes"]) for record in unmatched] == [(None, None, 0)] * 3


def test_vectors_are_matched_by_l2() -> None:
    points = torch.randn(6, 2, generator=generator(), dtype=torch.float64)
    mean = points.mean(0)
    candidates = (points - mean).flip(0) * 1.05
    table = score(candidates, points, mean, protocol=VectorProtocol())
    assert table.ssim is None
    assert table.ncc is None  # two dimensions
    assert table.relative_l2 is not None
    assert table.candidate.tolist() == [5, 4, 3, 2, 1, 0]
    assert table.relative_l2.tolist() == pytest.approx([0.05] * 6)
    assert table.count("relative_l2", 0.1) == 6
    torch.testing.assert_close(table.reconstruction, candidates.flip(0) + mean)
    with pytest.raises(ConfigError, match=r"protocol defines.*got 'ssim'"):
        table.count("ssim", 0.4)
    wide = torch.randn(4, 9, generator=generator())
    assert score(wide, wide, torch.zeros(9), protocol=VectorProtocol()).count("ncc", 0.99) == 4


def test_table_sorts_counts_and_serialises() -> None:
    candidates, images, mean = problem()
    labels, outputs = torch.arange(5), torch.randn(5, 2, generator=generator())
    table = score(candidates, images, mean, protocol=Buzaglo2023Protocol(), labels=labels, model_outputs=outputs)
    assert table.ssim is not None
    best = table.top(3)
    assert best.ssim is not None
    assert best.ssim.tolist() == sorted(table.ssim.tolist(), reverse=True)[:3]
    assert best.label is not None
    assert best.label.equal(best.sample)
    assert table.count("ssim", 0.4) == sum(value > 0.4 for value in table.ssim.tolist())
    records = json.loads(json.dumps(table.to_records(), allow_nan=False))
    assert records[4]["sample"] == 4
    assert records[4]["model_output"] == pytest.approx(outputs[4].tolist())
    assert records[4]["relative_l2"] is None


def test_one_candidate_may_serve_many_images_and_is_counted_once() -> None:
    _, images, mean = problem()
    table = score((images - mean)[:1], images, mean, protocol=Buzaglo2023Protocol())
    assert table.candidate.tolist() == [0] * 5
    assert table.distinct_candidates() == 1
    assert table.distinct_candidates("ssim", 2.0) == 0


def test_errors_name_cause_and_cure() -> None:
    candidates, images, mean = problem()
    protocol = Buzaglo2023Protocol()
    with pytest.raises(ConfigError, match=r"\(20, 3, 4, 4\), \(5, 3, 8, 8\)"):
        score(candidates[..., ::2, ::2], images, mean, protocol=protocol)
    with pytest.raises(ConfigError, match=r"mean must have the shape .*without a batch axis"):
        score(candidates, images, mean[None], protocol=protocol)
    with pytest.raises(ConfigError, match="without mean subtraction"):
        score(candidates, images - mean, mean, protocol=protocol)
    with pytest.raises(ConfigError, match="use VectorProtocol"):
        score(candidates.flatten(1), images.flatten(1), mean.flatten(), protocol=protocol)
    with pytest.raises(ConfigError, match="labels must have one row"):
        score(candidates, images, mean, protocol=protocol, labels=torch.zeros(3))
    with pytest.raises(ConfigError, match='"nearest" or "one-to-one"'):
        score(candidates, images, mean, protocol=protocol, assignment="best")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="metric must be one of"):
        Threshold("psnr", 30)
