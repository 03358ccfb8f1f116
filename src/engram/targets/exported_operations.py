"""Operations of an exported graph as layers; `given` holds their arguments, `values` every tensor's sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from engram.targets.layers import AvgPool, Conv, Dense, Flatten, Layer, ReLU


class UnlikeError(Exception):
    """An argument that the plain layer does not have."""


def sizes_of(meta: Any) -> tuple[int, ...]:
    """Sizes of a tensor; a symbolic one (a batch of any size) counts as 1."""
    sizes = tuple(size.get("as_int", 1) for size in meta["sizes"])
    if not all(type(size) is int and 0 < size < 2**31 for size in sizes):
        raise ValueError(f"sizes {sizes}")
    return sizes


def _square(given: dict[str, Any], name: str, default: int) -> int:
    """The one side of [k, k], [k] or k."""
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
        raise UnlikeError("squares that overlap, or padding")
    if given.get("ceil_mode", {}).get("as_bool") or "as_int" in given.get("divisor_override", {}):
        raise UnlikeError("ceil_mode or divisor_override")
    return AvgPool(kernel)


def _flatten(given: dict[str, Any], values: Any) -> Layer:
    if given.get("start_dim", {}).get("as_int") != 1 or given.get("end_dim", {"as_int": -1}).get("as_int") != -1:
        raise UnlikeError("other dimensions than all but the first")
    return Flatten()


def _view(given: dict[str, Any], values: Any) -> Layer:
    """view(n, -1) and reshape(n, -1) are flatten, whatever n the model was exported with."""
    asked = given.get("size", given.get("shape", {}))
    before = sizes_of(values[given["self"]["as_tensor"]["name"]])
    # A size with a name is the number of samples, which `_sizes` counts as 1.
    sizes = asked.get("as_ints") or [one.get("as_int", 1) for one in asked.get("as_sym_ints", [])]
    rest = math.prod(before[1:])
    if sizes not in ([before[0], -1], [before[0], rest], [-1, rest]):
        raise UnlikeError(f"sizes {sizes}")
    return Flatten()


def _linear(given: dict[str, Any], values: Any) -> Layer:
    return Dense(sizes_of(values[given["weight"]["as_tensor"]["name"]])[0])


def _nothing(given: dict[str, Any], values: Any) -> None:
    """Dropout in evaluation, and copies."""
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
