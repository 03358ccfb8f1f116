"""Any model as a module with ordinary layers, whose passes can be watched layer by layer."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from engram.models.architecture import AvgPool, Conv, Dense, Flatten, ReLU
from engram.models.networks import ConvNetwork, Network


def as_module(network: Network) -> nn.Sequential:
    """A module in eval mode that computes the same as `network`; its layers hold copies of the weights.

    >>> import torch
    >>> from engram.models.networks import DenseNetwork
    >>> network = DenseNetwork((torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]])), (None, None))
    >>> as_module(network)(torch.ones(1, 2)).tolist(), network(torch.ones(1, 2)).tolist()
    ([[9.0]], [[9.0]])
    """
    params = iter(zip(network.weights, network.biases, strict=True))
    layers = _conv_layers(network, params) if isinstance(network, ConvNetwork) else _dense_layers(params)
    return nn.Sequential(*layers).eval()


def _dense_layers(params: Iterator[tuple[Tensor, Tensor | None]]) -> Iterator[nn.Module]:
    yield nn.Flatten()
    for place, (weight, bias) in enumerate(params):
        if place:
            yield nn.ReLU()
        yield _filled(nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None), weight, bias)


def _conv_layers(network: ConvNetwork, params: Iterator[tuple[Tensor, Tensor | None]]) -> Iterator[nn.Module]:
    for layer in network.architecture.layers:
        match layer:
            case Conv():
                weight, bias = next(params)
                channels, entering = weight.shape[:2]
                made = nn.Conv2d(
                    entering, channels, layer.kernel, layer.stride, layer.padding, bias=bias is not None
                )
                yield _filled(made, weight, bias)
            case Dense():
                weight, bias = next(params)
                yield _filled(nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None), weight, bias)
            case AvgPool():
                yield nn.AvgPool2d(layer.kernel)
            case Flatten():
                yield nn.Flatten()
            case ReLU():
                yield nn.ReLU()


def _filled(layer: nn.Linear | nn.Conv2d, weight: Tensor, bias: Tensor | None) -> nn.Module:
    layer.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    return layer
