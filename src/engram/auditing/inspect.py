"""What an attacker sees in a network before any attack: layers, noise, row space, equations, margin; and what its
training samples add (`examine`): fit, margins, KKT gap, ceiling and boundaries.

A convolution's kernels have no row space that holds images. The first fully-connected layer's rows lie in the
span of the training images' features, so with convolutions the attack reads that layer: its noise, and the
directions above it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engram.attacks.engine.closed_form import parameters
from engram.attacks.engine.self_tuning import derive_scales
from engram.attacks.settings import EngineSettings
from engram.core.errors import require
from engram.core.loop import Progress, silent
from engram.core.loop import part as part_of
from engram.members.kkt import KKT, DensePart, kkt
from engram.models import row_space
from engram.models.networks import ConvNetwork, DenseNetwork, Network
from engram.models.row_space import SAFETY, RowSpace, marchenko_pastur_quantile, noise_level
from engram.models.tasks import Binary
from engram.models.view import AttackerView
from engram.scoring.metrics import ssim
from engram.scoring.protocols import paired_ncc

FEWEST_VALUES = 20
"""The noise is fitted to the lower fifth of the singular values: at least four."""
TOLERANCE = 0.1
"""A fit that changes by more than this from one place in the spectrum to the next is not reliable."""
LOWER_FIFTH = 0.2


@dataclass(frozen=True)
class Noise:
    """Standard deviation of the noise that training left in the layer, and its share of the layer's energy."""

    std: float
    share: float


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The first layer's singular values [min(h, d)], descending, and where their noise ends.

    `rank` counts the directions of the row space above the noise: those whose value is above `threshold` =
    `SAFETY` x `edge`, for images weaker ones that stand out at low frequencies, and those `at_edges`. Where the
    layer is too small to estimate its noise, the noise is None and all directions count.
    """

    values: Tensor
    rank: int
    noise_std: float | None
    edge: float | None
    threshold: float | None
    at_edges: int = 0
    """Directions that only the edges of a uniform start show (`models/uniform_start.py`)."""

    @property
    def hidden(self) -> int:
        """Directions that stand out from the noise only at low frequencies."""
        seen = self.rank - self.at_edges
        return 0 if self.threshold is None else max(0, seen - int((self.values > self.threshold).sum()))


def noise_is_measurable(rows: int, columns: int) -> bool:
    """Whether a layer of this shape is large enough for the Marchenko-Pastur fit.

    >>> noise_is_measurable(1000, 3072), noise_is_measurable(30, 625)
    (True, True)
    >>> noise_is_measurable(40, 40), noise_is_measurable(1, 1000)
    (False, False)
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

    sigma is the Marchenko-Pastur fit of the lower fifth. Where training has filled even those, both are upper
    bounds. A layer of zeros has no noise.
    """
    if not noise_is_measurable(rows, columns):
        return None
    energy = float(values.square().sum())
    std = noise_level(values, rows, columns, LOWER_FIFTH)
    return Noise(std, min(1.0, std**2 * rows * columns / energy) if energy > 0 else 0.0)


def spectrum(space: RowSpace, rows: int, columns: int) -> Spectrum:
    """The spectrum of a first layer [h, d]; unlike the attack's basis, it may have no direction at all."""
    if not noise_is_measurable(rows, columns):
        return Spectrum(space.singular_values, space.rank, None, None, None)
    return Spectrum(space.singular_values, space.detected, space.noise_std, space.edge, SAFETY * space.edge)


@dataclass(frozen=True, kw_only=True)
class Equations:
    """Counts for n samples of d values; those that need n are None where n is unknown.

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
    """A layer's weight [outputs, inputs] and bias; `noise` is None where the layer is too small to estimate it."""

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
    """Everything that follows from the weights, the input shape and the task.

    Weights of convolutions are described as matrices [channels, C k k].
    """

    name: str
    architecture: str | None
    """The layers of a network with convolutions, as --arch describes them."""
    parameters: int
    dtype: str
    homogeneous: bool
    activation: str
    layers: tuple[LayerDescription, ...]
    read: int
    """Which of them the attack reads: the first, or with convolutions the first fully-connected one."""
    space: RowSpace
    spectrum: Spectrum
    """Row space and spectrum of that layer; the row space of its edges, if they show more directions."""
    equations: Equations | None
    """None where features are read: their number says nothing about images."""
    margin: MarginEstimate | None
    """None without a hidden layer, for tasks other than binary, and where features are read."""

    @property
    def read_layer(self) -> LayerDescription:
        return self.layers[self.read]

    @property
    def reads_features(self) -> bool:
        """Whether the description is of the features that the convolutions compute, not of the inputs."""
        return self.equations is None


