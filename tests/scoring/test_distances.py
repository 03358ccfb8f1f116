"""Distances against loops, on constants, and their invariances."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engram.core.errors import ConfigError
from engram.scoring.metrics import half_resolution, ncc, stretched, zscored

from . import reference
from .cases import generator, smooth_images


def images_with_constants() -> torch.Tensor:
    images = torch.randn(6, 3, 4, 4, generator=generator(), dtype=torch.float64)
    images[1] = 0.1  # constant
    images[2, 1] = 0.3  # one constant channel
    images[3] = torch.tensor([0.1, 0.2, 0.3])[:, None, None]  # every channel constant, the image not
    return images


def test_ncc_equals_the_loops() -> None:
    a, b = images_with_constants(), images_with_constants().flip(0)[:5] * 2 - 1
    pairs = [[(x, y) for y in b.numpy()] for x in a.numpy()]
    expected_ncc = np.array([[reference.ncc(x, y) for x, y in row] for row in pairs])
    np.testing.assert_allclose(ncc(a, b).numpy(), expected_ncc, atol=1e-12)
    np.testing.assert_allclose(ncc(a.flatten(1), b.flatten(1)).numpy(), expected_ncc, atol=1e-12)


def test_per_channel_equals_the_loop() -> None:
    a = images_with_constants()
    expected = np.array([[reference.ncc_per_channel(x, y) for y in a.numpy()] for x in a.numpy()])
    np.testing.assert_allclose(ncc(a, a, per_channel=True).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_images_are_zero_vectors(dtype: torch.dtype) -> None:
    constant = torch.full((1, 3072), 0.1, dtype=dtype)
    other = torch.randn(1, 3072, generator=generator()).to(dtype)
    assert (zscored(constant) == 0).all()
    assert ncc(constant, other).item() == 0


def test_tiny_images_keep_their_pattern() -> None:
    image = torch.randn(1, 50, generator=generator())
    assert ncc(image, image * 1e-30).item() == pytest.approx(1, abs=1e-6)


def test_integers_are_converted_to_float32() -> None:
    assert zscored(torch.tensor([[0, 255]], dtype=torch.uint8)).tolist() == [[-1.0, 1.0]]


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    scale=st.floats(1e-3, 1e3),
    shift=st.floats(-10, 10),
    channels=st.sampled_from([1, 3]),
)
def test_ncc_ignores_brightness_and_contrast(seed: int, scale: float, shift: float, channels: int) -> None:
    a, b = torch.randn(2, 3, channels, 4, 4, generator=generator(seed), dtype=torch.float64)
    for per_channel in (False, True):
        torch.testing.assert_close(
            ncc(a, b * scale + shift, per_channel), ncc(a, b, per_channel), atol=1e-9, rtol=0
        )
    assert ncc(a, -b * scale).allclose(-ncc(a, b))


def test_half_resolution_and_stretch_equal_the_loops() -> None:
    images = smooth_images(3)
    expected = np.stack([reference.halved(image) for image in images.numpy()])
    np.testing.assert_allclose(half_resolution(images).numpy(), expected, atol=1e-12)
    np.testing.assert_allclose(
        stretched(images - 0.3).numpy(), np.stack([reference.stretch(x) for x in images.numpy()]), atol=1e-12
    )


def test_messages_name_both_shapes() -> None:
    with pytest.raises(ConfigError, match=r"\(2, 3, 4, 4\), \(5, 3, 8, 8\)"):
        ncc(torch.zeros(2, 3, 4, 4), torch.zeros(5, 3, 8, 8))
    with pytest.raises(ConfigError, match=r"even H and W.*\(1, 1, 5, 4\)"):
        half_resolution(torch.zeros(1, 1, 5, 4))
    with pytest.raises(ConfigError, match="per_channel=False"):
        zscored(torch.zeros(2, 3), per_channel=True)
