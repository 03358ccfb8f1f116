"""Read what torch.export.save wrote (.pt2): a graph in plain JSON and raw weights. Nothing in it is executed.

The graph is a list of operations by name; those that a plain network is made of become layers, all others are
listed in one error. torch.export.load is not used, since it would rebuild and run what the file says.
"""

from __future__ import annotations

import json
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engram.errors import CheckpointError, ConfigError, UnsupportedModelError
from engram.targets.architecture import Architecture
from engram.targets.archive import BROKEN, open_archive
from engram.targets.chain import listed
from engram.targets.convolutional import ConvNetwork
from engram.targets.described import SUPPORTED, described_network
from engram.targets.exported_operations import OPERATIONS, UnlikeError, sizes_of
from engram.targets.layers import Conv, Layer
from engram.targets.networks import DenseNetwork
from engram.targets.state_dict import dense_network

CURE = "save it again with torch.export.save, or save model.state_dict() with torch.save and describe it by --arch"
GRAPH, CONFIG, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json", "data/weights/"
MAX_JSON = 64 * 1024**2
# torch's own numbers of its dtypes in the exported schema
DTYPES = {6: torch.float16, 7: torch.float32, 8: torch.float64, 13: torch.bfloat16}


def is_exported(path: Path) -> bool:
    """Whether a zip file holds an exported graph."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(f"/{GRAPH}") for name in archive.namelist())
    except BROKEN:
        return False  # whoever reads it next says what is wrong


def exported_network(
    path: Path, architecture: Architecture | None = None, *, max_bytes: int
) -> DenseNetwork | ConvNetwork:
    """The network of an exported program; an `architecture` that is given must be the same."""
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
            [f"the file's layers are '{found.text}', not as described; leave --arch and --input-shape out"],
            supported=SUPPORTED,
        )
    return described_network(state, found)


@dataclass(frozen=True, eq=False)
class _Graph:
    """The layers, the shape of one input, and the parameters' names in the order of their use."""

    layers: list[Layer]
    input_shape: tuple[int, ...]
    parameters: list[str]

    @classmethod
    def read(cls, model: Any) -> _Graph:
        """Follow the one line from the input to the output; everything off it is a problem."""
        graph = model["graph_module"]["graph"]
        owners, data_inputs = _signature(model["graph_module"]["signature"])
        layers: list[Layer] = []
        parameters: list[str] = []
        problems = []
        if len(data_inputs) != 1:
            raise UnsupportedModelError([f"it has {len(data_inputs)} inputs, not one"], supported=SUPPORTED)
        line = data_inputs[0]
        for node in graph["nodes"]:
            if node["target"] == "torch.ops.aten.sym_size.int":  # the number of samples, where it is left open
                continue
            given = {one["name"]: one["arg"] for one in node["inputs"]}
            operation = str(node["target"]).removeprefix("torch.ops.")
            first = node["inputs"][0]["arg"].get("as_tensor", {}).get("name") if node["inputs"] else None
            if first != line:
                problems.append(f"{operation} does not take what the operation before it gives: a branch")
            try:
                layer = OPERATIONS[operation](given, graph["tensor_values"])
            except KeyError:
                problems.append(f"the operation {operation}")
            except UnlikeError as unlike:
                problems.append(f"{operation} with {unlike}")
            else:
                layers += [] if layer is None else [layer]
                used = [given[name]["as_tensor"]["name"] for name in ("weight", "bias") if _is_given(given, name)]
                problems += [f"{name} is no parameter of the model" for name in used if name not in owners]
                parameters += [owners[name] for name in used if name in owners]
            line = node["outputs"][0]["as_tensor"]["name"]
        if [one["as_tensor"]["name"] for one in graph["outputs"]] != [line]:
            problems.append("its output is not what the last operation gives")
        if len(set(parameters)) < len(parameters):
            problems.append("layers that share weights")
        if problems:
            raise UnsupportedModelError([listed(problems, "; ")], supported=SUPPORTED)
        return cls(layers, sizes_of(graph["tensor_values"][data_inputs[0]])[1:], parameters)


def _signature(signature: Any) -> tuple[dict[str, str], list[str]]:
    """Which parameter each name of the graph stands for, and the names of the inputs."""
    owners, inputs = {}, []
    for one in signature["input_specs"]:
        if "parameter" in one:
            owners[one["parameter"]["arg"]["name"]] = one["parameter"]["parameter_name"]
        elif "user_input" in one:
            inputs.append(one["user_input"]["arg"]["as_tensor"]["name"])
        else:
            raise UnsupportedModelError(
                [f"an input of kind {', '.join(one)} (a buffer of a normalisation, say)"], supported=SUPPORTED
            )
    return owners, inputs


def _is_given(given: dict[str, Any], name: str) -> bool:
    return name in given and "as_tensor" in given[name]


def _state(archive: zipfile.ZipFile, root: str, names: list[str]) -> dict[str, Tensor]:
    """The named tensors from their raw bytes."""
    config = _json(archive, root + CONFIG)["config"]
    if archive.read(root + "byteorder").strip() != b"little":
        raise ValueError("its bytes are not in little-endian order")
    return {name: _tensor(archive, root, name, config[name]) for name in names}


def _tensor(archive: zipfile.ZipFile, root: str, name: str, entry: Any) -> Tensor:
    meta = entry["tensor_meta"]
    if entry.get("use_pickle") or meta["dtype"] not in DTYPES:
        raise ValueError(f"{name} is pickled, or no floating-point tensor")
    sizes, strides = sizes_of(meta), [one["as_int"] for one in meta["strides"]]
    flat = torch.frombuffer(
        bytearray(archive.read(f"{root}{WEIGHTS}{entry['path_name']}")), dtype=DTYPES[meta["dtype"]]
    )
    offset = meta["storage_offset"]["as_int"]
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    # Strides of 0 would let a few bytes claim any size.
    if min(offset, *strides) < 0 or last >= len(flat) or math.prod(sizes) > len(flat):
        raise ValueError(f"{name} reaches beyond its bytes")
    return flat.as_strided(sizes, strides, offset)


def _json(archive: zipfile.ZipFile, name: str) -> Any:
    if archive.getinfo(name).file_size > MAX_JSON:
        raise ValueError(f"{name} is larger than {MAX_JSON:,} bytes")
    return json.loads(archive.read(name))
