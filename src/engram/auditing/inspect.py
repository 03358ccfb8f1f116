"""What an attacker sees of a network before any attack: layers, noise, row space, equations, margin.

A convolution's kernels have no row space that holds images. The first fully-connected layer's rows lie in the
span of the training images' features, so with convolutions that layer is read: its noise, and the directions
above it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.attacks.engine.closed_form import parameters
from engram.attacks.engine.scales import derive_scales, first_layer_space
from engram.attacks.settings import EngineSettings
from engram.core.errors import require
from engram.core.progress import Progress, silent
from engram.models.networks import ConvNetwork, DenseNetwork, Network
from engram.models.row_space import SAFETY, RowSpace, find_row_space, marchenko_pastur_quantile, noise_level
from engram.models.tasks.kinds import Binary
from engram.models.view import AttackerView

FEWEST_VALUES = 20
"""The noise is fitted to the lower fifth of the singular values: at least four."""
TOLERANCE = 0.1
"""A fit that moves by more than this with one place in the spectrum tells nothing."""
LOWER_FIFTH = 0.2


@dataclass(frozen=True)
class Noise:
    """Standard deviation of the entries that training left alone, and their share of the layer's energy."""

    std: float
    share: float


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The first layer's singular values [min(h, d)], descending, and where their noise ends.

    `rank` counts the directions of the row space that stand above their noise: those whose value is above
    `threshold` = `SAFETY` x `edge`, and of images also weaker ones that stand out among low frequencies. Where the
    layer is too small to tell its noise, that is None and all directions count.
    """

    values: Tensor
    rank: int
    noise_std: float | None
    edge: float | None
    threshold: float | None

    @property
    def hidden(self) -> int:
        """Directions that only low frequencies tell from noise."""
        return 0 if self.threshold is None else max(0, self.rank - int((self.values > self.threshold).sum()))


def noise_is_told(rows: int, columns: int) -> bool:
    """Whether a layer of this shape is large enough for the Marchenko-Pastur fit.

    >>> noise_is_told(1000, 3072), noise_is_told(30, 625), noise_is_told(40, 40), noise_is_told(1, 1000)
    (True, True, False, False)
    """
    count = min(rows, columns)
    if count < FEWEST_VALUES:
        return False
    here, next_place = (
        marchenko_pastur_quantile(rows, columns, share) for share in (LOWER_FIFTH, LOWER_FIFTH + 1 / count)
    )
    return next_place / here - 1 <= TOLERANCE


def remaining_noise(values: Tensor, rows: int, columns: int) -> Noise | None:
    """sigma and sigma² h d / ||W||² for a layer [h, d] with these singular values; None if it is too small.

    sigma is the Marchenko-Pastur fit of the lower fifth. Where training has filled even that, both are upper
    bounds. A layer of zeros has no noise.
    """
    if not noise_is_told(rows, columns):
        return None
    energy = float(values.square().sum())
    std = noise_level(values, rows, columns, LOWER_FIFTH)
    return Noise(std, min(1.0, std**2 * rows * columns / energy) if energy > 0 else 0.0)


def whole_row_space(weight: Tensor) -> RowSpace:
    """Every direction of W [h, d], down to rounding: for layers too small to tell noise from signal."""
    _, values, directions = torch.linalg.svd(weight.double(), full_matrices=False)
    kept = values > max(weight.shape) * torch.finfo(weight.dtype).eps * values[0]
    rank = int(kept.sum())
    return RowSpace(directions[:rank].to(weight.dtype), values[:rank], rank, values, 0.0, 0.0)


def spectrum(space: RowSpace, rows: int, columns: int) -> Spectrum:
    """The spectrum of a first layer [h, d]; unlike the attack's basis, it may hold no direction at all."""
    if not noise_is_told(rows, columns):
        return Spectrum(space.singular_values, space.rank, None, None, None)
    return Spectrum(space.singular_values, space.detected, space.noise_std, space.edge, SAFETY * space.edge)


@dataclass(frozen=True, kw_only=True)
class Equations:
    """Counts for n samples of d values; those that need n are None where it is not known.

    Each parameter is one equation of stationarity: p against n d. In the row space of rank r the first layer's
    h neurons give h (r + 1) equations, its bias included, for the r coordinates and the dual of each sample.
    """

    samples: int | None
    equations: int
    unknowns: int | None
    most_samples: int
    """The n at which p = n d."""
    row_space_equations: int
    row_space_unknowns: int | None
    row_space_most_samples: int
    """The n at which the first layer has as many equations as unknowns."""


def count_equations(network: DenseNetwork, rank: int, samples: int | None) -> Equations:
    """Both counts for a network whose first layer has `rank` directions."""
    inputs, neurons = network.sizes[0], network.sizes[1]
    parameters = sum(value.numel() for value in network.params.values())
    columns = rank + (network.biases[0] is not None)
    return Equations(
        samples=samples,
        equations=parameters,
        unknowns=None if samples is None else samples * inputs,
        most_samples=parameters // inputs,
        row_space_equations=neurons * columns,
        row_space_unknowns=None if samples is None else samples * (rank + 1),
        row_space_most_samples=neurons * columns // (rank + 1),
    )


