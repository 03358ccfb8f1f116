"""scikit-learn's multilayer perceptrons: fitted objects from Python, and .skops files, of which nothing is
executed.

A .skops file is a zip archive of schema.json, which describes the object as a tree, and of its arrays as .npy
files. Only that tree and plain arrays are read; skops itself, which would rebuild the object, is not used.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from engram.core.errors import CheckpointError, UnsupportedModelError
from engram.core.files import BROKEN, aligned, open_archive
from engram.models.activations import activation_named
from engram.models.architecture import Nonlinearity
from engram.models.open.chain import Affine, ReadNetwork, Step, Weighted, assembled

CURE = "write it again with skops.io.dump(model, path)"
SUPPORTED = (
    "MLPClassifier and MLPRegressor of scikit-learn, alone or after a StandardScaler or MinMaxScaler in a Pipeline"
)
SCHEMA = "schema.json"
MAX_SCHEMA = 64 * 1024**2
PERCEPTRONS = ("MLPClassifier", "MLPRegressor")


class Estimator(Protocol):
    """What every estimator of scikit-learn has."""

    def get_params(self, deep: bool = ...) -> Any: ...


def is_estimator(model: object) -> bool:
    """Whether this is a fitted perceptron of scikit-learn, or a pipeline; scikit-learn itself is not imported."""
    kind = type(model)
    return kind.__module__.partition(".")[0] == "sklearn" and kind.__name__ in (*PERCEPTRONS, "Pipeline")


def estimator_network(model: Any) -> ReadNetwork:
    """The network of a fitted object."""
    parts = [part for _, part in model.steps] if type(model).__name__ == "Pipeline" else [model]
    return _read([(type(part).__name__, vars(part)) for part in parts])


def is_skops(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return SCHEMA in archive.namelist()
    except BROKEN:
        return False


def skops_network(path: Path, *, max_bytes: int) -> ReadNetwork:
    """The network of a .skops file."""
    try:
        with open_archive(path, max_bytes, CURE) as archive:
            if archive.getinfo(SCHEMA).file_size > MAX_SCHEMA:
                raise CheckpointError(f"{path}: {SCHEMA} is larger than {MAX_SCHEMA:,} bytes; {CURE}")
            tree = json.loads(archive.read(SCHEMA))
            name = str(tree["__class__"])
            own = _attributes(tree, archive)
            parts = [(name, own)]
            if name == "Pipeline":
                parts = [_named(step, archive) for step in own["steps"]]
    except (*BROKEN, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged, or not a .skops file ({error!r}); {CURE}") from error
    return _read(parts)


def _named(step: Any, archive: zipfile.ZipFile) -> tuple[str, dict[str, Any]]:
    part = step["content"][1]
    return str(part["__class__"]), _attributes(part, archive)


WANTED = (
    "activation", "out_activation_", "coefs_", "intercepts_", "mean_", "scale_", "min_", "steps", "n_outputs_"
)  # fmt: skip


def _attributes(node: Any, archive: zipfile.ZipFile) -> dict[str, Any]:
    """The attributes of an object that a network needs; the others are not even read."""
    content = node["content"]["content"]
    return {name: _plain(content[name], archive) for name in WANTED if name in content}


def _plain(node: Any, archive: zipfile.ZipFile) -> Any:
    """A number, a text, an array, or a list of these; anything else is left as its description."""
    kind = node.get("__loader__")
    if kind == "JsonNode":
        return json.loads(node["content"])
    if kind == "NdArrayNode" and node.get("type") == "numpy":
        return np.load(io.BytesIO(archive.read(node["file"])), allow_pickle=False)
    if kind in ("ListNode", "TupleNode"):
        content: list[Any] = node["content"]
        if content and content[0].get("__loader__") == "NdArrayNode":
            return [_plain(one, archive) for one in content]
        return content
    return node


def _read(parts: Sequence[tuple[str, dict[str, Any]]]) -> ReadNetwork:
    names = [name for name, _ in parts]
    if not names or names[-1] not in PERCEPTRONS:
        raise UnsupportedModelError([f"it is a {' > '.join(names) or 'nothing'}"], supported=SUPPORTED)
    steps: list[Step] = []
    for name, part in parts[:-1]:
        steps.append(_scaler(name, part))
    last = parts[-1][1]
    if "coefs_" not in last:
        raise UnsupportedModelError(["it is not fitted: it has no coefs_"], supported=SUPPORTED)
    phi = str(last["activation"])
    layers = list(zip(last["coefs_"], last["intercepts_"], strict=True))
    for place, (weight, bias) in enumerate(layers):
        steps.append(Weighted(_tensor(weight).T, _tensor(bias), name=f"coefs_[{place}]"))
        if place < len(layers) - 1 and phi != "identity":
            steps.append(Nonlinearity(activation_named(phi)))
    return assembled(steps, None)


def _scaler(name: str, part: dict[str, Any]) -> Affine:
    scale = part.get("scale_")
    if name == "StandardScaler" and scale is not None:
        scale = 1 / _tensor(scale).double()
        mean = part.get("mean_")
        return Affine(scale, torch.zeros_like(scale) if mean is None else -_tensor(mean).double() * scale, name)
    if name == "MinMaxScaler" and scale is not None:
        return Affine(_tensor(scale).double(), _tensor(part["min_"]).double(), name)
    raise UnsupportedModelError([f"a {name} before the network"], supported=SUPPORTED)


def _tensor(array: Any) -> Tensor:
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or not 1 <= array.ndim <= 2 or not array.size:
        raise UnsupportedModelError(["its coefficients are not plain arrays of numbers"], supported=SUPPORTED)
    if not np.isfinite(array).all():
        raise UnsupportedModelError(["NaN or infinite coefficients: training diverged"], supported=SUPPORTED)
    return aligned(torch.from_numpy(np.ascontiguousarray(array)))
