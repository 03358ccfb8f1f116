"""The prior of images: the denoiser against torch's own modules, on pictures that it never saw, and where the
engine uses it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tools.train_denoiser import mixtures, spread
from torch import Tensor, nn

import engram.attacks.engine
from engram.attacks.engine.dense import Engine
from engram.attacks.engine.image_prior import (
    COARSE,
    FINE,
    LAYERS,
    TOTAL_VARIATION,
    WEIGHTS,
    PriorMix,
    errors,
    learned,
    learned_mix,
    shipped,
    total_variation,
)
from engram.attacks.registry import make_attack
from engram.attacks.settings import EngineSettings
from engram.core.errors import ConfigError
from engram.data.readers import load_faces
from engram.models.tasks import Binary, Multiclass, Task
from engram.models.view import AttackerView
from tests.cases import network
from tests.conv_cases import SHAPE, drawn


class Oracle(nn.Module):
    """The same network as torch's modules."""

    def __init__(self) -> None:
        super().__init__()
        halving = ("down", "deeper")
        self.layers = nn.ModuleDict(
            {
                name: nn.Conv2d(inputs, outputs, 3, stride=2 if name in halving else 1, padding=1)
                for name, (inputs, outputs) in LAYERS.items()
            }
        )

    def act(self, name: str, values: Tensor) -> Tensor:
        return torch.nn.functional.silu(self.layers[name](values))

    def forward(self, pictures: Tensor) -> Tensor:
        fine = self.act("fine", self.act("enter", torch.pixel_unshuffle(pictures, 2)))
        middle = self.act("middle", self.act("down", fine))
        deepest = self.act("deepest", self.act("deeper", middle))
        upper = self.act("upper", self.act("up", doubled(deepest) + middle))
        return torch.pixel_shuffle(self.layers["out"](self.act("leave", doubled(upper) + fine)), 2)


def doubled(values: Tensor) -> Tensor:
    """Every value four times, in a square."""
    return values.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)


def pictures(count: int = 60) -> Tensor:
    """Pieces of scikit-image's own photographs, 32 x 32, less their mean."""
    from skimage import data

    photographs = [
        nn.functional.avg_pool2d(torch.tensor(getattr(data, name)()).permute(2, 0, 1).float().div(255), 4)
        for name in ("astronaut", "chelsea", "coffee")
    ]
    generator, pieces = torch.Generator().manual_seed(0), []
    for index in range(count):
        whole = photographs[index % 3]
        row, column = (int(torch.randint(size - 31, (), generator=generator)) for size in whole.shape[1:])
        pieces.append(whole[:, row : row + 32, column : column + 32])
    stacked = torch.stack(pieces)
    return stacked - stacked.mean(0)


def test_the_functions_are_those_of_torchs_modules() -> None:
    oracle = Oracle()
    params = {name: value.detach() for name, value in oracle.layers.named_parameters()}
    images = torch.randn(3, 3, 32, 40)
    with torch.no_grad():
        torch.testing.assert_close(errors(params, images), oracle.forward(images))


def test_what_is_shipped_is_small_and_complete() -> None:
    path = Path(engram.attacks.engine.__file__).parent / WEIGHTS
    assert path.stat().st_size < 1_000_000
    assert set(shipped()) == {f"{name}.{part}" for name in LAYERS for part in ("weight", "bias")}
    assert shipped()["up.weight"].shape == (COARSE, COARSE, 3, 3)
    assert shipped()["fine.bias"].shape == (FINE,)
    assert all(bool(value.isfinite().all()) for value in shipped().values())


