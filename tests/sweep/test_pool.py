"""Pooling against a slow reference, and its guarantees."""

from __future__ import annotations

import pytest
import torch

from engram.attacks.engine.consensus import SAME_IMAGE, confidence, from_agreement
from engram.attacks.reconstruction import Reconstruction
from engram.sweep.summary import pool_trials

SHAPE = (1, 4, 4)


def _trial(seed: int, truth: torch.Tensor, *, noise: float, others: int) -> Reconstruction:
    """Noisy copies of the truth among images that only this trial has."""
    generator = torch.Generator().manual_seed(seed)
    copies = truth + noise * torch.randn(truth.shape, generator=generator)
    alone = torch.randn(others, *SHAPE, generator=generator)
    images = torch.cat([copies, alone])
    duals = 0.5 + torch.rand(len(images), generator=generator)
    return Reconstruction(images, duals, torch.arange(len(images)) % 2)


def _trials(noise: float = 0.05) -> dict[int, Reconstruction]:
    truth = torch.randn(6, *SHAPE, generator=torch.Generator().manual_seed(99))
    return {seed: _trial(seed, truth, noise=noise, others=4) for seed in range(5)}


def _ncc(a: torch.Tensor, b: torch.Tensor) -> float:
    a, b = a.flatten() - a.mean(), b.flatten() - b.mean()
    return float(a @ b / (a.norm() * b.norm()))


def test_merging_scores_and_order_equal_the_slow_reference() -> None:
    trials = _trials()
    found = pool_trials(list(trials), trials.__getitem__)
    groups: list[tuple[int, torch.Tensor, int, list[tuple[float, torch.Tensor]]]] = []
    for number, trial in trials.items():
        order = trial.duals.argsort(descending=True)
        mean = float(trial.duals.mean())
        known = len(groups)
        for index in order.tolist():
            image, label, weight = trial.images[index], int(trial.labels[index]), float(trial.duals[index]) / mean
            alike = [
                (_ncc(image, leader), place)
                for place, (_, leader, group_label, _) in enumerate(groups)
                if group_label == label
            ]
            near = [(likeness, place) for likeness, place in alike if likeness >= SAME_IMAGE]
            old = [one for one in near if one[1] < known]
            if near:
                groups[max(old)[1] if old else near[0][1]][3].append((weight, image))
            else:
                groups.append((number, image, label, [(weight, image)]))
    expected = []
    for number, leader, label, members in groups:
        best = [
            max(
                _ncc(leader, image)
                for image, other in zip(trial.images, trial.labels, strict=True)
                if other == label
            )
            for voter, trial in trials.items()
            if voter != number
        ]
        total = sum(weight for weight, _ in members)
        merged = sum((weight * image for weight, image in members), torch.zeros(SHAPE)) / total
        expected.append((sum(best) / len(best), merged, label))
    expected.sort(key=lambda one: -one[0])
    assert found.labels.tolist() == [label for _, _, label in expected]
    assert found.scores is not None
    agreement = torch.tensor([one[0] for one in expected])
    torch.testing.assert_close(found.scores, confidence(from_agreement(agreement)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.images, torch.stack([one[1] for one in expected]), rtol=1e-3, atol=1e-4)


def test_an_image_that_all_trials_found_comes_first_and_once() -> None:
    trials = _trials()
    found = pool_trials(list(trials), trials.__getitem__)
    truth = torch.randn(6, *SHAPE, generator=torch.Generator().manual_seed(99))
    best = [max(_ncc(image, one) for one in truth) for image in found.images]
    assert min(best[:6]) > 0.99
    assert max(best[6:]) < SAME_IMAGE
    assert len(found) == 6 + 5 * 4


def test_a_single_trial_has_no_scores_and_keeps_the_order_of_its_duals() -> None:
    trial = _trials()[0]
    found = pool_trials([0], lambda _: trial)
    assert found.scores is not None
    assert bool(found.scores.isnan().all())
    assert bool((found.duals.diff() <= 0).all())


def test_the_pool_is_bounded_and_takes_the_best_trials_first() -> None:
    trials = _trials()
    found = pool_trials([3, 0, 1, 2, 4], trials.__getitem__, most=8)
    assert len(found) == 8
    strongest = trials[3].take(trials[3].duals.argsort(descending=True)[:8])
    for image in strongest.images:
        assert max(_ncc(image, one) for one in found.images) > 0.99


def test_points_are_merged_by_distance_not_by_direction() -> None:
    """NCC of two numbers is always 1 or -1."""
    points = torch.tensor([[1.0, 0.0], [0.9, 0.3], [2.0, 0.0]])
    trials = {number: Reconstruction(points + 0.01 * number, torch.ones(3), torch.zeros(3)) for number in (0, 1)}
    assert len(pool_trials([0, 1], trials.__getitem__)) == 3


def test_progress_reaches_its_end() -> None:
    trials = _trials()
    seen: list[float] = []
    pool_trials(list(trials), trials.__getitem__, progress=lambda _, share: seen.append(share))
    assert seen == [done / 10 for done in range(1, 11)]


@pytest.mark.parametrize("negative", [0.0, -1.0])
def test_duals_that_are_not_positive_do_no_harm(negative: float) -> None:
    trial = _trials()[0]
    silent = Reconstruction(trial.images, torch.full_like(trial.duals, negative), trial.labels)
    assert bool(pool_trials([0, 1], lambda _: silent).images.isfinite().all())
