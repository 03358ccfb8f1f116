"""Scores in blocks and chunks against one full matrix; both ways of summing the vote against a loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engram.core.errors import ConfigError, DataError
from engram.scoring.match import score
from engram.scoring.metrics import (
    SCORES_AT_ONCE,
    all_scores,
    image_blocks,
    ncc,
    stretched,
    vote_2022,
    vote_2023,
    vote_average,
)
from engram.scoring.protocols import Buzaglo2023Protocol, Haim2022Protocol, ScoringProtocol, VectorProtocol

from .cases import generator

PROTOCOLS = [Buzaglo2023Protocol(), Haim2022Protocol(), Haim2022Protocol(half_resolution=False), VectorProtocol()]


def random_problem(n: int = 7, m: int = 53) -> tuple[Tensor, Tensor]:
    images = torch.randn(n, 3, 4, 4, generator=generator(1), dtype=torch.float64)
    candidates = torch.randn(m, 3, 4, 4, generator=generator(2), dtype=torch.float64)
    return images, candidates


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
@pytest.mark.parametrize("chunk", [1, 10, 53, 1000])
def test_chunked_scores_equal_one_comparison(protocol: ScoringProtocol, chunk: int) -> None:
    images, candidates = random_problem()
    scorer = protocol.scorer(images)
    seen: list[float] = []
    scores = all_scores(scorer, candidates, chunk=chunk, progress=lambda _, share: seen.append(share))
    torch.testing.assert_close(scores, scorer(candidates))
    assert seen == [done / 53 for done in (*range(chunk, 53, chunk), 53)]


@pytest.mark.parametrize(("images", "candidates"), [(1, 1), (7, 53), (5000, 100_000), (3, 2**28), (1000, 2**20)])
def test_image_blocks_cover_every_image_once_within_the_limit(images: int, candidates: int) -> None:
    blocks = image_blocks(images, candidates)
    assert [row for block in blocks for row in range(images)[block]] == list(range(images))
    largest = max(block.stop - block.start for block in blocks)
    assert largest == 1 or largest * candidates <= SCORES_AT_ONCE


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
def test_blocks_of_images_change_nothing(protocol: ScoringProtocol, monkeypatch: pytest.MonkeyPatch) -> None:
    images, candidates = random_problem()
    pixels = (images - images.min()) / (images.max() - images.min())
    mean = pixels.mean(0)
    whole = score(candidates, pixels, mean, protocol=protocol)
    monkeypatch.setattr("engram.scoring.metrics.SCORES_AT_ONCE", 110)  # two images per block
    seen: list[float] = []
    split = score(
        candidates,
        pixels,
        mean,
        protocol=protocol,
        progress=lambda _, share: seen.append(share),
    )
    assert seen == [0.25, 0.5, 0.75, 1.0]
    assert split.candidate.equal(whole.candidate)
    assert split.votes.equal(whole.votes)
    torch.testing.assert_close(split.distance, whole.distance)
    torch.testing.assert_close(split.reconstruction, whole.reconstruction)


def test_scores_are_the_ncc() -> None:
    images, candidates = random_problem()
    torch.testing.assert_close(
        all_scores(Buzaglo2023Protocol().scorer(images), candidates), ncc(images, candidates)
    )
    per_channel = Haim2022Protocol(half_resolution=False).scorer(images)
    torch.testing.assert_close(all_scores(per_channel, candidates), ncc(images, candidates, per_channel=True))


def loop_vote(scores: Tensor, floors: Tensor, prepared: Tensor) -> tuple[Tensor, list[int]]:
    averages, votes = [], []
    for row, floor in zip(scores, floors, strict=True):
        voters = [prepared[j] for j in range(len(prepared)) if row[j] >= floor]
        averages.append(torch.stack(voters).mean(0))
        votes.append(len(voters))
    return torch.stack(averages), votes


@pytest.mark.parametrize("crowded", [1, 8, 10**9], ids=["picked", "mixed", "product"])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize(
    "protocol", [Buzaglo2023Protocol(), Buzaglo2023Protocol(B=1.5), Haim2022Protocol(fraction=0.5)], ids=repr
)
def test_vote_equals_the_loop_however_it_is_summed(
    protocol: Buzaglo2023Protocol | Haim2022Protocol, chunk: int, crowded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engram.scoring.metrics.CROWDED", crowded)
    images, candidates = random_problem()
    scores = all_scores(protocol.scorer(images), candidates)
    floor = protocol.floor(scores.amax(1))
    average, votes = vote_average(candidates, scores, floor, prepare=protocol.prepare, chunk=chunk)
    expected, counted = loop_vote(scores, floor, protocol.prepare(candidates))
    assert votes.tolist() == counted
    torch.testing.assert_close(average, expected)
    assert max(counted) > 4


def test_a_chunk_may_mix_crowded_sparse_and_empty_rows() -> None:
    """53, 1, 3, 20 and 4 votes in chunks of 20: a chunk sees 20, 0, 1, ... of them and sums each its own way."""
    candidates = random_problem()[1].flatten(1)
    scores = torch.rand(5, 53, generator=generator(3), dtype=torch.float64)
    counts = torch.tensor([53, 1, 3, 20, 4])
    floor = scores.sort(1, descending=True).values.gather(1, counts[:, None] - 1).squeeze(1)
    average, votes = vote_average(candidates, scores, floor, chunk=20)
    expected, counted = loop_vote(scores, floor, candidates)
    assert votes.tolist() == counted == counts.tolist()
    torch.testing.assert_close(average, expected)


def test_float32_average_of_noise_equals_the_float64_loop() -> None:
    """The noise null: nearly every candidate votes for every image."""
    images = torch.randn(4, 3072, generator=generator(1))
    candidates = 1e-3 * torch.randn(2000, 3072, generator=generator(2))
    scores = ncc(images, candidates)
    floor = vote_2023(scores.amax(1))
    average, votes = vote_average(candidates, scores, floor, chunk=999)
    expected, counted = loop_vote(scores, floor, candidates.double())
    assert min(counted) > 1000
    assert votes.tolist() == counted
    torch.testing.assert_close(average.double(), expected, rtol=0, atol=1e-10)


def test_2023_floor_is_the_distance_rule() -> None:
    images, candidates = random_problem()
    correlation = ncc(images, candidates)
    distance = 2 * 48 * (1 - correlation)
    within = distance <= 1.3 * distance.min(1, keepdim=True).values
    assert within.equal(correlation >= vote_2023(correlation.max(1).values, 1.3)[:, None])


def test_2022_floor_keeps_the_best_even_if_negative() -> None:
    assert vote_2022(torch.tensor([0.8, -0.8, 0.0])).tolist() == pytest.approx([0.72, -0.8, 0.0])


def test_2022_averages_stretched_candidates() -> None:
    image = torch.rand(1, 1, 4, 4, generator=generator())
    candidates = torch.cat([image * 5, image * 0.01 - 3])  # the same picture at two scales
    scores = all_scores(Haim2022Protocol().scorer(image), candidates)
    average, votes = vote_average(
        candidates, scores, vote_2022(scores.amax(1)), prepare=Haim2022Protocol().prepare
    )
    assert votes.tolist() == [2]
    torch.testing.assert_close(average, stretched(image), atol=1e-4, rtol=0)


def test_perfect_match_in_float32_votes_for_itself() -> None:
    images = torch.rand(50, 3, 8, 8, generator=generator())
    scores = all_scores(Buzaglo2023Protocol().scorer(images), images)
    average, votes = vote_average(images, scores, vote_2023(scores.amax(1)))
    assert scores.argmax(1).equal(torch.arange(50))
    assert (votes == 1).all()
    torch.testing.assert_close(average, images)


def test_a_constant_candidate_never_beats_a_correlated_one() -> None:
    images, candidates = random_problem()
    candidates[0] = 0.0
    assert (all_scores(Buzaglo2023Protocol().scorer(images), candidates).argmax(1) != 0).all()


def test_bad_candidates_are_named() -> None:
    images, candidates = random_problem()
    candidates[17, 0, 0, 0] = torch.nan
    with pytest.raises(DataError, match=r"candidate 17 .*drop"):
        all_scores(Buzaglo2023Protocol().scorer(images), candidates, chunk=10)
    with pytest.raises(ConfigError, match="candidates must not be empty"):
        all_scores(Buzaglo2023Protocol().scorer(images), candidates[:0])


def test_huge_candidates_are_finite_though_their_sum_is_not() -> None:
    images, candidates = random_problem()
    candidates = candidates.float()
    candidates[3] = 3e38
    all_scores(Buzaglo2023Protocol().scorer(images.float()), candidates)


@pytest.mark.parametrize("build", [lambda: Buzaglo2023Protocol(B=0.9), lambda: Haim2022Protocol(fraction=1.1)])
def test_protocols_check_their_settings(build: object) -> None:
    assert callable(build)
    with pytest.raises(ConfigError, match="the paper uses"):
        build()