@pytest.mark.parametrize("level", [0.4, 0.7])
def test_it_takes_mixtures_out_of_pictures_that_it_never_saw_better_than_total_variation(level: float) -> None:
    generator, truth = torch.Generator().manual_seed(1), pictures()
    inside, mixed = mixtures(truth, torch.full((len(truth),), level), 45, generator)
    seen = mixed / spread(mixed)

    def left(guess: Tensor) -> float:
        """The error after the best scale."""
        scale = (guess * inside).flatten(1).sum(1) / guess.square().flatten(1).sum(1)
        off = (scale.view(-1, 1, 1, 1) * guess - inside).square().flatten(1).sum(1)
        return float((off / inside.square().flatten(1).sum(1)).mean())

    slopes = total_variation(seen)[1] * seen[0].numel()
    smoothed = min(left(seen - rate * slopes) for rate in (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5))
    cleaned = left(seen - errors(shipped(), seen))
    assert cleaned < smoothed


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 25, 25), (1, 28, 30)])
def test_the_pull_does_not_depend_on_contrast_and_takes_sides_of_any_length(shape: tuple[int, ...]) -> None:
    images = torch.rand(4, *shape, dtype=torch.float64) - 0.5
    values, gradients = learned(images)
    fainter, same = learned(0.1 * images)
    assert values.shape == (4,)
    assert gradients.shape == images.shape
    assert gradients.dtype == torch.float64
    torch.testing.assert_close(same, gradients)
    torch.testing.assert_close(fainter, 0.1 * values)


def test_a_grey_picture_is_seen_as_one_of_equal_colours() -> None:
    grey = load_faces().images[:3, :, :24, :24]
    _, alone = learned(grey)
    _, coloured = learned(grey.expand(-1, 3, -1, -1).contiguous())
    torch.testing.assert_close(alone, coloured.sum(1, keepdim=True))


def test_constant_pictures_have_no_error_that_is_not_finite() -> None:
    values, gradients = learned(torch.zeros(2, 3, 32, 32))
    assert bool(values.isfinite().all() and gradients.isfinite().all())


def _mix(
    shape: tuple[int, ...], task: Task, prior: float | str | None, classes: int = 1, still: int = 0
) -> PriorMix:
    inputs = int(torch.tensor(shape).prod())
    made = network(inputs, 40, 30, classes, dtype=torch.float32)
    moved = torch.randn(8, inputs) / inputs**0.5
    moved[:, :still] = 0
    low_rank = 1e-4 * made.weights[0] + torch.randn(40, 8) @ moved
    learnt = made.with_params({**made.params, "layers.0.weight": low_rank})
    return Engine(AttackerView(learnt, shape, task), EngineSettings(prior=prior)).mix  # type: ignore[arg-type]


def test_the_engine_uses_it_where_it_pays_or_where_it_is_asked_for() -> None:
    torch.manual_seed(0)
    with_it = learned_mix(8, several_classes=True, noisy=False)
    assert _mix((3, 12, 12), Multiclass(3), None, 3) == with_it
    assert _mix((3, 12, 12), Multiclass(3), "tv", 3) == TOTAL_VARIATION
    assert _mix((3, 12, 12), Multiclass(3), None, 3, still=60) == TOTAL_VARIATION, "a flat background"
    assert _mix((3, 12, 12), Binary(), None) == TOTAL_VARIATION
    assert _mix((3, 12, 12), Binary(), "learned").learned > 0
    for strength in (1.4, 0.0):
        assert _mix((3, 12, 12), Multiclass(3), strength, 3) == TOTAL_VARIATION
    assert _mix((1, 4, 60), Multiclass(3), None, 3) == TOTAL_VARIATION, "larger than what it was trained on"
    with pytest.raises(ConfigError, match="prior must be learned, tv or a number, got 'mild'"):
        EngineSettings(prior="mild")  # type: ignore[arg-type]


def test_it_is_refused_where_it_would_do_nothing() -> None:
    asked = {"prior": "learned"}
    for shape in ((784,), (1, 4, 196)):
        with pytest.raises(ConfigError, match="at most 48 pixels a side"):
            make_attack(AttackerView(network(784, 40, 1), shape, Binary()), settings=asked)
    with pytest.raises(ConfigError, match="in fully-connected networks"):
        make_attack(AttackerView(drawn("conv3x8 relu flatten 20 relu 1"), SHAPE, Binary()), settings=asked)


def test_a_mix_is_the_weighted_sum() -> None:
    images = torch.randn(2, 3, 32, 32)
    value, gradient = PriorMix(0.5, 2.0).of(images)
    for found, parts in zip(
        (value, gradient), zip(total_variation(images), learned(images), strict=True), strict=True
    ):
        torch.testing.assert_close(found, 0.5 * parts[0] + 2.0 * parts[1])
