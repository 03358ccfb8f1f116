"""What a network looks like from outside: layers, norms, homogeneity."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engram.targets.networks import DenseNetwork


@dataclass(frozen=True)
class LayerDescription:
    name: str
    inputs: int
    outputs: int
    norm: float
    largest_singular_value: float
    bias_norm: float | None


@dataclass(frozen=True)
class NetworkDescription:
    name: str
    parameters: int
    dtype: str
    homogeneous: bool
    layers: tuple[LayerDescription, ...]


def describe(network: DenseNetwork) -> NetworkDescription:
    """Shapes and norms of every layer."""
    layers = tuple(
        LayerDescription(
            name=f"layers.{index}",
            inputs=weight.shape[1],
            outputs=weight.shape[0],
            norm=float(weight.norm()),
            largest_singular_value=float(torch.linalg.matrix_norm(weight.double(), ord=2)),
            bias_norm=None if bias is None else float(bias.norm()),
        )
        for index, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True))
    )
    return NetworkDescription(
        name=network.name,
        parameters=sum(value.numel() for value in network.params.values()),
        dtype=str(network.weights[0].dtype).removeprefix("torch."),
        homogeneous=network.is_homogeneous,
        layers=layers,
    )
