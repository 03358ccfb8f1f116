"""Read CIFAR's pickles without running anything they name.

A pickle may name any function and have it called. Here each permitted name is replaced by an inert class that
only stores its arguments, so not even numpy's own code runs; every other name is refused.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from engram.core.errors import DataError
from engram.data.sets import within_bound


class _Inert:
    """Stores what the pickle passes; BUILD finds `__setstate__`, so it cannot set attributes."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.state: Any = ()

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(_Inert):
    """numpy's `_reconstruct(ndarray, (0,), b"b")`, then state (version, shape, dtype, fortran, data)."""


class _Buffer(_Inert):
    """numpy's `_frombuffer(data, dtype, shape, order)` of pickle protocol 5."""


class _Dtype(_Inert):
    """`dtype(code, align, copy)`, then state (version, byte order, ...)."""


class _Encoded(_Inert):
    """`_codecs.encode(text, "latin1")`: how Python 3 writes bytes in protocol 2."""


_ADMITTED: dict[str, type[_Inert]] = {
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "numpy.core.numeric._frombuffer": _Buffer,
    "numpy._core.numeric._frombuffer": _Buffer,
    "numpy.ndarray": _Inert,
    "numpy.dtype": _Dtype,
    "_codecs.encode": _Encoded,
}


class _ArraysOnly(pickle.Unpickler):
    """Looks up names only in `_ADMITTED`: nothing is imported, nothing is called."""

    def find_class(self, module: str, name: str) -> type[_Inert]:
        try:
            return _ADMITTED[f"{module}.{name}"]
        except KeyError:
            raise DataError(f"tries to load {module}.{name}") from None


def read_pickle(path: Path, wanted: Collection[str]) -> dict[str, Any]:
    """The `wanted` keys of a pickled dictionary, with numbers, text, lists and numpy arrays as values."""
    within_bound(str(path), [path.stat().st_size])
    try:
        content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="latin1").load()
        by_name = {_text(key): content[key] for key in content}
        return {key: _plain(by_name[key]) for key in wanted if key in by_name}
    except DataError as error:
        raise DataError(
            f"refused: {path} {error}; a data set needs only arrays, so this file may be hostile: "
            f"delete it and fetch it again"
        ) from error
    except Exception as error:  # damaged pickles can raise almost anything
        cause = str(error) or type(error).__name__
        raise DataError(
            f"{path} is truncated or damaged ({cause}); delete it and fetch or copy it again"
        ) from error


def _text(key: Any) -> Any:
    """A dictionary key as text, written by either Python 2 or 3."""
    if isinstance(key, _Encoded):
        return key.arguments[0]
    return key.decode("latin1") if isinstance(key, bytes) else key


def _plain(value: Any) -> Any:
    """Turn the record of an array into the array; leave everything else unchanged."""
    order: Any
    if isinstance(value, _Array):
        shape, dtype, fortran, data = value.state[-4:]
        order = "F" if fortran else "C"
    elif isinstance(value, _Buffer):
        data, dtype, shape, order = value.arguments
    else:
        return value
    if isinstance(data, _Encoded):
        data = data.arguments[0]
    code = dtype.arguments[0]
    if not re.fullmatch("[biu][1248]", code):
        raise DataError(f"contains an array of type {code!r}")
    numbers = np.frombuffer(
        data.encode("latin1") if isinstance(data, str) else data,
        np.dtype((dtype.state[1] if dtype.state else "=") + code),
    )
    return numbers.reshape(shape, order=order)
