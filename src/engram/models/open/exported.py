"""Read files of torch.export.save (.pt2): a graph in plain JSON and raw weights. Nothing in them is executed.

The graph is a list of operations by name. Those of a plain network become layers; one error lists all others.
torch.export.load is not used, since it would rebuild and run what the file says.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engram.core.errors import CheckpointError, UnsupportedModelError
from engram.core.files import BROKEN, open_archive
from engram.models.activations import DEFAULT_LEAK, Leaky, activation_named
from engram.models.architecture import Architecture, AvgPool, Flatten, MaxPool, Nonlinearity
from engram.models.networks import ConvNetwork
from engram.models.open.chain import SUPPORTED, Affine, ReadNetwork, Step, UnlikeError, Weighted, assembled
from engram.models.open.state_dict import listed, unreadable_values


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


Values = Mapping[str, Tensor]
"""Parameters and buffers by their name in the graph."""


def _conv(given: dict[str, Any], meta: Any, values: Values) -> Step:
    weight = _value(given, "weight", values)
    assert weight is not None
    if weight.ndim != 4 or weight.shape[2] != weight.shape[3]:
        raise UnlikeError(f"kernels {list(weight.shape)}")
    if "as_string" in given.get("padding", {}):
        raise UnlikeError(f"padding {given['padding']['as_string']!r}; give it as a number")
    return Weighted(
        weight,
        _value(given, "bias", values),
        _square(given, "stride", 1),
        _square(given, "padding", 0),
        _square(given, "dilation", 1),
        _square(given, "groups", 1),
    )


def _linear(given: dict[str, Any], meta: Any, values: Values) -> Step:
    weight = _value(given, "weight", values)
    assert weight is not None
    return Weighted(weight, _value(given, "bias", values))


def _batch_norm(given: dict[str, Any], meta: Any, values: Values) -> Step:
    if given.get("training", {}).get("as_bool"):
        raise UnlikeError("training mode; export model.eval()")
    mean, variance = (_value(given, name, values) for name in ("running_mean", "running_var"))
    if mean is None or variance is None:
        raise UnlikeError("statistics of the batch; export a model with running statistics")
    gamma, beta = (_value(given, name, values) for name in ("weight", "bias"))
    return Affine.batch_norm(mean, variance, gamma, beta, float(given["eps"]["as_float"]), "batch_norm")


def _avg_pool(given: dict[str, Any], meta: Any, values: Values) -> Step:
    kernel = _square(given, "kernel_size", 0)
    if _square(given, "stride", kernel) != kernel or _square(given, "padding", 0) != 0:
        raise UnlikeError("overlapping squares, or padding")
    if given.get("ceil_mode", {}).get("as_bool") or "as_int" in given.get("divisor_override", {}):
        raise UnlikeError("ceil_mode or divisor_override")
    return AvgPool(kernel)


def _max_pool(given: dict[str, Any], meta: Any, values: Values) -> Step:
    kernel = _square(given, "kernel_size", 0)
    if given.get("ceil_mode", {}).get("as_bool") or _square(given, "dilation", 1) != 1:
        raise UnlikeError("ceil_mode or dilation")
    return MaxPool(kernel, _square(given, "stride", kernel), _square(given, "padding", 0))


def _global_pool(given: dict[str, Any], meta: Any, values: Values) -> Step:
    before = sizes_of(meta[given["self"]["as_tensor"]["name"]])
    if _square(given, "output_size", 0) != 1 or before[2] != before[3]:
        raise UnlikeError("other than one value a channel")
    return AvgPool(before[2])


def _flatten(given: dict[str, Any], meta: Any, values: Values) -> Step:
    if given.get("start_dim", {}).get("as_int") != 1 or given.get("end_dim", {"as_int": -1}).get("as_int") != -1:
        raise UnlikeError("dimensions other than all but the first")
    return Flatten()


def _view(given: dict[str, Any], meta: Any, values: Values) -> Step:
    """view(n, -1) and reshape(n, -1) are flatten, whatever n the model was exported with."""
    asked = given.get("size", given.get("shape", {}))
    before = sizes_of(meta[given["self"]["as_tensor"]["name"]])
    # A symbolic size is the number of samples, which `sizes_of` counts as 1.
    sizes = asked.get("as_ints") or [one.get("as_int", 1) for one in asked.get("as_sym_ints", [])]
    rest = math.prod(before[1:])
    if sizes not in ([before[0], -1], [before[0], rest], [-1, rest]):
        raise UnlikeError(f"sizes {sizes}")
    return Flatten()


def _nothing(given: dict[str, Any], meta: Any, values: Values) -> None:
    """Dropout in evaluation mode, which does nothing."""
    if given.get("train", {}).get("as_bool"):
        raise UnlikeError("training mode; export model.eval()")


def _act(name: str) -> Reader:
    return lambda given, meta, values: Nonlinearity(activation_named(name))


def _leaky(given: dict[str, Any], meta: Any, values: Values) -> Step:
    return Nonlinearity(Leaky(float(given.get("negative_slope", {}).get("as_float", DEFAULT_LEAK))))


def _gelu(given: dict[str, Any], meta: Any, values: Values) -> Step:
    tanh = given.get("approximate", {}).get("as_string") == "tanh"
    return Nonlinearity(activation_named("gelu-tanh" if tanh else "gelu"))


def _elu(given: dict[str, Any], meta: Any, values: Values) -> Step:
    _only(given, {"alpha": 1.0, "scale": 1.0, "input_scale": 1.0})
    return Nonlinearity(activation_named("elu"))


def _softplus(given: dict[str, Any], meta: Any, values: Values) -> Step:
    _only(given, {"beta": 1.0, "threshold": 20.0})
    return Nonlinearity(activation_named("softplus"))


def _only(given: dict[str, Any], plain: dict[str, float]) -> None:
    """Arguments that must have their usual value."""
    for name, usual in plain.items():
        value = given.get(name, {"as_float": usual})
        if float(value.get("as_float", value.get("as_int", usual))) != usual:
            raise UnlikeError(f"{name} {value}")


def _value(given: dict[str, Any], name: str, values: Values) -> Tensor | None:
    if not _is_given(given, name):
        return None
    own = given[name]["as_tensor"]["name"]
    if own not in values:
        raise UnlikeError(f"{name} {own}, which is not a parameter of the model")
    return values[own]


Reader = Callable[[dict[str, Any], Any, Values], Step | None]
OPERATIONS: dict[str, Reader] = {
    "aten.conv2d.default": _conv,
    "aten.linear.default": _linear,
    "aten.batch_norm.default": _batch_norm,
    "aten.relu.default": _act("relu"),
    "aten.relu_.default": _act("relu"),
    "aten.leaky_relu.default": _leaky,
    "aten.leaky_relu_.default": _leaky,
    "aten.gelu.default": _gelu,
    "aten.elu.default": _elu,
    "aten.elu_.default": _elu,
    "aten.silu.default": _act("silu"),
    "aten.silu_.default": _act("silu"),
    "aten.tanh.default": _act("tanh"),
    "aten.sigmoid.default": _act("sigmoid"),
    "aten.softplus.default": _softplus,
    "aten.avg_pool2d.default": _avg_pool,
    "aten.adaptive_avg_pool2d.default": _global_pool,
    "aten.max_pool2d.default": _max_pool,
    "aten.flatten.using_ints": _flatten,
    "aten.view.default": _view,
    "aten.reshape.default": _view,
    "aten.dropout.default": _nothing,
    "aten.dropout_.default": _nothing,
}
AT_THE_END = ("aten.softmax.int", "aten.log_softmax.int", "aten.sigmoid.default")
"""What turns outputs into probabilities: the task implies it."""


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


def exported_network(path: Path, architecture: Architecture | None = None, *, max_bytes: int) -> ReadNetwork:
    """The network of an exported program; `architecture`, if given, must be the same."""
    try:
        with open_archive(path, max_bytes, CURE) as archive:
            root = next(name for name in archive.namelist() if name.endswith(f"/{GRAPH}")).removesuffix(GRAPH)
            model = _json(archive, root + GRAPH)["graph_module"]
            owners, inputs = _signature(model["signature"])
            state = _state(archive, root, list(owners.values()))
            steps = _steps(model["graph"], inputs, {name: state[own] for name, own in owners.items()})
            shape = sizes_of(model["graph"]["tensor_values"][inputs[0]])[1:]
    except (*BROKEN, LookupError, TypeError, AttributeError, AssertionError) as error:
        raise CheckpointError(f"{path} is damaged or of an unknown version ({error!r}); {CURE}") from error
    problems = unreadable_values(state)
    if problems:
        raise UnsupportedModelError(problems, supported=SUPPORTED)
    read = assembled(steps, shape)
    found = read.network.architecture if isinstance(read.network, ConvNetwork) else None
    if architecture not in (None, found):
        own = "" if found is None else f" are '{found.text}',"
        raise UnsupportedModelError(
            [f"the file's layers{own} not the ones given; leave --arch and --input-shape out"], supported=SUPPORTED
        )
    return read


def _steps(graph: Any, inputs: list[str], values: Values) -> list[Step]:
    """Follow the chain from the input to the output; everything off it is a problem."""
    steps: list[Step] = []
    problems, used = [], []
    if len(inputs) != 1:
        raise UnsupportedModelError([f"it has {len(inputs)} inputs, not one"], supported=SUPPORTED)
    line, last = inputs[0], graph["nodes"][-1] if graph["nodes"] else None
    for node in graph["nodes"]:
        if node["target"] == "torch.ops.aten.sym_size.int":  # the number of samples, if it is dynamic
            continue
        given = {one["name"]: one["arg"] for one in node["inputs"]}
        operation = str(node["target"]).removeprefix("torch.ops.")
        first = node["inputs"][0]["arg"].get("as_tensor", {}).get("name") if node["inputs"] else None
        if first != line:
            problems.append(f"{operation} does not take the output of the operation before it: a branch")
        used += [given[name]["as_tensor"]["name"] for name in ("weight", "bias") if _is_given(given, name)]
        try:
            if node is not last or operation not in AT_THE_END:
                step = OPERATIONS[operation](given, graph["tensor_values"], values)
                steps += [] if step is None else [step]
        except KeyError:
            problems.append(f"unsupported operation {operation}")
        except UnlikeError as unlike:
            problems.append(f"{operation} with {unlike}")
        line = node["outputs"][0]["as_tensor"]["name"]
    if [one["as_tensor"]["name"] for one in graph["outputs"]] != [line]:
        problems.append("its output is not that of the last operation")
    if len(set(used)) < len(used):
        problems.append("layers that share weights")
    if problems:
        raise UnsupportedModelError([listed(problems, "; ")], supported=SUPPORTED)
    return steps


def _signature(signature: Any) -> tuple[dict[str, str], list[str]]:
    """The parameter or buffer that each name in the graph stands for, and the names of the inputs."""
    owners, inputs = {}, []
    for one in signature["input_specs"]:
        if "parameter" in one:
            owners[one["parameter"]["arg"]["name"]] = one["parameter"]["parameter_name"]
        elif "buffer" in one:
            name = one["buffer"]["buffer_name"]
            if not name.endswith("num_batches_tracked"):
                owners[one["buffer"]["arg"]["name"]] = name
        elif "user_input" in one:
            inputs.append(one["user_input"]["arg"]["as_tensor"]["name"])
        else:
            raise UnsupportedModelError([f"an input of kind {', '.join(one)}"], supported=SUPPORTED)
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
