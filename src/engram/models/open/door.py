"""The entry point for models: any model, in any form, becomes an attacker's view.

Commands, sweeps, papers, benchmarks and Python all use `open_view`. From a directory of `engram train` it reads
the weights, the shape of the inputs, the task and the layers; the rest of the card is the owner's.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engram.core import files
from engram.core.errors import CheckpointError, ConfigError, UnsupportedModelError, require_path, whole_numbers
from engram.models.activations import activation_named
from engram.models.architecture import Architecture
from engram.models.networks import SUPPORTED, ConvNetwork, DenseNetwork, Network
from engram.models.open.chain import ReadNetwork
from engram.models.open.files import network_of, read_model
from engram.models.open.sklearn_model import Estimator, estimator_network, is_estimator
from engram.models.row_space import find_update
from engram.models.tasks import infer_task, task_named
from engram.models.view import AttackerView, Features, Normalization

Model = nn.Module | Network | Mapping[str, Tensor] | Path | str | Estimator
"""A module, a network, a state_dict, a path, or a fitted perceptron of scikit-learn."""
MODEL_FILE, CARD_FILE = "model.safetensors", "card.json"
"""The files in a directory of `engram train`."""


ASSUMED = (
    "the file does not say what stands between its layers: ReLU is assumed, in one line. If that is wrong, name "
    "another with --activation, e.g. gelu, or build the model yourself with --model-code"
)


def open_view(
    model: Model,
    *,
    input_shape: Sequence[int] | str | None = None,
    task: str | None = None,
    arch: str | None = None,
    activation: str | None = None,
    normalize: Any = None,
    columns: Sequence[str] | str | None = None,
    head: str | None = None,
    base: Model | None = None,
    base_seed: int | None = None,
) -> AttackerView[Network]:
    """What an attacker sees of a model.

    model        a module, a state_dict, a network, a fitted MLPClassifier or MLPRegressor of scikit-learn, or the
                 path of a file or of a directory of `engram train`
    input_shape  of one input, (3, 32, 32) or "3x32x32"; directories, .pt2, ONNX and Keras files specify their own
    task         what the outputs mean, by name; default: the card's, else binary for one output, else classes
    arch         the layers of a file with convolutions, e.g. "conv3x32 relu flatten 1000 relu 1"
    activation   between the layers, which a state_dict does not say, e.g. "gelu"; default: "relu"
    normalize    what is done to pixels first: "imagenet", "0.5/0.25", (mean, std), or a transform that has both
    columns      the names of a table's columns, if they are public: of `sex=F` and `sex=M` a record has one
    head         read only the tensors whose names begin with this: the head of a larger model
    base         the model that training started from, in any of these forms, if it is known
    base_seed    the seed with which PyTorch made the layers, in place of a base
    """
    shape = None
    if input_shape is not None:
        shape = parse_shape(input_shape) if isinstance(input_shape, str) else tuple(input_shape)
    card = PublicCard.of(model)
    read = _network(model, card, shape, arch, head)
    network, normalization = read.network, read.normalization
    if activation is not None:
        network = _with_activation(read, activation, model)
    found = shape or card.input_shape or network.input_shape or read.input_shape
    if not found:
        inputs = network.sizes[0]
        raise ConfigError(
            f"{model_name(model)} does not specify the shape of its inputs; give it, e.g. --input-shape 3x32x32 "
            f"(in Python input_shape=(3, 32, 32)). The first layer takes {inputs:,} values; if they are not "
            f"images, give --input-shape {inputs}"
        )
    if normalize is not None:
        given = Normalization.of(normalize)
        if normalization not in (None, given):
            raise ConfigError(
                f"{model_name(model)} contains its own normalisation, {normalization.text}; leave --normalize out"
            )
        normalization = given
    if normalization is not None:
        normalization.mean_of(found)  # must fit the channels, like the scale
        network = replace(network, gain=normalization.gain_of(found).to(network.weights[0]))
    outputs, name = network.sizes[-1], task or card.task
    meaning = infer_task(outputs) if name is None else task_named(name, outputs)
    assumed = read.is_assumed and activation is None
    notes = (ASSUMED, *read.notes) if assumed else read.notes
    view = AttackerView(
        network,
        found,
        meaning,
        normalization=normalization,
        features=None if columns is None else parse_columns(columns),
        head=head,
        is_assumed=assumed,
        is_folded=read.is_folded,
        notes=notes,
    )
    if base is None and base_seed is None:
        return view
    if base is not None and base_seed is not None:
        raise ConfigError("--base and --base-seed both say how training started; give one of them")
    if base is None:
        return _with_start(view, _seeded(network, base_seed or 0), f"seed {base_seed}")
    start = _network(base, PublicCard.of(base), found, arch, head).network
    return _with_start(view, start, model_name(base))


def open_recorded(record: Mapping[str, Any]) -> AttackerView[Network]:
    """The model that a run.json names, as it was opened for that run."""
    shape = record.get("input_shape")
    is_shape = isinstance(shape, list) and all(type(side) is int and 0 < side < 2**31 for side in shape)
    told = {name: record.get(name) for name in ("task", "architecture", "activation", "normalization", "head")}
    if wrong := [name for name, value in told.items() if not isinstance(value, str | None)]:
        raise CheckpointError(f"the run's record is damaged: {', '.join(wrong)} must be text; restore run.json")
    return open_view(
        Path(str(record.get("model", ""))),
        input_shape=shape if is_shape else None,
        task=told["task"],
        arch=told["architecture"],
        activation=told["activation"],
        normalize=told["normalization"],
        columns=_recorded_columns(record.get("columns")),
        head=told["head"],
        **_recorded_base(record.get("base")),
    )


def parse_columns(given: Sequence[str] | str) -> Features:
    """From names, or from text: the names as the first line of a csv file has them.

    >>> parse_columns("age,sex=F,sex=M").columns
    ('age', 'sex=F', 'sex=M')
    """
    names = next(csv.reader([given]), []) if isinstance(given, str) else given
    return Features(tuple(names))


def model_name(model: Model) -> str:
    """The model's name in reports and errors."""
    if isinstance(model, str | Path):
        return str(model)
    return model.name if isinstance(model, Network) else type(model).__name__


