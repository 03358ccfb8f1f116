"""Steps put together into a network: folding keeps the outputs, and nothing at the end is dropped in silence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from engram.core.errors import UnsupportedModelError
from engram.models.activations import activation_named
from engram.models.architecture import Flatten, MaxPool, Nonlinearity
from engram.models.networks import DenseNetwork
from engram.models.open.chain import Affine, Step, Weighted, assembled


def dense(outputs: int, inputs: int, seed: int = 0) -> Weighted:
    generator = torch.Generator().manual_seed(seed)
    return Weighted(torch.randn(outputs, inputs, generator=generator), torch.randn(outputs, generator=generator))


def norm(size: int, name: str = "norm") -> Affine:
    generator = torch.Generator().manual_seed(7)
    mean, gamma, beta = (torch.randn(size, generator=generator) for _ in range(3))
    return Affine.batch_norm(mean, torch.rand(size, generator=generator) + 0.1, gamma, beta, 1e-5, name)


def computed(steps: list[Step], inputs: Tensor) -> Tensor:
    """The steps one by one: the slow, obvious reference."""
    hidden = inputs.double()
    for step in steps:
        if isinstance(step, Weighted):
            bias = None if step.bias is None else step.bias.double()
            hidden = (
                nn.functional.linear(hidden, step.weight.double(), bias)
                if step.weight.ndim == 2
                else nn.functional.conv2d(hidden, step.weight.double(), bias, step.stride, step.padding)
            )
        elif isinstance(step, Affine):
            shape = (1, -1, *(1 for _ in hidden.shape[2:]))
            hidden = step.scale.view(shape) * hidden + step.shift.view(shape)
        elif isinstance(step, Nonlinearity):
            hidden = step.activation(hidden)
        elif isinstance(step, MaxPool):
            hidden = nn.functional.max_pool2d(hidden, step.kernel, step.stride, step.padding)
        else:
            hidden = hidden.flatten(1)
    return hidden


RELU = Nonlinearity()
CONV = Weighted(torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(1)), None, padding=1)
CHAINS: dict[str, tuple[list[Step], tuple[int, ...]]] = {
    "norm before the activation": ([dense(9, 6), norm(9), RELU, dense(2, 9, 1)], (6,)),
    "norm after the activation": ([dense(9, 6), RELU, norm(9), dense(2, 9, 1)], (6,)),
    "norm after a convolution": ([CONV, norm(4), RELU, MaxPool(2), Flatten(), dense(3, 16, 1)], (2, 4, 4)),
    "norm over flattened channels": ([CONV, RELU, norm(4), Flatten(), dense(3, 64, 1)], (2, 4, 4)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_folding_keeps_the_outputs(name: str) -> None:
    steps, shape = CHAINS[name]
    read = assembled(steps, shape)
    inputs = torch.randn(5, *shape, generator=torch.Generator().manual_seed(2))
    found = read.network.to(dtype=torch.float64)(inputs.double())
    assert read.is_folded
    assert torch.allclose(found, computed(steps, inputs), atol=1e-4)


def test_a_scale_at_the_beginning_is_preprocessing() -> None:
    first = Affine(torch.tensor([4.0, 2.0]), torch.tensor([-2.0, 0.0]), "scale")
    read = assembled([first, CONV, RELU, Flatten(), dense(1, 64)], (2, 4, 4))
    assert read.normalization is not None
    assert read.normalization.mean == (0.5, 0.0)
    assert read.normalization.std == (0.25, 0.5)
    assert not read.is_folded


@pytest.mark.parametrize(("shape", "expected"), [((1, 2, 2), 60 / 255), ((4,), 60.0)])
def test_only_images_are_taken_for_bytes(shape: tuple[int, ...], expected: float) -> None:
    """A column of a table may well have a standard deviation of 60."""
    first = Affine(torch.full((1,), 1 / 60, dtype=torch.float64), torch.zeros(1, dtype=torch.float64), "scale")
    read = assembled([first, Flatten(), dense(5, 4), RELU, dense(1, 5)], shape)
    assert isinstance(read.network, DenseNetwork)
    assert read.normalization is not None
    assert read.normalization.std == pytest.approx((expected,))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([dense(5, 4), RELU, dense(1, 5), RELU], "it ends in relu"),
        ([dense(5, 4), dense(1, 5)], "1 stands where an activation belongs"),
        ([dense(5, 4), RELU, dense(1, 6)], "a layer takes 6 values, but the one before it gives 5"),
        (
            [dense(5, 4), RELU, dense(6, 5), Nonlinearity(activation_named("tanh")), dense(1, 6)],
            "its activations differ: relu, tanh",
        ),
        ([dense(5, 4), RELU, norm(5), RELU, dense(1, 5)], "can't be folded into a layer"),
        ([dense(5, 4)], "no hidden layer"),
        ([Weighted(torch.ones(5, 4), torch.ones(3)), RELU, dense(1, 5)], r"weights \[5, 4\] and a bias \[3\]"),
        ([RELU], "no fully-connected layer"),
    ],
)
def test_what_is_no_such_chain_is_refused(steps: list[Step], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        assembled(steps, (4,))


def test_kernels_that_do_not_fit_their_input_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"weights \[4, 2, 3, 3\], but takes \[4, 3, 3, 3\]"):
        assembled([CONV, RELU, Flatten(), dense(1, 64)], (3, 4, 4))
