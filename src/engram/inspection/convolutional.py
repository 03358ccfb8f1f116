"""What a stranger sees of a network with convolutions, and whether the attack has anything to work with.

A convolution's kernels have no row space that holds images. The first fully-connected layer's rows lie in the span
of the training images' features, so it is the layer that decides: its noise, and the directions above it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from engram.attacker import AttackerView
from engram.inspection.describe import LayerDescription, describe_layer
from engram.inspection.examine import Examination
from engram.inspection.progress import Progress, silent
from engram.inspection.record import SCHEMA_VERSION, samples_record
from engram.inspection.spectrum import Spectrum, noise_is_told, spectrum, whole_row_space
from engram.inspection.verdict import MOST, Verdict, explained_share
from engram.reconstruct.engine.row_space import RowSpace, find_row_space
from engram.targets.convolutional import ConvNetwork


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


def judge_convolutional(found: ConvDescription, examination: Examination | None = None) -> Verdict:
    """The first obstacle on the engine's way, or what speaks for its success."""
    layer, rank = found.read_layer, found.spectrum.rank
    if found.feature_layer == len(found.layers) - 1:
        return Verdict(False, "hidden layer", "Out of reach of the engine: no hidden fully-connected layer.")
    if rank == 0:
        reason = f"no direction of {layer.name} stands above the noise of its initialisation"
        return Verdict(False, "row space", f"Out of reach of this attack: {reason}.")
    if layer.noise is not None and layer.noise.share > MOST:
        reason = f"{layer.noise.share:.0%} of {layer.name}'s energy is the noise of its initialisation"
        return Verdict(False, "noise", f"Out of reach of this attack: {reason}.")
    above = "above noise" if layer.noise is not None else "(it is too small to tell its noise)"
    directions = "1 direction" if rank == 1 else f"{rank} directions"
    open_way = f"{layer.name} has {directions} of features {above}"
    if examination is None:
        return Verdict(True, "row space", f"In reach: {open_way}.")
    explained = explained_share(examination)
    if explained < MOST:
        reason = f"the samples' gradients explain only {explained:.0%} of {layer.name}'s energy"
        return Verdict(False, "stationarity", f"Out of reach of this attack: {reason}.")
    reason = f"the samples' gradients explain {explained:.0%} of its energy"
    return Verdict(True, "stationarity", f"In reach: {open_way}, and {reason}.")


def convolutional_record(
    view: AttackerView[ConvNetwork],
    found: ConvDescription,
    verdict: Verdict,
    examination: Examination | None = None,
) -> dict[str, Any]:
    """One JSON object with the keys of `inspection_record` as far as they have a meaning here."""
    return {
        "schema_version": SCHEMA_VERSION,
        "input_shape": list(view.input_shape),
        "task": view.task.name,
        "name": found.name,
        "architecture": found.architecture,
        "parameters": found.parameters,
        "dtype": found.dtype,
        "homogeneous": found.homogeneous,
        "layers": [asdict(layer) for layer in found.layers],
        "row_space": {
            "layer": found.read_layer.name,
            "rank": found.spectrum.rank,
            "noise_std": found.spectrum.noise_std,
            "edge": found.spectrum.edge,
            "threshold": found.spectrum.threshold,
            "singular_values": found.spectrum.values.tolist(),
        },
        "samples": None if examination is None else samples_record(examination),
        "verdict": asdict(verdict),
    }
