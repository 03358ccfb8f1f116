"""SSIM against a loop everywhere, and against scikit-image where the border rule does not matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import _structural_similarity as scikit_image

from engram.core.errors import ConfigError
from engram.scoring.metrics import PAIRS_AT_ONCE, ssim, ssim_map

from . import reference
from .cases import generator, smooth_images


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 5, 7), (1, 2, 2)])
def test_equals_the_loop_everywhere(shape: tuple[int, int, int]) -> None:
    a, b = torch.rand(2, 3, *shape, generator=generator(), dtype=torch.float64)
    expected = [reference.ssim(x, y) for x, y in zip(a.numpy(), b.numpy(), strict=True)]
    np.testing.assert_allclose(ssim(a, b).numpy(), expected, atol=1e-10)


def test_equals_scikit_image_inside_the_border(monkeypatch: pytest.MonkeyPatch) -> None:
    """scikit-image always truncates its Gaussian window at 3.5 sigma, so the test patches that."""
    blur: Callable[..., Any] = vars(scikit_image)["gaussian"]
    radius_1 = {"truncate": 1 / 1.5}
    monkeypatch.setattr(scikit_image, "gaussian", lambda image, **settings: blur(image, **settings | radius_1))
    similarity: Callable[..., Any] = scikit_image.structural_similarity
    a = smooth_images(2, (3, 16, 16))
    b = (a + 0.1 * torch.randn(a.shape, generator=generator(), dtype=a.dtype)).clamp(0, 1)
    ours = ssim_map(a, b)
    for pair in range(2):
        for channel in range(3):
            _, theirs = similarity(
                a[pair, channel].numpy(),
                b[pair, channel].numpy(),
                gaussian_weights=True,
                sigma=1.5,
                use_sample_covariance=False,
                data_range=1.0,
                full=True,
            )
            inside = (slice(1, -1), slice(1, -1))
            np.testing.assert_allclose(ours[pair, channel].numpy()[inside], theirs[inside], atol=1e-6)


def test_float32_is_close_to_float64_and_blocks_join() -> None:
    a, b = torch.rand(2, PAIRS_AT_ONCE + 3, 1, 4, 4, generator=generator(), dtype=torch.float64)
    torch.testing.assert_close(ssim(a.float(), b.float()).double(), ssim(a, b), atol=1e-5, rtol=0)
    torch.testing.assert_close(ssim(a, b)[-3:], ssim(a[-3:], b[-3:]))
    assert ssim(a[:0], b[:0]).shape == (0,)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), height=st.integers(2, 9), width=st.integers(2, 9))
def test_an_image_is_perfectly_similar_only_to_itself(seed: int, height: int, width: int) -> None:
    a, b = torch.rand(2, 1, 3, height, width, generator=generator(seed), dtype=torch.float64)
    assert ssim(a, a).item() == pytest.approx(1, abs=1e-12)
    assert -1 <= ssim(a, b).item() < 1
    assert ssim(a, b).item() == pytest.approx(ssim(b, a).item(), abs=1e-12)


def test_errors_name_the_shapes() -> None:
    with pytest.raises(ConfigError, match=r"\(2, 1, 4, 4\), \(3, 1, 4, 4\)"):
        ssim(torch.zeros(2, 1, 4, 4), torch.zeros(3, 1, 4, 4))
    with pytest.raises(ConfigError, match="at least 2"):
        ssim(torch.zeros(2, 16), torch.zeros(2, 16))
