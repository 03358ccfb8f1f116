"""What images are expected to be like: smooth, like pictures as a small network knows them, and strong in low
frequencies.

Total variation says that neighbouring pixels are alike. Wrong candidates of the engine are smooth too: they are
mixtures of training images, in the row space that all of these share. `errors` estimates what in a picture is such
a mixture rather than picture, and that is the gradient of a prior (regularisation by denoising). It was trained by
`python -m tools.train_denoiser` on the CIFAR-10 test batch: public pictures, none of them a training image of any
target here. It sees pictures of one contrast, so that it pulls as strongly on faint candidates as on strong ones,
as total variation does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files

import torch
from torch import Tensor
from torch.nn import functional

from engram.attacks.engine.self_tuning import FILLED, FILLING
from engram.core.files import read_tensors
from engram.models.row_space import Frequencies

SMOOTHING = 0.01
"""Pixel differences below this are penalised quadratically: a hundredth of the pixel range."""


def total_variation(images: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of sqrt(difference² + eps²) over neighbouring pixels, divided by the pixels, and its gradient.

    images [m, C, H, W] -> values [m], gradients [m, C, H, W].

    >>> values, _ = total_variation(torch.tensor([[[[0.0, 3.0]]]], dtype=torch.float64))
    >>> round(values.item(), 4)
    1.5
    """
    gradient = torch.zeros_like(images)
    values = images.new_zeros(len(images))
    pixels = images[0].numel()
    for axis in (2, 3):
        length = images.shape[axis] - 1
        ahead, behind = images.narrow(axis, 1, length), images.narrow(axis, 0, length)
        difference = ahead - behind
        size = (difference.square() + SMOOTHING**2).sqrt()
        values += size.flatten(1).sum(1) / pixels
        slope = difference / size / pixels
        gradient.narrow(axis, 1, length).add_(slope)
        gradient.narrow(axis, 0, length).sub_(slope)
    return values, gradient


WEIGHTS = "denoiser.safetensors"
FINE, COARSE = 24, 48
"""Channels at a half of the picture's resolution, and at a quarter and an eighth."""
CHANNELS, FOLD, SIDES = 3, 2, 8
"""It takes colours, folds cells of 2 x 2 pixels into channels, and needs sides that are multiples of eight."""
LARGEST = 48
"""Pictures with longer sides are smoother from pixel to pixel than those that it has seen."""
LAYERS: dict[str, tuple[int, int]] = {
    "enter": (CHANNELS * FOLD**2, FINE),
    "fine": (FINE, FINE),
    "down": (FINE, COARSE),
    "middle": (COARSE, COARSE),
    "deeper": (COARSE, COARSE),
    "deepest": (COARSE, COARSE),
    "up": (COARSE, COARSE),
    "upper": (COARSE, FINE),
    "leave": (FINE, FINE),
    "out": (FINE, CHANNELS * FOLD**2),
}
"""Channels in and out of each 3 x 3 convolution."""
HALVING = ("down", "deeper")


def convolved(params: Mapping[str, Tensor], name: str, values: Tensor) -> Tensor:
    stride = 2 if name in HALVING else 1
    return functional.conv2d(values, params[f"{name}.weight"], params[f"{name}.bias"], stride=stride, padding=1)


def errors(params: Mapping[str, Tensor], pictures: Tensor) -> Tensor:
    """What is not picture in [m, 3, H, W] of standard deviation 1, H and W multiples of eight: a U-net."""

    def layer(name: str, values: Tensor) -> Tensor:
        return functional.silu(convolved(params, name, values))

    def doubled(values: Tensor) -> Tensor:
        return functional.interpolate(values, scale_factor=2)

    fine = layer("fine", layer("enter", functional.pixel_unshuffle(pictures, FOLD)))
    middle = layer("middle", layer("down", fine))
    deepest = layer("deepest", layer("deeper", middle))
    upper = layer("upper", layer("up", doubled(deepest) + middle))
    leaving = layer("leave", doubled(upper) + fine)
    return functional.pixel_shuffle(convolved(params, "out", leaving), FOLD)


@cache
def shipped() -> dict[str, Tensor]:
    """The weights that come with engram."""
    with as_file(files("engram.attacks.engine") / WEIGHTS) as path:
        return {name: value.float() for name, value in read_tensors(path).items()}


