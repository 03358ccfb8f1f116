"""ONNX files: chains of Gemm, MatMul, Add, Conv, activations, pooling and normalisation. Nothing is executed.

The package onnx parses the file, which is plain data. Weights outside the file are read only from NAME.onnx.data
beside NAME.onnx, where torch.onnx.export puts them; any other place is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engram.core.errors import CheckpointError, UnsupportedModelError, optional
from engram.core.files import aligned
from engram.models.activations import Leaky, activation_named
from engram.models.architecture import AvgPool, Flatten, MaxPool, Nonlinearity, Shape
from engram.models.open.chain import SUPPORTED, Affine, ReadNetwork, Step, UnlikeError, Weighted, assembled
from engram.models.open.state_dict import listed

CURE = "export it again with torch.onnx.export(model.eval(), ...)"
MAX_NODES = 2000
NOTHING = frozenset({"Identity", "Dropout", "Cast"})
AT_THE_END = frozenset({"Softmax", "LogSoftmax", "Sigmoid", "ArgMax", "ZipMap", "Cast", "ArrayFeatureExtractor",
                        "Reshape", "Squeeze", "Normalizer", "Identity"})  # fmt: skip
"""What turns outputs into probabilities and labels: the task implies it."""
READABLE = {1: np.float32, 10: np.float16, 11: np.float64}
WHOLE = {6: np.int32, 7: np.int64}


def onnx_network(path: Path, *, max_bytes: int) -> ReadNetwork:
    """The network of an .onnx file."""
    onnx = optional("onnx", wanted_by="an .onnx file", install="engram[onnx]")
    try:
        graph = onnx.load(str(path), load_external_data=False).graph
        return _Reader(path, graph, max_bytes).network()
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, OSError, UnlikeError) as error:
        raise CheckpointError(
            f"{path} is damaged, or not an ONNX file that can be read ({error}); {CURE}"
        ) from error
    except Exception as error:  # protobuf's own errors, by whatever name this version gives them
        if type(error).__module__.partition(".")[0] != "google":
            raise
        raise CheckpointError(f"{path} is not an ONNX file, or truncated ({error}); {CURE}") from error


Claims = dict[str, tuple[Tensor, bool]]
"""New tensors by the names of old ones, and whether they are transposed there."""


def onnx_rewritten(
    path: Path, claims_of: Callable[[dict[str, Tensor]], Claims | None], *, max_bytes: int
) -> bytes | None:
    """An .onnx file with other weights, all of them inside it; None if the weights to replace are not found."""
    onnx = optional("onnx", wanted_by="an .onnx file", install="engram[onnx]")
    model = onnx.load(str(path), load_external_data=False)
    reader = _Reader(path, model.graph, max_bytes)
    reader._initialisers()
    if (claims := claims_of(reader.constants)) is None:
        return None
    for one in model.graph.initializer:
        value = reader.constants[one.name]
        if one.name in claims:
            new, turned = claims[one.name]
            value = new.T if turned else new
        kind = {**READABLE, **WHOLE}.get(one.data_type)
        if kind is None:
            return None
        stored = np.ascontiguousarray(value.detach().cpu().numpy().astype(kind))
        one.CopyFrom(onnx.numpy_helper.from_array(stored, one.name))
    content: bytes = model.SerializeToString()
    return content


@dataclass(eq=False)
class _Reader:
    """Follows the line of values from the input; constants meet it as weights."""

    path: Path
    graph: Any
    max_bytes: int
    steps: list[Step] = field(default_factory=list)
    constants: dict[str, Tensor] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def network(self) -> ReadNetwork:
        if not 0 < len(self.graph.node) <= MAX_NODES:
            raise ValueError(f"{len(self.graph.node)} operations")
        self._initialisers()
        names = [one for one in self.graph.input if one.name not in self.constants]
        if len(names) != 1:
            raise UnsupportedModelError([f"it has {len(names)} inputs, not one"], supported=SUPPORTED)
        shape = _sizes(names[0])
        line, waiting = names[0].name, [node for node in self.graph.node if not self._is_constant(node)]
        gates: dict[str, str] = {}  # the parts of a GELU or SiLU that exporters write out
        for place, node in enumerate(waiting):
            if line not in node.input and not any(name in gates for name in node.input):
                if self._is_tail(waiting[place:]):
                    break
                self.problems.append(f"{node.op_type} {node.name} is not in line with the others: a branch")
                continue
            written_out = _written_out(waiting[place:], line)
            if written_out is not None:
                kind, line, used = written_out
                self.steps.append(Nonlinearity(activation_named(kind)))
                gates |= dict.fromkeys(used, kind)
                continue
            if any(name in gates for name in node.output):
                continue
            if self._is_tail(waiting[place:]) and any(isinstance(step, Weighted) for step in self.steps):
                break
            self._read(node, line)
            line = node.output[0]
        if self.problems:
            raise UnsupportedModelError(
                [f"operations that can't be read: {listed(self.problems)}"], supported=SUPPORTED
            )
        return assembled(_joined(self.steps), shape)

    def _initialisers(self) -> None:
        total = 0
        for one in self.graph.initializer:
            total += int(np.prod(one.dims, dtype=np.int64)) * 8
            if total > 2 * self.max_bytes:
                raise ValueError(f"it claims more than {self.max_bytes:,} bytes of weights")
            self.constants[one.name] = self._tensor(one)

    def _is_constant(self, node: Any) -> bool:
        """Remember what depends on no input: a Constant, or a weight in another form."""
        if node.op_type == "Constant":
            value = next((one for one in node.attribute if one.name == "value"), None)
            if value is None:
                raise UnlikeError("a Constant without a tensor")
            self.constants[node.output[0]] = self._tensor(value.t)
            return True
        known = [name in self.constants for name in node.input if name]
        if node.op_type in ("Transpose", "Identity") and known == [True]:
            value = self.constants[node.input[0]]
            order = _attributes(node).get("perm") or list(reversed(range(value.ndim)))
            self.constants[node.output[0]] = value.permute(*order) if node.op_type == "Transpose" else value
            return True
        return False

    def _is_tail(self, nodes: Any) -> bool:
        return all(node.op_type in AT_THE_END for node in nodes)

    def _tensor(self, proto: Any) -> Tensor:
        shape = tuple(int(side) for side in proto.dims)
        if any(side < 0 for side in shape):
            raise ValueError(f"{proto.name} has sizes {shape}")
        kind = READABLE.get(proto.data_type) or WHOLE.get(proto.data_type)
        if kind is None:
            raise UnsupportedModelError(
                [f"{proto.name} is not a tensor of plain numbers (type {proto.data_type}): quantised, or bytes; "
                 "export the floating-point model"], supported=SUPPORTED
            )  # fmt: skip
        expected = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
        if proto.data_location == 1:
            array = np.frombuffer(self._beside(proto, expected), kind)
        elif proto.raw_data:
            array = np.frombuffer(proto.raw_data, kind)
        else:
            array = np.asarray({1: proto.float_data, 11: proto.double_data, 6: proto.int32_data,
                                7: proto.int64_data}.get(proto.data_type, []), kind)  # fmt: skip
        if array.nbytes != expected:
            raise ValueError(f"{proto.name} has {array.nbytes} bytes instead of {expected}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UnsupportedModelError(
                [f"{proto.name} has NaN or infinite values; training diverged, or the file is damaged"],
                supported=SUPPORTED,
            )
        return aligned(torch.from_numpy(array.reshape(shape).copy()))

    def _beside(self, proto: Any, expected: int) -> bytes:
        """Weights in NAME.onnx.data beside the file, and nowhere else."""
        given = {one.key: one.value for one in proto.external_data}
        own = f"{self.path.name}.data"
        if given.get("location") != own:
            raise CheckpointError(
                f"{self.path} keeps weights in {str(given.get('location'))[:80]!r}; only {own} beside it is read. "
                "Export it with external_data=False"
            )
        place = self.path.parent / own
        if not place.is_file() or place.is_symlink():
            raise CheckpointError(
                f"{self.path} keeps its weights in {own}, which is not beside it; copy both files"
            )
        offset, length = int(given.get("offset", 0)), int(given.get("length", expected))
        if length != expected or offset < 0 or offset + length > place.stat().st_size:
            raise ValueError(f"{proto.name} extends past the end of {own}")
        with place.open("rb") as stream:
            stream.seek(offset)
            return stream.read(length)

    def _read(self, node: Any, line: str) -> None:
        try:
            self.steps += OPERATIONS[node.op_type](self, node, line)
        except KeyError:
            self.problems.append(f"{node.op_type} {node.name}".strip())
        except UnlikeError as unlike:
            self.problems.append(f"{node.op_type} {node.name} with {unlike}")

    def weight(self, node: Any, place: int) -> Tensor | None:
        """The constant at a place of the inputs; None where there is none."""
        if place >= len(node.input) or not node.input[place]:
            return None
        if node.input[place] not in self.constants:
            raise UnlikeError("weights that are computed")
        return self.constants[node.input[place]]

    def required(self, node: Any, place: int) -> Tensor:
        found = self.weight(node, place)
        if found is None:
            raise UnlikeError("a weight that is missing")
        return found

    def other(self, node: Any, line: str) -> tuple[Tensor, bool]:
        """The constant that meets the line in an operation of two values, and whether it comes second."""
        second = node.input[0] == line
        return self.required(node, 1 if second else 0), second


def _gemm(reader: _Reader, node: Any, line: str) -> list[Step]:
    given = _attributes(node)
    if given.get("transA") or given.get("alpha", 1.0) != 1.0 or given.get("beta", 1.0) != 1.0:
        raise UnlikeError("transA, alpha or beta")
    weight, bias = reader.required(node, 1), reader.weight(node, 2)
    weight = weight if given.get("transB") else weight.T
    return [Weighted(weight, None if bias is None else bias.flatten().expand(len(weight)), name=node.name)]


def _matmul(reader: _Reader, node: Any, line: str) -> list[Step]:
    weight, second = reader.other(node, line)
    if not second or weight.ndim != 2:
        raise UnlikeError("a matrix on the left, or more than two axes")
    return [Weighted(weight.T, name=node.name)]


def _add(reader: _Reader, node: Any, line: str) -> list[Step]:
    shift = reader.other(node, line)[0].double().flatten()
    return [Affine(torch.ones_like(shift), shift, "" if _follows_matmul(reader, shift) else node.name)]


def _sub(reader: _Reader, node: Any, line: str) -> list[Step]:
    shift, second = reader.other(node, line)
    if not second:
        raise UnlikeError("the values on the right")
    shift = shift.double().flatten()
    return [Affine(torch.ones_like(shift), -shift, node.name)]


def _mul(reader: _Reader, node: Any, line: str) -> list[Step]:
    scale = reader.other(node, line)[0].double().flatten()
    return [Affine(scale, torch.zeros_like(scale), node.name)]


def _div(reader: _Reader, node: Any, line: str) -> list[Step]:
    scale, second = reader.other(node, line)
    if not second or bool((scale == 0).any()):
        raise UnlikeError("the values on the right, or zeros")
    scale = 1 / scale.double().flatten()
    return [Affine(scale, torch.zeros_like(scale), node.name)]


def _follows_matmul(reader: _Reader, shift: Tensor) -> bool:
    last = reader.steps[-1] if reader.steps else None
    return isinstance(last, Weighted) and last.bias is None and len(shift) == len(last.weight)


def _conv(reader: _Reader, node: Any, line: str) -> list[Step]:
    weight, given = reader.required(node, 1), _attributes(node)
    if weight.ndim != 4 or weight.shape[2] != weight.shape[3]:
        raise UnlikeError(f"kernels {list(weight.shape)}")
    return [
        Weighted(
            weight,
            reader.weight(node, 2),
            _same(given, "strides", 1),
            _padding(given),
            _same(given, "dilations", 1),
            int(given.get("group", 1)),
            node.name,
        )
    ]


def _batch_norm(reader: _Reader, node: Any, line: str) -> list[Step]:
    gamma, beta, mean, variance = (reader.required(node, place) for place in (1, 2, 3, 4))
    return [
        Affine.batch_norm(mean, variance, gamma, beta, float(_attributes(node).get("epsilon", 1e-5)), node.name)
    ]


def _max_pool(reader: _Reader, node: Any, line: str) -> list[Step]:
    given = _attributes(node)
    if given.get("ceil_mode") or _same(given, "dilations", 1) != 1:
        raise UnlikeError("ceil_mode or dilation")
    return [MaxPool(_same(given, "kernel_shape", 0), _same(given, "strides", 1), _padding(given))]


def _avg_pool(reader: _Reader, node: Any, line: str) -> list[Step]:
    given = _attributes(node)
    kernel = _same(given, "kernel_shape", 0)
    if given.get("ceil_mode") or _same(given, "strides", 1) != kernel or _padding(given):
        raise UnlikeError("ceil_mode, overlapping squares or padding")
    return [AvgPool(kernel)]


def _flatten(reader: _Reader, node: Any, line: str) -> list[Step]:
    if _attributes(node).get("axis", 1) != 1:
        raise UnlikeError("another axis than 1")
    return [Flatten()]


def _reshape(reader: _Reader, node: Any, line: str) -> list[Step]:
    sizes = reader.required(node, 1).flatten().tolist()
    if len(sizes) != 2:
        raise UnlikeError(f"sizes {sizes}")
    return [Flatten()]


def _leaky(reader: _Reader, node: Any, line: str) -> list[Step]:
    return [Nonlinearity(Leaky(round(float(_attributes(node).get("alpha", 0.01)), 6)))]


def _elu(reader: _Reader, node: Any, line: str) -> list[Step]:
    if _attributes(node).get("alpha", 1.0) != 1.0:
        raise UnlikeError("alpha")
    return [Nonlinearity(activation_named("elu"))]


def _gelu(reader: _Reader, node: Any, line: str) -> list[Step]:
    tanh = _attributes(node).get("approximate", b"none") in (b"tanh", "tanh")
    return [Nonlinearity(activation_named("gelu-tanh" if tanh else "gelu"))]


def _plain(name: str) -> Operation:
    return lambda reader, node, line: [Nonlinearity(activation_named(name))]


Operation = Callable[[_Reader, Any, str], list[Step]]
OPERATIONS: dict[str, Operation] = {
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Add": _add,
    "Sub": _sub,
    "Mul": _mul,
    "Div": _div,
    "Conv": _conv,
    "BatchNormalization": _batch_norm,
    "MaxPool": _max_pool,
    "AveragePool": _avg_pool,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "Relu": _plain("relu"),
    "LeakyRelu": _leaky,
    "Elu": _elu,
    "Gelu": _gelu,
    "Sigmoid": _plain("sigmoid"),
    "Tanh": _plain("tanh"),
    "Softplus": _plain("softplus"),
    "Swish": _plain("silu"),
    **dict.fromkeys(NOTHING, lambda reader, node, line: []),
}

# op types in the order in which exporters write GELU and SiLU out
WRITTEN_OUT = {
    "gelu": (("Div", "Erf", "Add", "Mul", "Mul"), ("Mul", "Erf", "Add", "Mul", "Mul")),
    "silu": (("Sigmoid", "Mul"),),
}


def _written_out(nodes: Any, line: str) -> tuple[str, str, list[str]] | None:
    """A GELU or SiLU of several operations that begins here: its name, its output, and all their outputs."""
    for kind, forms in WRITTEN_OUT.items():
        for form in forms:
            some = nodes[: len(form)]
            if tuple(node.op_type for node in some) != form or line not in some[0].input:
                continue
            used = [name for node in some for name in node.output]
            if any(line in node.input for node in some[1:]) and any(
                name in some[-1].input for name in (*used, line)
            ):
                return kind, some[-1].output[0], used
    return None


def _joined(steps: list[Step]) -> list[Step]:
    """Each bias that was added after its matrix product, as part of the layer: it is no normalisation."""
    made: list[Step] = []
    for step in steps:
        last = made[-1] if made else None
        if isinstance(step, Affine) and step.name == "" and isinstance(last, Weighted) and last.bias is None:
            made[-1] = Weighted(last.weight, step.shift.to(last.weight), name=last.name)
        else:
            made.append(step)
    return made


def _attributes(node: Any) -> dict[str, Any]:
    """Numbers, lists of numbers and texts of a node, by name."""
    fields = {1: "f", 2: "i", 3: "s", 6: "floats", 7: "ints"}
    known = [one for one in node.attribute if one.type in fields]
    lists = {one.name: list(getattr(one, fields[one.type])) for one in known if one.type in (6, 7)}
    return {one.name: getattr(one, fields[one.type]) for one in known} | lists


def _same(given: dict[str, Any], name: str, default: int) -> int:
    values = given.get(name) or [default]
    if len(set(values)) != 1:
        raise UnlikeError(f"{name} {values}")
    return int(values[0])


def _padding(given: dict[str, Any]) -> int:
    if given.get("auto_pad", b"NOTSET") not in (b"NOTSET", "NOTSET", b"VALID"):
        raise UnlikeError("auto_pad; export it with numbers")
    return _same(given, "pads", 0)


def _sizes(value: Any) -> Shape | None:
    """The shape of one input, if the file gives it."""
    sides = [int(one.dim_value) for one in value.type.tensor_type.shape.dim[1:]]
    return tuple(sides) if sides and all(0 < side < 2**31 for side in sides) else None