def describe(
    view: AttackerView[Network], *, samples: int | None = None, progress: Progress = silent
) -> Description:
    """Describe the network of a view; with a number of samples, also whether it has enough equations for them."""
    require(samples is None or samples > 0, "samples", "must be positive", samples)
    dense = view.dense
    if dense is not None:
        dense = replace(dense, network=dense.network.bare)
    network = view.network if dense is None else dense.network
    read = next(index for index, weight in enumerate(network.weights) if weight.ndim == 2)
    progress(f"inspecting: row space of layers.{read}", 0.0)
    own = _row_space(network, read, view.input_shape)
    first, space = spectrum(own, *network.weights[read].shape), own
    edges = network.edges(view.input_shape) if isinstance(network, DenseNetwork) else None
    if edges is not None and edges.space.detected > first.rank:
        space = edges.space
        first = replace(first, rank=space.detected, at_edges=space.detected - first.rank)
    return Description(
        name=view.network.name,
        architecture=view.network.architecture.text if isinstance(view.network, ConvNetwork) else None,
        parameters=sum(value.numel() for value in network.params.values()),
        dtype=str(network.weights[read].dtype).removeprefix("torch."),
        homogeneous=network.is_homogeneous,
        activation=str(network.activation),
        layers=_layers(network, read, own, progress),
        read=read,
        space=space,
        spectrum=first,
        equations=None if dense is None else count_equations(dense.network, first.rank, samples),
        margin=None if dense is None else _margin(dense),
    )


def _layers(network: Network, read: int, space: RowSpace, progress: Progress) -> tuple[LayerDescription, ...]:
    matrices = [weight.flatten(1) for weight in network.weights]
    work = [float(matrix.numel()) * min(matrix.shape) for matrix in matrices]
    layers = []
    for index, (matrix, bias) in enumerate(zip(matrices, network.biases, strict=True)):
        progress(f"inspecting: spectrum of layers.{index}", sum(work[:index]) / sum(work))
        values = space.singular_values if index == read == 0 else torch.linalg.svdvals(matrix.double())
        layers.append(describe_layer(index, matrix, bias, values))
    progress("inspecting", 1.0)
    return tuple(layers)


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


def _row_space(network: Network, read: int, input_shape: tuple[int, ...]) -> RowSpace:
    """Of the layer that is read; a layer too small to estimate its noise keeps every direction."""
    weight = network.weights[read]
    if not noise_is_measurable(*weight.shape):
        return row_space.whole_row_space(weight)
    if isinstance(network, DenseNetwork):
        return network.row_space(input_shape)
    if isinstance(network, ConvNetwork) and network.has_head:
        return network.head.row_space((weight.shape[1],))
    return row_space.find_row_space(weight)


def _margin(view: AttackerView[DenseNetwork]) -> MarginEstimate | None:
    """Measured on random inputs in the row space."""
    if len(view.network.weights) < 2 or not isinstance(view.task, Binary):
        return None
    scales = derive_scales(view, EngineSettings())
    duals = scales.dual * scales.candidates
    return MarginEstimate(float(parameters(scales.network, 0).square().sum()) / duals, duals)


RECOGNISED = 0.4
"""The papers' SSIM of a good reconstruction."""


@dataclass(frozen=True, eq=False)
class Ceiling:
    """Each sample compared with its own projection onto the row space, [n] each.

    No method without an image prior does better: the weights say nothing about the rest of the sample.
    """

    share: Tensor
    """Share of the centred sample's energy inside the row space."""
    ssim: Tensor | None
    """Of pixels, with the mean added back and clamped to the pixel range; None for vectors."""
    ncc: Tensor | None
    """Of centred samples, as in scoring; None below three values, where NCC is only a sign."""
    mean_ssim: Tensor | None
    """The null: SSIM of the training mean alone, which needs no weights; None for vectors."""

    @property
    def recognisable(self) -> int | None:
        """How many samples have an SSIM above 0.4."""
        return _good(self.ssim)

    @property
    def recognisable_by_mean(self) -> int | None:
        """The same count for the mean alone."""
        return _good(self.mean_ssim)


