"""The streamed search and the vote against one whole matrix; the second pass when votes overflow."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engram.errors import ConfigError, DataError
from engram.matching import (
    Buzaglo2023,
    Haim2022,
    VectorProtocol,
    ncc,
    search,
    stretched,
    vote_2022,
    vote_2023,
)
from engram.matching.protocols import ScoringProtocol
from engram.matching.search import all_scores
from engram.matching.vote import vote_average

from .cases import generator

PROTOCOLS = [Buzaglo2023(), Haim2022(), Haim2022(half_resolution=False), VectorProtocol()]


def random_problem(n: int = 7, m: int = 53) -> tuple[Tensor, Tensor]:
    images = torch.randn(n, 3, 4, 4, generator=generator(1), dtype=torch.float64)
    candidates = torch.randn(m, 3, 4, 4, generator=generator(2), dtype=torch.float64)
    return images, candidates


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=repr)
@pytest.mark.parametrize("chunk", [1, 10, 53, 1000])
def test_chunked_search_equals_sorting_the_whole_matrix(protocol: ScoringProtocol, chunk: int) -> None:
    images, candidates = random_problem()
    scorer = protocol.scorer(images)
    seen: list[tuple[int, int]] = []
    found = search(
        scorer, candidates, keep=5, chunk=chunk, progress=lambda done, total: seen.append((done, total))
    )
    expected = all_scores(scorer, candidates).sort(1, descending=True)
    assert found.indices.equal(expected.indices[:, :5])
    torch.testing.assert_close(found.scores, expected.values[:, :5])
    assert seen[-1] == (53, 53)


def test_scores_are_the_ncc() -> None:
    images, candidates = random_problem()
    torch.testing.assert_close(all_scores(Buzaglo2023().scorer(images), candidates), ncc(images, candidates))
    per_channel = Haim2022(half_resolution=False).scorer(images)
    torch.testing.assert_close(all_scores(per_channel, candidates), ncc(images, candidates, per_channel=True))


def loop_vote(scores: Tensor, floors: Tensor, prepared: Tensor) -> tuple[Tensor, list[int]]:
    averages, votes = [], []
    for row, floor in zip(scores, floors, strict=True):
        voters = [prepared[j] for j in range(len(prepared)) if row[j] >= floor]
        averages.append(torch.stack(voters).mean(0))
        votes.append(len(voters))
    return torch.stack(averages), votes


@pytest.mark.parametrize("keep", [1, 2, 4, 53, 99])
@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize("protocol", [Buzaglo2023(), Buzaglo2023(B=1.5), Haim2022(fraction=0.5)], ids=repr)
def test_vote_is_exact_however_few_candidates_are_kept(
    protocol: Buzaglo2023 | Haim2022, chunk: int, keep: int
) -> None:
    images, candidates = random_problem()
    scorer = protocol.scorer(images)
    found = search(scorer, candidates, keep=keep, chunk=chunk)
    floor = protocol.floor(found.best_scores)
    average, votes = vote_average(candidates, found, floor, scorer, prepare=protocol.prepare, chunk=chunk)
    expected, counted = loop_vote(all_scores(scorer, candidates), floor, protocol.prepare(candidates))
    assert votes.tolist() == counted
    torch.testing.assert_close(average, expected)
    assert max(counted) > 4  # so that keep = 1, 2, 4 did overflow


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
    scorer = Haim2022().scorer(image)
    found = search(scorer, candidates)
    average, votes = vote_average(
        candidates, found, vote_2022(found.best_scores), scorer, prepare=Haim2022().prepare
    )
    assert votes.tolist() == [2]
    torch.testing.assert_close(average, stretched(image), atol=1e-4, rtol=0)


def test_perfect_match_in_float32_votes_for_itself() -> None:
    images = torch.rand(50, 3, 8, 8, generator=generator())
    scorer = Buzaglo2023().scorer(images)
    found = search(scorer, images, keep=1)
    average, votes = vote_average(images, found, vote_2023(found.best_scores), scorer)
    assert found.best.equal(torch.arange(50))
    assert (votes == 1).all()
    torch.testing.assert_close(average, images)


def test_a_constant_candidate_never_beats_a_correlated_one() -> None:
    images, candidates = random_problem()
    candidates[0] = 0.0
    found = search(Buzaglo2023().scorer(images), candidates)
    assert (found.best != 0).all()


def test_bad_candidates_are_named() -> None:
    images, candidates = random_problem()
    candidates[17, 0, 0, 0] = torch.nan
    with pytest.raises(DataError, match=r"candidate 17 .*drop"):
        search(Buzaglo2023().scorer(images), candidates, chunk=10)
    with pytest.raises(ConfigError, match="candidates must not be empty"):
        search(Buzaglo2023().scorer(images), candidates[:0])


@pytest.mark.parametrize("build", [lambda: Buzaglo2023(B=0.9), lambda: Haim2022(fraction=1.1)])
def test_protocols_check_their_settings(build: object) -> None:
    assert callable(build)
    with pytest.raises(ConfigError, match="the paper uses"):
        build()
