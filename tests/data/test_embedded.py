"""The two data sets that need no files."""

from __future__ import annotations

import pytest
import torch

from engram.core.errors import ConfigError
from engram.data.readers import load_circle, load_faces


def test_faces_has_a_hundred_of_each_in_file_order() -> None:
    faces = load_faces()
    assert faces.images.shape == (200, 1, 25, 25)
    assert faces.labels.tolist() == [0] * 100 + [1] * 100
    assert faces.classes == ("face", "non-face")
    assert 0 <= faces.images.min() < 0.1
    assert 0.9 < faces.images.max() <= 1


def test_faces_look_alike_and_non_faces_do_not() -> None:
    """Pins the order of the labels: the mean face explains faces far better than non-faces."""
    images = load_faces().images.flatten(1)
    centred = images - images.mean(1, keepdim=True)
    mean_face = centred[:100].mean(0)
    alike = torch.cosine_similarity(centred, mean_face[None])
    assert alike[:100].mean() > 0.5 > 0.25 > alike[100:].mean()


def test_circle_neighbours_are_equidistant_and_differ_in_colour() -> None:
    circle = load_circle(20)
    steps = (circle.images - circle.images.roll(1, 0)).norm(dim=1)
    torch.testing.assert_close(steps, steps[:1].expand(20))
    assert (circle.labels != circle.labels.roll(1)).all()


def test_circle_needs_an_even_number() -> None:
    with pytest.raises(ConfigError, match="points must be even, so that the colours alternate, got 7"):
        load_circle(7)
