"""Scores combined without labels: as good as with them, and nothing is found where there is nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engram.members.kkt import with_boundaries
from engram.members.membership import margin_of
from engram.members.pool import Pool
from engram.members.scores import combine, score_layers
from engram.models.tasks import Multiclass
from engram.scoring.curves import roc
from tests.defences.cases import CLASSES, samples, trained


def drawn(shifts: tuple[float, ...], *, n: int = 500, members: int = 250, seed: int = 0) -> Tensor:
    """Correlated scores of spread one; the first records are members."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n, len(shifts), generator=generator, dtype=torch.float64)
    scores += 0.7 * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    scores[:members] += torch.tensor(shifts, dtype=torch.float64)
    return scores


@pytest.mark.parametrize("members", [50, 250, 450])
def test_it_is_as_good_as_the_best_direction_with_labels(members: int) -> None:
    scores = drawn((3.0, 1.0, 0.0, 0.0), members=members)
    others = scores[members:]
    known = torch.linalg.solve(torch.cov(others.T), scores[:members].mean(0) - others.mean(0))
    best, found = scores @ known, combine(scores)
    assert roc(found.scores[:members], found.scores[members:]).auc > roc(best[:members], best[members:]).auc - 0.02
    assert found.share == pytest.approx(members / len(scores), abs=0.15)


def test_it_is_hardly_worse_than_its_best_part() -> None:
    scores = drawn((6.0, 0.2, -0.2, 0.0, 0.0, 0.0))
    alone, found = roc(scores[:250, 0], scores[250:, 0]), combine(scores)
    assert roc(found.scores[:250], found.scores[250:]).auc > alone.auc - 0.005


def test_scales_do_not_matter() -> None:
    scores = drawn((3.0, 1.0))
    scaled = combine(scores * torch.tensor([1000.0, 0.001], dtype=torch.float64))
    torch.testing.assert_close(scaled.scores, combine(scores).scores, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_others_that_are_not_around_zero_are_not_taken_for_members(seed: int) -> None:
    """A small network of four classes, asked about 60 members and 200 controls."""
    train, held_out = samples(60, 1), samples(200, 2)
    mean = train[0].mean(0)
    pool = Pool.of((train[0] - mean, train[1]), (held_out[0] - mean, held_out[1]))
    found = score_layers(trained(train, seed, epochs=100).eval(), pool, margin_of(Multiclass(CLASSES)))
    scores = torch.stack([one.double() for one in found.scores.values()], 1)
    assert float(scores[60:].mean(0).abs().max()) > 1
    mixture = combine(scores)
    assert roc(mixture.scores[:60], mixture.scores[60:]).auc > 0.8
    assert mixture.share < 0.5


def test_nothing_is_found_where_nobody_was_in_training() -> None:
    areas = []
    for seed in range(20):
        found = combine(drawn((0.0, 0.0, 0.0), seed=seed, members=0)).scores
        areas.append(roc(found[:250], found[250:]).auc)
    assert 0.45 < sum(areas) / 20 < 0.55
    assert all(0.4 < area < 0.6 for area in areas)


@pytest.mark.parametrize("scores", [torch.zeros(10, 2), torch.ones(10, 1), torch.eye(4)])
def test_degenerate_scores_stay_finite(scores: Tensor) -> None:
    assert combine(scores.double()).scores.isfinite().all()


@pytest.mark.parametrize("seed", [4, 6, 12])
def test_counts_by_chance_do_not_hide_what_the_layers_say(seed: int) -> None:
    """As on a pruned network: most records lie on no boundary, some on one, whoever they are."""
    generator = torch.Generator().manual_seed(seed)
    layers = torch.randn(100, 4, generator=generator).double()
    layers[:50] += 1.5
    counts = torch.poisson(torch.full((100,), 0.3), generator=generator)
    is_layer = torch.arange(5) < 4
    misled = combine(torch.cat([layers, counts.double().log1p()[:, None]], 1), is_layer).scores
    alone = combine(layers).scores
    assert _found(misled) <= 0.1 < 0.5 < _found(alone)
    assert torch.equal(with_boundaries(layers, counts), alone)


def test_boundaries_that_speak_are_used() -> None:
    generator = torch.Generator().manual_seed(0)
    layers = torch.randn(200, 4, generator=generator).double()
    layers[:100] += 1.0
    counts = torch.poisson(torch.tensor([12.0, 1.0]).repeat_interleave(100), generator=generator)
    assert _found(with_boundaries(layers, counts)) > _found(combine(layers).scores) + 0.2


def test_equal_counts_change_nothing() -> None:
    layers = drawn((3.0, 1.0))
    assert torch.equal(with_boundaries(layers, torch.full((500,), 7)), combine(layers).scores)


def test_what_the_model_is_right_about_sharpens_and_costs_no_member() -> None:
    """All members and half of the others are answered rightly."""
    scores, right = drawn((1.5, 0.5)), torch.arange(500) % 2 == 0
    right[:250] = True
    alone, found = (combine(scores, right=some).scores for some in (None, right))
    areas = [roc(some[:250], some[250:]).auc for some in (alone, found)]
    assert areas[1] > areas[0] + 0.02
    assert _found(found) >= _found(alone)


def test_an_answer_that_says_nothing_changes_nothing() -> None:
    scores = drawn((3.0, 1.0))
    torch.testing.assert_close(
        combine(scores, right=torch.ones(500).bool()).scores, combine(scores).scores, rtol=0, atol=0.01
    )
    areas = []
    for seed in range(20):
        right = torch.rand(500, generator=torch.Generator().manual_seed(seed)) < 0.7
        found = combine(drawn((0.0, 0.0, 0.0), seed=seed, members=0), right=right).scores
        areas.append(roc(found[:250], found[250:]).auc)
    assert 0.45 < sum(areas) / 20 < 0.55


def _found(scores: Tensor) -> float:
    """The share of members, the first half, above all others."""
    half = len(scores) // 2
    return float((scores[:half] > scores[half:].max()).double().mean())
