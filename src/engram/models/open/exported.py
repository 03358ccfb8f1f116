"""Read files of torch.export.save (.pt2): a graph in plain JSON and raw weights. Nothing in them is executed.

The graph is a list of operations by name. Those of a plain network become layers; one error lists all others.
torch.export.load is not used, since it would rebuild and run what the file says.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engram.core.errors import CheckpointError, ConfigError, UnsupportedModelError
from engram.core.files import BROKEN, open_archive
from engram.models.architecture import Architecture, AvgPool, Conv, Dense, Flatten, Layer, ReLU
from engram.models.networks import ConvNetwork, DenseNetwork
from engram.models.open.described import SUPPORTED, described_network
from engram.models.open.state_dict import dense_network, listed


class UnlikeError(Exception):
    """An argument that a plain layer does not support."""


def sizes_of(meta: Any) -> tuple[int, ...]:
    """Sizes of a tensor; a symbolic size (any batch size) counts as 1."""
    sizes = tuple(size.get("as_int", 1) for size in meta["sizes"])
    if not all(type(size) is int and 0 < size < 2**31 for size in sizes):
        raise ValueError(f"sizes {sizes}")
    return sizes


def _square(given: dict[str, Any], name: str, default: int) -> int:
    """The side k of [k, k], [k] or k."""
    value = given.get(name, {"as_ints": []})
    sides = value.get("as_ints", [value.get("as_int")] if "as_int" in value else None)
    if sides is None or len(set(sides)) > 1 or not all(type(side) is int for side in sides):
        raise UnlikeError(f"{name} {value}")
    return sides[0] if sides else default


def _conv(given: dict[str, Any], values: Any) -> Layer:
    for name, plain in (("dilation", 1), ("groups", 1)):
        if _square(given, name, plain) != plain:
            raise UnlikeError(f"{name} {_square(given, name, plain)}")
    sizes = sizes_of(values[given["weight"]["as_tensor"]["name"]])
    if len(sizes) != 4 or sizes[2] != sizes[3]:
        raise UnlikeError(f"kernels {list(sizes)}")
    return Conv(sizes[2], sizes[0], _square(given, "stride", 1), _square(given, "padding", 0))


def _avg_pool(given: dict[str, Any], values: Any) -> Layer:
    kernel = _square(given, "kernel_size", 0)
    if _square(given, "stride", kernel) != kernel or _square(given, "padding", 0) != 0:
        raise UnlikeError("overlapping squares, or padding")
    if given.get("ceil_mode", {}).get("as_bool") or "as_int" in given.get("divisor_override", {}):
        raise UnlikeError("ceil_mode or divisor_override")
    return AvgPool(kernel)


def _flatten(given: dict[str, Any], values: Any) -> Layer:
    if given.get("start_dim", {}).get("as_int") != 1 or given.get("end_dim", {"as_int": -1}).get("as_int") != -1:
        raise UnlikeError("dimensions other than all but the first")
    return Flatten()


def _view(given: dict[str, Any], values: Any) -> Layer:
    """view(n, -1) and reshape(n, -1) are flatten, whatever n the model was exported with."""
    asked = given.get("size", given.get("shape", {}))
    before = sizes_of(values[given["self"]["as_tensor"]["name"]])
    # A symbolic size is the number of samples, which `sizes_of` counts as 1.
    sizes = asked.get("as_ints") or [one.get("as_int", 1) for one in asked.get("as_sym_ints", [])]
    rest = math.prod(before[1:])
    if sizes not in ([before[0], -1], [before[0], rest], [-1, rest]):
        raise UnlikeError(f"sizes {sizes}")
    return Flatten()


def _linear(given: dict[str, Any], values: Any) -> Layer:
    return Dense(sizes_of(values[given["weight"]["as_tensor"]["name"]])[0])


def _nothing(given: dict[str, Any], values: Any) -> None:
    """Dropout in evaluation mode, which does nothing."""
    if given.get("train", {}).get("as_bool"):
        raise UnlikeError("training mode; export model.eval()")


OPERATIONS: dict[str, Callable[[dict[str, Any], Any], Layer | None]] = {
    "aten.conv2d.default": _conv,
    "aten.relu.default": lambda given, values: ReLU(),
    "aten.relu_.default": lambda given, values: ReLU(),
    "aten.avg_pool2d.default": _avg_pool,
    "aten.flatten.using_ints": _flatten,
    "aten.view.default": _view,
    "aten.reshape.default": _view,
    "aten.linear.default": _linear,
    "aten.dropout.default": _nothing,
}


CURE = "save it again with torch.export.save, or save model.state_dict() with torch.save and describe it by --arch"
GRAPH, CONFIG, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json", "data/weights/"
MAX_JSON = 64 * 1024**2
# torch's numbers for its dtypes in the exported schema
DTYPES = {6: torch.float16, 7: torch.float32, 8: torch.float64, 13: torch.bfloat16}


def is_exported(path: Path) -> bool:
    """Whether a zip file contains an exported graph."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(f"/{GRAPH}") for name in archive.namelist())
    except BROKEN:
        return False  # the next reader reports what is wrong


