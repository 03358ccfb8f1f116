"""Keras models as .keras or .h5 files: Dense and Conv2D stacks. The configuration is JSON, the weights are HDF5.

Nothing is executed: Keras is not used, and a Lambda layer, which would hold code, is refused like any other layer
that is not known. Keras keeps images as [H, W, C]; weights are turned to [C, H, W].
"""

from __future__ import annotations

import io
import json
import re
import resource
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.core.errors import CheckpointError, ConfigError, UnsupportedModelError, optional
from engram.core.files import BROKEN, aligned, open_archive
from engram.models.activations import activation_named
from engram.models.architecture import AvgPool, Flatten, MaxPool, MisfitError, Nonlinearity, Shape
from engram.models.open.chain import (
    SUPPORTED,
    Affine,
    ReadNetwork,
    Step,
    UnlikeError,
    Weighted,
    assembled,
    channels_first_columns,
)
from engram.models.open.state_dict import listed

CURE = "save it again with model.save('model.keras')"
MAGIC = b"\x89HDF\r\n\x1a\n"
CONFIG, WEIGHTS = "config.json", "model.weights.h5"
MAX_CONFIG = 64 * 1024**2
MAX_LAYERS = 256


def is_keras(path: Path) -> bool:
    """Whether a zip file is a .keras archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {CONFIG, WEIGHTS} <= set(archive.namelist())
    except BROKEN:
        return False


def keras_network(path: Path, *, max_bytes: int) -> ReadNetwork:
    """The network of a .keras archive or of an HDF5 file with a model's configuration."""
    h5py = optional("h5py", wanted_by="Keras files", install="engram[keras]")
    try:
        if zipfile.is_zipfile(path):
            with open_archive(path, max_bytes, CURE) as archive:
                if archive.getinfo(CONFIG).file_size > MAX_CONFIG:
                    raise ValueError(f"{CONFIG} is larger than {MAX_CONFIG:,} bytes")
                config = json.loads(archive.read(CONFIG))
                content = archive.read(WEIGHTS)
            _, arrays = _hdf5(h5py, lambda: io.BytesIO(content), len(content))
        else:
            text, arrays = _hdf5(h5py, lambda: path, path.stat().st_size)
            if text is None:
                raise ValueError("it holds weights without a model's configuration")
            config = json.loads(text)
        layers, shape = _layers(config)
        steps, notes = _steps(layers, shape, _variables(arrays, layers))
    except (*BROKEN, LookupError, TypeError, AttributeError, RecursionError, RuntimeError) as error:
        raise CheckpointError(f"{path} can't be read as a Keras model ({error}); {CURE}") from error
    return assembled(steps, shape, notes)


Variables = Callable[[str], list[Tensor]]
Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]
HDF5_SECONDS = 60.0
LEAST_ROOM, INFLATION = 64 * 1024**2, 16
"""Arrays may claim this many times the bytes of their file, or 64 MB: Keras does not even compress them."""


