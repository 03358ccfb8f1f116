"""Samples are balanced, disjoint and in file order; error messages if there are too few images."""

from __future__ import annotations

import pytest
import torch

from engram.core.errors import ConfigError, DataError
from engram.data.choice import apply_labels
from engram.data.readers import load_circle, load_faces
from engram.data.sets import ImageSet, balanced, centred, class_counts, split


def marked(labels: list[int], classes: int = 2) -> ImageSet:
    """Images that carry their own index."""
    names = tuple(f"class {label}" for label in range(classes))
    return ImageSet(torch.arange(float(len(labels)))[:, None], torch.tensor(labels), "marked", names)


UNEVEN = marked([0, 0, 0, 1, 1, 0, 1, 0, 0])  # six of class 0, three of class 1


def test_first_of_each_class_in_file_order() -> None:
    assert balanced(UNEVEN, 4).tolist() == [0, 1, 3, 4]
    assert balanced(UNEVEN, 2, skip=4).tolist() == [2, 6]
    assert balanced(UNEVEN, 0).tolist() == []


def test_each_seed_draws_its_own_balanced_choice() -> None:
    faces = load_faces()
    drawn = balanced(faces, 40, seed=1)
    assert torch.equal(drawn, balanced(faces, 40, seed=1))
    assert not torch.equal(drawn, balanced(faces, 40, seed=2))
    assert not torch.equal(drawn, balanced(faces, 40))
    assert class_counts(faces.take(drawn)) == [20, 20]
    assert drawn.tolist() == sorted(set(drawn.tolist()))


@pytest.mark.parametrize("seed", [None, 0, 7])
def test_train_and_held_out_are_disjoint_and_balanced(seed: int | None) -> None:
    parts = split(UNEVEN, 4, held_out=2, seed=seed)
    train, held_out = (
        set(parts.train.images.flatten().tolist()),
        set(parts.held_out.images.flatten().tolist()),
    )
    assert not train & held_out
    assert (class_counts(parts.train), class_counts(parts.held_out)) == ([2, 2], [1, 1])


def test_held_out_defaults_to_the_training_size_or_what_is_left() -> None:
    assert len(split(UNEVEN, 2).held_out) == 2
    assert len(split(UNEVEN, 4).held_out) == 2
    assert len(split(UNEVEN, 6).held_out) == 0
    assert len(split(UNEVEN, 2, held_out=0).held_out) == 0


def test_the_gate_has_fifty_to_train_on_and_fifty_held_out() -> None:
    parts = split(apply_labels(load_faces(), "gate"), 50)
    assert (class_counts(parts.train), class_counts(parts.held_out)) == ([25, 25], [25, 25])
    assert torch.equal(torch.cat([parts.train.images, parts.held_out.images]), load_faces().images[:100])


def test_the_mean_is_that_of_the_training_images() -> None:
    parts = split(load_faces(), 20)
    assert parts.mean.shape == (1, 25, 25)
    torch.testing.assert_close(centred(parts.train.images, parts.mean).mean(0), torch.zeros(1, 25, 25))
    assert centred(parts.held_out.images, parts.mean).mean(0).abs().max() > 0.01


def test_asking_for_too_many_reports_what_there_is() -> None:
    with pytest.raises(DataError, match="8 balanced images: it contains 6 class 0, 3 class 1; ask for at most 6"):
        balanced(UNEVEN, 8)
    with pytest.raises(DataError, match=r"not have 4 balanced images after the first 4: .*; ask for at most 2"):
        split(UNEVEN, 4, held_out=4)


def test_a_class_without_images_is_named() -> None:
    with pytest.raises(DataError, match="it contains 1 class 0, 1 class 1, 0 class 2; ask for at most 0"):
        balanced(marked([0, 1], classes=3), 3)


@pytest.mark.parametrize(("n", "nearest"), [(1, 3), (4, 3), (5, 6), (100, 99)])
def test_n_must_be_a_multiple_of_the_classes(n: int, nearest: int) -> None:
    with pytest.raises(
        ConfigError, match=f"n must be a multiple of 3, the classes of marked, got {n}; try {nearest}$"
    ):
        balanced(marked([0, 1, 2], classes=3), n)


def test_negative_and_zero_sizes() -> None:
    with pytest.raises(ConfigError, match="n must not be negative, got -2"):
        balanced(load_circle(), -2)
    with pytest.raises(ConfigError, match="n must be positive, got 0"):
        split(load_circle(), 0)