def parse_shape(text: str) -> tuple[int, ...]:
    """'3x32x32' -> (3, 32, 32).

    >>> parse_shape("3x32x32")
    (3, 32, 32)
    """
    sides = whole_numbers(text.lower().replace("×", "x"), "x")
    if sides is None or min(sides) == 0:
        raise ConfigError(f"--input-shape must be positive numbers joined by x, got {text!r}; for example 3x32x32")
    return sides


@dataclass(frozen=True)
class PublicCard:
    """The public part of the card of a model that engram trained; empty for other models."""

    input_shape: tuple[int, ...] | None = None
    task: str | None = None
    layers: str | None = None
    """Of a network with convolutions, in the form of --arch."""

    @classmethod
    def of(cls, model: Model) -> PublicCard:
        if not isinstance(model, str | Path) or not require_path(model).is_dir():
            return cls()
        path = Path(model) / CARD_FILE
        if (Path(model) / "adapter_config.json").is_file():
            raise CheckpointError(
                f"{model} is an adapter, an update of another model. `engram inspect {model}` shows it; ask which "
                "records it was trained on with `engram membership BASE --model-code FILE.py:FUNCTION --adapter "
                f"{model}`"
            )
        if not path.exists() and _is_foreign(Path(model)):
            return cls()
        if not path.exists():
            raise CheckpointError(
                f"{model} contains no {CARD_FILE}, so it is not a finished target of `engram train`; "
                "give that command's output directory, or a .pt, .pth or .safetensors file"
            )
        try:
            card = files.read_json(path)
            return cls(
                tuple(int(side) for side in card["input_shape"]), str(card["task"]), card["network"].get("layers")
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{path} is not a card that this version can read: {error!r}") from error


def _is_foreign(directory: Path) -> bool:
    """Whether this is a directory as Hugging Face's libraries save models: weights and a config.json."""
    return all((directory / name).exists() for name in (MODEL_FILE, "config.json"))


def _network(
    model: Model, card: PublicCard, shape: tuple[int, ...] | None, arch: str | None, head: str | None
) -> ReadNetwork:
    layers = _layers(model, card, shape, arch)
    if isinstance(model, str | Path):
        path = Path(model)
        read = read_model(path / MODEL_FILE if path.is_dir() else path, layers, head=head)
        # what engram trained is a ReLU network: nothing is assumed
        return ReadNetwork(read.network) if (path / CARD_FILE).exists() else read
    if isinstance(model, Network):
        return ReadNetwork(model)
    if is_estimator(model):
        return estimator_network(model)
    if isinstance(model, nn.Module):
        read = network_of(model.state_dict(), layers, head=head, name=model_name(model))
        return read if head is not None or shape is None else _agreeing(model, read, shape)
    if not isinstance(model, Mapping):
        raise ConfigError(
            f"a {type(model).__name__} is not a model that engram reads; give a module, a state_dict, a path, or "
            "a fitted MLPClassifier or MLPRegressor of scikit-learn"
        )
    return network_of(model, layers, head=head, name=model_name(model))


SAME = 1e-4
"""Share by which outputs may differ that are the same but for rounding."""
ACTIVATIONS = (
    "relu",
    "gelu",
    "silu",
    "tanh",
    "leaky:0.01",
    "leaky:0.1",
    "leaky:0.2",
    "elu",
    "gelu-tanh",
    "sigmoid",
)


FORGOTTEN = 0.02
"""A layer that keeps less than this share of a start did not begin there."""


def _with_start(view: AttackerView[Network], start: Network, name: str) -> AttackerView[Network]:
    """The view with what training added to its first layer."""
    dense = view.dense
    first = start.dense_equivalent if isinstance(start, ConvNetwork) else start
    if dense is None or first is None:
        raise ConfigError("--base is for fully-connected networks; leave it out")
    now, then = dense.network, first
    if now.weights[0].shape != then.weights[0].shape or (now.biases[0] is None) != (then.biases[0] is None):
        raise ConfigError(
            f"{name} has a first layer {list(then.weights[0].shape)}, the model {list(now.weights[0].shape)}; "
            "give the model that training started from"
        )
    kept, update = find_update(now.weights[0], now.biases[0], then.weights[0], then.biases[0])
    if abs(kept) < FORGOTTEN:
        raise ConfigError(
            f"nothing of {name} is left in the model ({kept:.3f} of it): training did not start there; leave "
            "--base and --base-seed out"
        )
    if update is None:
        told = (
            f"the difference from {name} is not of low rank: training used Adam or a similar optimizer, or "
            "started elsewhere. The base is not used"
        )
        return replace(view, notes=(*view.notes, told))
    told = (
        f"training started from {name} and used {update.samples:,} samples: the weights are {update.kept:.3f} "
        f"times the start plus {update.samples:,} directions. A known start gives them away exactly"
    )
    return replace(view, base=name, update=update, notes=(*view.notes, told))


def _seeded(network: Network, seed: int) -> DenseNetwork:
    """Layers as PyTorch makes them after torch.manual_seed(seed), one after the other."""
    weights, biases = [], []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for weight, bias in zip(network.weights, network.biases, strict=True):
            if weight.ndim != 2:
                raise ConfigError("--base-seed is for fully-connected networks; give the start itself with --base")
            layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
            weights.append(layer.weight.detach().to(weight))
            biases.append(None if bias is None else layer.bias.detach().to(bias))
    return DenseNetwork(tuple(weights), tuple(biases))


def _recorded_base(name: Any) -> dict[str, Any]:
    if not isinstance(name, str):
        return {}
    seed = name.removeprefix("seed ")
    is_seed = seed != name and whole_numbers(seed, " ") is not None
    return {"base_seed": int(seed)} if is_seed else {"base": Path(name)}


def _recorded_columns(names: Any) -> list[str] | None:
    if names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        return names
    raise CheckpointError("the run's record is damaged: columns must be names; restore run.json")


def _outputs(module: nn.Module, probes: Tensor) -> Tensor:
    """The module's outputs [n, outputs] in eval mode, for images [n, *shape] or, if it can't take those, flat."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    reasons = []
    try:
        for given in (probes, probes.flatten(1)):
            try:
                outputs: Tensor = module(given)
                return outputs.reshape(len(probes), -1).double().cpu()
            except Exception as error:  # a module may raise anything
                reasons.append(str(error))
    finally:
        for part, mode in modes.items():
            part.training = mode
    shape = "x".join(map(str, probes.shape[1:]))
    raise ConfigError(f"the module can't take inputs of {shape}: {reasons[0]}")


@torch.no_grad()
def _agreeing(module: nn.Module, read: ReadNetwork, shape: tuple[int, ...]) -> ReadNetwork:
    """The network with the activation that gives the module's own outputs; an error if none does."""
    example = next(module.parameters())
    probes = torch.randn(16, *shape, generator=torch.Generator().manual_seed(0)).to(example)
    own = _outputs(module, probes)
    kinds = (
        [read.network.activation] if isinstance(read.network, ConvNetwork) else map(activation_named, ACTIVATIONS)
    )
    for kind in kinds:
        network = replace(read.network, activation=kind)
        outputs = network.to(dtype=torch.float64)(probes.double().cpu())
        shown = (outputs, outputs.sigmoid(), outputs.softmax(1), outputs.log_softmax(1))
        if any(one.shape == own.shape and float((one - own).norm()) <= SAME * float(own.norm()) for one in shown):
            return replace(read, network=network, is_assumed=False)
    raise UnsupportedModelError(
        ["its layers alone give other outputs: it is not a plain chain of layers with one known activation"],
        supported=SUPPORTED,
    )


def _with_activation(read: ReadNetwork, name: str, model: Model) -> Network:
    """The network with the activation of that name; a model that specifies its own must agree."""
    chosen, own = activation_named(name), read.network.activation
    if own != chosen and not read.is_assumed:
        raise ConfigError(
            f"{model_name(model)} specifies {own} as its activation, not {chosen}; leave --activation out"
        )
    return replace(read.network, activation=chosen)


def _layers(
    model: Model, card: PublicCard, shape: tuple[int, ...] | None, arch: str | None
) -> Architecture | None:
    """The layers that the card or `arch` describes; they must match a model that specifies its own."""
    own = card.layers
    if isinstance(model, Network):
        own = getattr(getattr(model, "architecture", None), "text", "")
    if arch is None and card.layers is None:
        return None
    shape = shape or card.input_shape or (model.input_shape if isinstance(model, Network) else None)
    if shape is None:
        raise ConfigError(
            "--arch needs the shape of one input, e.g. --input-shape 3x32x32, in Python input_shape=(3, 32, 32)"
        )
    described = Architecture.parse(arch or card.layers or "", shape)
    is_whole = isinstance(model, Network) or card.input_shape is not None
    if is_whole and described.text != own:
        raise ConfigError(f"{model_name(model)} specifies its own layers, which differ; leave --arch out")
    return described