def fits(shape: tuple[int, ...]) -> bool:
    """Whether inputs of this shape are pictures like those that it was trained on, in colour or grey.

    >>> fits((3, 32, 32)), fits((1, 25, 25)), fits((3, 224, 224)), fits((784,))
    (True, True, False, False)
    """
    return len(shape) == 3 and shape[0] in (1, CHANNELS) and max(shape[1:]) <= LARGEST


def learned(images: Tensor) -> tuple[Tensor, Tensor]:
    """A value of how much of images [m, C, H, W] is not picture, and its gradient; both divided by the pixels.

    The gradient is that of the value as far as removing errors is a projection, as with any denoiser.
    """
    channels, height, width = images.shape[1:]
    params = {name: value.to(images) for name, value in shipped().items()}
    spread = images.flatten(1).std(1, correction=0).clamp(min=torch.finfo(images.dtype).tiny).view(-1, 1, 1, 1)
    pictures = (images / spread).expand(-1, CHANNELS, -1, -1)
    padded = functional.pad(pictures, (0, -width % SIDES, 0, -height % SIDES), mode="replicate")
    found = errors(params, padded)[:, :, :height, :width]
    if channels == 1:
        found = found.mean(1, keepdim=True)
    gradient = found / images[0].numel()
    return 0.5 * (images * gradient).flatten(1).sum(1), gradient


@dataclass(frozen=True)
class PriorMix:
    """What a prior of images consists of: shares of its strength that total variation and the denoiser have."""

    smooth: float = 1.0
    learned: float = 0.0

    def of(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """images [m, C, H, W] -> values [m], gradients [m, C, H, W]."""
        value, gradient = total_variation(images)
        if not self.learned:
            return self.smooth * value, gradient.mul_(self.smooth)
        wrong, by_wrong = learned(images)
        return self.smooth * value + self.learned * wrong, gradient.mul_(self.smooth).add_(
            by_wrong, alpha=self.learned
        )


TOTAL_VARIATION = PriorMix()


def learned_mix(rank: int, *, several_classes: bool, noisy: bool) -> PriorMix:
    """The shares that find most with the denoiser, by the rank of the row space (docs/engine-log.md).

    With two classes smoothness decides more where many images share the weights. On noisy layers candidates are
    blurred, which is no error of theirs, so the denoiser has less to say.

    >>> learned_mix(60, several_classes=False, noisy=False), learned_mix(200, several_classes=False, noisy=False)
    (PriorMix(smooth=0.5, learned=2.5), PriorMix(smooth=1.0, learned=2.5))
    >>> learned_mix(400, several_classes=True, noisy=False), learned_mix(100, several_classes=True, noisy=True)
    (PriorMix(smooth=0.5, learned=1.0), PriorMix(smooth=1.0, learned=0.5))
    """
    if noisy:
        return PriorMix(1.0, 0.5)
    if several_classes:
        return PriorMix(0.5, 1.0)
    share = min(max((rank - FILLED) / (FILLING - FILLED), 0.0), 1.0)
    return PriorMix(0.5 + 0.5 * share, 2.5)


EXTENSION = 0.2
"""The power of what a noisy row space leaves open falls as rank^-0.2 over frequencies. That of photographs falls
as 1 / rank, but the directions were shrunk towards low frequencies already (docs/engine-log.md)."""


def extended(basis: Tensor, frequencies: Frequencies) -> Tensor:
    """The images [r, d] to expect of directions V [r, d]: (V C Vᵀ)⁻¹ V C, with C the power over frequencies.

    An image of coordinates z is z times that: what V leaves open is filled as images are.
    """
    over = frequencies.coefficients(basis.double())
    power = torch.arange(1, over.shape[1] + 1, dtype=over.dtype, device=over.device) ** -EXTENSION
    filled = torch.linalg.solve((over * power) @ over.T, over * power)
    return frequencies.pixels(filled).to(basis.dtype)


def expected_power(count: int, pixel_std: float) -> Tensor:
    """The power of photographs in the order of `Frequencies`, [count]: in two dimensions 1 / f² is 1 / rank.

    >>> expected_power(3, 1.0).mul(100).round().div(100).tolist()
    [1.64, 0.82, 0.55]
    """
    falling = 1 / torch.arange(1, count + 1, dtype=torch.float64)
    return falling * (pixel_std**2 * count / falling.sum())
