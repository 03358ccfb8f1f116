"""One-to-one assignment against every permutation."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from engram.core.errors import ConfigError
from engram.scoring.match import nearest, one_to_one, require_assignable

from .cases import generator


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("columns", [5, 7])
def test_one_to_one_equals_brute_force(seed: int, columns: int) -> None:
    scores = torch.randn(5, columns, generator=generator(seed), dtype=torch.float64)
    best = max(permutations(range(columns), 5), key=lambda p: sum(scores[i, j].item() for i, j in enumerate(p)))
    assert one_to_one(scores).tolist() == list(best)


def test_images_left_over_get_no_candidate() -> None:
    scores = torch.randn(5, 3, generator=generator())
    assigned = one_to_one(scores)
    assert sorted(assigned.tolist()) == [-1, -1, 0, 1, 2]


def test_nearest_repeats_candidates() -> None:
    assert nearest(torch.tensor([[1.0, 0.0], [2.0, 0.0]])).tolist() == [0, 0]


def test_a_matrix_that_is_too_large_is_refused_with_a_cure() -> None:
    with pytest.raises(ConfigError, match=r'5,000 images × 100,000 candidates.*assignment="nearest"'):
        require_assignable(5_000, 100_000)
