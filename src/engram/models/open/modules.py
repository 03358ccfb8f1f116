"""Any model as a module with ordinary layers, whose passes can be watched layer by layer.

engram's own networks become modules; a model of the user's own class is built by the user's code and filled with a
state_dict that is read safely. That code runs because the user names it; nothing in the weights file is executed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

from torch import Tensor, nn

from engram.core.errors import ConfigError, EngramError, UnsupportedModelError
from engram.models.activations import RELU, Activation
from engram.models.architecture import AvgPool, Conv, Dense, Flatten, MaxPool, Nonlinearity
from engram.models.networks import ConvNetwork, Network
from engram.models.open.door import open_view
from engram.models.open.files import read_state
from engram.models.open.state_dict import listed
from engram.models.view import AttackerView


def as_module(network: Network) -> nn.Sequential:
    """A module in eval mode that computes the same as `network`; its layers hold copies of the weights.

    >>> import torch
    >>> from engram.models.networks import DenseNetwork
    >>> network = DenseNetwork((torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]])), (None, None))
    >>> as_module(network)(torch.ones(1, 2)).tolist(), network(torch.ones(1, 2)).tolist()
    ([[9.0]], [[9.0]])
    """
    params = iter(zip(network.weights, network.biases, strict=True))
    layers = _conv_layers(network, params) if isinstance(network, ConvNetwork) else _dense_layers(network, params)
    first = [] if network.gain is None else [Gain(network.gain)]
    return nn.Sequential(*first, *layers).eval()


class Gain(nn.Module):
    """Multiplies inputs [n, ...] by a gain [d]: the scale of a normalisation."""

    gain: Tensor

    def __init__(self, gain: Tensor) -> None:
        super().__init__()
        self.register_buffer("gain", gain.clone())

    def forward(self, inputs: Tensor) -> Tensor:
        return (inputs.flatten(1) * self.gain).view_as(inputs)


class Applied(nn.Module):
    """An activation as a module."""

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, inputs: Tensor) -> Tensor:
        return self.activation(inputs)


def _dense_layers(network: Network, params: Iterator[tuple[Tensor, Tensor | None]]) -> Iterator[nn.Module]:
    yield nn.Flatten()
    for place, (weight, bias) in enumerate(params):
        if place:
            yield _activation(network.activation)
        yield _filled(nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None), weight, bias)


def _conv_layers(network: ConvNetwork, params: Iterator[tuple[Tensor, Tensor | None]]) -> Iterator[nn.Module]:
    for layer in network.architecture.layers:
        match layer:
            case Conv():
                weight, bias = next(params)
                channels, entering = len(weight), weight.shape[1] * layer.groups
                made = nn.Conv2d(
                    entering,
                    channels,
                    layer.kernel,
                    layer.stride,
                    layer.padding,
                    layer.dilation,
                    layer.groups,
                    bias=bias is not None,
                )
                yield _filled(made, weight, bias)
            case Dense():
                weight, bias = next(params)
                yield _filled(nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None), weight, bias)
            case AvgPool():
                yield nn.AvgPool2d(layer.kernel)
            case MaxPool():
                yield nn.MaxPool2d(layer.kernel, layer.stride, layer.padding)
            case Flatten():
                yield nn.Flatten()
            case Nonlinearity():
                yield _activation(layer.activation)


def _activation(activation: Activation) -> nn.Module:
    return nn.ReLU() if activation == RELU else Applied(activation)


def _filled(layer: nn.Linear | nn.Conv2d, weight: Tensor, bias: Tensor | None) -> nn.Module:
    layer.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone())
    return layer


CURE = "give the code that built the model in training"
USER_CODE = "engram_model_code_"
"""The names of modules that hold the user's code begin with this."""


def readable_view(
    module: nn.Module, input_shape: Sequence[int], task: str | None, normalize: str | None = None
) -> AttackerView[Network] | str:
    """A module as an attack that reconstructs reads it, or why it can't.

    A state_dict does not say what stands between the layers, so both must give the same outputs.
    """
    try:
        view = open_view(module, input_shape=input_shape, task=task, normalize=normalize)
    except EngramError as error:
        problems = getattr(error, "problems", None)
        return "; ".join(problems) if problems else str(error)
    return view


def built_module(code: str, weights: Path) -> nn.Module:
    """What `file.py:build` returns, with the weights of a file, in eval mode."""
    model = builder(code)()
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{code} returned a {type(model).__name__}, not a torch.nn.Module; return the model")
    state = read_state(weights)
    expected = model.state_dict()
    problems = []
    if missing := sorted(expected.keys() - state.keys()):
        problems.append(f"{weights} lacks {listed(missing)}")
    if spare := sorted(state.keys() - expected.keys()):
        problems.append(f"the model of {code} has no {listed(spare)}")
    problems += [
        f"{name} is {list(state[name].shape)} in the file, but {list(value.shape)} in the model"
        for name, value in expected.items()
        if name in state and state[name].shape != value.shape
    ]
    if problems:
        raise UnsupportedModelError(problems, supported=f"weights of the same model; {CURE}")
    model.load_state_dict(state)
    return model.eval()


def builder(code: str) -> Callable[[], object]:
    """The function that `file.py:name` names; the file is run."""
    where, _, name = code.rpartition(":")
    path = Path(where)
    if not where or not name.isidentifier():
        raise ConfigError(f"--model-code must be FILE.py:FUNCTION, got {code!r}; for example my_model.py:build")
    if not path.is_file():
        raise ConfigError(f"--model-code: there is no file {path}; check the path")
    module = _run(path)
    found = getattr(module, name, None)
    if not callable(found):
        raise ConfigError(f"{path} has no function {name}; it must return the model without arguments")

    def build() -> object:
        try:
            return found()
        except Exception as error:  # the user's code may raise anything
            raise ConfigError(f"{code} failed: {type(error).__name__}: {error}; {CURE}") from error

    return build


def _run(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{USER_CODE}{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--model-code: {path} is not Python source; give a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look their module up
    beside = str(path.resolve().parent)
    sys.path.insert(0, beside)  # as if the file were run as a script: it may import what lies next to it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"--model-code: {path} failed: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(beside)
    return module
