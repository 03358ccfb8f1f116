"""What a stranger sees of a network before any attack: layers, noise, row space, equations, margin."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engram.attacker import AttackerView
from engram.errors import require
from engram.inspection.equations import Equations, count_equations
from engram.inspection.progress import Progress, silent
from engram.inspection.spectrum import Noise, Spectrum, noise_is_told, remaining_noise, spectrum, whole_row_space
from engram.reconstruct.engine.closed_form import parameters
from engram.reconstruct.engine.row_space import RowSpace
from engram.reconstruct.engine.scales import derive_scales, first_layer_space
from engram.reconstruct.engine.settings import EngineSettings
from engram.task import Binary


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