@dataclass(frozen=True)
class LayerDescription:
    """A layer's weight [outputs, inputs] and bias; `noise` is None where the layer is too small to tell."""

    name: str
    inputs: int
    outputs: int
    norm: float
    largest_singular_value: float
    bias_norm: float | None
    noise: Noise | None


@dataclass(frozen=True)
class MarginEstimate:
    """gamma = ||[W_1 b_1]||² / sum_i lambda_i by homogeneity; the attack starts from these two."""

    margin: float
    sum_of_duals: float


@dataclass(frozen=True, eq=False)
class Description:
    """Everything that follows from the weights, the input shape and the task."""

    name: str
    parameters: int
    dtype: str
    homogeneous: bool
    layers: tuple[LayerDescription, ...]
    space: RowSpace
    spectrum: Spectrum
    equations: Equations
    margin: MarginEstimate | None
    """None without a hidden layer, and for tasks other than binary."""


def describe(view: AttackerView, *, samples: int | None = None, progress: Progress = silent) -> Description:
    """Describe the network of a view; with a number of samples, also whether it has equations enough for them."""
    require(samples is None or samples > 0, "samples", "must be positive", samples)
    network = view.network
    work = [float(weight.numel()) * min(weight.shape) for weight in network.weights]
    progress("row space of layers.0", 0.0)
    space, margin = _row_space_and_margin(view)
    layers = []
    for index, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        progress(f"spectrum of layers.{index}", sum(work[: max(1, index)]) / sum(work))
        values = space.singular_values if index == 0 else torch.linalg.svdvals(weight.double())
        layers.append(describe_layer(index, weight, bias, values))
    first = spectrum(space, *network.weights[0].shape)
    progress("done", 1.0)
    return Description(
        name=network.name,
        parameters=sum(value.numel() for value in network.params.values()),
        dtype=str(network.weights[0].dtype).removeprefix("torch."),
        homogeneous=network.is_homogeneous,
        layers=tuple(layers),
        space=space,
        spectrum=first,
        equations=count_equations(network, first.rank, samples),
        margin=margin,
    )


def describe_layer(index: int, weight: Tensor, bias: Tensor | None, values: Tensor) -> LayerDescription:
    """A layer of a weight [rows, columns] with these singular values."""
    rows, columns = weight.shape
    return LayerDescription(
        name=f"layers.{index}",
        inputs=columns,
        outputs=rows,
        norm=float(weight.norm()),
        largest_singular_value=float(values[0]),
        bias_norm=None if bias is None else float(bias.norm()),
        noise=remaining_noise(values, rows, columns),
    )


def _row_space_and_margin(view: AttackerView) -> tuple[RowSpace, MarginEstimate | None]:
    """One decomposition for both: the margin is measured on random inputs in the row space."""
    weight = view.network.weights[0]
    margin, space = None, None
    if len(view.network.weights) > 1 and isinstance(view.task, Binary):
        scales = derive_scales(view, EngineSettings())
        duals = scales.dual * scales.candidates
        margin = MarginEstimate(float(parameters(scales.network, 0).square().sum()) / duals, duals)
        space = scales.space
    if not noise_is_told(*weight.shape):
        return whole_row_space(weight), margin
    return space or first_layer_space(weight, view.input_shape), margin


@dataclass(frozen=True, eq=False)
class ConvDescription:
    """Layers with their weights as matrices [channels, C k k] or [out, in], and the row space over features."""

    name: str
    architecture: str
    parameters: int
    dtype: str
    homogeneous: bool
    layers: tuple[LayerDescription, ...]
    feature_layer: int
    """The first fully-connected layer, among `layers`."""
    space: RowSpace
    spectrum: Spectrum
    """Both of that layer."""

    @property
    def read_layer(self) -> LayerDescription:
        return self.layers[self.feature_layer]


def describe_convolutional(view: AttackerView[ConvNetwork], *, progress: Progress = silent) -> ConvDescription:
    """Describe the network of a view."""
    network = view.network
    feature_layer = next(index for index, weight in enumerate(network.weights) if weight.ndim == 2)
    features = network.weights[feature_layer]
    layers = []
    for index, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        progress(f"spectrum of layers.{index}", index / (len(network.weights) + 1))
        matrix = weight.flatten(1)
        layers.append(describe_layer(index, matrix, bias, torch.linalg.svdvals(matrix.double())))
    progress(f"row space of layers.{feature_layer}", len(network.weights) / (len(network.weights) + 1))
    space = find_row_space(features) if noise_is_told(*features.shape) else whole_row_space(features)
    progress("done", 1.0)
    return ConvDescription(
        name=network.name,
        architecture=network.architecture.text,
        parameters=sum(value.numel() for value in network.params.values()),
        dtype=str(features.dtype).removeprefix("torch."),
        homogeneous=network.is_homogeneous,
        layers=tuple(layers),
        feature_layer=feature_layer,
        space=space,
        spectrum=spectrum(space, *features.shape),
    )


AnyDescription = Description | ConvDescription


def describe_either(
    view: AttackerView[Network], *, samples: int | None = None, progress: Progress = silent
) -> AnyDescription:
    """What a stranger sees; equations are counted for `samples` where there are no convolutions."""
    if isinstance(view.network, ConvNetwork):
        return describe_convolutional(view.narrowed(ConvNetwork), progress=progress)
    return describe(view.narrowed(DenseNetwork), samples=samples, progress=progress)