def _hdf5(h5py: Any, source: Callable[[], Any], size: int) -> tuple[str | None, Arrays]:
    """The configuration and all arrays of an HDF5 file by path, read in another process with a time limit.

    On a damaged file libhdf5 may loop without end or crash, and nothing in this process could stop it. Forked, the
    process has all it needs; it answers in plain bytes.
    """
    context = get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_send_hdf5, args=(h5py, source, max(LEAST_ROOM, INFLATION * size), theirs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: it needs none of theirs
        child.start()
    theirs.close()  # so that the pipe ends with the child
    try:
        if not ours.poll(HDF5_SECONDS):
            raise ValueError(f"libhdf5 had no answer after {HDF5_SECONDS:.0f} s")
        told = json.loads(ours.recv_bytes())
        if "problem" in told:
            raise ValueError(told["problem"])
        arrays: Arrays = {}
        for name, kind, shape in told["arrays"]:
            arrays[name] = np.frombuffer(bytearray(ours.recv_bytes()), np.dtype(kind)).reshape(shape)
        return told["config"], arrays
    except EOFError as error:
        raise ValueError("libhdf5 crashed on it") from error
    finally:
        child.kill()
        child.join()
        ours.close()


def _send_hdf5(h5py: Any, source: Callable[[], Any], most: int, pipe: Connection) -> None:
    """In the other process: read everything, then send what it is, then the bytes of each array."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(HDF5_SECONDS),) * 2)  # it ends even if nobody is left to end it
    try:
        with h5py.File(source(), "r") as file:
            text = file.attrs.get("model_config")
            text = text.decode() if isinstance(text, bytes) else text
            found = _datasets(file, h5py, "", [])
            if sum(own.size * own.dtype.itemsize for _, own in found) > most:
                raise ValueError(f"its arrays claim more than {most:,} bytes")
            arrays = [(name, _array(own)) for name, own in found]
        listed = [(name, array.dtype.str, array.shape) for name, array in arrays]
        answer = json.dumps({"config": None if text is None else str(text), "arrays": listed})
    except (*BROKEN, LookupError, TypeError, AttributeError, RecursionError) as error:
        pipe.send_bytes(json.dumps({"problem": str(error)[:500]}).encode())
        return
    pipe.send_bytes(answer.encode())
    for _, array in arrays:
        pipe.send_bytes(array.tobytes())


def _datasets(group: Any, h5py: Any, prefix: str, found: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """All arrays below a group by path; links to other files are never followed, nor a group that holds itself."""
    if len(found) > MAX_ARRAYS or prefix.count("/") > MAX_DEPTH:
        raise ValueError("too many arrays, or groups within groups")
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"{name} is a link, not an array")
        one = group[name]
        if isinstance(one, h5py.Group):
            _datasets(one, h5py, f"{prefix}{name}/", found)
        elif isinstance(one, h5py.Dataset):
            found.append((f"{prefix}{name}", one))
    return found


MAX_ARRAYS, MAX_DEPTH = 4096, 32


def _array(dataset: Any) -> np.ndarray[Any, np.dtype[Any]]:
    if dataset.external or getattr(dataset, "is_virtual", False):
        raise ValueError("weights in another file")
    array = np.asarray(dataset)
    return array if array.dtype.kind in "if" else np.zeros(0, np.uint8)  # texts, refused if a layer needs them


def _variables(arrays: Arrays, layers: list[KerasLayer]) -> Variables:
    """The variables of a layer by its name, in the order in which the layer keeps them."""
    is_new = any(name.startswith("layers/") for name in arrays)
    is_old = any(name.startswith("model_weights/") for name in arrays)
    root = "layers/" if is_new else "model_weights/" if is_old else ""
    stored = _stored_names(layers) if is_new else {}

    def of(layer: str) -> list[Tensor]:
        place = f"{root}{stored.get(layer, layer)}/"
        found = [(name.removeprefix(place), own) for name, own in arrays.items() if name.startswith(place)]
        found = [(name, own) for name, own in found if not name.startswith("seed_generator")]
        if is_new:
            found.sort(key=lambda one: [int(part) if part.isdecimal() else -1 for part in one[0].split("/")])
        else:
            found.sort(key=lambda one: ORDER.get(one[0].rpartition("/")[2].partition(":")[0], 9))
        return [_tensor(own) for _, own in found]

    return of


def _stored_names(layers: list[KerasLayer]) -> dict[str, str]:
    """Where a .keras archive keeps each layer: by its kind, numbered in their order, whatever its own name.

    >>> _stored_names([KerasLayer("Dense", "a", {}), KerasLayer("Conv2D", "b", {}), KerasLayer("Dense", "c", {})])
    {'a': 'dense', 'b': 'conv2d', 'c': 'dense_1'}
    """
    counts: dict[str, int] = {}
    found = {}
    for layer in layers:
        kind = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", layer.kind))
        kind = re.sub("([a-z])([A-Z])", r"\1_\2", kind).lower()
        number = counts.setdefault(kind, 0)
        found[layer.name] = f"{kind}_{number}" if number else kind
        counts[kind] += 1
    return found


ORDER = {
    "kernel": 0, "depthwise_kernel": 0, "gamma": 0, "mean": 0, "bias": 1, "beta": 1, "variance": 1,
    "moving_mean": 2, "moving_variance": 3, "count": 4,
}  # fmt: skip


def _tensor(array: np.ndarray[Any, np.dtype[Any]]) -> Tensor:
    if array.dtype.kind == "i" and array.ndim == 0:  # a counter
        return torch.tensor(int(array))
    if array.dtype.kind != "f" or not array.size or not np.isfinite(array).all():
        raise ValueError("weights that are not finite numbers")
    return aligned(torch.from_numpy(np.ascontiguousarray(array)))


@dataclass(frozen=True)
class KerasLayer:
    kind: str
    name: str
    config: Mapping[str, Any]


def _layers(config: Any) -> tuple[list[KerasLayer], Shape | None]:
    """The layers of a Sequential, or of a functional model without branches, and the shape of one input."""
    inner = config["config"]
    listed_layers = inner["layers"] if isinstance(inner, dict) else inner
    if not 0 < len(listed_layers) <= MAX_LAYERS:
        raise ValueError(f"{len(listed_layers)} layers")
    if config["class_name"] not in ("Sequential", "Functional", "Model"):
        raise UnsupportedModelError([f"a {config['class_name']}"], supported=SUPPORTED)
    if config["class_name"] != "Sequential":
        _require_chain(listed_layers)
    layers = [KerasLayer(one["class_name"], str(one["config"]["name"]), one["config"]) for one in listed_layers]
    shape = None
    for layer in layers:
        given = layer.config.get("batch_shape") or layer.config.get("batch_input_shape")
        if shape is None and given is not None:
            sides = [int(side) for side in given[1:]]
            shape = (sides[2], sides[0], sides[1]) if len(sides) == 3 else tuple(sides)
    return layers, shape


def _require_chain(layers: Any) -> None:
    """In a functional model every layer must take the one before it."""
    previous = None
    for one in layers:
        text = json.dumps(one.get("inbound_nodes", []))
        before = [name for name in (other["config"]["name"] for other in layers) if f'"{name}"' in text]
        if before not in ([], [previous]) or (previous is not None and not before):
            name = one["config"]["name"]
            problem = f"{name} takes {', '.join(before) or 'nothing'}: a branch"
            raise UnsupportedModelError([problem], supported=SUPPORTED)
        previous = one["config"]["name"]


def _steps(layers: list[KerasLayer], shape: Shape | None, variables: Variables) -> tuple[list[Step], list[str]]:
    steps: list[Step] = []
    problems: list[str] = []
    flat_from: Shape | None = None
    for place, layer in enumerate(layers):
        try:
            made = _read(layer, variables(layer.name), place == len(layers) - 1, flat_from)
        except KeyError:
            problems.append(f"{layer.name} ({layer.kind})")
            continue
        except UnlikeError as unlike:
            problems.append(f"{layer.name} ({layer.kind}): {unlike}")
            continue
        flat_from = None if any(isinstance(step, Weighted) for step in made) else flat_from
        for step in made:
            if isinstance(step, Flatten) and shape is not None and len(shape) == 3:
                flat_from = shape
            if shape is not None:
                try:
                    shape = (
                        step.layer.shape_after(shape)
                        if isinstance(step, Weighted)
                        else (shape if isinstance(step, Affine) else step.shape_after(shape))
                    )
                except MisfitError as misfit:
                    problems.append(f"{layer.name}: {misfit}")
        steps += made
    if problems:
        raise UnsupportedModelError([f"layers that can't be read: {listed(problems)}"], supported=SUPPORTED)
    return steps, []


def _read(layer: KerasLayer, own: list[Tensor], is_last: bool, flat_from: Shape | None) -> list[Step]:
    config = layer.config
    if layer.kind in ("InputLayer", "Dropout", "SpatialDropout2D", "GaussianNoise", "RandomFlip", "RandomRotation",
                      "RandomTranslation", "RandomZoom", "RandomCrop"):  # fmt: skip
        return []
    if layer.kind in ("Dense", "Conv2D") and config.get("data_format") != "channels_first":
        kernel, bias = own[0], own[1] if config["use_bias"] else None
        if layer.kind == "Dense":
            weight = kernel.T
            weight = weight if flat_from is None else channels_first_columns(weight, flat_from)
            made: Step = Weighted(weight, bias, name=layer.name)
        else:
            made = _conv(layer, kernel, bias)
        return [made, *_activation(config["activation"], is_last)]
    simple: dict[str, Callable[[], list[Step]]] = {
        "Activation": lambda: _activation(config["activation"], is_last),
        "ReLU": lambda: [_relu(config)],
        "LeakyReLU": lambda: [_leaky(config)],
        "ELU": lambda: [_elu(config)],
        "Softmax": list,
        "Flatten": lambda: [Flatten()],
        "Rescaling": lambda: [_rescaling(layer)],
        "Normalization": lambda: [_normalization(layer, own)],
        "BatchNormalization": lambda: [_batch_norm(layer, own)],
        "MaxPooling2D": lambda: [MaxPool(*_pool(config))],
        "AveragePooling2D": lambda: [AvgPool(_pool(config, same=True)[0])],
    }  # fmt: skip
    return simple[layer.kind]()


def _rescaling(layer: KerasLayer) -> Affine:
    scale, offset = (
        torch.tensor(layer.config[name], dtype=torch.float64).flatten() for name in ("scale", "offset")
    )
    return Affine(scale, offset.expand_as(scale), layer.name)


def _conv(layer: KerasLayer, kernel: Tensor, bias: Tensor | None) -> Weighted:
    config = layer.config
    (height, width), stride, dilation = (
        _pair(config, name) for name in ("kernel_size", "strides", "dilation_rate")
    )
    if height != width or stride[0] != stride[1] or dilation[0] != dilation[1]:
        raise UnlikeError("kernels, strides or dilation that are not square")
    padding = 0
    if config["padding"] == "same":
        reach = dilation[0] * (height - 1)
        if reach % 2 or stride[0] != 1:
            raise UnlikeError("padding 'same' with an even kernel or a stride, which pads one side more")
        padding = reach // 2
    elif config["padding"] != "valid":
        raise UnlikeError(f"padding {config['padding']!r}")
    weight = kernel.permute(3, 2, 0, 1)
    return Weighted(weight, bias, stride[0], padding, dilation[0], int(config.get("groups", 1)), layer.name)


def _pool(config: Mapping[str, Any], *, same: bool = False) -> tuple[int, int]:
    kernel, stride = _pair(config, "pool_size"), _pair(config, "strides", default="pool_size")
    if kernel[0] != kernel[1] or stride[0] != stride[1] or config["padding"] != "valid":
        raise UnlikeError("squares with unequal sides, or padding")
    if same and stride != kernel:
        raise UnlikeError("overlapping squares")
    return kernel[0], stride[0]


def _pair(config: Mapping[str, Any], name: str, default: str | None = None) -> tuple[int, int]:
    value = config.get(name)
    if value is None and default is not None:
        return _pair(config, default)
    first, second = value if isinstance(value, list | tuple) else (value, value)
    return int(first), int(second)


def _activation(name: Any, is_last: bool) -> list[Step]:
    if name in (None, "linear") or (is_last and name in ("softmax", "sigmoid", "log_softmax")):
        return []
    if not isinstance(name, str):
        name = str(name.get("class_name", name)) if isinstance(name, dict) else str(name)
    if name == "leaky_relu":
        return [Nonlinearity(activation_named("leaky:0.2"))]
    return [Nonlinearity(_known(name))]


def _known(name: str) -> Any:
    try:
        return activation_named(name)
    except ConfigError:
        raise UnlikeError(f"activation {name!r}") from None


def _relu(config: Mapping[str, Any]) -> Nonlinearity:
    if config.get("max_value") is not None or config.get("threshold"):
        raise UnlikeError("a maximum or a threshold")
    return Nonlinearity(activation_named(f"leaky:{config.get('negative_slope') or 0:g}"))


def _leaky(config: Mapping[str, Any]) -> Nonlinearity:
    return Nonlinearity(activation_named(f"leaky:{config.get('negative_slope', config.get('alpha', 0.3)):g}"))


def _elu(config: Mapping[str, Any]) -> Nonlinearity:
    if config.get("alpha", 1.0) != 1.0:
        raise UnlikeError(f"alpha {config['alpha']}")
    return Nonlinearity(activation_named("elu"))


def _normalization(layer: KerasLayer, own: list[Tensor]) -> Affine:
    mean, variance = layer.config.get("mean"), layer.config.get("variance")
    if mean is None and len(own) >= 2:
        mean, variance = own[0], own[1]
    if mean is None or layer.config.get("invert"):
        raise UnlikeError("no mean and variance")
    mean, variance = (torch.as_tensor(value, dtype=torch.float64).flatten() for value in (mean, variance))
    scale = 1 / variance.sqrt().clamp(min=1e-7)
    return Affine(scale, -mean * scale, layer.name)


def _batch_norm(layer: KerasLayer, own: list[Tensor]) -> Affine:
    config, rest = layer.config, list(own)
    axis = config.get("axis", -1)
    if axis not in (-1, 3, 1, [-1], [3], [1]):
        raise UnlikeError(f"axis {axis}")
    gamma = rest.pop(0) if config.get("scale", True) else None
    beta = rest.pop(0) if config.get("center", True) else None
    return Affine.batch_norm(rest[0], rest[1], gamma, beta, float(config["epsilon"]), layer.name)