def exported_network(
    path: Path, architecture: Architecture | None = None, *, max_bytes: int
) -> DenseNetwork | ConvNetwork:
    """The network of an exported program; `architecture`, if given, must be the same."""
    try:
        with open_archive(path, max_bytes, CURE) as archive:
            root = next(name for name in archive.namelist() if name.endswith(f"/{GRAPH}")).removesuffix(GRAPH)
            graph = _Graph.read(_json(archive, root + GRAPH))
            state = _state(archive, root, graph.parameters)
    except (*BROKEN, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged or of an unknown version ({error!r}); {CURE}") from error
    if not any(isinstance(layer, Conv) for layer in graph.layers):
        return dense_network(state)
    try:
        found = Architecture(graph.input_shape, tuple(graph.layers))
    except ConfigError as error:
        raise UnsupportedModelError([str(error)], supported=SUPPORTED) from error
    if architecture not in (None, found):
        raise UnsupportedModelError(
            [f"the file's layers are '{found.text}', not the ones given; leave --arch and --input-shape out"],
            supported=SUPPORTED,
        )
    return described_network(state, found)


@dataclass(frozen=True, eq=False)
class _Graph:
    """The layers, the shape of one input, and the parameters' names in order of use."""

    layers: list[Layer]
    input_shape: tuple[int, ...]
    parameters: list[str]

    @classmethod
    def read(cls, model: Any) -> _Graph:
        """Follow the chain from the input to the output; everything off it is a problem."""
        graph = model["graph_module"]["graph"]
        owners, data_inputs = _signature(model["graph_module"]["signature"])
        layers: list[Layer] = []
        parameters: list[str] = []
        problems = []
        if len(data_inputs) != 1:
            raise UnsupportedModelError([f"it has {len(data_inputs)} inputs, not one"], supported=SUPPORTED)
        line = data_inputs[0]
        for node in graph["nodes"]:
            if node["target"] == "torch.ops.aten.sym_size.int":  # the number of samples, if it is dynamic
                continue
            given = {one["name"]: one["arg"] for one in node["inputs"]}
            operation = str(node["target"]).removeprefix("torch.ops.")
            first = node["inputs"][0]["arg"].get("as_tensor", {}).get("name") if node["inputs"] else None
            if first != line:
                problems.append(f"{operation} does not take the output of the operation before it: a branch")
            try:
                layer = OPERATIONS[operation](given, graph["tensor_values"])
            except KeyError:
                problems.append(f"unsupported operation {operation}")
            except UnlikeError as unlike:
                problems.append(f"{operation} with {unlike}")
            else:
                layers += [] if layer is None else [layer]
                used = [given[name]["as_tensor"]["name"] for name in ("weight", "bias") if _is_given(given, name)]
                problems += [f"{name} is not a parameter of the model" for name in used if name not in owners]
                parameters += [owners[name] for name in used if name in owners]
            line = node["outputs"][0]["as_tensor"]["name"]
        if [one["as_tensor"]["name"] for one in graph["outputs"]] != [line]:
            problems.append("its output is not that of the last operation")
        if len(set(parameters)) < len(parameters):
            problems.append("layers that share weights")
        if problems:
            raise UnsupportedModelError([listed(problems, "; ")], supported=SUPPORTED)
        return cls(layers, sizes_of(graph["tensor_values"][data_inputs[0]])[1:], parameters)


def _signature(signature: Any) -> tuple[dict[str, str], list[str]]:
    """The parameter that each name in the graph stands for, and the names of the inputs."""
    owners, inputs = {}, []
    for one in signature["input_specs"]:
        if "parameter" in one:
            owners[one["parameter"]["arg"]["name"]] = one["parameter"]["parameter_name"]
        elif "user_input" in one:
            inputs.append(one["user_input"]["arg"]["as_tensor"]["name"])
        else:
            raise UnsupportedModelError(
                [f"an input of kind {', '.join(one)} (e.g. a buffer of a normalisation)"], supported=SUPPORTED
            )
    return owners, inputs


def _is_given(given: dict[str, Any], name: str) -> bool:
    return name in given and "as_tensor" in given[name]


def _state(archive: zipfile.ZipFile, root: str, names: list[str]) -> dict[str, Tensor]:
    """The named tensors, from their raw bytes."""
    config = _json(archive, root + CONFIG)["config"]
    if archive.read(root + "byteorder").strip() != b"little":
        raise ValueError("its bytes are not in little-endian order")
    return {name: _tensor(archive, root, name, config[name]) for name in names}


def _tensor(archive: zipfile.ZipFile, root: str, name: str, entry: Any) -> Tensor:
    meta = entry["tensor_meta"]
    if entry.get("use_pickle") or meta["dtype"] not in DTYPES:
        raise ValueError(f"{name} is pickled, or not a floating-point tensor")
    sizes, strides = sizes_of(meta), [one["as_int"] for one in meta["strides"]]
    flat = torch.frombuffer(
        bytearray(archive.read(f"{root}{WEIGHTS}{entry['path_name']}")), dtype=DTYPES[meta["dtype"]]
    )
    offset = meta["storage_offset"]["as_int"]
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    # With strides of 0 a few bytes could claim any size.
    if min(offset, *strides) < 0 or last >= len(flat) or math.prod(sizes) > len(flat):
        raise ValueError(f"{name} extends past its bytes")
    return flat.as_strided(sizes, strides, offset)


def _json(archive: zipfile.ZipFile, name: str) -> Any:
    if archive.getinfo(name).file_size > MAX_JSON:
        raise ValueError(f"{name} is larger than {MAX_JSON:,} bytes")
    return json.loads(archive.read(name))