def ceiling(
    basis: Tensor,
    images: Tensor,
    mean: Tensor,
    *,
    pixel_range: tuple[float, float] = (0.0, 1.0),
    network: Network | None = None,
) -> Ceiling:
    """Compare images [n, *shape] with V Vᵀ (x - mean) + mean for orthonormal rows V [r, d]; mean [*shape].

    V is in the coordinates that the `network`'s first layer sees.
    """
    images, mean, basis = images.double(), mean.double(), basis.double()
    inputs = images - mean
    entering = inputs.flatten(1) if network is None else network.entering(inputs)
    projected = entering @ basis.T @ basis
    projected = (projected if network is None else network.leaving(projected)).view_as(inputs)
    is_image = images.ndim == 4
    energy = inputs.flatten(1).square().sum(1)
    inside = projected.flatten(1).square().sum(1)
    return Ceiling(
        share=torch.where(energy > 0, inside / energy, torch.ones_like(energy)),
        ssim=ssim((projected + mean).clamp(*pixel_range), images) if is_image else None,
        ncc=paired_ncc(projected, inputs) if inputs[0].numel() > 2 else None,
        mean_ssim=ssim(mean.expand_as(images), images) if is_image else None,
    )


def _good(values: Tensor | None) -> int | None:
    return None if values is None else int((values > RECOGNISED).sum())


ON_MARGIN = 1.15
"""Samples within 15 % of the smallest positive margin count as on the margin."""


@dataclass(frozen=True, eq=False)
class Examination:
    """What the samples show about the network and vice versa; tensors have one value per sample, [n]."""

    loss: float
    accuracy: float
    labels: Tensor
    margins: Tensor
    kkt: KKT
    ceiling: Ceiling
    boundaries: Tensor
    held_out_boundaries: Tensor | None
    """The same count for samples that training never saw; None where there are none."""

    @property
    def on_margin(self) -> int:
        """How many samples lie within 15 % of the smallest positive margin."""
        return samples_on_margin(self.margins)

    @property
    def beyond_held_out(self) -> int | None:
        """How many samples lie on more boundaries than any held-out one, which identifies them."""
        if self.held_out_boundaries is None:
            return None
        return int((self.boundaries > self.held_out_boundaries.max()).sum())


@torch.no_grad()
def examine(
    part: DensePart,
    space: RowSpace,
    images: Tensor,
    labels: Tensor,
    mean: Tensor,
    *,
    held_out: Tensor | None = None,
    progress: Progress = silent,
) -> Examination:
    """Examine images [n, *shape] with labels [n]; `mean` [*shape] is what training subtracted from them.

    Where the part reads features, the ceiling is only a share of their energy: what a projected feature looks like
    is unknown.
    """
    network, task = part.view.network, part.view.task
    require_shape(images, part.input_shape)
    require(
        0 <= int(labels.min()) <= int(labels.max()) < task.label_count,
        "the data's labels",
        f"must be below {task.label_count} for a {task.name} task",
        int(labels.max()),
        "choose another label map with --labels",
    )
    progress("examining: samples", 0.0)
    entering = part.entering(images - mean)
    logits = network.to(dtype=torch.float64)(entering)
    found = kkt(network, task, entering, labels, progress=part_of(progress, 0.05, 0.8))
    progress("examining: ceiling", 0.8)
    if part.reads_features:
        reach = replace(ceiling(space.basis, entering, torch.zeros_like(entering[0])), ncc=None)
    else:
        reach = ceiling(space.basis, images, mean, pixel_range=part.view.pixel_range, network=part.whole)
    progress("examining: boundaries", 0.95)
    unseen = None
    if held_out is not None and len(held_out):
        unseen = part.boundaries(part.entering(held_out - mean))
    below = len(part.whole.weights) - len(network.weights)
    layers = tuple(replace(gap, name=f"layers.{below + place}") for place, gap in enumerate(found.layers))
    examination = Examination(
        loss=float(task.loss(logits, labels)),
        accuracy=float(task.correct(logits, labels).double().mean()),
        labels=labels,
        margins=task.margins(logits, labels),
        kkt=replace(found, layers=layers),
        ceiling=reach,
        boundaries=part.boundaries(entering),
        held_out_boundaries=unseen,
    )
    progress("examining", 1.0)
    return examination


def samples_on_margin(margins: Tensor) -> int:
    """How many margins [n] are positive and within 15 % of the smallest positive one.

    >>> samples_on_margin(torch.tensor([2.0, 2.2, 3.0, -1.0])), samples_on_margin(torch.tensor([-1.0]))
    (2, 0)
    """
    positive = margins[margins > 0]
    return int((positive <= ON_MARGIN * positive.min()).sum()) if len(positive) else 0


def require_shape(images: Tensor, shape: tuple[int, ...]) -> None:
    """Images [n, *shape] must have the model's input shape."""
    require(
        tuple(images.shape[1:]) == tuple(shape),
        "the data's images",
        f"must have the model's input shape {_shape(shape)}",
        _shape(images.shape[1:]),
        "choose the data that the model was trained on, or another --input-shape",
    )


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
